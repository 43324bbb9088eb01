"""Folding: let a power-of-two algorithm run on any number of ranks.

With n ranks and q the largest power of two, e = n - q ranks hand their vector to a neighbour before, and get the
result from it afterwards (Thakur, Rabenseifner, Gropp 2005): two rounds more, and the neighbour sends one vector more.
"""

from collections.abc import Sequence

from collectives.rounds import LEFT, RIGHT, Chunk, Recv, RecvReduce, Rounds, Send, largest_power_of_two


def folded_members(nranks: int, keep: int = -1) -> list[int]:
    """Return the ranks that take part: of the first e pairs the odd one (or `keep`), and all ranks behind them."""
    excess = nranks - largest_power_of_two(nranks)
    pairs = [keep if keep // 2 == pair and keep >= 0 else 2 * pair + 1 for pair in range(excess)]
    return pairs + list(range(2 * excess, nranks))


def fold_in(rank: int, nranks: int, members: Sequence[int], chunks: Sequence[Chunk]) -> Rounds:
    """Hand the vectors of those who do not take part to their neighbours. One round, none if all take part."""
    if len(members) == nranks:
        return
    partner = rank ^ 1
    if rank not in members:
        yield Send(partner, *chunks)
    elif partner < nranks and partner not in members:
        yield RecvReduce(partner, *chunks, side=LEFT if partner < rank else RIGHT)
    else:
        yield ()


def fold_out(rank: int, nranks: int, members: Sequence[int], chunks: Sequence[Chunk]) -> Rounds:
    """Give the result to those who did not take part. One round, none if all took part."""
    if len(members) == nranks:
        return
    partner = rank ^ 1
    if rank not in members:
        yield Recv(partner, *chunks)
    elif partner < nranks and partner not in members:
        yield Send(partner, *chunks)
    else:
        yield ()
