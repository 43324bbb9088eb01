"""Names as people write them, ``chain:segments=16``, and the refusal of those that do not exist."""

from __future__ import annotations

NATIVE = "native"
NATIVE_FORMS = (NATIVE, "native_persistent")
"""The MPI library's own call, and its persistent form."""

NCCL = "nccl"
NCCL_FORMS = (NCCL, "nccl:ring", "nccl:tree")
"""NCCL as it chooses by itself, and as it is told to."""


class UnknownNameError(ValueError):
    """Something was named that does not exist, as a primitive or an algorithm; the message lists what does."""


def assigned(word: str, example: str) -> tuple[str, str]:
    """Return the two sides of ``name=value``.

    Raises:
        UnknownNameError: `word` is not written so; the message gives `example`.

    """
    name, equals, value = word.partition("=")
    if not (name and equals and value):
        raise UnknownNameError(f"{word!r} is not a parameter; write it as name=value, for example {example}")
    return name, value
