"""The part of the CUDA runtime that is used by its own names."""

import ctypes
import hashlib
import os
import struct
from mmap import PAGESIZE

from .._machine import Allocation, CUDARuntimeError, Opened, OutOfMemoryError, Registered, machine, unlocked

memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice = 1, 2, 3  # noqa: N816 -- CUDA's names


def memcpyAsync(dst, src, size, kind, stream):
    """Queue a copy; its host side must be pinned, or CUDA would not do it beside other work."""
    down = kind == memcpyDeviceToHost
    if kind not in (memcpyHostToDevice, memcpyDeviceToHost):
        raise CUDARuntimeError(f"the stand-in copies between host and device only, not in the way {kind}")
    device, host = (src, dst) if down else (dst, src)
    memory = machine.allocation_at(device, size)
    if not machine.is_pinned(host, size):
        raise CUDARuntimeError("the stand-in wants pinned memory for a copy beside other work")

    def run():
        with unlocked(memory):
            ctypes.memmove(dst, src, size)

    machine.counts["device to host" if down else "host to device"] += 1
    machine.streams[stream].put(run)


def malloc(size):
    try:
        one = Allocation(size)
    except OutOfMemoryError:
        machine.run_all()  # what is queued here keeps its arrays, as on no GPU
        one = Allocation(size)
    machine.kept[one.ptr] = one
    return one.ptr


def free(ptr):
    del machine.kept[ptr]


def memcpy(dst, src, size, kind):
    """Copy at once, after all work: like CUDA's null stream."""
    machine.run_all()
    memory = machine.allocation_at(src if kind == memcpyDeviceToHost else dst, size)
    with unlocked(memory):
        ctypes.memmove(dst, src, size)


HANDLE = struct.Struct("=qqqq32x")


def ipcGetMemHandle(devPtr):  # noqa: N803
    """Name the whole allocation in which `devPtr` lies, as CUDA does."""
    one = machine.allocation_at(devPtr, 1)  # a byte, or the end of its neighbour would do
    if not one.exportable:
        raise CUDARuntimeError("cudaErrorInvalidValue: invalid argument: memory of a stream-ordered pool has no handle")
    return HANDLE.pack(os.getpid(), one.file, one.size, one.device)


def ipcOpenMemHandle(handle, flags=1):
    """Return where another process's allocation begins here. CUDA refuses a process's own."""
    process, file, size, device = HANDLE.unpack(handle)
    if "ipc" in machine.lacks:
        raise CUDARuntimeError("cudaErrorPeerAccessUnsupported: peer access is not supported between these two devices")
    if process == os.getpid():
        raise CUDARuntimeError("cudaErrorDeviceUninitialized: a process cannot open its own handle")
    one = Opened(process, file, size, device)
    machine.kept[one.ptr] = one
    return one.ptr


def hostRegister(ptr, size, flags):
    """Let GPUs access memory of the host; no page of it twice."""
    if "register" in machine.lacks:
        raise CUDARuntimeError("cudaErrorNotSupported: operation not supported")
    start, stop = ptr // PAGESIZE * PAGESIZE, -(-(ptr + size) // PAGESIZE) * PAGESIZE
    if any(one.ptr < stop and start < one.ptr + one.size for one in machine.registered.values()):
        raise CUDARuntimeError("cudaErrorHostMemoryAlreadyRegistered: part or all of the memory is registered")
    if flags & ~3:
        raise CUDARuntimeError("cudaErrorInvalidValue: invalid argument: the stand-in knows portable and mapped only")
    machine.counts["registered"] += 1
    machine.registered[ptr] = Registered(start, stop - start)


def hostUnregister(ptr):
    if ptr not in machine.registered:
        raise CUDARuntimeError("cudaErrorHostMemoryNotRegistered: pointer was not registered")
    del machine.registered[ptr]


class PointerAttributes:
    def __init__(self, device, pointer):
        self.device, self.devicePointer = device, pointer


def pointerGetAttributes(ptr):
    return PointerAttributes(machine.allocation_at(ptr, 1).device, ptr)


def ipcCloseMemHandle(devPtr):  # noqa: N803
    del machine.kept[devPtr]


def getDeviceCount():
    if "STANDIN_FAILS" in os.environ:
        raise CUDARuntimeError(os.environ["STANDIN_FAILS"])
    if not machine.ngpus:
        raise CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")
    return machine.ngpus


def getDevice():
    return machine.device


def setDevice(device):
    if not 0 <= device < machine.ngpus:
        raise CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
    machine.device = device


def getDeviceProperties(device):
    number = machine.visible[device]
    uuid = hashlib.blake2b(f"stand-in {number}".encode(), digest_size=16).digest()
    return {"name": b"stand-in", "uuid": uuid, "totalGlobalMem": machine.told_nbytes, "pciBusID": number}


def memGetInfo():
    return machine.told_nbytes - machine.used_nbytes, machine.told_nbytes


def driverGetVersion():
    return 0


def runtimeGetVersion():
    return 0


def deviceSynchronize():
    machine.counts["synchronisations"] += 1
    machine.run_all()
