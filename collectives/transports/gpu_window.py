"""What memory that GPUs of a node access is to a plan: that of peers' GPUs, or the host's.

Ranks meet on the host, when their own GPU has done its work.
No kernel waits for a peer: ranks that share a GPU take turns on it, and one that spins would keep the other from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from collectives import devices
from collectives.regions import SHARED, Region
from collectives.shared import ALIGN_NBYTES, SharedMemory
from collectives.transports.window import Group, Meeting, WindowTransport


class GpuMeeting:
    """Where a group meets; what was begun on the GPU before is done then, so that others see it."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self._done: Any = None

    def __call__(self) -> None:
        """Finish the own work, come, and wait for all others."""
        devices.synchronise()
        self._done = None
        self._meeting()

    def test(self) -> bool:
        """Come when the own work is done, and return whether all others have come."""
        if self._done is None:
            self._done = devices.cupy_module().cuda.get_current_stream().record()
        if not self._done.done or not self._meeting.test():
            return False
        self._done = None
        return True


class Memory(Protocol):
    """Memory that ranks of a node share and their GPUs access: `ipc.GpuMemory`, `mapped.MappedMemory`."""

    def take(self, nbytes: int) -> tuple[Any, Any]:
        """Return the place of own memory, and what keeps it. Collective."""

    def reach(self, places: Any) -> None:
        """Let the GPU in use access these places, or raise Unreachable on all ranks. Collective."""

    def view(self, place: Any, start: int, nbytes: int) -> Any:
        """Return `nbytes` from `start` behind a place that was reached, as a CuPy array."""


class GpuWindowTransport:
    """A plan's shared scratch, which GPUs access, and its view of what peers share. Made by a node's ranks together.

    The arguments are those of `WindowTransport`, with `memory`, in which the scratch and the places of `own` lie.

    Raises:
        Unreachable: on all ranks, where the GPU of one cannot access the memory of another.

    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        shared: SharedMemory,
        memory: Memory,
        groups: Sequence[Group],
        own: dict[str, Any],
        slots_nbytes: int,
        staged: bool,
    ) -> None:
        self._gpu, self.staged = memory, staged
        self._set_nbytes = -(-slots_nbytes // ALIGN_NBYTES) * ALIGN_NBYTES
        place, self._memory = memory.take((2 if staged else 1) * self._set_nbytes)
        places = shared.node.allgather((place, own))
        memory.reach(one for scratch, buffers in places for one in (scratch, *buffers.values()))
        self._places = {rank: places[index] for rank, index in shared.local.items()}
        self._meetings: dict[Group, GpuMeeting] = {}
        self._host = WindowTransport(comm, shared, groups, {}, 0, False)

    def slots(self, rank: int, count: int, unit: np.dtype[Any], parity: int) -> Any:
        """Return `count` units of the shared scratch of `rank`, of the set for even or odd calls."""
        return self._array(self._places[rank][0], parity * self._set_nbytes, count, unit)

    def region(self, region: Region, unit: np.dtype[Any], parity: int) -> Any:
        """Return a region of a peer's buffer, or of its set of shared scratch for even or odd calls."""
        assert isinstance(region.buffer, tuple)
        rank, name = region.buffer
        if name == SHARED:
            return self.slots(rank, region.stop, unit, parity)[region.start :]
        place = self._places[rank][1][name]
        return self._array(place, region.start * unit.itemsize, region.stop - region.start, unit)

    def _array(self, place: Any, start: int, count: int, unit: np.dtype[Any]) -> Any:
        if not count:
            return devices.cupy_module().empty((0, *unit.shape), unit.base)
        return self._gpu.view(place, start, count * unit.itemsize).view(unit.base).reshape(count, *unit.shape)

    def meeting(self, group: Group) -> GpuMeeting:
        """Return where `group` meets: one and the same object, since a call that is tested may be waited for next."""
        if group not in self._meetings:
            self._meetings[group] = GpuMeeting(self._host.meeting(group))
        return self._meetings[group]

    @property
    def ending(self) -> list[Callable[[], Any]]:
        """Calls at the end of each call of the plan: its result is there when it returns."""
        return [devices.synchronise]

    def free(self) -> None:
        """Give the scratch back."""
        self._meetings = {}
        self._host.free()
        self._places, self._memory = {}, None
