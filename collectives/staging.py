"""A layout for buffers on a GPU whose messages go through the host: pure, no MPI, no GPU.

What is sent is copied to the host first, what was received is copied to the GPU; all else stays there. Nothing crosses
twice: what arrived is passed on from the host, what is sent to several is copied once, and a chunk that a rank only
passes on never reaches its GPU.

Copies and kernels go into queues (CUDA's streams), here called lanes. Where messages are long, copies out and copies in
have lanes of their own, so that both directions and the kernels overlap with one another and with messages, which the
layout has cut into pieces. Where one must come after another, `Mark` and `After` say so to the GPU, and `Settle` to the
host. All is settled when the call ends.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from collectives.layout import Layout
from collectives.program import After, Fold, Instruction, Mark, Move, Settle, Start, Transfer, Wait
from collectives.regions import HOST, RECV, SCRATCH, Buffer, Region, joined

COMPUTE, OUT, IN = "compute", "out", "in"
LANES = (COMPUTE, OUT, IN)
"""Kernels on CuPy's current stream, copies to the host, copies from it."""

ENTRY = 0
"""The work that was in the current stream before the call, which may concern any region."""


def lane_of(move: Move) -> str:
    """Return the lane of a copy where copies have lanes of their own."""
    return OUT if move.target.buffer == HOST else IN if move.source.buffer == HOST else COMPUTE


def stage(layout: Layout, overlapped: bool) -> Layout:
    """Return `layout` with messages from and to the host, and the copies and waits that this needs.

    `overlapped` gives copies lanes of their own, which pays for long messages; otherwise all is in one lane.
    """
    return _Stager(layout, overlapped).staged()


class Intervals:
    """A set of elements as disjoint intervals in rising order."""

    def __init__(self) -> None:
        self.intervals: list[tuple[int, int]] = []

    def add(self, start: int, stop: int) -> None:
        """Put in the elements from `start` to `stop`."""
        touched = [one for one in self.intervals if one[0] <= stop and start <= one[1]]
        others = [one for one in self.intervals if not (one[0] <= stop and start <= one[1])]
        start, stop = min([start, *(one[0] for one in touched)]), max([stop, *(one[1] for one in touched)])
        self.intervals = sorted([*others, (start, stop)])

    def remove(self, start: int, stop: int) -> None:
        """Take out the elements from `start` to `stop`."""
        cut = [part for low, high in self.intervals for part in ((low, min(high, start)), (max(low, stop), high))]
        self.intervals = [(low, high) for low, high in cut if low < high]

    def within(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the intervals of the set between `start` and `stop`."""
        cut = [(max(low, start), min(high, stop)) for low, high in self.intervals]
        return [(low, high) for low, high in cut if low < high]

    def lacking(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the intervals between `start` and `stop` that are not in the set."""
        edges = [start, *(edge for one in self.within(start, stop) for edge in one), stop]
        return [(low, high) for low, high in zip(edges[::2], edges[1::2], strict=True) if low < high]


class _HostPlaces:
    """Where on the host regions lie that are sent or received: side by side, with nothing between that is not."""

    def __init__(self, transfers: Iterable[Transfer]) -> None:
        used: dict[Buffer, Intervals] = {}
        for one in transfers:
            for region in one.regions:
                used.setdefault(region.buffer, Intervals()).add(region.start, region.stop)
        self._places: dict[Buffer, tuple[list[int], list[int]]] = {}
        self.count = 0
        for buffer, intervals in used.items():
            starts = []
            for start, stop in intervals.intervals:
                starts.append(self.count)
                self.count += stop - start
            self._places[buffer] = ([start for start, _ in intervals.intervals], starts)

    def of(self, region: Region) -> Region:
        """Return the place of a region that lies in one that is sent or received."""
        firsts, starts = self._places[region.buffer]
        index = bisect_right(firsts, region.start) - 1
        start = starts[index] + region.start - firsts[index]
        return Region(HOST, start, start + region.stop - region.start)


@dataclass(frozen=True)
class Work:
    """Something in a lane: what it reads and writes."""

    lane: str
    reads: Sequence[Region]
    writes: Sequence[Region]

    def conflicts(self, other: Work) -> bool:
        """Whether one of the two must come after the other."""
        return any(
            mine.overlaps(theirs)
            for some, others in ((self.writes, other.writes), (self.writes, other.reads), (self.reads, other.writes))
            for mine in some
            for theirs in others
        )


class _Stager:
    def __init__(self, layout: Layout, overlapped: bool) -> None:
        self.layout, self.overlapped = layout, overlapped
        self.places = _HostPlaces(layout.transfers)
        self.transfers = [
            one._replace(regions=tuple(self.places.of(region) for region in one.regions)) for one in layout.transfers
        ]
        self.on_host: dict[Buffer, Intervals] = {}  # where the host has the present value
        self.only_on_host: dict[Buffer, Intervals] = {}  # where the GPU has not
        self.works = [Work(COMPUTE, (), ())]
        self.instructions: list[Instruction | int] = [ENTRY]  # a number stands for where that work is put in
        self.known = {lane: dict.fromkeys(LANES, -1) for lane in LANES}  # for each lane what it comes after in others
        self.settled = dict.fromkeys(LANES, -1)  # what the host has waited for

    def staged(self) -> Layout:
        for one in self.layout.program:
            if isinstance(one, Start):
                self._start(one.transfers)
            elif isinstance(one, Wait):
                self._wait(one.transfers)
            elif isinstance(one, Move):
                self._move(one)
            elif isinstance(one, Fold):
                self._bring((one.left, one.right))
                self._kernel(one, (one.left, one.right), one.into)
            else:
                raise TypeError(f"{one} of shared memory cannot be staged through the host")
        self._settle(range(len(self.works)))
        return replace(
            self.layout,
            transfers=self.transfers,
            program=with_marks(self.instructions, self.works),
            host_count=self.places.count,
        )

    # Messages

    def _start(self, transfers: Sequence[int]) -> None:
        sends = [one for one in transfers if self.transfers[one].outgoing]
        receives = [one for one in transfers if not self.transfers[one].outgoing]
        for one in sends:
            for region in self.layout.transfers[one].regions:
                self._take(region)
        if not self.overlapped:
            self._settle(number for one in transfers for number in self._touching(one))
            self.instructions.append(Start(tuple(transfers)))
            return
        for group in filter(None, (receives, *([one] for one in sends))):
            self._settle(number for one in group for number in self._touching(one))
            self.instructions.append(Start(tuple(group)))

    def _touching(self, transfer: int) -> list[int]:
        """Return the copies that must be complete before the transfer may read or write its part of the host."""
        regions = self.transfers[transfer].regions
        own = Work("", regions, ()) if self.transfers[transfer].outgoing else Work("", (), regions)
        return [number for number, work in enumerate(self.works) if self._open(number) and own.conflicts(work)]

    def _wait(self, transfers: Sequence[int]) -> None:
        if not self.overlapped:
            self._arrived(transfers)
            return
        incoming = [one for one in transfers if not self.transfers[one].outgoing]
        outgoing = [one for one in transfers if self.transfers[one].outgoing]
        for group in filter(None, (*([one] for one in incoming), outgoing)):
            self._arrived(group)

    def _arrived(self, transfers: Sequence[int]) -> None:
        """Wait for transfers, and copy what is a result: what is in scratch may never be needed on the GPU."""
        self.instructions.append(Wait(tuple(transfers)))
        arrived = [
            region
            for one in transfers
            if not self.transfers[one].outgoing
            for region in self.layout.transfers[one].regions
        ]
        for region in arrived:
            self._set(self.on_host, region)
            self._set(self.only_on_host, region)
        self._bring([region for region in arrived if region.buffer == RECV])

    # Copies

    def _take(self, region: Region) -> None:
        """Have the present value of `region` on the host."""
        for start, stop in self.on_host.get(region.buffer, Intervals()).lacking(region.start, region.stop):
            part = Region(region.buffer, start, stop)
            self._set(self.on_host, part)
            self._put(Move(part, self.places.of(part)), OUT, (part,), (self.places.of(part),))

    def _bring(self, regions: Sequence[Region]) -> None:
        """Have the present values of `regions` on the GPU."""
        moves = []
        for region in sorted(regions):
            for start, stop in self.only_on_host.get(region.buffer, Intervals()).within(region.start, region.stop):
                part = Region(region.buffer, start, stop)
                moves.append((self.places.of(part), part))
        for source, target in joined(moves):
            self._clear(self.only_on_host, target)
            self._put(Move(source, target), IN, (source,), (target,))

    def _move(self, move: Move) -> None:
        source, target = move
        stale = self.only_on_host.get(source.buffer, Intervals()).within(source.start, source.stop)
        if source.buffer == SCRATCH and stale == [(source.start, source.stop)]:
            # It only passed through scratch, so it goes from the host to where it is wanted.
            self._written(target)
            self._put(Move(self.places.of(source), target), IN, (self.places.of(source),), (target,))
            return
        self._bring((source,))
        self._kernel(move, (source,), target)

    def _kernel(self, instruction: Instruction, reads: Sequence[Region], into: Region) -> None:
        self._written(into)
        self._put(instruction, COMPUTE, reads, (into,))

    def _written(self, region: Region) -> None:
        """Note that the GPU alone has what is about to be in `region`."""
        self._clear(self.on_host, region)
        self._clear(self.only_on_host, region)

    def _set(self, places: dict[Buffer, Intervals], region: Region) -> None:
        places.setdefault(region.buffer, Intervals()).add(region.start, region.stop)

    def _clear(self, places: dict[Buffer, Intervals], region: Region) -> None:
        if region.buffer in places:
            places[region.buffer].remove(region.start, region.stop)

    # Lanes

    def _put(self, instruction: Instruction, lane: str, reads: Sequence[Region], writes: Sequence[Region]) -> None:
        """Put work into a lane, behind what it must come after in others."""
        work = Work(lane if self.overlapped else COMPUTE, reads, writes)
        for other in [one for one in LANES if one != work.lane and self.overlapped]:
            before = self._last_conflict(work, other)
            if before is not None:
                self.known[work.lane][other] = before
                self.instructions.append(After(work.lane, before))
        self.instructions += [instruction, len(self.works)]
        self.works.append(work)

    def _last_conflict(self, work: Work, lane: str) -> int | None:
        """Return the last work in `lane` that `work` must come after and is not yet known to, None if there is none."""
        for number in range(len(self.works) - 1, max(self.known[work.lane][lane], self.settled[lane]), -1):
            one = self.works[number]
            if one.lane == lane and (number == ENTRY or one.conflicts(work)):
                return number
        return None

    def _open(self, number: int) -> bool:
        """Whether work may still be under way, for all that the host knows."""
        return number != ENTRY and number > self.settled[self.works[number].lane]

    def _settle(self, numbers: Iterable[int]) -> None:
        """Let the host wait for these works: in each lane for the last one."""
        last: dict[str, int] = {}
        for number in numbers:
            if self._open(number):
                lane = self.works[number].lane
                last[lane] = max(number, last.get(lane, number))
        for lane, number in last.items():
            self.settled[lane] = number
            self.instructions.append(Settle(number))


def with_marks(instructions: Sequence[Instruction | int], works: Sequence[Work]) -> list[Instruction]:
    """Return a program with a mark behind each of the works that something waits for, numbered in order.

    In `instructions` a number stands for where the work of that number is put in, and `After` and `Settle` name works.
    """
    wanted = sorted({one.number for one in instructions if isinstance(one, (After, Settle))})
    numbers = {work: index for index, work in enumerate(wanted)}
    program: list[Instruction] = []
    for one in instructions:
        if isinstance(one, (After, Settle)):
            program.append(one._replace(number=numbers[one.number]))
        elif not isinstance(one, int):
            program.append(one)
        elif one in numbers:
            program.append(Mark(works[one].lane, numbers[one]))
    return program


def synchronisations(layout: Layout) -> int:
    """Return how often the host waits for the GPU in a call."""
    return sum(isinstance(one, Settle) for one in layout.program)


def copies(layout: Layout) -> tuple[int, int]:
    """Return how many copies to the host and from the host a call makes."""
    moves = [one for one in layout.program if isinstance(one, Move)]
    return sum(one.target.buffer == HOST for one in moves), sum(one.source.buffer == HOST for one in moves)
