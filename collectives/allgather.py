"""All-gather: every rank contributes a block, at the end all hold all blocks (MPI-5.0 section 6.7)."""

from collectives.registry import POWER_OF_TWO, Primitive, all_blocks, offsets, others_share, own_block, rank_block
from collectives.rounds import Recv, Rounds, Send, powers_of_two_below, with_chunks


def _native(call):
    if call.problem.even:
        return [("Allgather", call.send, call.recv)]
    return [("Allgatherv", call.send, call.blocks(call.recv))]


allgather = Primitive(
    "allgather",
    inputs=own_block,
    outputs=all_blocks,
    chunk_count=rank_block,
    busbw_factor=others_share,
    aliasing=lambda problem, rank: (offsets(problem.block_counts)[rank], 0),
    native=_native,
)


@allgather.algorithm(waits="data")
def ring(rank: int, nranks: int) -> Rounds:
    """Each block travels once around the ring (Chan et al. 2007)."""
    left, right = (rank - 1) % nranks, (rank + 1) % nranks
    for step in range(nranks - 1):
        yield Send(right, (rank - step) % nranks), Recv(left, (rank - step - 1) % nranks)


@allgather.algorithm(needs=POWER_OF_TWO)
def recursive_doubling(rank: int, nranks: int) -> Rounds:
    """Exchange all that is held with a partner at distance 1, 2, 4, ... (Thakur, Rabenseifner, Gropp 2005)."""
    for distance in powers_of_two_below(nranks):
        peer = rank ^ distance
        yield Send(peer, *_aligned(rank, distance)), Recv(peer, *_aligned(peer, distance))


def _aligned(rank: int, length: int) -> range:
    """The aligned range of `length` blocks that contains `rank`."""
    start = rank - rank % length
    return range(start, start + length)


@allgather.algorithm()
def bruck(rank: int, nranks: int) -> Rounds:
    """Pass min(d, n-d) blocks to the rank at distance d = 1, 2, 4, ... below (Bruck et al. 1997)."""
    for distance in powers_of_two_below(nranks):
        length = min(distance, nranks - distance)
        to, source = (rank - distance) % nranks, (rank + distance) % nranks
        yield Send(to, *cyclic(rank, length, nranks)), Recv(source, *cyclic(source, length, nranks))


def cyclic(start: int, length: int, nranks: int) -> list[int]:
    """The `length` block numbers from `start` on, modulo `nranks`."""
    return [(start + index) % nranks for index in range(length)]


@allgather.algorithm()
def spread(rank: int, nranks: int) -> Rounds:
    """Send the own block to everyone at once, nearest above first."""
    others = cyclic(rank + 1, nranks - 1, nranks)
    yield tuple(Send(peer, rank) for peer in others) + tuple(Recv(peer, peer) for peer in reversed(others))


@allgather.algorithm()
def gather_broadcast(rank: int, nranks: int) -> Rounds:
    """Gather at rank 0, then broadcast the whole: both along a binomial tree."""
    from collectives.broadcast import binomial as broadcast_binomial
    from collectives.gather import binomial as gather_binomial

    yield from gather_binomial(rank, nranks, 0)
    yield from with_chunks(broadcast_binomial(rank, nranks, 0), range(nranks))
