"""Memory of GPUs that the ranks of a node share, by CUDA's handles between processes (CUDA IPC).

A handle stands for a whole allocation and opens at its beginning, so memory is allocated apart from CuPy's pool, whose
arrays are pieces of larger ones, and a place is a handle with an offset. A process may open a handle once; what it
opened stays open until the communicator is freed, or memory runs out, since an allocation must be closed by all before
it is freed. Memory that is no longer used is kept for the next who wants some.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from collectives.devices import array_at, cupy_module
from collectives.in_common import InCommon
from collectives.shared import SharedMemory, SharedMemoryError

BLOCK_NBYTES = 2 << 20
"""What CUDA allocates at least; of smaller ones it would put several into one block, and a handle would show them all.
"""


class Unreachable(ValueError):
    """A rank cannot open the GPU memory of another one; the message says why."""


class GpuPlace(NamedTuple):
    """Where something lies: in whose allocation (the rank on the node), its handle, from which byte on."""

    owner: int
    handle: bytes
    start: int


@dataclass
class _Block:
    """One own allocation."""

    address: int
    nbytes: int
    handle: bytes
    used: bool = False

    def give_back(self) -> None:
        self.used = False


class _Hold:
    """What arrays in a block refer to; when it is gone, so are they."""


class GpuMemory:
    """The GPU memory that ranks of a communicator on one node share. Methods named as collective are called by all."""

    def __init__(self, shared: SharedMemory) -> None:
        self.node, self.rank = shared.node, shared.rank
        self._runtime = cupy_module().cuda.runtime
        self._blocks: list[_Block] = []
        self._opened: dict[tuple[int, bytes], int] = {}
        self._common: InCommon[GpuPlace] = InCommon(self.node)
        self._no_handle = ""  # why own memory has none
        self._unreachable: str | None = None

    def unreachable(self) -> str:
        """Return on all ranks why one cannot open the memory of another, "" if all can. Collective the first time.

        Raises:
            SharedMemoryError: on all ranks: some GPU has no memory to try it with.

        """
        if self._unreachable is None:
            place, _ = self.take(1)
            try:
                self.reach(self.node.allgather(place))
                self._unreachable = ""
            except Unreachable as reason:
                self._unreachable = str(reason)
        return self._unreachable

    def take(self, nbytes: int) -> tuple[GpuPlace, Any]:
        """Return own memory as a CuPy array of bytes. Collective; each rank may want another size.

        It can be used anew when the array and all views of it are gone.

        Raises:
            SharedMemoryError: on all ranks: some GPU has no more of it.

        """
        block = self._block(nbytes)
        if self._anywhere(block is None):
            self.shrink()
            block = block or self._block(nbytes)
            if self._anywhere(block is None):
                if block is not None:
                    block.used = False
                raise SharedMemoryError(f"the GPU has no {nbytes / 2**20:.0f} MiB to share: use fewer elements")
        assert block is not None
        hold = _Hold()
        weakref.finalize(hold, block.give_back).atexit = False
        return GpuPlace(self.rank, block.handle, 0), array_at(block.address, nbytes, hold)

    def take_common(self, nbytes: int) -> Any:
        """Return the same memory, of the first rank's GPU, as a CuPy array of bytes on all ranks. Collective.

        It can be used anew when no rank has the array, nor a view of it, any more.

        Raises:
            SharedMemoryError: on all ranks: that GPU has no more of it.
            Unreachable: on all ranks: one cannot open it.

        """
        self._common.collect()  # else what one point of a sweep shares would be kept until all is used up
        place, memory = self.take(nbytes if self.rank == 0 else 0)
        place = self.node.bcast(place)
        self.reach([place])
        hold, address = _Hold(), self._base(place) + place.start
        self._common.add(place, address, nbytes, hold, memory if self.rank == 0 else None)
        return array_at(address, nbytes, hold)

    def in_common(self, array: Any) -> bool:
        """Return whether `array` lies in memory that all ranks of the node were handed."""
        return self._common.at(array.data.ptr) is not None

    def _anywhere(self, flag: bool) -> bool:
        return bool(self.node.allreduce(int(flag)))

    def _block(self, nbytes: int) -> _Block | None:
        """Return a block that is used from now on, None if there is no room for one."""
        fitting = [
            one for one in self._blocks if not one.used and nbytes <= one.nbytes <= 2 * max(nbytes, BLOCK_NBYTES)
        ]
        if fitting:
            block = min(fitting, key=lambda one: one.nbytes)
            block.used = True
            return block
        rounded = max(1, -(-nbytes // BLOCK_NBYTES)) * BLOCK_NBYTES
        try:
            address = self._runtime.malloc(rounded)
        except (RuntimeError, MemoryError):  # CUDARuntimeError: there is no more
            return None
        try:
            handle = bytes(self._runtime.ipcGetMemHandle(address))
        except RuntimeError as error:
            handle, self._no_handle = b"", str(error)
        block = _Block(address, rounded, handle, used=True)
        self._blocks.append(block)
        return block

    def shrink(self) -> None:
        """Free what nobody uses, which is kept otherwise for what comes next, when all have closed it. Collective."""
        self._common.collect()
        unused = [one for one in self._blocks if not one.used]
        for owner, handles in enumerate(self.node.allgather([one.handle for one in unused])):
            for handle in handles:
                address = self._opened.pop((owner, handle), None)
                if address is not None:
                    self._runtime.ipcCloseMemHandle(address)
        self.node.Barrier()
        for one in unused:
            self._blocks.remove(one)
            self._runtime.free(one.address)
        cupy_module().get_default_memory_pool().free_all_blocks()

    def find(self, array: Any) -> GpuPlace | None:
        """Return where `array` lies, None if that is not in this memory."""
        address = array.data.ptr
        for one in self._blocks:
            if one.used and one.address <= address and address + array.nbytes <= one.address + one.nbytes:
                return GpuPlace(self.rank, one.handle, address - one.address)
        common = self._common.at(address)
        return None if common is None else common.place._replace(start=common.place.start + address - common.address)

    def reach(self, places: Iterable[GpuPlace]) -> None:
        """Open what is not open yet of others' allocations. Collective, since all must know if one cannot.

        Raises:
            Unreachable: on all ranks.

        """
        why = self._no_handle and f"memory of rank {self.rank} of the node cannot be shared: {self._no_handle}"
        for owner, handle, _ in places:
            if owner != self.rank and handle and (owner, handle) not in self._opened and not why:
                try:
                    self._opened[owner, handle] = self._runtime.ipcOpenMemHandle(handle)
                except RuntimeError as error:
                    why = f"rank {self.rank} of the node cannot open memory of rank {owner}: {error}"
        reasons = [one for one in self.node.allgather(why) if one]
        if reasons:
            raise Unreachable(reasons[0])

    def view(self, place: GpuPlace, start: int, nbytes: int) -> Any:
        """Return `nbytes` of any rank's memory from `start` behind a place that was reached; it keeps nothing alive."""
        return array_at(self._base(place) + place.start + start, nbytes, self)

    def _base(self, place: GpuPlace) -> int:
        """Return the address at which the allocation of a place begins here."""
        if place.owner == self.rank:
            return next(one.address for one in self._blocks if one.handle == place.handle)
        return self._opened[place.owner, place.handle]

    def free(self) -> None:
        """Close and free all; arrays in it must not be used any more. Collective."""
        self._common.clear()
        for address in self._opened.values():
            self._runtime.ipcCloseMemHandle(address)
        self._opened = {}
        self.node.Barrier()
        for one in self._blocks:
            self._runtime.free(one.address)
        self._blocks = []
