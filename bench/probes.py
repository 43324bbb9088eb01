"""What this GPU, its driver and the MPI can do, found out by doing it, in processes of their own since it may crash.

`mpirun -n 2 python -m bench.probes ipc|direct [PRIMITIVE]` tries one thing and prints "moved" if it was seen to work.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

LIMIT_SECONDS = 20.0
NBYTES = (8, 1 << 20)
"""Sizes that MPI libraries move in different ways."""

MOVED = "moved"


def probe(mpirun: str, *words: str, limit: float = LIMIT_SECONDS) -> str:
    """Try something with 2 ranks in a child process; return an empty text if it works, else how it did not."""
    command = [mpirun, "-n", "2", sys.executable, "-m", "bench.probes", *words]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=os.environ)
    except subprocess.TimeoutExpired:
        return f"did not end within {limit:g} s"
    if ended.returncode == 0 and MOVED in ended.stdout.split():
        return ""
    lines = [line for line in (ended.stderr or ended.stdout).splitlines() if line.strip()]
    told = next((line for line in reversed(lines) if "rror" in line or "ignal" in line), lines[-1] if lines else "")
    return f"ended with status {ended.returncode}: {told.strip()[:160]}"


def main(argv: Sequence[str] | None = None) -> None:
    """Try what is named and print whether it worked; the status is 1 where it did not."""
    from bench.launch import prepare

    words = sys.argv[1:] if argv is None else list(argv)
    prepare()  # before MPI is loaded
    from bench.job import run

    run(lambda: _tried(words))


def _tried(words: Sequence[str]) -> int:
    from mpi4py import MPI

    from bench.gpus import choose
    from bench.job import Job

    job = Job(MPI.COMM_WORLD)
    choose(job, "cuda")
    tries = {"ipc": lambda: _ipc(job), "direct": lambda: _direct(job, words[1])}
    right = tries[words[0]]()
    everywhere = not job.total(np.array([not right], np.int64))[0]
    if job.leads:
        print(MOVED if everywhere else "wrong", flush=True)
    return 0 if everywhere else 1


def _ipc(job: Any, count: int = 1 << 16) -> bool:
    """Let the other rank read and write this rank's GPU memory through a CUDA IPC handle; return whether it did."""
    import cupy

    runtime = cupy.cuda.runtime
    nbytes = 4 * count
    own = runtime.malloc(nbytes)
    values = np.arange(count, dtype=np.float32) + job.rank
    runtime.memcpy(own, values.ctypes.data, nbytes, runtime.memcpyHostToDevice)
    handles = job.comm.allgather(runtime.ipcGetMemHandle(own))
    peer = (job.rank + 1) % job.nranks
    theirs = runtime.ipcOpenMemHandle(handles[peer])
    seen = np.empty_like(values)
    runtime.memcpy(seen.ctypes.data, theirs, nbytes, runtime.memcpyDeviceToHost)
    job.comm.Barrier()
    answer = np.full(count, 100 + job.rank, np.float32)
    runtime.memcpy(theirs, answer.ctypes.data, nbytes, runtime.memcpyHostToDevice)
    runtime.deviceSynchronize()
    job.comm.Barrier()
    back = np.empty_like(values)
    runtime.memcpy(back.ctypes.data, own, nbytes, runtime.memcpyDeviceToHost)
    runtime.ipcCloseMemHandle(theirs)
    job.comm.Barrier()  # all are closed before any is freed
    runtime.free(own)
    writer = (job.rank - 1) % job.nranks
    return bool((seen == np.arange(count) + peer).all() and (back == 100 + writer).all())


def _direct(job: Any, primitive: str) -> bool:
    """Hand GPU memory to the library's own call; return whether all results are right for each size."""
    from bench.check import Checked, on_gpu
    from collectives import PRIMITIVES, devices
    from collectives.bind import bind
    from collectives.native import NativePlan
    from collectives.operations import find_operation

    chosen, right = PRIMITIVES[primitive], True
    for nbytes in NBYTES:
        problem = chosen.problem(job.nranks, max(job.nranks, nbytes // 4))
        checked = Checked(problem, job.rank, "float32", "sum", on_gpu, on_gpu)
        bound = bind(chosen, job.comm, checked.arrays, 0, problem.count, None)
        with NativePlan(job.comm, bound, find_operation("sum"), False) as plan:
            checked.reset()
            devices.synchronise()  # MPI knows nothing of streams
            plan()
        right = right and not checked.wrong()
    return right


if __name__ == "__main__":
    main()
