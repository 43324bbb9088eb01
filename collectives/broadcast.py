"""Broadcast: one rank sends its data to all others (MPI-5.0 section 6.4)."""

from collectives.allgather import ring as allgather_ring
from collectives.registry import Primitive, at_root, per_rank, per_segment, vector_piece, whole_vector
from collectives.rounds import Message, Recv, Rounds, Send, powers_of_two_below
from collectives.scatter import binomial as scatter_binomial

broadcast = Primitive(
    "broadcast",
    inputs=at_root(whole_vector),
    outputs=whole_vector,
    chunk_count=vector_piece,
    aliasing=lambda problem, rank: (0, 0) if rank == problem.root else None,
    native=lambda call: [("Bcast", call.recv, call.problem.root)],
    rooted=True,
    vector=True,
    one_buffer=True,
)


@broadcast.algorithm()
def linear(rank: int, nranks: int, root: int) -> Rounds:
    """The root sends to everyone, all at once."""
    if rank == root:
        yield tuple(Send((root + step) % nranks, 0) for step in range(1, nranks))
    else:
        yield Recv(root, 0)


@broadcast.algorithm()
def binomial(rank: int, nranks: int, root: int) -> Rounds:
    """Those who have the data double in every round, the farthest served first (Chan et al. 2007)."""
    relative = (rank - root) % nranks
    for distance in reversed(powers_of_two_below(nranks)):
        if relative % (2 * distance) == 0 and relative + distance < nranks:
            yield Send((rank + distance) % nranks, 0)
        elif relative % (2 * distance) == distance:
            yield Recv((rank - distance) % nranks, 0)
        else:
            yield ()


@broadcast.algorithm(chunks=per_segment, waits="data")
def chain(rank: int, nranks: int, root: int, segments: int = 16) -> Rounds:
    """Segments follow one another down the chain of ranks: a pipeline of n-1 hops."""
    position = (rank - root) % nranks
    for step in range(nranks - 1 + segments - 1):
        arriving, leaving = step - position + 1, step - position
        operations: list[Message] = []
        if position > 0 and 0 <= arriving < segments:
            operations.append(Recv((rank - 1) % nranks, arriving))
        if position < nranks - 1 and 0 <= leaving < segments:
            operations.append(Send((rank + 1) % nranks, leaving))
        yield tuple(operations)


@broadcast.algorithm(chunks=per_rank)
def scatter_allgather(rank: int, nranks: int, root: int) -> Rounds:
    """Scatter blocks down a binomial tree, then all-gather them around a ring (van de Geijn; Thakur et al. 2005)."""
    yield from scatter_binomial(rank, nranks, root)
    yield from allgather_ring(rank, nranks)
