"""Arrays in memory that the ranks of a node share: registered memory, as users of a network or of NCCL know it.

An array from `alloc` is an ordinary NumPy array. Algorithms on shared memory read and write it, or a view of it, in
place, where they must copy another array into shared memory first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from collectives.operations import stored

if TYPE_CHECKING:
    from mpi4py import MPI


def alloc(comm: MPI.Intracomm, count: int, dtype: Any, device: str = "cpu") -> Any:
    """Return an array of `count` elements in shared memory. All ranks of `comm` call it, each with its own count.

    `device="cuda"` gives a CuPy array in memory of the GPU in use, which the node's other ranks access (CUDA IPC). Of
    a dtype that is CuPy's not (bfloat16, 8-bit floats) it holds whole numbers of that width, and calls must be told.
    Algorithms that need shared memory read and write such an array, or a view of it, in place. Its contents are
    undefined. Its memory is given back when it and its views are gone, and at the latest when `comm` is freed: it must
    not be used after that.

    Raises:
        ValueError: `count` is negative, or there is no such device.
        SharedMemoryError: a node has too little shared memory. Then no rank has allocated anything.

    """
    from collectives.attached import attached_to  # only those who communicate load MPI

    if count < 0:
        raise ValueError(f"alloc: count {count} is negative")
    nbytes = max(1, count) * np.dtype(dtype).itemsize
    if device == "cuda":
        return attached_to(comm).gpu.take(nbytes)[1].view(stored(np.dtype(dtype)))[:count]
    if device != "cpu":
        raise ValueError(f"alloc: there is no device {device!r} (there are: cpu, cuda)")
    _, memory = attached_to(comm).shared.take(nbytes)
    return np.frombuffer(memory, dtype, count)


def release(comm: MPI.Intracomm) -> None:
    """Give shared memory of `comm` that nobody uses any more back to the system, or to the GPU. All ranks call it.

    Without it, it is kept for the next array or plan.
    """
    from collectives.attached import attached_to

    attached = attached_to(comm)
    for memory in (attached.window, attached.gpu_window):
        if memory is not None:
            memory.shrink()


def alloc_common(comm: MPI.Intracomm, count: int, dtype: Any, device: str = "cpu") -> Any:
    """Return one and the same array of `count` elements on all ranks of a node. All ranks of `comm` call it.

    `device="cuda"` gives a CuPy array in memory of the GPU that the first rank of the node uses (CUDA IPC).
    As the receive buffer of an all-reduce, all-gather or broadcast it makes one result per node, which all its ranks
    read in place; only algorithms on shared memory can do that. Its memory goes back when no rank of the node has it,
    or a view of it, any more, and at the latest when `comm` is freed.

    Raises:
        ValueError: `count` is negative, there is no such device, or a rank cannot open the memory of the first rank's
            GPU.
        SharedMemoryError: a node has too little shared memory. Then no rank has allocated anything.

    """
    from collectives.attached import attached_to

    if count < 0:
        raise ValueError(f"alloc_common: count {count} is negative")
    nbytes = max(1, count) * np.dtype(dtype).itemsize
    if device == "cuda":
        return attached_to(comm).gpu.take_common(nbytes).view(stored(np.dtype(dtype)))[:count]
    if device != "cpu":
        raise ValueError(f"alloc_common: there is no device {device!r} (there are: cpu, cuda)")
    memory = attached_to(comm).shared.take_common(nbytes)
    return np.frombuffer(memory, dtype, count)
