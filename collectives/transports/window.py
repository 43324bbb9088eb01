"""Shared memory: what the buffers of peers are to a plan, and how ranks meet without messages.

Ranks meet by counters in shared memory. Each rank counts how often it has come to the place where a group meets, and
goes on when all others have come as often. A counter only grows, so no rank can mistake a meeting for the one before,
and a fast rank cannot pass a slow one: it waits at the next meeting.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import numpy as np
from mpi4py import MPI

from collectives.regions import SHARED, Region
from collectives.shared import ALIGN_NBYTES, Place, SharedMemory

Group = tuple[int, ...]

POLLS = 200
"""How often a rank looks, where every rank has a CPU, before it lets others have its own."""

YIELDS = 64
"""How often it does so before it lets MPI make progress, and looks at the clock."""

DEADLINE_SECONDS = 600.0
"""How long a rank waits for another one: COLLBENCH_FENCE_SECONDS."""


class Missing(RuntimeError):
    """A rank did not come to where its group meets in time; the message names it."""


class Meeting:
    """Where `group` meets, as one of its ranks comes there: call it to wait, or `test` to only look."""

    def __init__(self, comm: MPI.Intracomm, sync: Callable[[], Any], counters: dict[int, Any], rank: int) -> None:
        self._comm, self._sync = comm, sync
        self._mine = counters[rank]
        self._others = [(peer, counter) for peer, counter in counters.items() if peer != rank]
        self._polls = POLLS if len(counters) <= len(os.sched_getaffinity(0)) else 1
        self._count = 0
        self._here = False

    def _arrive(self) -> None:
        self._count += 1
        self._sync()
        self._mine[0] = self._count
        self._here = True

    def __call__(self) -> None:
        """Come, and wait for all others."""
        if not self._here:
            self._arrive()
        count = self._count
        for peer, counter in self._others:
            if counter[0] < count:
                self._wait(peer, counter)
        self._here = False
        self._sync()

    def test(self) -> bool:
        """Come, and return whether all others have come."""
        if not self._here:
            self._arrive()
        if any(counter[0] < self._count for _, counter in self._others):
            self._comm.Iprobe()
            return False
        self._here = False
        self._sync()
        return True

    def _wait(self, peer: int, counter: Any) -> None:
        count = self._count
        for _ in range(self._polls):
            if counter[0] >= count:
                return
        deadline = monotonic() + float(os.environ.get("COLLBENCH_FENCE_SECONDS", DEADLINE_SECONDS))
        while True:
            for _ in range(YIELDS):
                os.sched_yield()
                if counter[0] >= count:
                    return
            self._comm.Iprobe()
            if monotonic() > deadline:
                raise Missing(
                    f"rank {self._comm.Get_rank()} waited for rank {peer} at a fence for too long; all ranks must make "
                    "the same calls (COLLBENCH_FENCE_SECONDS sets how many seconds that is)"
                )


class WindowTransport:
    """A plan's shared scratch and its view of what peers share. Made by all ranks of a node together.

    Args:
        comm: the plan's private communicator.
        shared: the memory of its node.
        groups: all groups that meet in this plan and in those of the ranks that it meets, in the same order on all.
        own: for each buffer in shared memory its place.
        slots_nbytes: shared scratch that is needed; twice as much is taken if `staged`.
        staged: whether two sets of slots alternate.

    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        shared: SharedMemory,
        groups: Sequence[Group],
        own: dict[str, Place],
        slots_nbytes: int,
        staged: bool,
    ) -> None:
        self._shared, self.staged = shared, staged
        self._set_nbytes = -(-slots_nbytes // ALIGN_NBYTES) * ALIGN_NBYTES
        counters_nbytes = max(1, len(groups)) * ALIGN_NBYTES
        place, self._memory = shared.take(counters_nbytes + (2 if staged else 1) * self._set_nbytes)
        np.frombuffer(self._memory, np.uint8)[:counters_nbytes] = 0
        shared.syncing([place.window])()
        self._slots_start = counters_nbytes
        places = shared.node.allgather((place, own))
        self._places = {rank: places[index] for rank, index in shared.local.items()}
        rank = comm.Get_rank()
        sync = shared.syncing({place.window for scratch, buffers in places for place in (scratch, *buffers.values())})
        self._meetings = {}
        for index, group in enumerate(groups):
            if rank in group:
                counters = {member: self._counter(member, index) for member in group}
                self._meetings[group] = Meeting(comm, sync, counters, rank)

    def _counter(self, rank: int, index: int) -> Any:
        window, owner, start = self._places[rank][0]
        memory = self._shared.view(Place(window, owner, start + index * ALIGN_NBYTES), 8)
        return memoryview(memory).cast("B").cast("q")

    def slots(self, rank: int, count: int, unit: np.dtype[Any], parity: int) -> np.ndarray[Any, Any]:
        """Return `count` units of the shared scratch of `rank`, of the set for even or odd calls."""
        window, owner, start = self._places[rank][0]
        return self._array(Place(window, owner, start + self._slots_start + parity * self._set_nbytes), count, unit)

    def region(self, region: Region, unit: np.dtype[Any], parity: int) -> np.ndarray[Any, Any]:
        """Return a region of a peer's buffer, or of its set of shared scratch for even or odd calls."""
        assert isinstance(region.buffer, tuple)
        rank, name = region.buffer
        count = region.stop - region.start
        if name == SHARED:
            return self.slots(rank, region.stop, unit, parity)[region.start :]
        window, owner, start = self._places[rank][1][name]
        return self._array(Place(window, owner, start + region.start * unit.itemsize), count, unit)

    def _array(self, place: Place, count: int, unit: np.dtype[Any]) -> np.ndarray[Any, Any]:
        if not count:
            return np.empty((0, *unit.shape), unit.base)
        memory = self._shared.view(place, count * unit.itemsize)
        return np.frombuffer(memory, unit.base).reshape(count, *unit.shape)

    def meeting(self, group: Group) -> Meeting:
        """Return where `group` meets."""
        return self._meetings[group]

    def free(self) -> None:
        """Give the scratch back."""
        self._meetings, self._places, self._memory = {}, {}, None
