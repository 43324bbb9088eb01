"""The program of one rank: four instructions on regions, with each wait put where the next instruction needs it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from collectives.regions import Region, Regions


class Transfer(NamedTuple):
    """One message that is really sent: to or from `peer`, the `ordinal`-th of its direction, from these regions."""

    outgoing: bool
    peer: int
    ordinal: int
    regions: Regions


class Start(NamedTuple):
    """Start these transfers, in any order."""

    transfers: tuple[int, ...]


class Wait(NamedTuple):
    """Wait until these transfers are complete."""

    transfers: tuple[int, ...]


class Move(NamedTuple):
    """Copy `source` to `target`."""

    source: Region
    target: Region


class Fold(NamedTuple):
    """Put `left` op `right` into `into`, which may be one of them."""

    left: Region
    right: Region
    into: Region


class Sync(NamedTuple):
    """Let all that was done before it be seen by the ranks of `group` after it, and wait until they are as far."""

    group: tuple[int, ...]


Instruction: TypeAlias = Start | Wait | Move | Fold | Sync


@dataclass
class Program:
    """Instructions in order, with each wait put where the next instruction needs it."""

    transfers: list[Transfer] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    under_way: dict[int, Transfer] = field(default_factory=dict)

    def transfer(self, outgoing: bool, peer: int, ordinal: int, regions: Sequence[Region]) -> int:
        """Add a transfer and return its number."""
        self.transfers.append(Transfer(outgoing, peer, ordinal, tuple(regions)))
        return len(self.transfers) - 1

    def start(self, transfers: Sequence[int]) -> None:
        """Start transfers: at once those that touch nothing under way, the others after what they touch."""
        if not transfers:
            return
        if self.under_way:
            blocked = [
                self._touched(one.regions, not one.outgoing) for one in map(self.transfers.__getitem__, transfers)
            ]
            self._start([one for one, touched in zip(transfers, blocked, strict=True) if not touched])
            self.wait(late for touched in blocked for late in touched)
            self._start([one for one, touched in zip(transfers, blocked, strict=True) if touched])
        else:
            self._start(transfers)

    def _start(self, transfers: Sequence[int]) -> None:
        if transfers:
            self.instructions.append(Start(tuple(transfers)))
            self.under_way.update((one, self.transfers[one]) for one in transfers)

    def wait(self, transfers: Iterable[int]) -> None:
        """Wait for those of these transfers that are under way."""
        waited = tuple(one for one in dict.fromkeys(transfers) if one in self.under_way)
        if waited:
            self.instructions.append(Wait(waited))
            for one in waited:
                del self.under_way[one]

    def wait_all(self) -> None:
        """Wait for all transfers under way."""
        self.wait(list(self.under_way))

    def wait_all_but(self, newest: int) -> None:
        """Wait for all but the `newest` so many transfers under way."""
        if len(self.under_way) > newest:
            self.wait(list(self.under_way)[: len(self.under_way) - newest])

    def move(self, source: Region, target: Region) -> None:
        """Copy, after what is under way on either region."""
        if source != target and source.start != source.stop:
            self.wait([*self._touched((source,), False), *self._touched((target,), True)])
            self.instructions.append(Move(source, target))

    def fold(self, left: Region, right: Region, into: Region) -> None:
        """Combine, after what is under way on any of the regions."""
        self.wait([*self._touched((left, right), False), *self._touched((into,), True)])
        self.instructions.append(Fold(left, right, into))

    def sync(self, group: tuple[int, ...]) -> None:
        """Let `group` meet, when the own transfers are complete."""
        self.wait_all()
        if len(group) > 1:
            self.instructions.append(Sync(group))

    def _touched(self, regions: Sequence[Region], written: bool) -> list[int]:
        """Return the transfers under way that must be complete before `regions` are read or written."""
        touched = []
        for one, transfer in self.under_way.items():
            if written or not transfer.outgoing:
                for buffer, start, stop in transfer.regions:
                    for other, first, last in regions:
                        if start < last and first < stop and buffer == other:
                            touched.append(one)
        return touched
