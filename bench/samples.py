"""The samples of one contender at one point: how long each rank took and when it began. Pure numbers, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Samples:
    """What was measured of one contender; rows are ranks, columns are samples.

    seconds: of one call, on each rank's own clock. begins: when each rank began, on rank 0's clock.
    turns: the number of the turn in which each sample was taken; contenders are compared turn by turn.
    calls: back to back in each sample. retaken: samples that counted for nothing, since a rank was late for the start.
    """

    seconds: Array
    begins: Array
    turns: npt.NDArray[np.int64]
    calls: int = 1
    retaken: int = 0

    @cached_property
    def slowest(self) -> Array:
        """Seconds of each sample: those of the rank that took longest."""
        return self.seconds.max(axis=0)

    @property
    def skew(self) -> float:
        """Seconds between the first and the last rank to begin, the median over samples."""
        return float(np.median(self.begins.max(axis=0) - self.begins.min(axis=0)))

    @property
    def straggler(self) -> tuple[int, float]:
        """The rank that took longest most often, and in which share of the samples."""
        times = np.bincount(self.seconds.argmax(axis=0), minlength=len(self.seconds))
        return int(times.argmax()), float(times.max() / times.sum())

    def scaled(self, factor: float) -> Samples:
        """Return the samples with all durations times `factor`."""
        return Samples(self.seconds * factor, self.begins, self.turns, self.calls, self.retaken)


def paired(one: Samples, other: Samples) -> tuple[Array, Array]:
    """Return the seconds of the turns that both took part in."""
    _, here, there = np.intersect1d(one.turns, other.turns, assume_unique=True, return_indices=True)
    return one.slowest[here], other.slowest[there]


def joined(batches: list[Any], calls: int, retaken: int) -> Samples:
    """Return the samples of several batches, each (seconds, begins, turns)."""
    seconds, begins, turns = (np.concatenate(parts, axis=-1) for parts in zip(*batches, strict=True))
    return Samples(seconds, begins, turns, calls, retaken)
