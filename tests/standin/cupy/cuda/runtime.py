"""The part of the CUDA runtime that is used by its own names."""

import ctypes
import hashlib
import os

from .._machine import CUDARuntimeError, machine, unlocked

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
    uuid = hashlib.blake2b(f"stand-in {device}".encode(), digest_size=16).digest()
    return {"name": b"stand-in", "uuid": uuid, "totalGlobalMem": machine.told_nbytes, "pciBusID": device}


def memGetInfo():
    return machine.told_nbytes - machine.used_nbytes, machine.told_nbytes


def driverGetVersion():
    return 0


def runtimeGetVersion():
    return 0


def deviceSynchronize():
    machine.counts["synchronisations"] += 1
    machine.run_all()
