"""The rows of `strategies.csv`: what a training step communicates, and what that costs. A schema beside `rows`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.rows import Reading, Status, read_rows

PATTERN_SCHEMA = 1
STRATEGIES_FILE = "strategies.csv"

WHOLE = "step"
"""The primitive of a row about the whole step, not one kind of call."""
BEST = "best"
"""The algorithm of a row for which each call went through the one that is fastest alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PatternRow:
    """One contender for one kind of call in one phase, or (primitive `step`) for all calls of a step.

    The order of the fields is the order of the columns, None is a blank cell. Times are those of the slowest rank.
    """

    schema: int = PATTERN_SCHEMA
    run: str
    strategy: str
    variant: str = ""  # blank: the strategy's usual one
    mesh: str
    order: str
    model: str
    batch: int  # sequences in a micro-batch of one data-parallel rank
    seq: int
    micro_batches: int
    scale: str = "1"  # what all messages were multiplied with
    nranks: int  # of the whole mesh
    phase: str = ""
    axis: str = ""
    group_nranks: int | None = None
    stride: int | None = None  # between neighbours of a group, blank where it differs
    ngroups: int | None = None  # that make the call at the same time
    primitive: str
    why: str = ""  # what the calls are for
    algorithm: str
    dtype: str = ""
    op: str = ""
    calls: int | None = None  # in a step, of the rank that makes most
    nbytes: int | None = None  # of the whole vector, on the rank that has most; of a step, all calls
    iters: int = 0
    time_us_p50: float | None = None  # of a call; of a whole step, of all
    time_us_p5: float | None = None
    time_us_p95: float | None = None
    step_us: float | None = None  # calls x time of a call; of a whole step, measured
    alone_us: float | None = None  # of a whole step: the sum of its calls, each alone in a turn, of the rank with most
    share: float | None = None  # of the sum of a step: of native calls, or where this is the best, of the best ones
    best: bool = False  # the fastest for this call
    progress: str = ""  # with --overlap: whether the plan was polled while computing; blank: nothing was computed
    exposed: float | None = None  # time that computing did not hide, as a share of the call alone
    exposed_us: float | None = None
    baseline: str = ""
    native_ratio: float | None = None  # baseline time over this time: above 1 is faster
    native_ratio_low: float | None = None  # ends of the 95% interval
    native_ratio_high: float | None = None
    slowest_group: int | None = None  # number of the group that took longest most often
    imbalance: float | None = None  # bytes received by the rank that gets most, over the mean
    thread_level: str = ""
    oversubscribed: bool = False
    rotate: int = 1
    wrong: int | None = None
    status: Status = "ok"
    reason: str = ""
    alone_ratio: float | None = None  # of a whole step: its time over the sum of its calls alone, turn by turn
    alone_ratio_low: float | None = None  # ends of the 95% interval
    alone_ratio_high: float | None = None
    device: str = "cpu"  # where buffers lie
    ranks_per_gpu: int | None = None  # above 1 the row tells nothing of how GPUs scale

    def __post_init__(self) -> None:
        if self.status != "ok" and not self.reason:
            raise ValueError(f"status {self.status!r} of {self.strategy} {self.primitive} needs its reason")


def read_patterns(*paths: Path) -> Reading:
    """Read files of pattern rows. Raises RowsError as `rows.read_rows` does."""
    return read_rows(*paths, kind=PatternRow)
