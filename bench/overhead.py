"""What the measurement itself costs, measured through the loop that measures everything else."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from mpi4py import MPI

from bench.cloop import Built, Loop, Unknown
from bench.job import Job
from bench.timing import Limits, clock, sample, seconds_of
from collectives import allreduce

ITERS = 1000
CALLS = 500  # of a call in Python and in C, by turns
REPEATS = 9
STARTS = 50  # each may take milliseconds where ranks share CPUs


def overhead(job: Job, start: Callable[[], Any], built: Built) -> dict[str, Any]:
    """Return microseconds: `clock_us` one look at the clock; `empty_call_us` what a sample of nothing shows;
    `harness_us` what a sample costs beside its start and its call, decisions included; `start_us` a sample's start;
    and what `mpi4py_cost` returns.

    All ranks call it; rank 0's figures count.
    """
    limits = Limits(ITERS, 0, 0.0)
    whole: list[float] = []
    for _ in range(REPEATS):
        start()  # together, or one would wait in it for what another had to do before
        samples, seconds = seconds_of(lambda: sample([[_nothing]], _nothing, job, limits, 0))
        whole.append(seconds)
    _, started = seconds_of(lambda: [start() for _ in range(STARTS)])
    _, looked = seconds_of(lambda: [clock() for _ in range(ITERS)])
    empty = sorted(samples[0].slowest)[ITERS // 2] if samples else 0.0
    return {
        "clock_us": looked / ITERS * 1e6,
        "empty_call_us": float(empty) * 1e6,
        "harness_us": median(whole) / ITERS * 1e6,
        "start_us": started / STARTS * 1e6,
        **(mpi4py_cost(built) if job.leads else {}),
    }


def mpi4py_cost(built: Built) -> dict[str, Any]:
    """Return microseconds: `c_call_us` an all-reduce of one rank in C; `mpi4py_us` what it takes more from Python.

    One rank alone, so that no other's time is in it. Both are None where there is no loop in C, and `mpi4py_unknown`
    says why.
    """
    send, recv = np.zeros(2, np.float32), np.zeros(2, np.float32)
    try:
        loop = Loop(built, MPI.COMM_SELF, send, recv)
    except Unknown as reason:
        return {"c_call_us": None, "mpi4py_us": None, "mpi4py_unknown": str(reason)}
    with allreduce.plan(MPI.COMM_SELF, send, recv, algorithm="native") as plan:

        def in_python() -> None:
            for _ in range(CALLS):
                plan()

        turns = [(seconds_of(in_python)[1], seconds_of(lambda: loop(CALLS))[1]) for _ in range(REPEATS)]
    python, c = (median(seconds) / CALLS * 1e6 for seconds in zip(*turns, strict=True))
    return {"c_call_us": c, "mpi4py_us": python - c}


def _nothing() -> None:
    pass
