"""All-reduce: every rank contributes, every rank gets the combined result (MPI-5.0 section 6.9.6).

The result has the same bits on every rank, also where the operation is not associative, because each element is either
combined once and then copied, or combined in the same order everywhere. The exceptions are `recursive_multiplying` with
a radix above 2 and `swing` for latency.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from collectives.allgather import ALLGATHERS, aligned
from collectives.allgather import bruck as allgather_bruck
from collectives.backwards import backwards
from collectives.broadcast import binomial as broadcast_binomial
from collectives.contracts import vector_piece, whole_vector
from collectives.folding import fold_halves, fold_in, fold_out, folding
from collectives.halving import HalvingOrder, doubling, halving, mirrored
from collectives.needs import POWER_OF_TWO
from collectives.negabinary import butterfly, digits, partner, steps
from collectives.parameters import Parameter, Radix
from collectives.reduce_scatter import reverse_bruck as reduce_scatter_bruck
from collectives.reduce_scatter import spread_round
from collectives.registry import Primitive
from collectives.rounds import (
    LEFT,
    RIGHT,
    Chunk,
    Combine,
    Copy,
    Recv,
    RecvReduce,
    Rounds,
    Send,
    among,
    cyclic,
    largest_power,
    largest_power_of_two,
    powers_below,
    relabel,
    together,
)
from collectives.trees import double, pre_order, up_and_down
from collectives.vector import one_chunk, per_rank, per_segment, power_of_two_chunks, two_halves

allreduce = Primitive(
    "allreduce",
    inputs=whole_vector,
    outputs=whole_vector,
    chunk_count=vector_piece,
    busbw_factor=lambda nranks: 2 * (nranks - 1) / nranks,
    aliasing=lambda problem, rank: (0, 0),
    native=lambda call: [("Allreduce", call.send, call.recv, call.op)],
    combines=True,
    vector=True,
)


@allreduce.algorithm(chunks=per_rank, waits="data")
def ring(rank: int, nranks: int) -> Rounds:
    """Reduce-scatter once around the ring, then all-gather once around it (Patarasuk and Yuan 2009)."""
    left, right = (rank - 1) % nranks, (rank + 1) % nranks
    for step in range(nranks - 1):
        yield Send(right, (rank - step) % nranks), RecvReduce(left, (rank - step - 1) % nranks)
    for step in range(nranks - 1):
        yield Send(right, (rank + 1 - step) % nranks), Recv(left, (rank - step) % nranks)


def _per_rank_and_segment(nranks: int, *, segments: int, **parameters: Parameter) -> int:
    return nranks * segments


@allreduce.algorithm(chunks=_per_rank_and_segment, waits="data")
def segmented_ring(rank: int, nranks: int, segments: int = 4) -> Rounds:
    """The ring for one segment of the vector after another, so that each stays in cache (Patarasuk and Yuan 2009)."""
    for segment in range(segments):
        yield from relabel(ring(rank, nranks), chunks=partial(_chunk_of_segment, segment * nranks))


def _chunk_of_segment(first: int, chunk: Any) -> int:
    return first + chunk


@allreduce.algorithm(keeps_order=True)
def recursive_doubling(rank: int, nranks: int) -> Rounds:
    """Exchange and combine whole vectors with partners at distance 1, 2, 4, ... (Thakur et al. 2005)."""
    yield from recursive_multiplying(rank, nranks, radix=2)


@allreduce.algorithm(keeps_order=True)
def recursive_multiplying(rank: int, nranks: int, radix: Radix = 4) -> Rounds:
    """Exchange and combine whole vectors with k-1 partners at distances 1, k, k^2, ... (Wilkins et al. 2023).

    Ranks beyond the largest power of the radix are folded. Rank order is kept, but ranks bracket the k vectors of a
    round differently, so that rounded results can differ in the last bit from rank to rank if the radix is above 2.
    """
    folded = folding(nranks, largest_power(nranks, radix))
    yield from fold_in(folded, rank, [0])
    yield from among(folded.leaders, rank, partial(_multiply, radix=radix))
    yield from fold_out(folded, rank, lambda member: [0])


def _multiply(rank: int, nranks: int, radix: int) -> Rounds:
    for distance in powers_below(nranks, radix):
        partners = aligned(rank, radix * distance)[rank % distance :: distance]
        below, above = [peer for peer in partners if peer < rank], [peer for peer in partners if peer > rank]
        yield (
            *(Send(peer, 0) for peer in (*above, *below)),
            *(RecvReduce(peer, 0, side=LEFT) for peer in reversed(below)),
            *(RecvReduce(peer, 0, side=RIGHT) for peer in above),
        )


@allreduce.algorithm(chunks=power_of_two_chunks, keeps_order=lambda fold, order: order == "near_first")
def rabenseifner(
    rank: int, nranks: int, fold: Literal["whole", "half"] = "whole", order: HalvingOrder = "far_first"
) -> Rounds:
    """Reduce-scatter by recursive halving, all-gather by recursive doubling (Rabenseifner 2004).

    Ranks beyond the largest power of two are folded, by whole vectors or by halves. Near first sends the large messages
    to the nearest partners and keeps rank order.
    """
    folded = folding(nranks, largest_power_of_two(nranks))
    chunks = range(len(folded.leaders))
    yield from (fold_in if fold == "whole" else fold_halves)(folded, rank, chunks)
    yield from among(folded.leaders, rank, partial(halving, order=order))
    yield from among(folded.leaders, rank, partial(doubling, order=order))
    yield from fold_out(folded, rank, lambda member: chunks)


@allreduce.algorithm(chunks=per_rank)
def reverse_bruck(rank: int, nranks: int) -> Rounds:
    """Bruck's all-gather backwards as reduce-scatter, then forwards: 2 log n rounds for any n (Träff 2024)."""
    yield from reduce_scatter_bruck(rank, nranks)
    yield from allgather_bruck(rank, nranks)


def _swing_chunks(nranks: int, *, optimal: str, **parameters: Parameter) -> int:
    return (per_rank if optimal == "bandwidth" else one_chunk)(nranks)


@allreduce.algorithm(chunks=_swing_chunks, needs=POWER_OF_TWO)
def swing(rank: int, nranks: int, optimal: Literal["bandwidth", "latency"] = "bandwidth") -> Rounds:
    """Exchange with partners at distances 1, 1, 3, 5, 11, ... to both sides (De Sensi et al. 2024).

    For bandwidth halves are combined, then gathered again; for latency whole vectors are combined.
    """
    if optimal == "bandwidth":
        yield from _there_and_back(rank, nranks, range(nranks))
    else:
        for number in steps(nranks):
            peer = partner(rank, number, nranks)
            yield Send(peer, 0), RecvReduce(peer, 0)


@allreduce.algorithm(chunks=per_rank, needs=POWER_OF_TWO)
def bine(rank: int, nranks: int) -> Rounds:
    """Swing with the chunks so assigned to ranks that each message is one run of the vector (De Sensi et al. 2025)."""
    yield from _there_and_back(rank, nranks, [_bine_chunk(one, nranks) for one in range(nranks)])


def _there_and_back(rank: int, nranks: int, chunks: Sequence[int]) -> Rounds:
    """Combine halves, the nearest partner first, until rank r has ``chunks[r]``, then gather them in turn."""
    far_first = partial(butterfly, rank, nranks, chunks=chunks)
    yield from backwards(far_first(reversed(steps(nranks))), combining=True)
    yield from far_first(reversed(steps(nranks)))


def _bine_chunk(rank: int, nranks: int) -> int:
    """Return the chunk that `rank` gathers the result of: its number in base -2, Gray coded, from the last digit."""
    written = digits(rank if rank % 2 else -rank % nranks, nranks)
    return mirrored(written ^ (written >> 1), nranks)


@allreduce.algorithm(chunks=two_halves, waits="data")
def double_binary_tree(rank: int, nranks: int, segments: int = 8) -> Rounds:
    """Each half goes up and down a tree of its own, in which other ranks have the work (Sanders et al. 2009).

    `segments` are those of each half.
    """
    first, second = double(nranks)
    yield from together(
        up_and_down(first, rank, range(segments)),
        up_and_down(second, rank, range(segments, 2 * segments)),
    )


@allreduce.algorithm(chunks=per_segment, keeps_order=True, waits="data")
def tree(rank: int, nranks: int, radix: int = 2, segments: int = 16) -> Rounds:
    """Segments are combined up a k-ary tree and come down as soon as they are complete (Pješivac-Grbović et al. 2007).

    Each subtree is a run of ranks, so order is kept. A tree of radix 1 is a chain.
    """
    yield from up_and_down(pre_order(nranks, radix), rank, range(segments))


@allreduce.algorithm(keeps_order=True)
def allgather_reduce(rank: int, nranks: int, allgather: Literal["bruck", "spread"] = "bruck") -> Rounds:
    """All-gather everyone's vector, then everyone combines all of them in rank order (Chan et al. 2007)."""
    if nranks > 1:
        yield Copy(0, _vector_of(rank))
        yield from relabel(ALLGATHERS[allgather](rank, nranks), chunks=_vector_of)
        rest = (Combine(0, _vector_of(peer), 0) for peer in range(2, nranks))
        yield (Combine(_vector_of(0), _vector_of(1), 0), *rest)


def _vector_of(rank: Chunk) -> Chunk:
    """Name what `rank` contributes to chunk 0."""
    return ("of", rank, 0)


@allreduce.algorithm(chunks=per_rank, keeps_order=True)
def spread(rank: int, nranks: int) -> Rounds:
    """Every rank sends chunk k to rank k, combines its own, and sends that to all: two rounds (Chan et al. 2007)."""
    others = cyclic(rank + 1, nranks - 1, nranks)
    yield spread_round(rank, nranks)
    yield (*(Send(peer, rank) for peer in others), *(Recv(peer, peer) for peer in reversed(others)))


@allreduce.algorithm(keeps_order=True)
def reduce_broadcast(rank: int, nranks: int) -> Rounds:
    """Reduce to rank 0, then broadcast from there, both along a binomial tree (Chan et al. 2007)."""
    yield from backwards(broadcast_binomial(rank, nranks, 0), combining=True)
    yield from broadcast_binomial(rank, nranks, 0)
