"""Memory of a GPU, as CuPy has it. Loads CuPy only where a device is asked for: who passes CuPy's arrays has done so.

Work is ordered on CuPy's current stream of the calling thread, and whatever leaves CuPy waits for that stream first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np


def is_device(array: Any) -> bool:
    """Whether `array` lies on a GPU: whether it is a CuPy array."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(array, cupy.ndarray)


def cupy_module() -> Any:
    """Return CuPy, loaded here if it was not yet.

    Raises:
        ImportError: it is not installed, or not for this machine.

    """
    import cupy

    return cupy


def check_current(array: Any, what: str) -> None:
    """Raise ValueError where `array` lies on another GPU than the one that is in use."""
    current = cupy_module().cuda.Device().id
    if array.device.id != current:
        raise ValueError(
            f"the {what} buffer lies on GPU {array.device.id} and GPU {current} is in use; "
            f"say cupy.cuda.Device({array.device.id}).use() before"
        )


def pinned(shape: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """Return an uninitialised NumPy array in host memory that the system never moves, as copies beside work need it.

    Raises:
        MemoryError: there is no more of it.

    """
    import cupyx

    try:
        array: np.ndarray[Any, Any] = cupyx.empty_pinned(shape, dtype)
    except RuntimeError as error:  # CUDARuntimeError; CuPy tells only of a GPU's memory by a MemoryError
        if "cudaErrorMemoryAllocation" not in str(error):
            raise
        raise MemoryError(f"the system has no pinned memory for {shape} elements of {np.dtype(dtype)}") from error
    return array


def synchronise() -> None:
    """Wait for the work on the current stream."""
    cupy_module().cuda.get_current_stream().synchronize()


def kernel(source: str, name: str) -> Callable[..., Any]:
    """Return a kernel of this CUDA source, compiled unless it was before: call it with blocks, threads and arguments.

    Python's whole numbers are ``long long`` to it.
    """
    function: Callable[..., Any] = cupy_module().RawModule(code=source).get_function(name)
    return function


def processors() -> int:
    """Return how many multiprocessors the GPU in use has."""
    return int(cupy_module().cuda.Device().attributes["MultiProcessorCount"])


def array_at(address: int, nbytes: int, owner: Any) -> Any:
    """Return memory that the GPU in use accesses, from an address of its own on, as a CuPy array that keeps `owner`."""
    cupy = cupy_module()
    # Taken to be of the GPU in use even if it is of another one, or the host's, which this one then accesses.
    memory = cupy.cuda.UnownedMemory(address, nbytes, owner, cupy.cuda.Device().id)
    return cupy.ndarray((nbytes,), np.uint8, memptr=cupy.cuda.MemoryPointer(memory, 0))


def start_copy(target: Any, source: Any, stream: Any = None) -> Callable[[], Any]:
    """Return a call that starts a copy between a CuPy array and a NumPy array on `stream`, by default the current one.

    Both are contiguous, of one dtype, and must be kept; the NumPy array must be `pinned`.
    """
    cuda = cupy_module().cuda
    down = is_device(source)
    kind = cuda.runtime.memcpyDeviceToHost if down else cuda.runtime.memcpyHostToDevice
    to, of = (target.ctypes.data, source.data.ptr) if down else (target.data.ptr, source.ctypes.data)
    copy, nbytes = cuda.runtime.memcpyAsync, source.nbytes
    if stream is not None:
        return partial(copy, to, of, nbytes, kind, stream.ptr)
    current = cuda.get_current_stream
    return lambda: copy(to, of, nbytes, kind, current().ptr)
