"""The MPI library's own algorithms among the contenders: which are meant, what shows that they ran.

`native:ring` is the library's ring, `native:all` stands for every algorithm that it lists for a primitive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.rows import is_forced, is_nccl
from bench.usage import UsageError
from collectives.registry import Primitive

if TYPE_CHECKING:
    from collectives.choices import Library

PREFIX = "native:"
EVERY = f"{PREFIX}all"


@dataclass(frozen=True)
class OwnAlgorithms:
    """What the library at hand can be told to run: nothing where it cannot be told, and `refusal` says why."""

    library: Library | None = None
    refusal: str = ""

    def names(self, primitive: Primitive) -> list[str]:
        """Return what can be named for `primitive`: `native:ring` and the like, and what stands for all of them."""
        found = [] if self.library is None else [one.label({}) for one in self.library.choices(primitive)]
        return [*found, EVERY] if found else []

    def labels(self, primitive: Primitive, specification: str) -> list[str]:
        """Return what `specification` names for `primitive`, each followed by our own of the same algorithm.

        Nothing where the library has none of that name for this primitive.

        Raises:
            UsageError: a parameter that the algorithm does not have, or a value that does not fit.

        """
        from collectives.choices import Request, find

        if name_of(specification) == EVERY != specification:
            raise UsageError("--algorithm", specification, f"{EVERY} is several: name one to give it parameters")
        choices = [] if self.library is None else self.library.choices(primitive)
        if self.library is None or name_of(specification) not in [EVERY, *(one.label({}) for one in choices)]:
            return []
        try:
            if specification == EVERY:
                requests = [Request(one, {}) for one in choices]
            else:
                requests = [find(self.library, primitive, specification)]
            for request in requests:
                self.library.settings(request)
        except ValueError as error:
            raise UsageError("--algorithm", specification, str(error)) from error
        pairs = [(request.label, self.library.counterpart(request)) for request in requests]
        return [name for pair in pairs for name in pair if name]


NOTHING = OwnAlgorithms()


def name_of(specification: str) -> str:
    """Return a specification without its parameters: `native:knomial` of `native:knomial:radix=4`."""
    return ":".join(specification.split(":")[: 2 if is_forced(specification) else 1])


def own_algorithms(words: Iterable[str]) -> OwnAlgorithms:
    """Return what the library can be told to run, if one of the `words` of a command asks for such a thing."""
    if not any(PREFIX in word for word in words):
        return NOTHING
    from collectives.choices import library
    from collectives.mpit import ToolError, ToolInterface

    try:
        return OwnAlgorithms(library(ToolInterface()))  # left open: the job needs it to its end
    except ToolError as reason:
        return OwnAlgorithms(refusal=str(reason))


def told(label: str, plans: Sequence[Any]) -> dict[str, Any]:
    """Return the columns of a row that say what the library ran and what shows it. All ranks; it may take seconds."""
    if is_nccl(label):
        return _told_of_nccl(label, plans)
    if not is_forced(label):
        return {}
    if not plans:
        return {"requested": label}
    plan = plans[0].innermost
    return {
        "algorithm": plan.effective,
        "requested": plan.requested,
        "proved": plan.prove(),
        "evidence": plan.why,
        "forced_with": plan.settings,
        "counterpart": plan.counterpart or "",
    }


def _told_of_nccl(label: str, plans: Sequence[Any]) -> dict[str, Any]:
    found = {"form": plans[0].form} if plans else {}
    algorithm = label.partition(":")[2]
    if algorithm:
        told = {"proved": False, "evidence": "NCCL does not tell what it ran", "forced_with": f"NCCL_ALGO={algorithm}"}
        found |= told
    return found
