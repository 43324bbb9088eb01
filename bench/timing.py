"""Take samples of several contenders at one point, interleaved. The only clock of the project.

A sample is the maximum over ranks of one call's duration on each rank's own clock. Every call starts behind a barrier,
the same one for all. Contenders take turns (A B C, B A C, ...) in an order that is shuffled with a recorded seed, so
that drift of the machine hits all alike. Whether to go on is decided on rank 0 and followed by all.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import numpy as np

MIN_ITERS = 5  # samples of each contender, whatever the time limit says
BATCH = 5  # samples of each contender between two decisions


class Ranks(Protocol):
    """What timing needs of a communicator."""

    def slowest(self, durations: np.ndarray[Any, Any]) -> None:
        """Replace durations by their maximum over ranks."""

    def decide(self, choice: bool) -> bool:
        """Return rank 0's choice on all ranks."""


@dataclass(frozen=True)
class Limits:
    """When sampling at a point ends: after `iters` samples of each contender, or after `max_seconds` (0: never)."""

    iters: int
    warmup: int
    max_seconds: float


Call = Callable[[], Any]


def sample(
    calls: Sequence[Call],
    barrier: Call,
    ranks: Ranks,
    limits: Limits,
    seed: int,
    now: Callable[[], float] = perf_counter,
) -> np.ndarray[Any, Any]:
    """Return seconds by contender and sample: the maximum over ranks of each call.

    Each contender is first called `limits.warmup` times. Garbage collection is off while samples are taken.
    """
    began = now()
    shuffled = random.Random(seed)
    order = list(range(len(calls)))
    for _ in range(limits.warmup):
        for call in calls:
            barrier()
            call()
        if not ranks.decide(limits.max_seconds == 0 or now() - began < limits.max_seconds):
            break
    batches: list[np.ndarray[Any, Any]] = []
    taken = 0
    with collection_off():
        while True:
            turns = min(BATCH, limits.iters - taken)
            durations = np.empty((len(calls), turns))
            for turn in range(turns):
                shuffled.shuffle(order)
                for index in order:
                    call = calls[index]
                    barrier()
                    start = now()
                    call()
                    durations[index, turn] = now() - start
            ranks.slowest(durations)
            batches.append(durations)
            taken += turns
            in_time = limits.max_seconds == 0 or now() - began < limits.max_seconds
            if not ranks.decide(taken < limits.iters and (in_time or taken < MIN_ITERS)):
                return np.concatenate(batches, axis=1)


@contextmanager
def collection_off() -> Iterator[None]:
    """Keep garbage collection out of the samples, and restore it."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def seconds_of(call: Call, now: Callable[[], float] = perf_counter) -> tuple[Any, float]:
    """Return what `call` returned and the seconds it took."""
    start = now()
    result = call()
    return result, now() - start
