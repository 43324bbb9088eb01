"""Memory that the ranks of a node share, in MPI windows (MPI-5.0 section 12.2.3).

All memory of a communicator lies in a few windows, each with a part for every rank, from which arrays and the scratch
of plans are taken: a window each would soon use up what MPI can have of them. Whoever is handed an array, or a view
of it, finds the window in which it lies by its address.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from mmap import PAGESIZE
from typing import Any, NamedTuple, cast

import numpy as np
from mpi4py import MPI

from collectives.in_common import InCommon
from collectives.problem import Nodes

ALIGN_NBYTES = 64
LEAST_NBYTES = 1 << 20
"""The least part of a rank in a window."""

DIRECTORY = "/dev/shm"
"""Where Linux keeps shared memory."""


class SharedMemoryError(MemoryError):
    """The node has too little shared memory; the message says how much there is and how much is needed."""


class Place(NamedTuple):
    """Where something lies: in which window, in whose part of it, from which byte on."""

    window: int
    owner: int
    start: int


@dataclass
class _Window:
    """One MPI window: the address and bytes of each rank's part; of the own one, all there is and what is free."""

    window: MPI.Win
    addresses: list[int]
    sizes: list[int]
    whole: tuple[int, int]
    free: list[tuple[int, int]]

    def take(self, nbytes: int) -> int | None:
        """Return the start of `nbytes` of the own part that were free, None if there are none."""
        for index, (start, stop) in enumerate(self.free):
            if stop - start >= nbytes:
                self.free[index : index + 1] = [(start + nbytes, stop)] if stop - start > nbytes else []
                return start
        return None

    def give_back(self, start: int, stop: int) -> None:
        insort(self.free, (start, stop))
        joined = self.free[:1]
        for one in self.free[1:]:
            if one[0] == joined[-1][1]:
                joined[-1] = (joined[-1][0], one[1])
            else:
                joined.append(one)
        self.free = joined


class SharedMemory:
    """What the ranks of a communicator that are on one node share. Methods named as collective are called by all."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.node = cast(MPI.Intracomm, comm.Split_type(MPI.COMM_TYPE_SHARED))
        self.rank = self.node.Get_rank()
        mine = tuple(self.node.allgather(comm.Get_rank()))
        self.nodes: Nodes = tuple(sorted(set(comm.allgather(mine))))
        self.local = {rank: index for index, rank in enumerate(mine)}
        self._common: InCommon[Place] = InCommon(self.node)
        self._windows: list[_Window | None] = []
        self.before_free: list[Callable[[int], None]] = []  # called with the number of a window

    def take(self, nbytes: int) -> tuple[Place, Any]:
        """Return own shared memory, aligned to cache lines, as bytes. Collective; each rank may want another size.

        The memory goes back when the returned object, and all arrays on it, are gone.

        Raises:
            SharedMemoryError: on all ranks, before anything is allocated.

        """
        rounded = -(-nbytes // ALIGN_NBYTES) * ALIGN_NBYTES
        place = self._room(rounded)
        if self._anywhere(place is None):
            self._common.collect()
            place = place or self._room(rounded)
            if self._anywhere(place is None):
                try:
                    self._enlarge(rounded if place is None else None)
                except SharedMemoryError:
                    if place is not None:
                        self._window(place.window).give_back(place.start, place.start + rounded)
                    raise
                place = place or self._room(rounded)
        assert place is not None
        return place, self._memory(place, rounded)

    def take_common(self, nbytes: int) -> Any:
        """Return the same shared memory on all ranks of a node, as bytes. Collective; all want the same.

        The memory goes back when no rank has the returned object, nor an array on it, any more.

        Raises:
            SharedMemoryError: on all ranks, before anything is allocated.

        """
        place, memory = self.take(nbytes if self.rank == 0 else 0)
        place = self.node.bcast(place)
        view = self.view(place, nbytes)
        self._common.add(place, ctypes.addressof(view), nbytes, view, memory)
        return view

    def in_common(self, array: np.ndarray[Any, Any]) -> bool:
        """Return whether `array` lies in memory that all ranks of the node were handed."""
        return self._common.at(array.ctypes.data) is not None

    def _anywhere(self, here: bool) -> bool:
        """Return whether it is so on any rank, of whichever node: what one cannot have is refused to all."""
        flag = np.array([here], np.uint8)
        self.comm.Allreduce(MPI.IN_PLACE, flag, MPI.MAX)
        return bool(flag[0])

    def _window(self, number: int) -> _Window:
        window = self._windows[number]
        assert window is not None
        return window

    def _room(self, nbytes: int) -> Place | None:
        for number, window in enumerate(self._windows):
            if window is not None:
                start = window.take(nbytes)
                if start is not None:
                    return Place(number, self.rank, start)
        return None

    def _enlarge(self, nbytes: int | None) -> None:
        """Make a window with at least `nbytes` for the own rank, after giving back those of which nothing is used.

        None: this rank needs no more. A node on which that holds for all gets no window.
        """
        self.shrink()
        wanted = self.node.allgather(nbytes)
        sizes = [max(LEAST_NBYTES, -(-((one or 0) + ALIGN_NBYTES) // PAGESIZE) * PAGESIZE) for one in wanted]
        if wanted == [None] * len(wanted):
            sizes = []
        mine = sizes[self.rank] if sizes else 0
        free = self.node.bcast(free_nbytes())
        short = free is not None and sum(sizes) > free
        needed = self.comm.allgather((sum(sizes), free) if short else None)
        for least in filter(None, needed):
            raise SharedMemoryError(
                f"{least[0] / 2**20:.0f} MiB of shared memory are needed on a node and {DIRECTORY} has "
                f"{least[1] / 2**20:.0f} MiB free; make it larger (mount -o remount,size=..., docker run --shm-size) "
                "or use fewer elements"
            )
        if not sizes:
            return
        info = MPI.Info.Create({"alloc_shared_noncontig": "true"})
        window = MPI.Win.Allocate_shared(mine, 1, info, self.node)
        info.Free()
        window.Lock_all(MPI.MODE_NOCHECK)
        parts: list[Any] = [window.Shared_query(rank)[0] for rank in range(self.node.Get_size())]
        # What is not touched is only promised, and would still count as free for whoever asks next.
        np.frombuffer(parts[self.rank], np.uint8)[::PAGESIZE] = 0
        addresses = list(map(_address, parts))
        whole = (-addresses[self.rank] % ALIGN_NBYTES, mine)
        self._windows.append(_Window(window, addresses, sizes, whole, [whole]))

    def shrink(self) -> None:
        """Free the windows of which no rank uses anything, which are kept otherwise for what comes next. Collective."""
        numbers = [number for number, one in enumerate(self._windows) if one is not None]
        unused = np.array([self._unused(number) for number in numbers], np.uint8)
        self.node.Allreduce(MPI.IN_PLACE, unused, MPI.MIN)
        for number, nobody in zip(numbers, unused, strict=True):
            window = self._windows[number]
            if nobody and window is not None:
                self._windows[number] = None
                self._free(number, window)

    def _unused(self, number: int) -> bool:
        window = self._windows[number]
        return window is not None and window.free == [window.whole]

    def _memory(self, place: Place, nbytes: int) -> Any:
        memory = self.view(place, nbytes)
        give_back = self._window(place.window).give_back
        weakref.finalize(memory, give_back, place.start, place.start + nbytes).atexit = False
        return memory

    def view(self, place: Place, nbytes: int) -> Any:
        """Return `nbytes` of any rank's shared memory as an object with a buffer; it keeps nothing alive."""
        return (ctypes.c_ubyte * nbytes).from_address(self.address(place))

    def address(self, place: Place) -> int:
        """Return where a place lies in this process."""
        return self._window(place.window).addresses[place.owner] + place.start

    def pages(self, number: int) -> list[tuple[int, int]]:
        """Return from where to where the parts of a window lie in this process, in whole pages, each page once."""
        window, spans = self._window(number), list[tuple[int, int]]()
        for first, nbytes in sorted(zip(window.addresses, window.sizes, strict=True)):
            start, stop = first // PAGESIZE * PAGESIZE, -(-(first + nbytes) // PAGESIZE) * PAGESIZE
            if spans and start < spans[-1][1]:
                start = spans.pop()[0]
            spans.append((start, stop))
        return spans

    def find(self, array: np.ndarray[Any, Any]) -> Place | None:
        """Return where `array` lies, None if that is not in this memory."""
        address = array.ctypes.data
        for number, window in enumerate(self._windows):
            if window is not None:
                for owner, (first, nbytes) in enumerate(zip(window.addresses, window.sizes, strict=True)):
                    if first <= address and address + array.nbytes <= first + nbytes:
                        return Place(number, owner, address - first)
        return None

    def syncing(self, numbers: Iterable[int]) -> Callable[[], Any]:
        """Return a call that lets others see what was written to these windows, and shows what they wrote."""
        windows = [self._windows[number] for number in numbers]
        calls = [one.window.Sync for one in windows if one is not None]
        if len(calls) == 1:
            return calls[0]

        def sync() -> None:
            for call in calls:
                call()

        return sync

    @property
    def nwindows(self) -> int:
        """How many MPI windows there are."""
        return sum(one is not None for one in self._windows)

    def free(self) -> None:
        """Free all windows; arrays in them must not be used any more. Collective."""
        for number, window in enumerate(self._windows):
            if window is not None:
                self._free(number, window)
        self._windows = []
        self.node.Free()

    def _free(self, number: int, window: _Window) -> None:
        for call in self.before_free:
            call(number)
        window.window.Unlock_all()
        window.window.Free()


def free_nbytes() -> int | None:
    """Return how many bytes of shared memory are free on this node, None where that cannot be told."""
    try:
        found = os.statvfs(DIRECTORY)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _address(memory: Any) -> int:
    return np.frombuffer(memory, np.uint8).ctypes.data if len(memory) else 0
