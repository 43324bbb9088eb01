"""The memory of arrays: pieces of larger allocations, kept for the next array, as CuPy's pool and CUDA itself have it.

So a handle for another process shows the allocation in which an array lies, not the array, and memory is given back to
the GPU only by `free_all_blocks`, or when there is no other.
"""

import ctypes
import mmap
import weakref
from bisect import insort

from ._machine import READ_WRITE, Allocation, OutOfMemoryError, Pages, machine
from ._machine import _protect as protect

LEAST_NBYTES = 2 << 20


class Piece(Pages):
    """Whole pages of an allocation, as memory of one array and its views."""

    def __init__(self, block, start, nbytes):
        self.block, self.size, self.device = block, nbytes, block.allocation.device
        self.ptr = block.allocation.ptr + start
        self.memory = (ctypes.c_ubyte * max(1, nbytes)).from_address(self.ptr)
        protect(self.ptr, nbytes, READ_WRITE)
        ctypes.memset(self.ptr, 0xEE, nbytes)  # not what was there before, which a GPU would show
        self.lock()


class _Block:
    """An allocation, and what of it no array has."""

    def __init__(self, nbytes):
        self.allocation = Allocation(nbytes)
        self.free = [(0, nbytes)]

    def take(self, nbytes):
        for index, (start, stop) in enumerate(self.free):
            if stop - start >= nbytes:
                self.free[index : index + 1] = [(start + nbytes, stop)] if stop - start > nbytes else []
                return start
        return None

    def give_back(self, start, stop):
        insort(self.free, (start, stop))
        joined = self.free[:1]
        for first, last in self.free[1:]:
            if first == joined[-1][1]:
                joined[-1] = (joined[-1][0], last)
            else:
                joined.append((first, last))
        self.free = joined

    @property
    def unused(self):
        return self.free == [(0, self.allocation.size)]


class MemoryPool:
    """Memory got from CUDA and kept. `malloc` is what an allocator is called, `take` what it is called for."""

    exportable = True

    def __init__(self):
        self._blocks = []

    def malloc(self, size):
        raise NotImplementedError("the stand-in's arrays take their memory by themselves")

    def take(self, nbytes):
        rounded = max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE
        for block in self._blocks:
            if block.allocation.device == machine.device:
                start = block.take(rounded)
                if start is not None:
                    return self._piece(block, start, rounded, nbytes)
        wanted = max(rounded, LEAST_NBYTES)
        try:
            block = _Block(wanted)
        except OutOfMemoryError:
            self.free_all_blocks()
            block = _Block(wanted)
        block.allocation.exportable = self.exportable
        self._blocks.append(block)
        return self._piece(block, block.take(rounded), rounded, nbytes)

    def _piece(self, block, start, rounded, nbytes):
        piece = Piece(block, start, nbytes)
        weakref.finalize(piece, block.give_back, start, start + rounded).atexit = False
        return piece

    def free_all_blocks(self):
        machine.run_all()  # cudaFree waits for all work; what is queued here would keep its arrays
        self._blocks = [one for one in self._blocks if not one.unused]

    def used_bytes(self):
        return self.total_bytes() - sum(stop - start for one in self._blocks for start, stop in one.free)

    def total_bytes(self):
        return sum(one.allocation.size for one in self._blocks)


class MemoryAsyncPool(MemoryPool):
    """Stream-ordered memory (cudaMallocAsync), which other processes cannot open by a handle."""

    exportable = False


class PinnedMemoryPool:
    """Pinned memory of the host, which the stand-in does not keep."""

    def free_all_blocks(self):
        pass


pool, pinned_pool = MemoryPool(), PinnedMemoryPool()


class _Allocator:
    """Where arrays get memory: what `set_allocator` was given, or the default pool."""

    def __init__(self):
        self.pool = pool


allocator = _Allocator()


def get_allocator():
    return allocator.pool.malloc


def set_allocator(malloc=pool.malloc):
    allocator.pool = malloc.__self__
