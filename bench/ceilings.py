"""What the GPU and its link to the host can do at best, with all ranks at once: no collective can do better.

`mpirun -n RANKS python -m bench.ceilings NBYTES` prints JSON: rates in GB/s of all ranks together, times in us.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from bench.timing import seconds_of

REPEATS = 7
TIMES = 100
"""Tries of what is told as a time, of which the median counts, as it does for what is compared with it."""


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    from bench.launch import prepare

    words = sys.argv[1:] if argv is None else list(argv)
    prepare()  # before MPI is loaded
    from bench.job import run

    run(lambda: _measured(int(words[0])))


def _measured(nbytes: int) -> int:
    from mpi4py import MPI

    from bench.gpus import choose
    from bench.job import Job

    job = Job(MPI.COMM_WORLD)
    choose(job, "cuda")
    found = ceilings(job, nbytes)
    if job.leads:
        print(json.dumps(found), flush=True)
    return 0


def ceilings(job: Any, nbytes: int) -> dict[str, float]:
    """Return the best rate of several tries of each copy, and the median of each time.

    A copy on the device counts bytes read and bytes written. `floor_us` is an empty kernel, waited for, between two
    fences of those on shared memory, `launch_us` the kernel alone.
    """
    import cupy

    from collectives import barrier, buffers, devices, kernels
    from collectives.plan import NotApplicable

    one, two = (cupy.zeros(nbytes, np.uint8) for _ in range(2))
    host = devices.pinned(nbytes, np.uint8)
    nothing = devices.kernel(kernels.NOTHING, "nothing")

    def done(call: Callable[[], Any]) -> Callable[[], None]:
        def both() -> None:
            call()
            devices.synchronise()

        return both

    launch = done(lambda: nothing((1,), (1,), ()))
    try:
        fence = barrier.plan(job.comm, algorithm="window")
    except NotApplicable:  # ranks on several nodes
        fence = barrier.plan(job.comm, algorithm="dissemination")
    with fence, barrier.plan(job.comm, algorithm="dissemination") as meet:

        def floor() -> None:
            fence()
            launch()
            fence()

        calls = {
            "device_copy_GBps": (done(buffers.copier(one, two)), 2 * nbytes),
            "to_host_GBps": (done(buffers.copier(host, one)), nbytes),
            "from_host_GBps": (done(buffers.copier(one, host)), nbytes),
            "launch_us": (launch, 0),
            "floor_us": (floor, 0),
        }
        found = {}
        for name, (call, moved) in calls.items():
            seconds = [_slowest(job, meet, call) for _ in range(REPEATS if moved else TIMES)]
            found[name] = job.nranks * moved / min(seconds) / 1e9 if moved else median(seconds) * 1e6
    return {"nranks": job.nranks, "nbytes": nbytes, **found}


def copy_seconds(target: Any, source: Any) -> float:
    """Return how long a copy on the device takes until it is done, the best of several tries."""
    from collectives import buffers, devices

    copy = buffers.copier(target, source)

    def done() -> None:
        copy()
        devices.synchronise()

    return min(seconds_of(done)[1] for _ in range(REPEATS))


def _slowest(job: Any, meet: Callable[[], Any], call: Callable[[], Any]) -> float:
    meet()
    return float(job.most(np.array([seconds_of(call)[1]]))[0])


if __name__ == "__main__":
    main()
