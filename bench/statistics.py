"""Summaries of time samples: percentiles, intervals, and whether two contenders differ at all.

Pure functions of their arguments; times keep the unit they came in.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Samples = Sequence[float] | npt.NDArray[np.float64]

RESAMPLES = 2000  # each end of a 95% interval then rests on 50 of them
CONFIDENCE = 0.95
INDISTINCT = 0.01
"""A difference that is none: plans of one algorithm differ by as much, by where in memory each lies (the median over
the cells of `bench.selftest`, on quiet CPUs)."""
MANY = 100  # samples from which the normal approximation of order statistics will do

Verdict = Literal["faster", "slower", "no difference shown"]


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


def median_interval(samples: Samples, seed: int = 0) -> tuple[float, float]:
    """Return the 95% percentile bootstrap interval of the median. Raises ValueError for no samples."""
    return _bootstrapped(np.sort(_checked(samples)), seed)


def paired_ratio(baseline: Samples, contender: Samples, seed: int = 0) -> Ratio:
    """Return the median of baseline/contender, sample by sample, with its 95% bootstrap interval.

    Above 1: the contender is the faster. Sample i of both was taken in the same round of the interleaved measurement,
    so drift of the machine cancels in each ratio. The interval is the percentile bootstrap of the median over the
    pairs; the same samples and seed give the same interval, and a single pair an interval of no width. Raises
    ValueError when the numbers of samples differ, are 0, or a time is not above 0.
    """
    ratios = np.sort(_ratios(baseline, contender))
    return Ratio(float(np.median(ratios)), *_bootstrapped(ratios, seed))


def sign_test(baseline: Samples, contender: Samples, margin: float = 0.0) -> float:
    """Return how likely so uneven a score of pairs is when neither is faster by more than `margin`, a share.

    Contenders take turns in an order that is drawn anew for each pair, so for two that do not differ each pair falls
    either way with probability 1/2, whatever the times are distributed like: the two-sided sign test is exact. With a
    margin it is that of a minimum effect (Murphy and Myors 1999): pairs are scored by which side of the margin they
    fall. Ties count for none.
    """
    ratios = _ratios(baseline, contender)
    return min(1.0, 2 * min(_so_far_above(ratios, 1 + margin), _so_far_above(1 / ratios, 1 + margin)))


def _so_far_above(ratios: npt.NDArray[np.float64], bound: float) -> float:
    """Return how likely so many `ratios` lie above `bound` if each does so with probability 1/2."""
    above, below = int((ratios > bound).sum()), int((ratios < bound).sum())
    return _tail(above + below, below)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p values corrected for having tested them all at once (Holm 1979), in the same order."""
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        highest = max(highest, min(1.0, p_values[index] * (len(p_values) - place)))
        adjusted[index] = highest
    return adjusted


def verdict(ratio: float, p_value: float) -> Verdict:
    """Say whether a contender is faster than the baseline (ratio above 1), from the corrected p value alone."""
    if p_value > 1 - CONFIDENCE or ratio == 1:
        return "no difference shown"
    return "faster" if ratio > 1 else "slower"


def precise(samples: Samples, precision: float) -> bool:
    """Say whether the 95% interval of the median lies within `precision` of it to both sides.

    The interval is that of order statistics, exact for any distribution and quick; there is none below 6 samples.
    """
    values = sorted(np.asarray(samples).tolist())  # of few values, quicker than NumPy
    place = _order(len(values))
    if place is None:
        return False
    half = len(values) // 2
    middle = (values[half] + values[-1 - half]) / 2
    return max(values[-1 - place] - middle, middle - values[place]) <= precision * middle


@lru_cache(maxsize=1024)
def _order(n: int) -> int | None:
    """Return the largest k for which the k-th smallest and k-th largest (from 0) of n hold the median with 95%."""
    if n > MANY:  # the binomial is as good as normal, and long to sum
        return math.floor(n / 2 - 1.96 * math.sqrt(n) / 2) - 1
    # Both ends are missed when at most k samples lie on one side of the median.
    places = [k for k in range(n // 2) if 2 * _tail(n, k) <= 1 - CONFIDENCE]
    return places[-1] if places else None


def _tail(n: int, most: int) -> float:
    """Return the probability of at most `most` heads in n throws of a coin."""
    logs = (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2) for k in range(most + 1))
    return math.fsum(map(math.exp, logs))


def _ratios(baseline: Samples, contender: Samples) -> npt.NDArray[np.float64]:
    above, below = _checked(baseline), _checked(contender)
    if len(above) != len(below):
        raise ValueError(f"paired samples differ in number: {len(above)} and {len(below)}; pass those taken together")
    if min(above.min(), below.min()) <= 0:
        raise ValueError(f"a time of {min(above.min(), below.min())} has no ratio; samples must be above 0")
    return above / below


def _bootstrapped(ordered: npt.NDArray[np.float64], seed: int) -> tuple[float, float]:
    medians = _resampled_medians(ordered, seed)
    low, high = np.quantile(medians, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return float(low), float(high)


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
