"""What the measurement itself costs, measured through the loop that measures everything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.job import Job
from bench.timing import Limits, clock, sample, seconds_of

ITERS = 1000
STARTS = 50  # each may take milliseconds where ranks share CPUs


def overhead(job: Job, start: Callable[[], Any]) -> dict[str, float]:
    """Return microseconds: `clock_us` one look at the clock; `empty_call_us` what a sample of nothing shows;
    `harness_us` what a sample costs beside its start and its call, decisions included; `start_us` a sample's start.

    All ranks call it; rank 0's figures count.
    """
    limits = Limits(ITERS, 0, 0.0)
    samples, seconds = seconds_of(lambda: sample([[_nothing]], _nothing, job, limits, 0))
    _, started = seconds_of(lambda: [start() for _ in range(STARTS)])
    _, looked = seconds_of(lambda: [clock() for _ in range(ITERS)])
    empty = sorted(samples[0].slowest)[ITERS // 2] if samples else 0.0
    return {
        "clock_us": looked / ITERS * 1e6,
        "empty_call_us": float(empty) * 1e6,
        "harness_us": seconds / ITERS * 1e6,
        "start_us": started / STARTS * 1e6,
    }


def _nothing() -> None:
    pass
