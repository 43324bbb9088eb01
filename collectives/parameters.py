"""Parameters of algorithms and plans, and which values fit: what the type of each says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, TypeAlias, get_args, get_origin

from collectives.names import assigned

Parameter: TypeAlias = int | float | str

PLAN_PARAMETERS: Mapping[str, Any] = {
    "waits": Literal["round", "data"],
    "piece": int,
    "cuts": int,
    "pack_from": int,
    "accumulate": str,
}
"""What any algorithm's plan can be told: see `collectives.cutting.Options` (sizes in bytes) and `accumulate`."""


class Rule(Protocol):
    """What values of a parameter must be beyond their type: ``Annotated[int, AtLeast(2)]``."""

    def misfit(self, value: Parameter) -> str | None:
        """Return in words what a value may be if `value` is not that, None if it is."""


@dataclass(frozen=True)
class AtLeast:
    """The least value of a whole number, which is 1 where nothing is said."""

    value: int

    def misfit(self, value: Parameter) -> str | None:
        """Return which numbers fit if `value` does not, None if it does."""
        return None if isinstance(value, int) and value >= self.value else f"a whole number of at least {self.value}"


Radix: TypeAlias = Annotated[int, AtLeast(2)]
"""The base of the numbers by whose digits an algorithm goes."""


def misfit(kind: Any, value: Parameter) -> str | None:
    """Return in words what a parameter of type `kind` may be if `value` is not that, None if it is."""
    if get_origin(kind) is Literal:
        return None if value in get_args(kind) else f"one of {', '.join(map(str, get_args(kind)))}"
    if kind is str:
        return None if isinstance(value, str) else "a name"
    rule: Rule = get_args(kind)[1] if get_origin(kind) is Annotated else AtLeast(1)
    return rule.misfit(value)


def parameter_of(word: str) -> tuple[str, Parameter]:
    """Return the name and the value of a parameter that is written ``segments=16``.

    Raises:
        UnknownNameError: it is not written so.

    """
    key, text = assigned(word, "segments=16")
    try:
        return key, int(text)
    except ValueError:
        return key, text
