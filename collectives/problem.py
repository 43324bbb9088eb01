"""A problem: one instance of a primitive, with its ranks, counts and root."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from collectives.vector import blocks

if TYPE_CHECKING:
    from collectives.registry import Primitive

Nodes: TypeAlias = tuple[tuple[int, ...], ...]
"""The ranks of each node; the nodes in the order of their lowest rank."""


def nodes_of(nranks: int, ppn: int) -> Nodes:
    """Return nodes of `ppn` ranks after one another; the last has what is left.

    Raises:
        ValueError: `ppn` is less than 1.

    """
    if ppn < 1:
        raise ValueError(f"{ppn} ranks on a node; at least 1 is needed")
    return tuple(tuple(range(first, min(first + ppn, nranks))) for first in range(0, nranks, ppn))


@dataclass(frozen=True)
class Problem:
    """One instance of a primitive.

    `count` is the elements of the whole vector, as nccl-tests counts them: the user buffer for broadcast, reduce,
    all-reduce and send/recv, ranks x block for the others. `counts` are the blocks of each rank where they are not the
    even cut of `count`; for all-to-all it is a matrix, row by source. `nodes` are the ranks of each node, None if all
    are on one.
    """

    primitive: Primitive
    nranks: int
    count: int
    root: int = 0
    counts: tuple[Any, ...] | None = None
    in_place: bool = False
    nodes: Nodes | None = None

    def __post_init__(self) -> None:
        if self.nranks < 1:
            raise ValueError(f"{self.primitive.name}: {self.nranks} ranks; at least 1 is needed")
        if self.count < 0:
            raise ValueError(f"{self.primitive.name}: count {self.count} is negative")
        if not 0 <= self.root < self.nranks:
            raise ValueError(f"{self.primitive.name}: root {self.root} is none of the ranks 0 to {self.nranks - 1}")
        if self.counts is not None and len(self.counts) != self.nranks:
            raise ValueError(
                f"{self.primitive.name}: {len(self.counts)} counts for {self.nranks} ranks; give one for each rank"
            )
        if self.nodes is not None and sorted(chain.from_iterable(self.nodes)) != list(range(self.nranks)):
            raise ValueError(
                f"{self.primitive.name}: nodes {self.nodes} do not hold each of the ranks 0 to {self.nranks - 1} once"
            )

    @property
    def groups(self) -> Nodes:
        """The ranks of each node."""
        return self.nodes or (tuple(range(self.nranks)),)

    @cached_property
    def block_counts(self) -> tuple[Any, ...]:
        """The elements of each rank's block."""
        return blocks(self.count, self.nranks) if self.counts is None else tuple(self.counts)

    @cached_property
    def longest_block(self) -> int:
        """The elements of the longest block; of all-to-all's matrix, of the longest of all."""
        return max(max(one) if isinstance(one, tuple) else one for one in self.block_counts)

    @property
    def even(self) -> bool:
        """Whether all blocks have the same number of elements."""
        return len(set(self.block_counts)) == 1
