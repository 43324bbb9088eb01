"""Algorithms composed of flat ones: some inside the nodes, others between them, so that few bytes leave a node.

`two_level` has one leader on each node, `multi_leader` several, each with a team of the node's ranks and a slice of the
data (Bayatpour et al. 2017). `multi_lane` lets every rank of a node deal with its slice, among the ranks of the same
position on all nodes, its lane (Traff and Hunold 2020). `inner` names the parts inside nodes, `outer` those between
them. A primitive that has no algorithm called as `inner` says takes part with its usual one.

Nodes may hold different numbers of ranks, and any of them: what runs inside of nodes runs in all at once, and chunks
keep their names wherever they go. All combine in another order than that of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, TypeAlias

from collectives.allgather import allgather, allgatherv
from collectives.allreduce import allreduce
from collectives.alltoall import alltoall
from collectives.alltoallv import alltoallv
from collectives.broadcast import broadcast
from collectives.composition import (
    Composition,
    Group,
    PartOf,
    Parts,
    Teams,
    cut,
    first,
    home_of,
    inside,
    lanes_of,
    on,
    run,
)
from collectives.gather import gather
from collectives.needs import COMMUTATIVE, Need
from collectives.problem import Nodes
from collectives.reduce import reduce
from collectives.reduce_scatter import reduce_scatter, reduce_scatterv
from collectives.registry import algorithm_of
from collectives.rounds import Rounds, together
from collectives.scatter import scatter

Inner: TypeAlias = Annotated[str, PartOf((allgather, alltoall, broadcast, gather, reduce, reduce_scatter, scatter))]

EQUAL_NODES = Need("the same number of ranks on every node", lambda p, commutative: len(set(map(len, p.groups))) == 1)


def leaders_on_every_node(leaders: int, **parameters: object) -> tuple[Need, ...]:
    """So many ranks must there be on every node."""
    words = f"at least {leaders} ranks on every node"
    return (Need(words, lambda p, commutative: min(map(len, p.groups)) >= leaders),)


# ---------------------------------------------------------------------------------------------------------------
# All-reduce

LED = Composition((reduce, broadcast), allreduce)
IN_LANES = Composition((reduce_scatter, allgather), allreduce, in_lanes=True)
AllreduceOuter: TypeAlias = Annotated[str, PartOf((allreduce,))]


@allreduce.algorithm(name="two_level", chunks=LED.chunks, parts=LED.parts, needs=COMMUTATIVE)
def allreduce_two_level(
    rank: int, nranks: int, nodes: Nodes, inner: Inner = "window", outer: AllreduceOuter = "ring"
) -> Rounds:
    """Reduce to a leader on each node, all-reduce among the leaders, broadcast from there."""
    yield from allreduce_multi_leader(rank, nranks, nodes, 1, inner, outer)


@allreduce.algorithm(name="multi_leader", chunks=LED.chunks, parts=LED.parts, needs=leaders_on_every_node)
def allreduce_multi_leader(
    rank: int, nranks: int, nodes: Nodes, leaders: int = 2, inner: Inner = "window", outer: AllreduceOuter = "ring"
) -> Rounds:
    """Reduce each slice to its leader on each node, all-reduce it among these, broadcast it from there."""
    teams = Teams(nodes, leaders)
    slices = LED.slices(nranks, nodes, inner, outer, leaders)
    to, between, back = inside(reduce, inner), allreduce.algorithms[outer], inside(broadcast, inner)
    owned = dict(zip(teams.lanes, slices, strict=True))
    yield from together(*(run(nodes, rank, to, cut(to, one), teams.leader(i)) for i, one in enumerate(slices)))
    yield from run(owned, rank, between, lambda lane: cut(between, owned[lane])(lane))
    yield from together(*(run(nodes, rank, back, cut(back, one), teams.leader(i)) for i, one in enumerate(slices)))


@allreduce.algorithm(name="multi_lane", chunks=IN_LANES.chunks, parts=IN_LANES.parts, needs=(EQUAL_NODES, COMMUTATIVE))
def allreduce_multi_lane(
    rank: int, nranks: int, nodes: Nodes, inner: Inner = "window", outer: AllreduceOuter = "ring"
) -> Rounds:
    """Reduce-scatter inside nodes, all-reduce each slice in its lane, all-gather inside nodes."""
    slices = IN_LANES.slices(nranks, nodes, inner, outer)
    between = allreduce.algorithms[outer]
    owned = dict(zip(lanes_of(nodes), slices, strict=True))
    yield from run(nodes, rank, inside(reduce_scatter, inner), lambda node: slices.__getitem__)
    yield from run(owned, rank, between, lambda lane: cut(between, owned[lane])(lane))
    yield from run(nodes, rank, inside(allgather, inner), lambda node: slices.__getitem__)


# ---------------------------------------------------------------------------------------------------------------
# Broadcast

BROADCAST_LED = Composition((scatter, broadcast), broadcast)
BROADCAST_IN_LANES = Composition((scatter, allgather), broadcast, in_lanes=True)
BroadcastOuter: TypeAlias = Annotated[str, PartOf((broadcast,))]


@broadcast.algorithm(name="two_level", chunks=BROADCAST_LED.chunks, parts=BROADCAST_LED.parts)
def broadcast_two_level(
    rank: int, nranks: int, root: int, nodes: Nodes, inner: Inner = "window", outer: BroadcastOuter = "binomial"
) -> Rounds:
    """Broadcast from the root to a leader on each node, and from there inside the nodes."""
    yield from broadcast_multi_leader(rank, nranks, root, nodes, 1, inner, outer)


@broadcast.algorithm(
    name="multi_leader", chunks=BROADCAST_LED.chunks, parts=BROADCAST_LED.parts, needs=leaders_on_every_node
)
def broadcast_multi_leader(
    rank: int,
    nranks: int,
    root: int,
    nodes: Nodes,
    leaders: int = 2,
    inner: Inner = "window",
    outer: BroadcastOuter = "binomial",
) -> Rounds:
    """Scatter slices to the leaders on the root's node, broadcast each to its leaders, and from them inside nodes."""
    teams, home = Teams(nodes, leaders, root), home_of(nodes, root)
    slices = BROADCAST_LED.slices(nranks, nodes, inner, outer, leaders)
    between, back = broadcast.algorithms[outer], inside(broadcast, inner)
    owned = dict(zip(teams.lanes, slices, strict=True))
    at_home = [team[0] for team in teams.by_node[home]]
    yield from run([at_home], rank, inside(scatter, inner), lambda group: slices.__getitem__, first)
    yield from run(owned, rank, between, lambda lane: cut(between, owned[lane])(lane), on(home))
    yield from together(*(run(nodes, rank, back, cut(back, one), teams.leader(i)) for i, one in enumerate(slices)))


@broadcast.algorithm(
    name="multi_lane", chunks=BROADCAST_IN_LANES.chunks, parts=BROADCAST_IN_LANES.parts, needs=EQUAL_NODES
)
def broadcast_multi_lane(
    rank: int, nranks: int, root: int, nodes: Nodes, inner: Inner = "window", outer: BroadcastOuter = "binomial"
) -> Rounds:
    """Scatter slices on the root's node, broadcast each in its lane, all-gather inside nodes."""
    slices, home = BROADCAST_IN_LANES.slices(nranks, nodes, inner, outer), home_of(nodes, root)
    between = broadcast.algorithms[outer]
    owned = dict(zip(lanes_of(nodes), slices, strict=True))
    yield from run([home], rank, inside(scatter, inner), lambda node: slices.__getitem__, lambda node: root)
    yield from run(owned, rank, between, lambda lane: cut(between, owned[lane])(lane), on(home))
    yield from run(nodes, rank, inside(allgather, inner), lambda node: slices.__getitem__)


# ---------------------------------------------------------------------------------------------------------------
# Reduce

REDUCE_LED = Composition((reduce, gather), reduce)
REDUCE_IN_LANES = Composition((reduce_scatter, gather), reduce, in_lanes=True)
ReduceOuter: TypeAlias = Annotated[str, PartOf((reduce,))]


@reduce.algorithm(name="two_level", chunks=REDUCE_LED.chunks, parts=REDUCE_LED.parts, needs=COMMUTATIVE)
def reduce_two_level(
    rank: int, nranks: int, root: int, nodes: Nodes, inner: Inner = "window", outer: ReduceOuter = "binomial"
) -> Rounds:
    """Reduce to a leader on each node, then among the leaders to the root."""
    yield from reduce_multi_leader(rank, nranks, root, nodes, 1, inner, outer)


@reduce.algorithm(name="multi_leader", chunks=REDUCE_LED.chunks, parts=REDUCE_LED.parts, needs=leaders_on_every_node)
def reduce_multi_leader(
    rank: int,
    nranks: int,
    root: int,
    nodes: Nodes,
    leaders: int = 2,
    inner: Inner = "window",
    outer: ReduceOuter = "binomial",
) -> Rounds:
    """Reduce each slice to its leader on each node, then among these to the root's node, and gather it there."""
    teams, home = Teams(nodes, leaders, root), home_of(nodes, root)
    slices = REDUCE_LED.slices(nranks, nodes, inner, outer, leaders)
    to, between = inside(reduce, inner), reduce.algorithms[outer]
    owned = dict(zip(teams.lanes, slices, strict=True))
    at_home = [team[0] for team in teams.by_node[home]]
    yield from together(*(run(nodes, rank, to, cut(to, one), teams.leader(i)) for i, one in enumerate(slices)))
    yield from run(owned, rank, between, lambda lane: cut(between, owned[lane])(lane), on(home))
    yield from run([at_home], rank, inside(gather, inner), lambda group: slices.__getitem__, first)


@reduce.algorithm(
    name="multi_lane", chunks=REDUCE_IN_LANES.chunks, parts=REDUCE_IN_LANES.parts, needs=(EQUAL_NODES, COMMUTATIVE)
)
def reduce_multi_lane(
    rank: int, nranks: int, root: int, nodes: Nodes, inner: Inner = "window", outer: ReduceOuter = "binomial"
) -> Rounds:
    """Reduce-scatter inside nodes, reduce each slice in its lane, gather them on the root's node."""
    slices, home = REDUCE_IN_LANES.slices(nranks, nodes, inner, outer), home_of(nodes, root)
    between = reduce.algorithms[outer]
    owned = dict(zip(lanes_of(nodes), slices, strict=True))
    yield from run(nodes, rank, inside(reduce_scatter, inner), lambda node: slices.__getitem__)
    yield from run(owned, rank, between, lambda lane: cut(between, owned[lane])(lane), on(home))
    yield from run([home], rank, inside(gather, inner), lambda node: slices.__getitem__, lambda node: root)


# ---------------------------------------------------------------------------------------------------------------
# All-gather

ALLGATHER_LED = Composition((gather, broadcast), allgather)
ALLGATHER_IN_LANES = Composition((allgather,), allgather, in_lanes=True)
AllgatherOuter: TypeAlias = Annotated[str, PartOf((allgather,))]


@algorithm_of(allgather, allgatherv, name="two_level", parts=ALLGATHER_LED.parts)
def allgather_two_level(
    rank: int, nranks: int, nodes: Nodes, inner: Inner = "window", outer: AllgatherOuter = "ring"
) -> Rounds:
    """Gather to a leader on each node, all-gather among the leaders, broadcast from there."""
    yield from allgather_multi_leader(rank, nranks, nodes, 1, inner, outer)


@algorithm_of(allgather, allgatherv, name="multi_leader", parts=ALLGATHER_LED.parts, needs=leaders_on_every_node)
def allgather_multi_leader(
    rank: int, nranks: int, nodes: Nodes, leaders: int = 2, inner: Inner = "window", outer: AllgatherOuter = "ring"
) -> Rounds:
    """Gather to the leader of each team, all-gather among the leaders of a lane, broadcast from there."""
    teams, back = Teams(nodes, leaders), inside(broadcast, inner)
    yield from run(teams.all, rank, inside(gather, inner), lambda team: lambda index: team[index : index + 1], first)
    yield from run(
        teams.lanes, rank, allgather.algorithms[outer], lambda lane: lambda position: teams.lanes[lane][position]
    )
    yield from together(
        *(run(nodes, rank, back, cut(back, teams.stand_for(i)), teams.leader(i)) for i in range(leaders))
    )


@algorithm_of(allgather, allgatherv, name="multi_lane", parts=ALLGATHER_IN_LANES.parts, needs=EQUAL_NODES)
def allgather_multi_lane(
    rank: int, nranks: int, nodes: Nodes, inner: Inner = "window", outer: AllgatherOuter = "ring"
) -> Rounds:
    """All-gather in each lane, then inside nodes what each lane has."""
    lanes = lanes_of(nodes)
    yield from run(lanes, rank, allgather.algorithms[outer], lambda lane: lambda index: lane[index : index + 1])
    yield from run(nodes, rank, inside(allgather, inner), lambda node: lanes.__getitem__)


# ---------------------------------------------------------------------------------------------------------------
# Reduce-scatter

REDUCE_SCATTER_LED = Composition((reduce, scatter), reduce_scatter)
REDUCE_SCATTER_IN_LANES = Composition((reduce_scatter,), reduce_scatter, in_lanes=True)
ReduceScatterOuter: TypeAlias = Annotated[str, PartOf((reduce_scatter,))]


@algorithm_of(reduce_scatter, reduce_scatterv, name="two_level", parts=REDUCE_SCATTER_LED.parts, needs=COMMUTATIVE)
def reduce_scatter_two_level(
    rank: int, nranks: int, nodes: Nodes, inner: Inner = "window", outer: ReduceScatterOuter = "pairwise"
) -> Rounds:
    """Reduce to a leader on each node, reduce-scatter among the leaders, scatter from there."""
    yield from reduce_scatter_multi_leader(rank, nranks, nodes, 1, inner, outer)


@algorithm_of(
    reduce_scatter, reduce_scatterv, name="multi_leader", parts=REDUCE_SCATTER_LED.parts, needs=leaders_on_every_node
)
def reduce_scatter_multi_leader(
    rank: int,
    nranks: int,
    nodes: Nodes,
    leaders: int = 2,
    inner: Inner = "window",
    outer: ReduceScatterOuter = "pairwise",
) -> Rounds:
    """Reduce the blocks of a lane's teams to its leaders, reduce-scatter among these, scatter in each team."""
    teams, to = Teams(nodes, leaders), inside(reduce, inner)
    yield from together(*(run(nodes, rank, to, cut(to, teams.stand_for(i)), teams.leader(i)) for i in range(leaders)))
    yield from run(
        teams.lanes, rank, reduce_scatter.algorithms[outer], lambda lane: lambda position: teams.lanes[lane][position]
    )
    yield from run(teams.all, rank, inside(scatter, inner), lambda team: lambda index: team[index : index + 1], first)


@algorithm_of(
    reduce_scatter,
    reduce_scatterv,
    name="multi_lane",
    parts=REDUCE_SCATTER_IN_LANES.parts,
    needs=(EQUAL_NODES, COMMUTATIVE),
)
def reduce_scatter_multi_lane(
    rank: int, nranks: int, nodes: Nodes, inner: Inner = "window", outer: ReduceScatterOuter = "pairwise"
) -> Rounds:
    """Reduce-scatter inside nodes the blocks of each lane, then reduce-scatter in each lane."""
    lanes = lanes_of(nodes)
    yield from run(nodes, rank, inside(reduce_scatter, inner), lambda node: lanes.__getitem__)
    yield from run(lanes, rank, reduce_scatter.algorithms[outer], lambda lane: lambda index: lane[index : index + 1])


# ---------------------------------------------------------------------------------------------------------------
# All-to-all

ALLTOALL_LED = Composition((gather, scatter), alltoall)
ALLTOALL_IN_LANES = Composition((alltoall,), alltoall, in_lanes=True)
AlltoallOuter: TypeAlias = Annotated[str, PartOf((alltoall,))]


def pairs(sources: Iterable[int], targets: Sequence[int]) -> list[tuple[int, int]]:
    """Return what each of `sources` has for each of `targets`."""
    return [(source, target) for source in sources for target in targets]


@algorithm_of(alltoall, alltoallv, name="two_level", parts=ALLTOALL_LED.parts)
def alltoall_two_level(
    rank: int, nranks: int, nodes: Nodes, inner: Inner = "window", outer: AlltoallOuter = "pairwise"
) -> Rounds:
    """Gather everything to a leader on each node, exchange it among the leaders, scatter it from there."""
    yield from alltoall_multi_leader(rank, nranks, nodes, 1, inner, outer)


@algorithm_of(alltoall, alltoallv, name="multi_leader", parts=ALLTOALL_LED.parts, needs=leaders_on_every_node)
def alltoall_multi_leader(
    rank: int, nranks: int, nodes: Nodes, leaders: int = 2, inner: Inner = "window", outer: AlltoallOuter = "pairwise"
) -> Rounds:
    """Gather to the leader of each team, exchange in each lane what goes to other nodes, scatter it from there."""
    teams, everyone, back = Teams(nodes, leaders), range(nranks), inside(scatter, inner)
    yield from run(
        teams.all, rank, inside(gather, inner), lambda team: lambda index: pairs([team[index]], everyone), first
    )
    yield from run(
        teams.lanes,
        rank,
        alltoall.algorithms[outer],
        lambda lane: lambda pair: pairs(teams.lanes[lane][pair[0]], nodes[pair[1]]),
    )

    def brought(position: int) -> Callable[[Group], Parts]:
        return lambda node: lambda index: pairs(teams.stand_for(position), [node[index]])

    yield from together(*(run(nodes, rank, back, brought(i), teams.leader(i)) for i in range(leaders)))


@algorithm_of(alltoall, alltoallv, name="multi_lane", parts=ALLTOALL_IN_LANES.parts, needs=EQUAL_NODES)
def alltoall_multi_lane(
    rank: int, nranks: int, nodes: Nodes, inner: Inner = "window", outer: AlltoallOuter = "pairwise"
) -> Rounds:
    """Exchange inside nodes what goes to each lane, then exchange in each lane."""
    lanes = lanes_of(nodes)
    yield from run(
        nodes, rank, inside(alltoall, inner), lambda node: lambda pair: pairs([node[pair[0]]], lanes[pair[1]])
    )
    yield from run(
        lanes, rank, alltoall.algorithms[outer], lambda lane: lambda pair: pairs(nodes[pair[0]], [lane[pair[1]]])
    )
