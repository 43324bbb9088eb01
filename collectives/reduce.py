"""Reduce: every rank contributes, the combined result stays at the root (MPI-5.0 section 6.9.1)."""

from collectives.folding import fold_in, folded_members
from collectives.gather import binomial as gather_binomial
from collectives.reduce_scatter import recursive_halving
from collectives.registry import COMMUTATIVE, Primitive, at_root, vector_piece, whole_vector
from collectives.rounds import LEFT, RIGHT, RecvReduce, Rounds, Send, among, largest_power_of_two, powers_of_two_below

reduce = Primitive(
    "reduce",
    inputs=whole_vector,
    outputs=at_root(whole_vector),
    chunk_count=vector_piece,
    aliasing=lambda problem, rank: (0, 0) if rank == problem.root else None,
    native=lambda call: [("Reduce", call.send, call.recv, call.op, call.problem.root)],
    combines=True,
    rooted=True,
    vector=True,
)


def power_of_two_chunks(nranks: int, **parameters: object) -> int:
    """The vector is cut into the largest power of two of chunks that is at most the ranks."""
    return largest_power_of_two(nranks)


@reduce.algorithm(keeps_order=True)
def linear(rank: int, nranks: int, root: int) -> Rounds:
    """Everyone sends to the root at once, which combines in rank order."""
    if rank == root:
        below = (RecvReduce(peer, 0, side=LEFT) for peer in range(root - 1, -1, -1))
        above = (RecvReduce(peer, 0, side=RIGHT) for peer in range(root + 1, nranks))
        yield (*below, *above)
    else:
        yield Send(root, 0)


@reduce.algorithm(needs=COMMUTATIVE)
def binomial(rank: int, nranks: int, root: int) -> Rounds:
    """Partial results of 1, 2, 4, ... ranks meet along a binomial tree; in rank order if the root is 0."""
    relative = (rank - root) % nranks
    for distance in powers_of_two_below(nranks):
        if relative % (2 * distance) == distance:
            yield Send((rank - distance) % nranks, 0)
        elif relative % (2 * distance) == 0 and relative + distance < nranks:
            yield RecvReduce((rank + distance) % nranks, 0, side=RIGHT)
        else:
            yield ()


@reduce.algorithm(chunks=power_of_two_chunks, needs=COMMUTATIVE)
def rabenseifner(rank: int, nranks: int, root: int) -> Rounds:
    """Reduce-scatter by recursive halving, then gather along a binomial tree (Rabenseifner 2004)."""
    members = folded_members(nranks, keep=root)
    yield from fold_in(rank, nranks, members, range(len(members)))
    yield from among(members, rank, recursive_halving)
    yield from among(members, rank, lambda index, n: gather_binomial(index, n, members.index(root)))
