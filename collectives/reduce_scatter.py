"""Reduce-scatter: contributions are combined, every rank gets its block of the result (MPI-5.0 section 6.10)."""

from dataclasses import replace
from functools import partial
from typing import Literal

from collectives.allgather import aligned
from collectives.allgather import bine as allgather_bine
from collectives.allgather import bruck as allgather_bruck
from collectives.backwards import backwards
from collectives.broadcast import binomial as broadcast_binomial
from collectives.contracts import all_blocks, others_share, own_block, rank_block
from collectives.folding import fold_in, fold_out, folding
from collectives.halving import halving, mirrored
from collectives.needs import POWER_OF_TWO
from collectives.registry import Primitive
from collectives.rounds import (
    LEFT,
    RIGHT,
    Operation,
    Recv,
    RecvReduce,
    Round,
    Rounds,
    Send,
    among,
    cyclic,
    largest_power_of_two,
    powers_of_two_below,
    relabel,
    with_chunks,
)
from collectives.scatter import binomial as scatter_binomial


def _native(call):
    if call.even:
        return [("Reduce_scatter_block", call.send, call.recv, call.op)]
    return [("Reduce_scatter", call.send, call.recv, call.problem.block_counts, call.op)]


reduce_scatter = Primitive(
    "reduce_scatter",
    inputs=all_blocks,
    outputs=own_block,
    chunk_count=rank_block,
    busbw_factor=others_share,
    aliasing=lambda problem, rank: (0, 0),
    native=_native,
    combines=True,
)


@reduce_scatter.algorithm(waits="data")
def ring(rank: int, nranks: int) -> Rounds:
    """A partial result of each block travels around the ring and ends at its owner (Patarasuk and Yuan 2009)."""
    left, right = (rank - 1) % nranks, (rank + 1) % nranks
    for step in range(1, nranks):
        yield Send(right, (rank - step) % nranks), RecvReduce(left, (rank - step - 1) % nranks)


@reduce_scatter.algorithm()
def pairwise(rank: int, nranks: int) -> Rounds:
    """In round i send rank r+i its block and take the own from r-i: no partial result travels (Thakur et al. 2005)."""
    for step in range(1, nranks):
        to, source = (rank + step) % nranks, (rank - step) % nranks
        yield Send(to, to), RecvReduce(source, rank)


@reduce_scatter.algorithm()
def recursive_halving(rank: int, nranks: int) -> Rounds:
    """Exchange half of what is left with partners at falling distances (Thakur et al. 2005).

    Ranks beyond the largest power of two are folded, and get their block from their neighbour at the end.
    """
    folded = folding(nranks, largest_power_of_two(nranks))
    yield from fold_in(folded, rank, range(nranks))
    yield from relabel(among(folded.leaders, rank, halving), parts=folded.ranks_of)
    yield from fold_out(folded, rank, lambda member: [member])


@reduce_scatter.algorithm(keeps_order=True)
def butterfly(rank: int, nranks: int) -> Rounds:
    """Exchange half of what is left, nearest partner first, then swap with who has the own block (Träff 2005).

    Near first keeps rank order, but leaves each with the block of which the number is its own with the binary digits in
    the opposite order.
    """
    folded = folding(nranks, largest_power_of_two(nranks))
    groups, leaders = folded.groups, folded.leaders
    near_first = partial(halving, order="near_first")
    yield from fold_in(folded, rank, range(nranks))
    yield from relabel(among(leaders, rank, near_first), parts=folded.ranks_of)
    group = folded.group_of(rank)
    opposite = mirrored(group, len(groups))
    swap: list[Operation] = []
    if rank == leaders[group]:
        swap += [Send(owner, owner) for owner in groups[opposite] if owner != rank]
    if rank != leaders[opposite]:
        swap.append(Recv(leaders[opposite], rank))
    yield tuple(swap)


@reduce_scatter.algorithm(keeps_order=True)
def recursive_doubling(rank: int, nranks: int) -> Rounds:
    """Exchange all but the blocks of the own half with partners at distance 1, 2, 4, ... (Thakur et al. 2005).

    Few rounds and rank order kept, at the price of sending almost everything in each.
    """
    folded = folding(nranks, largest_power_of_two(nranks))

    def double(index: int, nleaders: int) -> Rounds:
        for distance in powers_of_two_below(nleaders):
            peer = index ^ distance
            mine, theirs = aligned(index, distance), aligned(peer, distance)
            given, kept = ([one for one in range(nleaders) if one not in done] for done in (mine, theirs))
            yield Send(peer, *given), RecvReduce(peer, *kept, side=LEFT if peer < index else RIGHT)

    yield from fold_in(folded, rank, range(nranks))
    yield from relabel(among(folded.leaders, rank, double), parts=folded.ranks_of)
    yield from fold_out(folded, rank, lambda member: [member])


@reduce_scatter.algorithm()
def reverse_bruck(rank: int, nranks: int) -> Rounds:
    """Run Bruck's all-gather backwards: few rounds and no byte too many for any number of ranks (Träff 2024)."""
    yield from backwards(allgather_bruck(rank, nranks), combining=True)


@reduce_scatter.algorithm(needs=POWER_OF_TWO)
def bine(rank: int, nranks: int, order: Literal["near_first", "far_first"] = "far_first") -> Rounds:
    """Combine halves of what is left with partners at distances ..., 11, 5, 3, 1, 1 (De Sensi et al. 2025).

    Far first, the blocks left are a run (modulo n); near first, the largest messages go to the nearest partner.
    """
    reverse = "near_first" if order == "far_first" else "far_first"
    yield from backwards(allgather_bine(rank, nranks, reverse), combining=True)


@reduce_scatter.algorithm(keeps_order=True)
def spread(rank: int, nranks: int) -> Rounds:
    """Send every rank its block at once and combine what arrives in rank order (Chan et al. 2007)."""
    yield spread_round(rank, nranks)


def spread_round(rank: int, nranks: int) -> Round:
    """One round in which every rank sends each other its block and combines what it gets for its own in rank order."""
    others = cyclic(rank + 1, nranks - 1, nranks)
    below = (RecvReduce(peer, rank, side=LEFT) for peer in range(rank - 1, -1, -1))
    above = (RecvReduce(peer, rank, side=RIGHT) for peer in range(rank + 1, nranks))
    return (*(Send(peer, peer) for peer in others), *below, *above)


@reduce_scatter.algorithm(keeps_order=True)
def reduce_then_scatter(rank: int, nranks: int) -> Rounds:
    """Reduce everything at rank 0, then scatter it, both along a binomial tree (Chan et al. 2007)."""
    yield from with_chunks(backwards(broadcast_binomial(rank, nranks, 0), combining=True), range(nranks))
    yield from scatter_binomial(rank, nranks, 0)


reduce_scatterv = reduce_scatter.like("reduce_scatterv", native=lambda call: _native(replace(call, general=True)))
"""Reduce-scatter whose native call is always that with a count for each rank."""
