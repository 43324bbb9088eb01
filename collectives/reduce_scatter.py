"""Reduce-scatter: contributions are combined, every rank gets its block of the result (MPI-5.0 section 6.10)."""

from collectives.allgather import cyclic
from collectives.registry import (
    COMMUTATIVE,
    POWER_OF_TWO,
    Primitive,
    all_blocks,
    others_share,
    own_block,
    rank_block,
)
from collectives.rounds import RecvReduce, Rounds, Send, powers_of_two_below, with_chunks
from collectives.scatter import binomial as scatter_binomial


def _native(call):
    if call.problem.even:
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


@reduce_scatter.algorithm(needs=COMMUTATIVE, waits="data")
def ring(rank: int, nranks: int) -> Rounds:
    """A partial result of each block travels around the ring and ends at its owner (Patarasuk and Yuan 2009)."""
    left, right = (rank - 1) % nranks, (rank + 1) % nranks
    for step in range(1, nranks):
        yield Send(right, (rank - step) % nranks), RecvReduce(left, (rank - step - 1) % nranks)


@reduce_scatter.algorithm(needs=COMMUTATIVE)
def pairwise(rank: int, nranks: int) -> Rounds:
    """In round i send rank r+i its block and take the own from r-i: no partial result travels (Thakur et al. 2005)."""
    for step in range(1, nranks):
        to, source = (rank + step) % nranks, (rank - step) % nranks
        yield Send(to, to), RecvReduce(source, rank)


@reduce_scatter.algorithm(needs=(POWER_OF_TWO, COMMUTATIVE))
def recursive_halving(rank: int, nranks: int) -> Rounds:
    """Exchange half of what is left with a partner at distance n/2, n/4, ... (Thakur et al. 2005)."""
    low, high = 0, nranks
    for distance in reversed(powers_of_two_below(nranks)):
        peer, middle = rank ^ distance, (low + high) // 2
        lower, upper = range(low, middle), range(middle, high)
        kept, given = (upper, lower) if rank & distance else (lower, upper)
        yield Send(peer, *given), RecvReduce(peer, *kept)
        low, high = kept.start, kept.stop


@reduce_scatter.algorithm(needs=COMMUTATIVE)
def spread(rank: int, nranks: int) -> Rounds:
    """Send every rank its block at once and reduce what arrives."""
    others = cyclic(rank + 1, nranks - 1, nranks)
    yield (*(Send(peer, peer) for peer in others), *(RecvReduce(peer, rank) for peer in reversed(others)))


@reduce_scatter.algorithm(keeps_order=True)
def reduce_then_scatter(rank: int, nranks: int) -> Rounds:
    """Reduce everything at rank 0, then scatter it, both along a binomial tree; keeps rank order."""
    from collectives.reduce import binomial as reduce_binomial

    yield from with_chunks(reduce_binomial(rank, nranks, 0), range(nranks))
    yield from scatter_binomial(rank, nranks, 0)
