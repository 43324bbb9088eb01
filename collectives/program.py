"""The program of one rank: few instructions on regions, with each wait put where the next instruction needs it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
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


class Reduce(NamedTuple):
    """Combine `operands` from left to right and put the result into each of `targets`, which may be operands.

    What several folds and moves do, in one pass over memory.
    """

    operands: Regions
    targets: Regions


class Sync(NamedTuple):
    """Let all that was done before it be seen by the ranks of `group` after it, and wait until they are as far."""

    group: tuple[int, ...]


class Mark(NamedTuple):
    """Note in the queue of `lane`, as event `number`, what was put into it so far."""

    lane: str
    number: int


class After(NamedTuple):
    """Let what is put into the queue of `lane` from now on begin after event `number`."""

    lane: str
    number: int


class Settle(NamedTuple):
    """Wait until event `number` has come."""

    number: int


Instruction: TypeAlias = Start | Wait | Move | Fold | Reduce | Sync | Mark | After | Settle


@dataclass
class Program:
    """Instructions in order, with each wait put where the next instruction needs it."""

    transfers: list[Transfer] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    under_way: dict[int, Transfer] = field(default_factory=dict)
    arriving: dict[int, Transfer] = field(default_factory=dict)  # those under way that write
    ordinals: dict[tuple[bool, int], int] = field(default_factory=dict)

    def transfer(self, outgoing: bool, peer: int, regions: Sequence[Region]) -> int:
        """Add a transfer and return its number."""
        ordinal = self.ordinals.get((outgoing, peer), 0)
        self.ordinals[outgoing, peer] = ordinal + 1
        self.transfers.append(Transfer(outgoing, peer, ordinal, tuple(regions)))
        return len(self.transfers) - 1

    def start(self, transfers: Sequence[int]) -> None:
        """Start transfers: at once those that touch nothing under way, the others after what they touch."""
        blocked = {}
        if self.under_way:
            for one in transfers:
                outgoing, _, _, regions = self.transfers[one]
                touched = self._touched(regions, ()) if outgoing else self._touched((), regions)
                if touched:
                    blocked[one] = touched
        if blocked:
            self._start([one for one in transfers if one not in blocked])
            self.wait(chain.from_iterable(blocked.values()))
            self._start(list(blocked))
        else:
            self._start(transfers)

    def _start(self, transfers: Sequence[int]) -> None:
        if transfers:
            self.instructions.append(Start(tuple(transfers)))
            for one in transfers:
                self.under_way[one] = self.transfers[one]
                if not self.transfers[one].outgoing:
                    self.arriving[one] = self.transfers[one]

    def wait(self, transfers: Iterable[int]) -> None:
        """Wait for those of these transfers that are under way."""
        waited = tuple(filter(self.under_way.__contains__, dict.fromkeys(transfers)))
        if waited:
            self.instructions.append(Wait(waited))
            for one in waited:
                del self.under_way[one]
                self.arriving.pop(one, None)

    def wait_all(self) -> None:
        """Wait for all transfers under way."""
        self.wait(list(self.under_way))

    def wait_all_but(self, newest: int) -> None:
        """Wait for all but the `newest` so many transfers under way."""
        late = len(self.under_way) - newest
        if late > 0:
            self.wait(list(self.under_way)[:late])

    def move(self, source: Region, target: Region) -> None:
        """Copy, after what is under way on either region."""
        if source != target and source.start != source.stop:
            self._settle((source,), (target,))
            self.instructions.append(Move(source, target))

    def move_all(self, moves: Iterable[tuple[Region, ...]]) -> None:
        """Copy from where to where each of `moves` says, one after another."""
        for source, target in moves:
            self.move(source, target)

    def fold(self, left: Region, right: Region, into: Region) -> None:
        """Combine, after what is under way on any of the regions."""
        self._settle((left, right), (into,))
        self.instructions.append(Fold(left, right, into))

    def reduce(self, operands: Regions, targets: Regions) -> None:
        """Combine all, after what is under way on any of the regions."""
        self._settle(operands, targets)
        self.instructions.append(Reduce(operands, targets))

    def sync(self, group: tuple[int, ...]) -> None:
        """Let `group` meet, when the own transfers are complete."""
        self.wait_all()
        if len(group) > 1:
            self.instructions.append(Sync(group))

    def _settle(self, read: Regions, written: Regions) -> None:
        """Wait for what is under way on regions that are about to be read or written."""
        if self.under_way:
            self.wait(self._touched(read, written))

    def _touched(self, read: Regions, written: Regions) -> list[int]:
        """Return the transfers under way that must be complete before regions are read and written."""
        touched = []
        either = read + written
        for one, (outgoing, _, _, theirs) in (self.under_way if written else self.arriving).items():
            for buffer, start, stop in theirs:
                for other, first, last in written if outgoing else either:
                    if start < last and first < stop and buffer == other:
                        touched.append(one)
        return touched
