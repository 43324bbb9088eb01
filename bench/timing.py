"""Take samples of several contenders at one point, interleaved. The only clock of the project.

A sample is the maximum over ranks of one call's duration on each rank's own clock (of `calls` calls back to back where
the cadence is streaming, divided by their number). Every sample begins behind the same start. Contenders take turns
(A B C, B A C, ...) in an order that is shuffled with a recorded seed, so that drift of the machine hits all alike. How
to go on is decided on rank 0 and followed by all.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bench.samples import Samples, joined
from bench.statistics import precise

MIN_ITERS = 5  # samples of each contender, whatever the time limit says
BATCH = 5  # samples of each contender between two decisions, at least
BATCH_SAMPLES = 100  # of all contenders together, where they are few, so that deciding costs little
BATCH_SHARE = 0.1  # of a point's seconds, where calls are long
MIN_PRECISE = 10  # samples before a narrow interval is believed
SLOW = 10  # times as long as the best: where time is short, MIN_ITERS samples of such a contender will do
RETAKES = 3  # times --iters turns at most are taken where samples do not count
WARMUP_SHARE = 0.2  # of a point's seconds that warm-up may take
WARMUP_MOST = 10  # times --warmup calls at most
STEADY = 0.9  # of the best so far: a call that is no faster than this shows that calls no longer get faster
STREAM_SECONDS = 1e-3  # of a sample of streaming calls, roughly
STREAM_CALLS = 1000  # at most

clock = perf_counter
"""The same for all processes of a host (POSIX CLOCK_MONOTONIC)."""

Array = npt.NDArray[Any]
Call = Callable[[], Any]
Clock = Callable[[], float]
Take = Callable[[], tuple[float, float, float]]
"""Take one sample: returns when it began and when it ended, and 1.0 if this rank was late for its start, else 0.0."""


class Ranks(Protocol):
    """What timing needs of a communicator."""

    def gather(self, values: Array) -> Array | None:
        """Return the values of all ranks, stacked, on rank 0; None elsewhere."""

    def follow(self, values: Array) -> Array:
        """Return rank 0's values on all ranks."""


@dataclass(frozen=True)
class Limits:
    """When sampling at a point ends.

    After `iters` samples of each contender; after `max_seconds` (0: never), but not before `MIN_ITERS`; for one whose
    median is known to within `precision` (0: never), before.
    """

    iters: int
    warmup: int
    max_seconds: float
    precision: float = 0.0
    cadence: str = "isolated"


def sample(
    sets: Sequence[Sequence[Call]],
    start: Call,
    ranks: Ranks,
    limits: Limits,
    seed: int,
    firsts: Sequence[float] | None = None,
    now: Clock = clock,
    armed: Sequence[AbstractContextManager[Any]] | None = None,
    shared: Callable[[Array], Array] = lambda times: times,
    alive: Call = lambda: None,
    relax: Callable[[float], Any] = lambda late: None,
) -> list[Samples]:
    """Return the samples of each contender, on rank 0; nothing elsewhere.

    Args:
        sets: sets of buffers, through which turns walk, each with one call for each contender; the baseline first.
        start: called before each sample; returns True where this rank was late for it, so that it must not count.
        ranks: the communicator.
        limits: when to end.
        seed: of the order in which contenders take turns.
        firsts: seconds of each contender's first call, which came before.
        now: the clock.
        armed: for each contender, a context that is entered before the start of each of its samples and left after it;
            a nullcontext, or None for all, costs nothing.
        shared: converts times of this rank's clock to rank 0's.
        relax: on rank 0 told of the share of a batch's samples for which a rank was late.
        alive: called now and then, for a guard against hangs.

    """
    if not sets[0]:
        return []
    began = now()
    armed = [nullcontext()] * len(sets[0]) if armed is None else armed
    warming = [_take(call, start, now, arm) for call, arm in zip(sets[0], armed, strict=True)]
    estimates = _warm_up(warming, ranks, limits, firsts, alive)
    repeats = _repeats(estimates, ranks, limits, len(sets))
    takes = [
        [_take(_block(sets, place, index, repeats), start, now, arm) for index, arm in enumerate(armed)]
        for place in range(len(sets))
    ]
    taken = _Taken(limits, estimates, repeats)
    shuffled = np.random.default_rng(seed)
    plan, turn = ranks.follow(taken.plan(np.ones(len(repeats), np.int64), 0)), 0
    with collection_off():
        while plan.any():
            turns, active = int(plan[0]), np.flatnonzero(plan[1:])
            batch = _batch(takes, active, range(turn, turn + turns), shuffled)
            alive()
            batch[0] /= np.array(repeats)[active, np.newaxis]
            batch[1] = shared(batch[1])
            batches = ranks.gather(batch)
            turn += turns
            if batches is not None:
                relax(float(batches[:, 2].any(axis=0).mean()))
                taken.add(batches, active, turn)
                plan = taken.decide(active, turn, now() - began)
            plan = ranks.follow(plan)
    return taken.samples()


def _take(call: Call, start: Call, now: Clock, arm: AbstractContextManager[Any]) -> Take:
    def take() -> tuple[float, float, float]:
        late = 1.0 if start() else 0.0
        begin = now()
        call()
        return begin, now(), late

    def take_armed() -> tuple[float, float, float]:
        with arm:
            return take()

    return take if isinstance(arm, nullcontext) else take_armed


def _batch(takes: Sequence[Sequence[Take]], active: Array, turns: range, shuffled: np.random.Generator) -> Array:
    """Take turns. Return seconds, begins and whether this rank was late, by contender of `active` and turn."""
    orders = shuffled.permuted(np.tile(np.arange(len(active)), (len(turns), 1)), axis=1).tolist()
    taking = [[one[index] for index in active.tolist()] for one in takes]
    records: list[list[float]] = [[] for _ in active]
    for turn, order in zip(turns, orders, strict=True):
        now_taking = taking[turn % len(taking)]
        for place in order:
            records[place] += now_taking[place]()
    begins, ends, late = np.moveaxis(np.array(records).reshape(len(active), len(turns), 3), -1, 0)
    return np.stack([ends - begins, begins, late])


def _warm_up(takes: Sequence[Take], ranks: Ranks, limits: Limits, firsts: Sequence[float] | None, alive: Call) -> Array:
    """Call each contender `limits.warmup` times, on until it gets no faster, or until its share of time is over.

    Return the shortest time of each so far, which only rank 0 knows.
    """
    best = np.full(len(takes), np.inf) if firsts is None else np.array(firsts, float)
    spent = np.zeros(len(takes))
    share = WARMUP_SHARE * limits.max_seconds / len(takes) if limits.max_seconds else np.inf
    active = np.full(len(takes), limits.warmup > 0, np.int64)
    times = 0
    while active.any():
        seconds = np.zeros(len(takes))
        for index in np.flatnonzero(active).tolist():
            begin, end, _ = takes[index]()
            seconds[index] = end - begin
        alive()
        times += 1
        everyone = ranks.gather(seconds)
        if everyone is not None:
            slowest = everyone.max(axis=0)
            spent += slowest
            steady = (slowest >= STEADY * best) & (times >= limits.warmup)
            enough = steady | (spent > share)
            best = np.where(active == 1, np.minimum(best, slowest), best)
            active = active * ~enough * (times < WARMUP_MOST * limits.warmup)
        active = ranks.follow(active)
    return best


def _repeats(estimates: Array, ranks: Ranks, limits: Limits, nsets: int) -> list[int]:
    """Return how many calls a sample of each contender has: 1, or as many as fill a streaming sample."""
    if limits.cadence == "isolated":
        return [1] * len(estimates)
    calls = np.clip(np.ceil(STREAM_SECONDS / np.maximum(estimates, 1e-9)), 1, STREAM_CALLS)
    return [-(-int(one) // nsets) * nsets for one in ranks.follow(calls.astype(np.int64))]


def _block(sets: Sequence[Sequence[Call]], place: int, index: int, repeats: Sequence[int]) -> Call:
    """Return what a sample of contender `index` times: its call on the set at `place`, or calls through all sets."""
    if repeats[index] == 1:
        return sets[place][index]
    calls = [sets[(place + number) % len(sets)][index] for number in range(repeats[index])]

    def block() -> None:
        for call in calls:
            call()

    return block


class _Taken:
    """The samples taken so far, and what they decide. Used on rank 0."""

    def __init__(self, limits: Limits, estimates: Array, repeats: Sequence[int]) -> None:
        self.limits, self.repeats = limits, repeats
        self._batches: list[list[Any]] = [[] for _ in repeats]
        self._retaken = [0] * len(repeats)
        self._expected = estimates * repeats  # seconds of a sample
        short = limits.max_seconds and limits.iters * self._expected.sum() > limits.max_seconds
        self._slow = [bool(short and one > SLOW * estimates.min()) for one in estimates]

    def add(self, batches: Array, active: Array, turn: int) -> None:
        """Take in a batch of all ranks: what, by rank, contender and turn; `turn` is the number after its last."""
        seconds, begins, late = batches[:, 0], batches[:, 1], batches[:, 2].max(axis=0) > 0
        turns = np.arange(turn - seconds.shape[-1], turn)
        for place, index in enumerate(active):
            good = ~late[place]
            self._batches[index].append((seconds[:, place, good], begins[:, place, good], turns[good]))
            self._retaken[index] += int(late[place].sum())

    def decide(self, active: Array, turn: int, elapsed: float) -> Array:
        """Return the turns of the next batch and, for each contender, 1 if it takes part; all 0 at the end."""
        limits = self.limits
        over = bool(limits.max_seconds) and elapsed >= limits.max_seconds
        wanted = np.zeros(len(self.repeats), np.int64)
        for index in active:
            count = sum(len(turns) for _, _, turns in self._batches[index])
            enough = count >= MIN_ITERS and (over or self._slow[index] or self._precise(index, count))
            wanted[index] = count < limits.iters and not enough and turn < RETAKES * limits.iters
        wanted[0] = wanted.any()  # the baseline, with which each of the others is compared turn by turn
        return self.plan(wanted, turn)

    def plan(self, wanted: Array, turn: int) -> Array:
        """Return the number of turns until the next decision, and who takes part in them."""
        if not wanted.any():
            return np.zeros(1 + len(wanted), np.int64)
        turns = BATCH_SAMPLES // int(wanted.sum())
        seconds = float((self._expected * wanted).sum())
        if self.limits.max_seconds and seconds > 0:
            turns = min(turns, int(BATCH_SHARE * self.limits.max_seconds / seconds))
        return np.array([min(max(turns, BATCH), max(1, self.limits.iters - turn)), *wanted])

    def _precise(self, index: int, count: int) -> bool:
        if not self.limits.precision or count < MIN_PRECISE:
            return False
        times = np.concatenate([seconds.max(axis=0) for seconds, _, _ in self._batches[index]])
        return precise(times, self.limits.precision)

    def samples(self) -> list[Samples]:
        """Return the samples of each contender."""
        if not self._batches[0]:
            return []
        whole = zip(self._batches, self.repeats, self._retaken, strict=True)
        return [joined(batches, calls, retaken) for batches, calls, retaken in whole]


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


def seconds_of(call: Call, now: Clock = clock) -> tuple[Any, float]:
    """Return what `call` returned and the seconds it took."""
    start = now()
    result = call()
    return result, now() - start
