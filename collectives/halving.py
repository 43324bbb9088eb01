"""Halving and doubling: partners at distances that are powers of two exchange halves of what they have left.

Combining halves leaves each of a power of two of ranks with one chunk; exchanging them again in the opposite order
gives everyone all chunks (Thakur, Rabenseifner, Gropp 2005; Rabenseifner 2004).
"""

from collections.abc import Iterator
from typing import Literal, TypeAlias

from collectives.rounds import LEFT, RIGHT, Recv, RecvReduce, Rounds, Send, powers_of_two_below

HalvingOrder: TypeAlias = Literal["far_first", "near_first"]
"""Which partners come first. Far first ends with chunk r at rank r; near first keeps rank order, and ends with chunk
`mirrored(r)` at rank r."""


def halving(rank: int, nranks: int, order: HalvingOrder = "far_first") -> Rounds:
    """Combine a half of what is left with each partner; chunks 0 to nranks-1, one of which is left."""
    for peer, kept, given in _halves(rank, nranks, order):
        yield Send(peer, *given), RecvReduce(peer, *kept, side=LEFT if peer < rank else RIGHT)


def doubling(rank: int, nranks: int, order: HalvingOrder = "far_first") -> Rounds:
    """Undo the cutting of `halving`, from its last exchange to its first."""
    for peer, kept, given in reversed(list(_halves(rank, nranks, order))):
        yield Send(peer, *kept), Recv(peer, *given)


def _halves(rank: int, nranks: int, order: HalvingOrder) -> Iterator[tuple[int, range, range]]:
    """Yield each partner, which chunks are kept and which the partner is given."""
    left = range(nranks)
    distances = powers_of_two_below(nranks)
    for distance in distances if order == "near_first" else reversed(distances):
        middle = len(left) // 2
        peer, lower, upper = rank ^ distance, left[:middle], left[middle:]
        left, given = (lower, upper) if rank < peer else (upper, lower)
        yield peer, left, given


def mirrored(number: int, nranks: int) -> int:
    """Return `number`, below a power of two, with its binary digits in the opposite order."""
    result = 0
    for _ in powers_of_two_below(nranks):
        result, number = (result << 1) | (number & 1), number >> 1
    return result
