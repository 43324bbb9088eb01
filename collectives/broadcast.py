"""Broadcast: one rank sends its data to all others (MPI-5.0 section 6.4)."""

from typing import Literal

from collectives.allgather import ALLGATHERS
from collectives.contracts import at_root, vector_piece, whole_vector
from collectives.needs import POWER_OF_TWO
from collectives.negabinary import digits, of_digits
from collectives.parameters import Radix
from collectives.registry import Primitive
from collectives.rounds import Recv, Rounds, Send, cyclic, powers_of_two_below, together
from collectives.scatter import binomial as scatter_binomial
from collectives.trees import double, down, pre_order
from collectives.trees import knomial as knomial_tree
from collectives.vector import per_rank, per_segment, two_halves

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
    """The root sends to everyone, all at once (Chan et al. 2007)."""
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


@broadcast.algorithm()
def knomial(rank: int, nranks: int, root: int, radix: Radix = 4) -> Rounds:
    """Those who have the data serve radix-1 others each in every round, the farthest first (Wilkins et al. 2023)."""
    yield from knomial_tree(rank, nranks, root, radix, lambda first, length: [0])


@broadcast.algorithm(chunks=per_segment, waits="data")
def chain(rank: int, nranks: int, root: int, segments: int = 16) -> Rounds:
    """Segments follow one another down the chain of ranks: a pipeline of n-1 hops (Pješivac-Grbović et al. 2007)."""
    yield from down(pre_order(nranks, 1, root), rank, range(segments))


@broadcast.algorithm(chunks=per_segment, waits="data")
def binary_tree(rank: int, nranks: int, root: int, segments: int = 16) -> Rounds:
    """Segments go down a binary tree: few hops, but twice the bytes to send (Pješivac-Grbović et al. 2007)."""
    yield from down(pre_order(nranks, 2, root), rank, range(segments))


@broadcast.algorithm(chunks=two_halves, waits="data")
def split_binary_tree(rank: int, nranks: int, root: int, segments: int = 8) -> Rounds:
    """Half goes down each side of a binary tree, then partners of both sides swap (Pješivac-Grbović et al. 2007).

    `segments` are those of each half. The left side may have one rank more, which gets its second half from the root.
    """
    tree, first, second = pre_order(nranks, 2, root), range(segments), range(segments, 2 * segments)
    relative, nleft = (rank - root) % nranks, nranks // 2
    lefts, rights = cyclic(root + 1, nleft, nranks), cyclic(root + 1 + nleft, nranks - 1 - nleft, nranks)
    yield from together(
        down(tree.only([root, *lefts]), rank, first),
        down(tree.only([root, *rights]), rank, second),
    )
    alone = lefts[-1] if len(lefts) > len(rights) else None
    if rank == root:
        yield Send(alone, *second) if alone is not None else ()
    elif rank == alone:
        yield Recv(root, *second)
    elif relative <= nleft:
        yield Send(rights[relative - 1], *first), Recv(rights[relative - 1], *second)
    else:
        yield Send(lefts[relative - nleft - 1], *second), Recv(lefts[relative - nleft - 1], *first)


@broadcast.algorithm(chunks=two_halves, waits="data")
def double_binary_tree(rank: int, nranks: int, root: int, segments: int = 8) -> Rounds:
    """Each half goes down a tree of its own, in which other ranks have the work of sending (Sanders et al. 2009).

    `segments` are those of each half.
    """
    first, second = double(nranks, root)
    yield from together(down(first, rank, range(segments)), down(second, rank, range(segments, 2 * segments)))


@broadcast.algorithm(chunks=per_rank, needs=lambda allgather: POWER_OF_TWO if allgather == "recursive_doubling" else ())
def scatter_allgather(
    rank: int, nranks: int, root: int, allgather: Literal["ring", "recursive_doubling", "bruck"] = "ring"
) -> Rounds:
    """Scatter blocks down a binomial tree, then all-gather them (van de Geijn; Thakur et al. 2005)."""
    yield from scatter_binomial(rank, nranks, root)
    yield from ALLGATHERS[allgather](rank, nranks)


@broadcast.algorithm(needs=POWER_OF_TWO)
def bine_tree(rank: int, nranks: int, root: int) -> Rounds:
    """Those who have the data double in every round, a third nearer than in a binomial tree (De Sensi et al. 2025).

    In base -2, counted from the root, a rank is reached when its digits still to be decided are all equal, and serves
    the rank in which these are all the others.
    """
    relative = (rank - root) % nranks
    written = digits(relative, nranks)
    reached = relative == 0
    for distance in reversed(powers_of_two_below(nranks)):
        undecided = 2 * distance - 1
        peer = (of_digits(written ^ undecided, nranks) + root) % nranks
        if reached:
            yield Send(peer, 0)
        elif written & undecided in (0, undecided):
            reached = True
            yield Recv(peer, 0)
        else:
            yield ()
