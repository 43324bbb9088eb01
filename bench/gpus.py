"""The GPU of each rank, chosen before anything is allocated there and named in run.json; or why there is none.

Nothing here loads CuPy unless a GPU is asked for, or may be used where there is one.
"""

from __future__ import annotations

import os
import platform
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.usage import UsageError
from collectives.gpu import Gpu, Unusable, find

if TYPE_CHECKING:
    from bench.job import Job

DRIVER_FILES = ("/dev/nvidiactl", "/dev/dxg")
"""What the NVIDIA driver makes on Linux, and on Windows' Linux: without either there is no GPU to look for."""

MEMORY_SHARE = 0.9
"""How much of a GPU's free memory the ranks on it may take together."""


def choose(job: Job, wanted: str) -> Gpu | None:
    """Return this rank's GPU, which is in use from now on, or None where buffers are to lie on the host.

    `wanted` is ``cuda``, ``cpu``, or ``auto`` for a GPU where all ranks have one.

    Raises:
        UsageError: on all ranks: there is none for some rank and it was asked for.

    """
    looked = wanted == "cuda" or (wanted == "auto" and job.decide(any(Path(one).exists() for one in DRIVER_FILES)))
    if not looked:
        return None
    gpu, reason = None, ""
    try:
        gpu = find(job.local_rank)
    except Unusable as error:
        reason = str(error)
    reasons = job.comm.allgather(reason)
    told = next(((rank, one) for rank, one in enumerate(reasons) if one), None)
    if told is not None:
        where = f"{told[1]}" if all(reasons) else f"rank {told[0]}: {told[1]}"
        if wanted == "cuda":
            raise UsageError("--device", wanted, where, "cannot use")
        if job.leads:
            print(f"note: there is a GPU, but {where}; buffers lie on the host", file=sys.stderr, flush=True)
        return None
    assert gpu is not None
    mine = (platform.node(), gpu.identity)
    everyone = Counter(job.comm.allgather(mine))
    return Gpu(**{**asdict(gpu), "ranks": everyone[mine]})


def check_transport(transport: str, gpu: Gpu | None) -> None:
    """Raise UsageError where data cannot be moved in that way."""
    if gpu is None and transport != "auto":
        raise UsageError("--transport", transport, "buffers lie on the host: leave it out", "cannot use")


def release() -> None:
    """Give memory back that CuPy keeps for later."""
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()
    cupy.get_default_pinned_memory_pool().free_all_blocks()


def too_large(gpu: Gpu, nbytes: int, rotate: int) -> str | None:
    """Return why buffers of `nbytes` do not fit on this rank's GPU, None if they do.

    Each rank that uses it has send and receive buffers, `rotate` times, and scratch of both their lengths.
    """
    needed, limit = (2 * rotate + 2) * nbytes * gpu.ranks, MEMORY_SHARE * gpu.free_nbytes
    if needed <= limit:
        return None
    return f"needs {needed / 2**20:.0f} MiB on the GPU, of which {limit / 2**20:.0f} MiB may be used"


def facts(gpu: Gpu) -> dict[str, Any]:
    """Return what is to know about this rank's GPU, for run.json."""
    import cupy

    runtime = cupy.cuda.runtime
    return {
        **asdict(gpu),
        "cupy": cupy.__version__,
        "cuda_driver": runtime.driverGetVersion(),
        "cuda_runtime": runtime.runtimeGetVersion(),
        "allocator": allocator(),
        "mps": mps_runs(os.environ),
    }


def allocator() -> str:
    """Return what kind of memory CuPy's arrays are made of; that of a MemoryAsyncPool no other process can open."""
    import cupy

    found = cupy.cuda.get_allocator()
    return type(getattr(found, "__self__", found)).__name__


def mps_runs(environ: Any) -> bool:
    """Whether CUDA's service through which processes share a GPU side by side (MPS) runs here."""
    return Path(environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control").exists()
