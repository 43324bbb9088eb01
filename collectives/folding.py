"""Folding: let an algorithm for a power of some number of ranks run on any number of them.

The ranks form as many groups of neighbours as the algorithm can use. In each group the others hand what they have to
one, the leader, before, and get the result from it afterwards (Thakur, Rabenseifner, Gropp 2005): two rounds more, and
a leader sends one vector more for each of the others. Groups are runs of ranks, so rank order can be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from collectives.rounds import LEFT, RIGHT, Chunk, Recv, RecvReduce, Rounds, Send
from collectives.vector import blocks, offsets


class Folding(NamedTuple):
    """The groups of ranks, and the rank that takes part for each."""

    groups: list[range]
    leaders: list[int]

    def group_of(self, rank: int) -> int:
        """Return the number of the group that `rank` is in."""
        return next(number for number, group in enumerate(self.groups) if rank in group)

    def ranks_of(self, group: Any) -> range:
        """Return the ranks of the group of this number."""
        return self.groups[group]

    def others(self, rank: int) -> list[int]:
        """Return the members of `rank`'s group other than its leader: those below it downwards, then those above."""
        number = self.group_of(rank)
        group, leader = self.groups[number], self.leaders[number]
        return [*range(leader - 1, group.start - 1, -1), *range(leader + 1, group.stop)]

    def leader_of(self, rank: int) -> int:
        """Return the leader of `rank`'s group."""
        return self.leaders[self.group_of(rank)]

    @property
    def everyone(self) -> bool:
        """Whether all ranks take part, so that there is nothing to fold."""
        return len(self.leaders) == self.groups[-1].stop


def folding(nranks: int, ngroups: int, leader: int = 0) -> Folding:
    """Group `nranks` ranks as evenly as can be, the larger groups first; `leader` leads its group, else the first."""
    counts = blocks(nranks, ngroups)
    groups = [range(first, first + count) for first, count in zip(offsets(counts), counts, strict=True)]
    return Folding(groups, [leader if leader in group else group.start for group in groups])


def fold_in(folded: Folding, rank: int, chunks: Sequence[Chunk]) -> Rounds:
    """Combine what the members of each group have at its leader. One round, none if all take part."""
    if folded.everyone:
        return
    leader, others = folded.leader_of(rank), folded.others(rank)
    if rank == leader:
        yield tuple(RecvReduce(peer, *chunks, side=LEFT if peer < rank else RIGHT) for peer in others)
    else:
        yield Send(leader, *chunks)


def fold_halves(folded: Folding, rank: int, chunks: Sequence[Chunk]) -> Rounds:
    """Do `fold_in` for groups of at most two ranks, each combining one half. Two rounds, none if all take part.

    One round more than `fold_in`, but half a vector combined instead of a whole one (Rabenseifner 2004).
    """
    if folded.everyone:
        return
    leader, others = folded.leader_of(rank), folded.others(rank)
    lower, upper = chunks[: len(chunks) // 2], chunks[len(chunks) // 2 :]
    for peer in others if rank == leader else [leader]:
        given, kept = (upper, lower) if rank == leader else (lower, upper)
        yield Send(peer, *given), RecvReduce(peer, *kept, side=LEFT if peer < rank else RIGHT)
        yield Recv(peer, *upper) if rank == leader else Send(peer, *upper)
    if not others:
        yield from ((), ())


def fold_out(folded: Folding, rank: int, chunks: Callable[[int], Sequence[Chunk]]) -> Rounds:
    """Give each member ``chunks(member)`` of what its leader has. One round, none if all took part."""
    if folded.everyone:
        return
    leader, others = folded.leader_of(rank), folded.others(rank)
    if rank == leader:
        yield tuple(Send(peer, *chunks(peer)) for peer in others)
    else:
        yield Recv(leader, *chunks(rank))
