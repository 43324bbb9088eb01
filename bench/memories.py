"""Where the buffers of a point lie: in ordinary memory, or in memory that the ranks of a node share."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.check import Checked, Empty, buffer_counts, guarded_nbytes, on_gpu, ordinary
from bench.job import Job
from collectives import alloc, alloc_common
from collectives.problem import Problem


def buffer_sets(
    job: Job, problem: Problem, dtype: str, op: str, memory: str, nsets: int = 1, on_device: bool = False
) -> list[Checked]:
    """Return `nsets` sets of this rank's buffers in `memory`, one of `options.MEMORIES`, on the GPU if so. All call it.

    Raises:
        SharedMemoryError: on all ranks: a node has too little shared memory, or a GPU too little memory to share.

    """
    sends: Empty = on_gpu if on_device else ordinary
    receives = sends
    device = "cuda" if on_device else "cpu"
    if memory != "plain":
        sends = receives = _registered(job, device)
        nsend, nrecv = (guarded_nbytes(count, dtype) for count in buffer_counts(problem, job.rank))
        if memory == "shared":
            receives = _common(job, device)
            nrecv *= job.local_rank == 0
        if not on_device:  # where each is an allocation of its own
            # All at once, which is given back at once: there is room for all of them, or for none.
            alloc(job.comm, nsets * (nsend + nrecv + ROUNDING_NBYTES), np.uint8)
    return [Checked(problem, job.rank, dtype, op, sends, receives) for _ in range(nsets)]


ROUNDING_NBYTES = 128
"""What two buffers may take more than was asked for, so that each begins a cache line."""


def _registered(job: Job, device: str) -> Empty:
    def empty(nbytes: int) -> Any:
        return alloc(job.comm, nbytes, np.uint8, device)

    return empty


def _common(job: Job, device: str) -> Empty:
    def empty(nbytes: int) -> Any:
        return alloc_common(job.comm, nbytes, np.uint8, device)

    return empty
