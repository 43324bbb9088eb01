"""Run the layouts of all ranks in one process on NumPy arrays: the second proof, of the plan itself.

Transfers are synchronous: a send completes only when its receive has been started. Data moves either as early as it
may (when both ends are started) or as late as it may (when one end is waited for), so a buffer that is overwritten
or read too early shows up as a wrong result in one of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from collectives.layout import Layout
from collectives.program import Fold, Move, Reduce, Start, Sync, Wait
from collectives.regions import HOST, RECV, SCRATCH, SEND, SHARED, Region


class Deadlock(AssertionError):
    """No rank can go on."""


def interpret(
    layouts: Sequence[Layout],
    send: Sequence[np.ndarray[Any, Any] | None],
    recv: Sequence[np.ndarray[Any, Any] | None],
    combine: Callable[..., Any] = np.add,
    late: bool = False,
) -> None:
    """Carry out `layouts`, one per rank, on each rank's send and receive arrays.

    Scratch is filled with a value that no input has, so that reading it unwritten is seen.

    Raises:
        Deadlock: some ranks wait for transfers that are never started.
        ValueError: the two ends of a transfer have different lengths.

    """
    _Interpreter(layouts, send, recv, combine, late).run()


class _Interpreter:
    def __init__(self, layouts: Any, send: Any, recv: Any, combine: Callable[..., Any], late: bool) -> None:
        self.layouts, self.combine, self.late = layouts, combine, late
        self.arrays = []
        for layout, one, other in zip(layouts, send, recv, strict=True):
            some = one if one is not None else other
            dtype = some.dtype if some is not None else np.dtype(np.uint8)
            scratch = np.full(layout.scratch_count, 113, dtype)
            slots = np.full(layout.shared_count, 113, dtype)
            host = np.full(layout.host_count, 113, dtype)
            self.arrays.append({SEND: one, RECV: other, SCRATCH: scratch, SHARED: slots, HOST: host})
        self.arrivals: dict[tuple[int, ...], list[int]] = {}
        self.meeting = [False] * len(layouts)
        self.started: list[set[int]] = [set() for _ in layouts]
        self.moved: list[set[int]] = [set() for _ in layouts]
        self.counter = [0] * len(layouts)
        self.ends = {
            (layout.rank, one.peer, one.ordinal, one.outgoing): index
            for layout in layouts
            for index, one in enumerate(layout.transfers)
        }

    def run(self) -> None:
        progress = True
        while progress:
            progress = False
            ranks = list(enumerate(self.layouts))
            for rank, layout in reversed(ranks) if self.late else ranks:
                while self.counter[rank] < len(layout.program) and self._step(rank, layout):
                    self.counter[rank] += 1
                    progress = True
        for rank, layout in enumerate(self.layouts):
            if self.counter[rank] < len(layout.program):
                raise Deadlock(f"rank {rank} waits for ever at {layout.program[self.counter[rank]]}")

    def _step(self, rank: int, layout: Layout) -> bool:
        """Carry out one instruction; return False if it has to wait."""
        instruction = layout.program[self.counter[rank]]
        if isinstance(instruction, Start):
            self.started[rank].update(instruction.transfers)
            if not self.late:
                for one in instruction.transfers:
                    self._move(rank, one)
        elif isinstance(instruction, Wait):
            return all(self._move(rank, one) for one in instruction.transfers)
        elif isinstance(instruction, Sync):
            return self._meet(rank, instruction.group)
        elif isinstance(instruction, Move):
            self._view(rank, instruction.target)[:] = self._view(rank, instruction.source)
        elif isinstance(instruction, Fold):
            left, right, into = (self._view(rank, region) for region in instruction)
            self.combine(left, right, out=into)
        elif isinstance(instruction, Reduce):
            total, *operands = (self._view(rank, region) for region in instruction.operands)
            total = total.copy()
            for one in operands:
                self.combine(total, one, out=total)
            for region in instruction.targets:
                self._view(rank, region)[:] = total
        return True

    def _meet(self, rank: int, group: tuple[int, ...]) -> bool:
        """Let a rank arrive where a group meets; return whether all others have arrived as often."""
        arrivals = self.arrivals.setdefault(group, [0] * len(self.layouts))
        if not self.meeting[rank]:
            arrivals[rank] += 1
        self.meeting[rank] = any(arrivals[member] < arrivals[rank] for member in group)
        return not self.meeting[rank]

    def _move(self, rank: int, index: int) -> bool:
        """Move the data of a transfer if both ends are started; return whether it has been moved."""
        if index in self.moved[rank]:
            return True
        if index not in self.started[rank]:
            return False
        mine = self.layouts[rank].transfers[index]
        other = self.ends.get((mine.peer, rank, mine.ordinal, not mine.outgoing))
        if other is None or other not in self.started[mine.peer]:
            return False
        theirs = self.layouts[mine.peer].transfers[other]
        source, target = ((rank, mine), (mine.peer, theirs)) if mine.outgoing else ((mine.peer, theirs), (rank, mine))
        data = [self._view(source[0], region) for region in source[1].regions]
        places = [self._view(target[0], region) for region in target[1].regions]
        if sum(map(len, data)) != sum(map(len, places)):
            raise ValueError(f"rank {source[0]} sends {source[1].regions} to {target[1].regions} of rank {target[0]}")
        if data:
            stream = np.concatenate(data)
            for place in places:
                place[:], stream = stream[: len(place)], stream[len(place) :]
        self.moved[rank].add(index)
        self.moved[mine.peer].add(other)
        return True

    def _view(self, rank: int, region: Region) -> Any:
        buffer = region.buffer
        if isinstance(buffer, tuple):  # of a peer
            rank, buffer = buffer
        array = self.arrays[rank][buffer]
        if array is None or region.stop > len(array):
            raise ValueError(
                f"rank {rank} has no elements {region.start} to {region.stop} of its {region.buffer} buffer"
            )
        return array[region.start : region.stop]
