"""What this GPU, its driver and the MPI can do, found out by doing it, in processes of their own since it may crash.

`mpirun -n 2 python -m bench.probes WHAT` tries one thing and prints "moved" if it was seen to work. WHAT is `ipc`,
`direct PRIMITIVE [CONTENDER [NBYTES]]` for GPU memory handed to MPI, or `nccl`, which may want more ranks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np

from bench.preflight import SHM, stale_segments

LIMIT_SECONDS = 20.0
NCCL_SECONDS = 60.0
"""How long NCCL may take: on GPUs that ranks share it can hang."""
MERCY_SECONDS = 5.0
"""How long a launcher that is told to end may take to end its ranks."""
MAPPED_SECONDS = 0.2
"""Within which a process has mapped a file that it made."""
NBYTES = (8, 1 << 20)
"""Sizes that MPI libraries move in different ways."""

MOVED = "moved"


def probe(
    mpirun: str,
    *words: str,
    nranks: int = 2,
    limit: float = LIMIT_SECONDS,
    environ: Mapping[str, str] | None = None,
) -> str:
    """Try something in child processes; return an empty text if it works, else how it did not."""
    command = [mpirun, "-n", str(nranks), sys.executable, "-m", "bench.probes", *words]
    environ = os.environ if environ is None else environ
    before = segments()
    try:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)
    except OSError as error:
        return f"{mpirun} cannot be started: {error.strerror}"
    try:
        out, err = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        _end(child)
        tidy(before)
        return f"did not end within {limit:g} s"
    if child.returncode == 0 and MOVED in out.split():
        return ""
    tidy(before)
    lines = [line for line in (err or out).splitlines() if line.strip()]
    told = next((line for line in reversed(lines) if "rror" in line or "ignal" in line), lines[-1] if lines else "")
    return f"ended with status {child.returncode}: {told.strip()[:160]}"


def _end(child: subprocess.Popen[str]) -> None:
    """End a launcher that did not end, and let it end its ranks."""
    child.terminate()
    try:
        child.communicate(timeout=MERCY_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()


def segments(shm: Path = SHM) -> set[Path]:
    """Return the files of MPI in shared memory that no process has mapped."""
    return set(stale_segments(shm, Path("/proc"), os.getuid()))


def tidy(before: Collection[Path], shm: Path = SHM) -> None:
    """Remove the shared memory that a crash has left: what was not there `before`, and what twice nobody has mapped.

    Another job may just have made a file and not yet mapped it, hence twice.
    """
    left = segments(shm) - set(before)
    if left:
        sleep(MAPPED_SECONDS)
        for path in left & segments(shm):
            path.unlink(missing_ok=True)


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
    tries = {"ipc": lambda: _ipc(job), "direct": lambda: _direct(job, *words[1:]), "nccl": lambda: _nccl(job)}
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


def _direct(job: Any, primitive: str, contender: str = "native", nbytes: str = "") -> bool:
    """Hand GPU memory to MPI in a contender's call; return whether all results are right."""
    return all(_right(job, primitive, contender, one, "direct") for one in ([int(nbytes)] if nbytes else NBYTES))


def _nccl(job: Any) -> bool:
    """Let NCCL carry out a collective of its own, and grouped sends and receives; return whether the results are right.

    Raises:
        NotApplicable: it is missing, or refuses these ranks on these GPUs.

    """
    return all(
        _right(job, primitive, "nccl", nbytes, "staged") for primitive in ("allreduce", "alltoall") for nbytes in NBYTES
    )


def _right(job: Any, primitive: str, contender: str, nbytes: int, transport: str) -> bool:
    from bench.check import Checked, on_gpu
    from collectives import PRIMITIVES

    chosen = PRIMITIVES[primitive]
    problem = chosen.problem(job.nranks, max(1, nbytes // 4 // job.nranks) * job.nranks)
    checked = Checked(problem, job.rank, "float32", "sum", on_gpu, on_gpu)
    how = {"algorithm": contender, "count": problem.count, "transport": transport}
    with chosen.plan(job.comm, *checked.arrays, **how) as plan:
        checked.reset()  # which leaves work in the stream
        plan()
        return not checked.wrong()


if __name__ == "__main__":
    main()
