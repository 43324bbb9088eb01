"""All-to-all: every rank sends a different block to every rank (MPI-5.0 section 6.8). A chunk is (source, target)."""

from collectives.allgather import cyclic
from collectives.registry import Primitive, Problem, others_share
from collectives.rounds import Recv, Rounds, Send, powers_of_two_below


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


def _native(call):
    if call.problem.counts is None and call.problem.even:
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
    aliasing=lambda problem, rank: (0, 0),
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
    """Everything at once, nearest above first, so that no rank is everyone's first target."""
    others = cyclic(rank + 1, nranks - 1, nranks)
    yield (*(Send(to, (rank, to)) for to in others), *(Recv(source, (source, rank)) for source in reversed(others)))


@alltoall.algorithm()
def bruck(rank: int, nranks: int) -> Rounds:
    """Blocks travel the binary digits of their distance (Bruck et al. 1997)."""
    for distance in powers_of_two_below(nranks):
        to, source = (rank + distance) % nranks, (rank - distance) % nranks
        yield Send(to, *_held(rank, distance, nranks)), Recv(source, *_held(source, distance, nranks))


def _held(rank: int, distance: int, nranks: int) -> list[tuple[int, int]]:
    """The blocks at `rank` whose remaining way contains the hop `distance`."""
    chunks = []
    for way in range(nranks):
        if way & distance:
            source = (rank - (way & (distance - 1))) % nranks
            chunks.append((source, (source + way) % nranks))
    return chunks
