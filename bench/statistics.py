"""Summaries of time samples: percentiles, and the paired ratio of two contenders with its interval.

Pure functions of their arguments; times keep the unit they came in.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Samples = Sequence[float] | npt.NDArray[np.float64]

RESAMPLES = 2000  # each end of a 95% interval then rests on 50 of them
CONFIDENCE = 0.95


class Summary(NamedTuple):
    """What is kept of the samples of one contender at one point, in the samples' unit."""

    p50: float
    mean: float
    min: float
    p5: float
    p95: float
    max: float


class Ratio(NamedTuple):
    """A median ratio and its interval."""

    value: float
    low: float
    high: float


def summarise(samples: Samples) -> Summary:
    """Return percentiles (linear between samples), mean and extremes. Raises ValueError for no samples."""
    values = _checked(samples)
    low, p5, p50, p95, high = np.percentile(values, (0, 5, 50, 95, 100))
    return Summary(float(p50), float(values.mean()), float(low), float(p5), float(p95), float(high))


def median(samples: Samples) -> float:
    """Return the median. Raises ValueError for no samples."""
    return float(np.median(_checked(samples)))


def paired_ratio(baseline: Samples, contender: Samples, seed: int = 0) -> Ratio:
    """Return the median of baseline/contender, sample by sample, with its 95% bootstrap interval.

    Above 1: the contender is the faster. Sample i of both was taken in the same round of the interleaved measurement,
    so drift of the machine cancels in each ratio. The interval is the percentile bootstrap of the median over the
    pairs; the same samples and seed give the same interval, and a single pair an interval of no width. Raises
    ValueError when the numbers of samples differ, are 0, or a time is not above 0.
    """
    above, below = _checked(baseline), _checked(contender)
    if len(above) != len(below):
        raise ValueError(f"paired samples differ in number: {len(above)} and {len(below)}; pass those taken together")
    if min(above.min(), below.min()) <= 0:
        raise ValueError(f"a time of {min(above.min(), below.min())} has no ratio; samples must be above 0")
    ratios = np.sort(above / below)
    low, high = np.quantile(_resampled_medians(ratios, seed), ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return Ratio(float(np.median(ratios)), float(low), float(high))


def _resampled_medians(ordered: npt.NDArray[np.float64], seed: int) -> npt.NDArray[np.float64]:
    """Return the medians of RESAMPLES bootstrap resamples of the rising values `ordered`.

    A resample picks the indices floor(n u) for n uniform u, so its median needs only the one or two middle ones of
    the sorted u. Those are drawn straight from their own distribution (the k-th smallest of n uniforms is
    Beta(k, n - k + 1)) rather than by drawing and sorting all n: the same medians in a time that n does not change.
    """
    rng = np.random.default_rng(seed)
    n = len(ordered)
    k = (n + 1) // 2
    lower = upper = rng.beta(k, n - k + 1, RESAMPLES)
    if n % 2 == 0:
        upper = lower + (1 - lower) * rng.beta(1, n - k, RESAMPLES)
    first, second = (np.minimum((n * u).astype(np.int64), n - 1) for u in (lower, upper))
    return (ordered[first] + ordered[second]) / 2


def _checked(samples: Samples) -> npt.NDArray[np.float64]:
    """Return the samples as an array. Raises ValueError for none, or for one that is no number."""
    values = np.asarray(samples, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0:
        raise ValueError(f"samples of shape {values.shape} have no summary; pass at least one number, in one row")
    if not np.isfinite(values).all():
        raise ValueError(f"sample {values[~np.isfinite(values)][0]} is no number; pass finite times")
    return values
