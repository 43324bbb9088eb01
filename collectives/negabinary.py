"""Numbers in base -2: partners near each other in both directions, the butterfly of Swing and Bine.

In round i ranks are 1, 1, 3, 5, 11, ... apart, half of them to the left and half to the right, so that messages cross
fewer links of a network than at distances 1, 2, 4, 8 (De Sensi et al. 2024 and 2025). Ranks are a power of two.
"""

from collections.abc import Iterable, Sequence

from collectives.rounds import Recv, Rounds, Send

ONES = 0xAAAAAAAA
"""The digits of base -2 that count negatively."""


def partner(rank: int, number: int, nranks: int) -> int:
    """Return with whom `rank` exchanges in step `number` of the butterfly."""
    distance = (1 - (-2) ** (number + 1)) // 3
    return (rank + distance if rank % 2 == 0 else rank - distance) % nranks


def steps(nranks: int) -> range:
    """Return the numbers of the butterfly's steps, from the nearest partner to the farthest."""
    return range((nranks - 1).bit_length())


def butterfly(rank: int, nranks: int, numbers: Iterable[int], chunks: Sequence[int]) -> Rounds:
    """All-gather: in each of the steps `numbers` exchange all that is held; rank r begins with ``chunks[r]``."""
    held = [{chunk} for chunk in chunks]
    for number in numbers:
        peer = partner(rank, number, nranks)
        yield Send(peer, *sorted(held[rank])), Recv(peer, *sorted(held[peer]))
        held = [held[one] | held[partner(one, number, nranks)] for one in range(nranks)]


def digits(number: int, nranks: int) -> int:
    """Return the digits of `number` (modulo `nranks`) in base -2, read as a binary number."""
    return ((ONES + number) ^ ONES) & (nranks - 1)


def of_digits(written: int, nranks: int) -> int:
    """Return the number, modulo `nranks`, with these digits in base -2."""
    return ((ONES ^ written) - ONES) & (nranks - 1)
