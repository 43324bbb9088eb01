"""How algorithms are composed of others that run inside groups of ranks: nodes, teams of a node, lanes across nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm
from typing import Any, TypeAlias

from collectives.parameters import Parameter
from collectives.problem import Nodes, Problem
from collectives.registry import Algorithm, Primitive
from collectives.rounds import Chunk, Rounds, among, together
from collectives.vector import blocks, offsets

Group: TypeAlias = tuple[int, ...]
Parts: TypeAlias = Callable[[Any], Sequence[Chunk]]

USUAL = {
    "allgather": "ring",
    "alltoall": "spread",
    "broadcast": "binomial",
    "gather": "binomial",
    "reduce": "binomial",
    "reduce_scatter": "pairwise",
    "scatter": "binomial",
}
"""The algorithm of each primitive that takes part where it has none of the name that is asked for."""


def inside(primitive: Primitive, inner: str) -> Algorithm:
    """Return the algorithm `inner` of `primitive`, or its usual one if it has none of that name."""
    return primitive.algorithms.get(inner) or primitive.algorithms[USUAL[primitive.name]]


@dataclass(frozen=True)
class PartOf:
    """A parameter that names an algorithm of one of these primitives, as a part of which others are composed."""

    primitives: tuple[Primitive, ...]

    def names(self) -> list[str]:
        """Return the names that there are."""
        every = (one for primitive in self.primitives for one in primitive.algorithms.values() if not one.takes_nodes)
        return list(dict.fromkeys(one.name for one in every))

    def misfit(self, value: Parameter) -> str | None:
        """Return which names there are if `value` is none of them, None if it is."""
        return None if value in self.names() else f"one of {', '.join(self.names())}"


@dataclass(frozen=True)
class Composition:
    """Of which primitives' algorithms an algorithm consists: those inside nodes, and the one between them."""

    inner: tuple[Primitive, ...]
    outer: Primitive
    in_lanes: bool = False

    def _algorithms(self, nodes: Nodes, inner: str, outer: str) -> Iterator[tuple[Algorithm, int]]:
        for nranks in sorted(set(map(len, nodes))):
            yield from ((inside(primitive, inner), nranks) for primitive in self.inner)
        yield self.outer.algorithms[outer], len(nodes)

    def parts(self, problem: Problem, inner: str, outer: str, **other: object) -> list[tuple[Algorithm, Problem]]:
        """Return the parts, each with its problem."""
        *within, (between, nnodes) = self._algorithms(problem.groups, inner, outer)
        parts = [(algorithm, algorithm.primitive.problem(nranks, problem.count)) for algorithm, nranks in within]
        apart = tuple((node,) for node in range(nnodes))
        return [*parts, (between, between.primitive.problem(nnodes, problem.count, nodes=apart))]

    def chunks(self, nranks: int, nodes: Nodes, inner: str, outer: str, leaders: int = 1) -> int:
        """Return into how many chunks a vector is cut: for each slice so many that all parts can cut it."""
        found = self._algorithms(nodes, inner, outer)
        cuts = [algorithm.nchunks(members) for algorithm, members in found if algorithm.primitive.vector]
        return self._nslices(nodes, leaders) * lcm(*cuts)

    def slices(self, nranks: int, nodes: Nodes, inner: str, outer: str, leaders: int = 1) -> list[range]:
        """Return the chunks of each leader, or of each lane."""
        nslices = self._nslices(nodes, leaders)
        length = self.chunks(nranks, nodes, inner, outer, leaders) // nslices
        return [range(first, first + length) for first in range(0, nslices * length, length)]

    def _nslices(self, nodes: Nodes, leaders: int) -> int:
        return max(map(len, nodes)) if self.in_lanes else leaders


def run(
    groups: Iterable[Sequence[int]],
    rank: int,
    algorithm: Algorithm,
    parts: Callable[[Group], Parts],
    root: Callable[[Group], int] | None = None,
) -> Rounds:
    """Run an algorithm inside each of `groups`, which have no rank in common, side by side.

    `parts` gives for a group which chunks those of the algorithm stand for, `root` which of its ranks is the root. A
    rank goes through what its own group does, in as many rounds as the longest takes.
    """
    every = [tuple(group) for group in groups]
    different = {len(group): group for group in every}  # one of each length, to see how many rounds it takes
    chosen = {*different.values(), *(group for group in every if rank in group)}

    def as_member(group: Group) -> Callable[[int, int], Rounds]:
        rooted = {} if root is None else {"root": group.index(root(group))}
        return lambda index, nranks: algorithm.generate(index, nranks, **rooted, **algorithm.parameters)

    def names(group: Group) -> Parts:
        """Let a part in a chunk, named ``(..., chunk)``, stand for parts in those that the chunk stands for."""
        names_of = parts(group)
        if not algorithm.primitive.vector:
            return names_of
        return lambda chunk: (
            [(*chunk[:-1], one) for one in names_of(chunk[-1])] if isinstance(chunk, tuple) else names_of(chunk)
        )

    yield from together(
        *(among(group, rank, as_member(group), parts=names(group)) for group in every if group in chosen)
    )


def cut(algorithm: Algorithm, chunks: Sequence[Chunk]) -> Callable[[Group], Parts]:
    """Let the chunks into which `algorithm` cuts a vector be equal parts of `chunks`."""

    def parts(group: Group) -> Parts:
        counts = blocks(len(chunks), algorithm.nchunks(len(group)))
        starts = offsets(counts)
        return lambda chunk: chunks[starts[chunk] : starts[chunk] + counts[chunk]]

    return parts


@dataclass(frozen=True)
class Teams:
    """Each node's ranks cut into teams, one for each leader, who is the first of it. The root is the first of all."""

    nodes: Nodes
    leaders: int
    root: int = -1

    @cached_property
    def by_node(self) -> dict[Group, list[Group]]:
        """The teams of each node."""
        return {node: list(self._teams(node)) for node in self.nodes}

    def _teams(self, node: Group) -> Iterator[Group]:
        ordered = tuple(sorted(node, key=lambda rank: rank != self.root))
        counts = blocks(len(node), self.leaders)
        return (ordered[start : start + count] for start, count in zip(offsets(counts), counts, strict=True))

    @cached_property
    def all(self) -> list[Group]:
        """All teams of all nodes."""
        return [team for teams in self.by_node.values() for team in teams]

    @cached_property
    def lanes(self) -> dict[Group, list[Group]]:
        """For each position the leaders of that position on all nodes, with their teams."""
        positions = map(list, zip(*self.by_node.values(), strict=True))
        return {tuple(team[0] for team in teams): teams for teams in positions}

    def leader(self, position: int) -> Callable[[Group], int]:
        """Return a function that gives the leader of this position on a node."""
        return lambda node: self.by_node[node][position][0]

    def stand_for(self, position: int) -> list[int]:
        """Return all ranks in the teams of this position."""
        return [rank for teams in self.by_node.values() for rank in teams[position]]


def first(group: Group) -> int:
    """Return the first of a group."""
    return group[0]


def on(home: Group) -> Callable[[Group], int]:
    """Return a function that gives the rank of a group that is on the node `home`."""
    return lambda group: next(rank for rank in group if rank in home)


def home_of(nodes: Nodes, rank: int) -> Group:
    """Return the node of `rank`."""
    return next(node for node in nodes if rank in node)


def lanes_of(nodes: Nodes) -> list[Group]:
    """Return for each position in a node the ranks of that position on all nodes."""
    return list(zip(*nodes, strict=True))
