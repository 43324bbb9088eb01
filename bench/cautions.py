"""Reasons not to take a row at face value, as data: how each is found, what it says and what helps.

A remedy is never one that the user already applies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.statistics import sign_test

FEW = 6  # samples below which a 95% interval is no narrower than their whole range
WIDE = 2.0  # 95th percentile of time over the 5th
SKEW = 0.1  # of a sample's time, between the first and the last rank to begin
OVERHEAD = 5.0  # times the cost of an empty call
LOAD = 0.25  # CPUs busy with others
ODD = 1.5  # times the slowest of the other samples, for the first one
DRIFT = 1.1  # between the medians of the two halves of the samples
LATE = 0.1  # of the samples, taken again
RARE = 0.001  # how likely a drift must be to arise by chance

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Caution:
    """One reason, in words that stand behind "N rows:", and what would help, given the run's settings."""

    words: str
    remedy: Callable[[Settings], str]


def _steadier(settings: Settings) -> str:
    return "use as many ranks as there are CPUs" if settings.get("oversubscribed") else "leave the machine alone"


def _longer(settings: Settings) -> str:
    return "raise --max-seconds, or --iters" if settings.get("max_seconds", 1) else "raise --iters"


def _less_skew(settings: Settings) -> str:
    if settings.get("oversubscribed"):
        return "use as many ranks as there are CPUs"
    if settings.get("sync", "barrier") == "barrier":
        return "try --sync deadline"
    return _streaming(settings)


def _streaming(settings: Settings) -> str:
    if settings.get("cadence", "isolated") == "isolated":
        return "try --cadence streaming, whose start and clock many calls share"
    return "take these times as upper bounds"


CAUTIONS: Mapping[str, Caution] = {
    "oversubscribed": Caution(
        "more ranks than CPUs, so times hold waiting for a turn to run",
        lambda settings: "use as many ranks as there are CPUs",
    ),
    "shared_gpu": Caution(
        "ranks share a GPU, so times say nothing of how ranks with one each would do",
        lambda settings: "use as many ranks as there are GPUs",
    ),
    "suspect": Caution(
        "faster than the GPU can copy what the call must write, so it may not have been complete",
        lambda settings: "do not believe these times: report them with run.json",
    ),
    "few": Caution(f"fewer than {FEW} samples", _longer),
    "spread": Caution(f"95th percentile of time over {WIDE:g} times the 5th", _steadier),
    "first": Caution(
        "the first sample took far longer than all others",
        lambda settings: f"raise --warmup above {settings.get('warmup', 3)}",
    ),
    "drift": Caution(
        f"times changed by over {DRIFT - 1:.0%} from the first half of the samples to the second", _steadier
    ),
    "load": Caution(f"other programs used over {LOAD:g} CPUs meanwhile", lambda settings: "leave the machine alone"),
    "frequency": Caution(
        "the CPUs' frequency is governed", lambda settings: "set the governor to performance (cpupower frequency-set)"
    ),
    "skew": Caution(f"ranks began a sample up to {SKEW:.0%} of its time or more apart", _less_skew),
    "overhead": Caution(f"times within {OVERHEAD:g} times what an empty call takes in the same loop", _streaming),
    "late": Caution(
        f"over {LATE:.0%} of the samples taken again, since a rank was late for the start",
        lambda settings: "try --sync barrier",
    ),
    "unproven": Caution(
        "nothing but a variable's value shows that the library ran this algorithm of its own",
        lambda settings: "see evidence in the rows, and do not build on the name",
    ),
}


def found(
    times: npt.NDArray[np.float64],
    *,
    skew: float = 0.0,
    empty: float = 0.0,
    calls: int = 1,
    retaken: int = 0,
    load: float | None = None,
    oversubscribed: bool = False,
    governed: bool = False,
    shared_gpu: bool = False,
    floor: float = 0.0,
) -> tuple[str, ...]:
    """Return the cautions that the samples of one contender give, in the order in which they were taken.

    `times` (of one call; `calls` make a sample), `skew`, `empty` (the time of an empty call) and `floor` (which no call
    can be below) share a unit; `load` is CPUs busy with other programs, None where not known.
    """
    low, middle, high = np.percentile(times, (5, 50, 95))
    checks = {
        "oversubscribed": oversubscribed,
        "shared_gpu": shared_gpu,
        "suspect": middle < floor,
        "few": len(times) < FEW,
        "spread": high > WIDE * low,
        "first": len(times) >= FEW and times[0] > ODD * times[1:].max(),
        "drift": _drifts(times),
        "load": load is not None and load > LOAD,
        "frequency": governed,
        "skew": skew > SKEW * middle * calls,
        "overhead": middle * calls < OVERHEAD * empty,
        "late": retaken > LATE * (len(times) + retaken),
    }
    return tuple(name for name, applies in checks.items() if applies)


def _drifts(times: npt.NDArray[np.float64]) -> bool:
    """Say whether the second half of the samples is slower or faster than the first, more than chance would have it."""
    half = len(times) // 2
    early, late = times[:half], times[-half:] if half else times
    if half < FEW or min(early.min(), late.min()) <= 0:
        return False
    change = np.median(late) / np.median(early)
    return bool(max(change, 1 / change) > DRIFT and sign_test(early, late) < RARE)


def sentences(codes: Sequence[Sequence[str]], settings: Settings) -> list[str]:
    """Return a sentence for each caution that rows bear, with how many of the rows, and with what helps."""
    return [
        f"{count} of {len(codes)} rows: {caution.words}; {caution.remedy(settings)}."
        for name, caution in CAUTIONS.items()
        if (count := sum(name in one for one in codes))
    ]
