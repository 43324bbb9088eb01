"""All-to-all: every rank sends a different block to every rank (MPI-5.0 section 6.8). A chunk is (source, target)."""

from collectives.contracts import others_share
from collectives.parameters import Radix
from collectives.problem import Problem
from collectives.registry import Primitive
from collectives.rounds import Message, Recv, Rounds, Send, cyclic, powers_below, powers_of_two_below


def pair_count(problem: Problem, chunk: tuple[int, int], nchunks: int) -> int:
    """Return the elements that `chunk` = (source, target) has: of the counts' matrix, or the target's even block."""
    source, target = chunk
    return problem.block_counts[target] if problem.counts is None else problem.counts[source][target]


def outgoing(problem: Problem, rank: int, nchunks: int) -> list[tuple[int, int]]:
    """What a rank sends: its block for every rank."""
    return [(rank, target) for target in range(problem.nranks)]


def incoming(problem: Problem, rank: int, nchunks: int) -> list[tuple[int, int]]:
    """What a rank gets: the block that every rank has for it."""
    return [(source, rank) for source in range(problem.nranks)]


def _mutual(problem: Problem) -> bool:
    """Whether any two ranks have as much for one another, without which nothing can take its place."""
    ranks = range(problem.nranks)
    if problem.counts is None:
        return problem.even
    return all(problem.counts[one][other] == problem.counts[other][one] for one in ranks for other in range(one))


def _native(call):
    if call.problem.counts is None and call.even:
        return [("Alltoall", call.send, call.recv)]
    send_counts, recv_counts = (
        [pair_count(call.problem, chunk, 1) for chunk in chunks(call.problem, call.rank, 1)]
        for chunks in (outgoing, incoming)
    )
    return [("Alltoallv", call.blocks(call.send, send_counts), call.blocks(call.recv, recv_counts))]


alltoall = Primitive(
    "alltoall",
    inputs=outgoing,
    outputs=incoming,
    chunk_count=pair_count,
    busbw_factor=others_share,
    aliasing=lambda problem, rank: (0, 0) if _mutual(problem) else None,
    native=_native,
)


@alltoall.algorithm()
def pairwise(rank: int, nranks: int) -> Rounds:
    """In round i send to r+i and receive from r-i; partners are mutual if n is a power of two (Thakur et al. 2005)."""
    mutual = not nranks & (nranks - 1)
    for step in range(1, nranks):
        to, source = (rank ^ step, rank ^ step) if mutual else ((rank + step) % nranks, (rank - step) % nranks)
        yield Send(to, (rank, to)), Recv(source, (source, rank))


@alltoall.algorithm()
def spread(rank: int, nranks: int) -> Rounds:
    """Everything at once, nearest above first, so no rank is everyone's first target (Pješivac-Grbović et al. 2007)."""
    others = cyclic(rank + 1, nranks - 1, nranks)
    yield (*(Send(to, (rank, to)) for to in others), *(Recv(source, (source, rank)) for source in reversed(others)))


@alltoall.algorithm()
def throttled(rank: int, nranks: int, window: int = 4) -> Rounds:
    """`window` blocks at a time in either direction, nearest first, which bounds what a rank has under way."""
    for first in range(1, nranks, window):
        ways = range(first, min(first + window, nranks))
        sends = (Send((rank + way) % nranks, (rank, (rank + way) % nranks)) for way in ways)
        receives = (Recv((rank - way) % nranks, ((rank - way) % nranks, rank)) for way in ways)
        yield (*sends, *receives)


@alltoall.algorithm()
def bruck(rank: int, nranks: int) -> Rounds:
    """Blocks travel the binary digits of their distance (Bruck et al. 1997)."""
    for distance in powers_of_two_below(nranks):
        to, source = (rank + distance) % nranks, (rank - distance) % nranks
        yield Send(to, *held(rank, distance, nranks)), Recv(source, *held(source, distance, nranks))


@alltoall.algorithm()
def k_bruck(rank: int, nranks: int, radix: Radix = 4) -> Rounds:
    """Blocks travel the digits of their distance in base k, with up to k-1 partners a round (Bruck et al. 1997)."""
    for distance in powers_below(nranks, radix):
        operations: list[Message] = []
        for digit in range(1, min(radix, -(-nranks // distance))):
            to, source = (rank + digit * distance) % nranks, (rank - digit * distance) % nranks
            operations.append(Send(to, *held(rank, distance, nranks, radix, digit)))
            operations.append(Recv(source, *held(source, distance, nranks, radix, digit)))
        yield tuple(operations)


def held(rank: int, distance: int, nranks: int, radix: int = 2, digit: int = 1) -> list[tuple[int, int]]:
    """Return the blocks at `rank` of which the next hop is `digit` times `distance`."""
    blocks = []
    for way in range(nranks):
        if way // distance % radix == digit:
            source = (rank - way % distance) % nranks
            blocks.append((source, (source + way) % nranks))
    return blocks
