"""All ranks split into groups that communicate on their own: one of them alone, or all at the same time.

As nccl-tests split them (NCCL_TESTS_SPLIT): `mod 4` puts ranks together whose numbers leave the same remainder, so that
neighbours in a group are 4 apart; `div 4` puts 4 neighbours together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench.usage import UsageError


@dataclass(frozen=True)
class Split:
    """How ranks are split: `kind` is "mod" or "div"."""

    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.number}"

    def ngroups(self, nranks: int) -> int:
        """Count the groups of `nranks` ranks."""
        return self.number if self.kind == "mod" else nranks // self.number

    @property
    def stride(self) -> int:
        """The distance between neighbours in a group."""
        return self.number if self.kind == "mod" else 1

    def group_of(self, rank: int) -> int:
        """Return the number of the group that `rank` is in; rank 0 is in group 0."""
        return rank % self.number if self.kind == "mod" else rank // self.number


@dataclass(frozen=True)
class Group:
    """The group of this rank. taking_part: whether it is at work; `ngroups` are at the same time."""

    comm: Any
    rank: int
    nranks: int
    ngroups: int = 1
    stride: int = 1
    taking_part: bool = True
    words: str = ""  # blank: all ranks are one group

    @classmethod
    def whole(cls, comm: Any) -> Group:
        """Return the group of all ranks."""
        return cls(comm, comm.Get_rank(), comm.Get_size())


def parse_groups(text: str, nranks: int) -> tuple[Split, ...]:
    """Return the splits in a text such as "mod 4|div 4". Raises UsageError for one that is none, or not even."""
    splits = []
    for word in text.split("|"):
        match = re.fullmatch(r"\s*(mod|div)\s*([1-9][0-9]{0,8})\s*", word, re.IGNORECASE)
        if not match:
            raise UsageError("--groups", text, "write mod N or div N, several with | between: 'mod 4|div 4'")
        split = Split(match[1].lower(), int(match[2]))
        each, left = divmod(nranks, split.number)
        if left or not each:
            remedy = f"{nranks} ranks do not split evenly: {nranks} = {split.number}·{each} + {left}; take a divisor"
            raise UsageError("--groups", text, remedy)
        splits.append(split)
    return tuple(dict.fromkeys(splits))


def groups(comm: Any, splits: Sequence[Split]) -> Iterator[Group]:
    """Yield what is measured one after the other: all ranks as one group, or of each split one group, then all.

    A split's communicator is freed when it has been measured. Collective over `comm`.
    """
    if not splits:
        yield Group.whole(comm)
    for split in splits:
        rank, nranks = comm.Get_rank(), comm.Get_size()
        ngroups, number = split.ngroups(nranks), split.group_of(rank)
        inner = comm.Split(number, rank)
        each = f"of {inner.Get_size()} ranks, neighbours {split.stride} apart"
        if ngroups > 1:
            words = f"{split}: one group {each}, the others idle"
            yield Group(inner, inner.Get_rank(), inner.Get_size(), 1, split.stride, number == 0, words)
        words = f"{split}: {ngroups} groups {each}, all at the same time"
        yield Group(inner, inner.Get_rank(), inner.Get_size(), ngroups, split.stride, True, words)
        inner.Free()
