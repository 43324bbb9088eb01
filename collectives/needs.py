"""Preconditions of primitives and algorithms, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from collectives.problem import Problem


@dataclass(frozen=True)
class Need:
    """A precondition of an algorithm, as data: its words, and whether it is met."""

    words: str
    met: Callable[[Problem, bool], bool]


POWER_OF_TWO = Need("a number of ranks that is a power of two", lambda p, commutative: not p.nranks & (p.nranks - 1))
EVEN = Need("an even number of ranks", lambda p, commutative: p.nranks % 2 == 0 or p.nranks == 1)
COMMUTATIVE = Need("a commutative operation", lambda p, commutative: commutative)
SHARED_MEMORY = Need("all ranks on one node, to share memory", lambda p, commutative: len(p.groups) == 1)
TWO_RANKS = Need("at least two ranks", lambda p, commutative: p.nranks >= 2)
