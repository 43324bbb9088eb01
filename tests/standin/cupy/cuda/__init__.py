"""Streams, events and devices of the stand-in."""

from .._array import MemoryPointer, UnownedMemory
from .._machine import Event, Stream, machine
from .._pool import MemoryAsyncPool, MemoryPool, get_allocator, set_allocator
from . import memory, runtime


def get_current_stream():
    return machine.stream()


class Device:
    """One of the GPUs."""

    def __init__(self, device=None):
        self.id = machine.device if device is None else int(device)

    def use(self):
        runtime.setDevice(self.id)

    def __enter__(self):
        self._before, machine.device = machine.device, self.id
        return self

    def __exit__(self, *exception):
        machine.device = self._before

    def synchronize(self):
        runtime.deviceSynchronize()

    @property
    def attributes(self):
        return {"MultiProcessorCount": 4}

    @property
    def mem_info(self):
        return runtime.memGetInfo()


__all__ = [
    "Device",
    "Event",
    "MemoryAsyncPool",
    "MemoryPointer",
    "MemoryPool",
    "Stream",
    "UnownedMemory",
    "get_allocator",
    "get_current_stream",
    "memory",
    "runtime",
    "set_allocator",
]
