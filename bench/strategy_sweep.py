"""The strategy part of a sweep: for each training step measure its kinds of calls alone, then the whole step.

Alone, all contenders for a kind take turns, checked before and after, all groups at the same time. Then the step is
replayed with all calls native, with each algorithm that was named where it applies, and with the best for each call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from bench.contenders import OUT_OF_MEMORY, Contender
from bench.measure import Measuring
from bench.options import Options
from bench.overlap import Overlapped, Work
from bench.pattern import Kind
from bench.pattern_rows import BEST, PatternRow
from bench.pattern_summary import Alone, Timed, Way, alone_rows, overlap_rows, settings_of, skipped_row, whole_rows
from bench.points import fingerprint
from bench.replay import Replay
from bench.strategy_options import StrategyOptions, Training
from collectives.names import NATIVE
from strategies.cases import STRATEGIES
from strategies.mesh import Mesh


def rows(measuring: Measuring, options: StrategyOptions, trainings: Sequence[Training]) -> Iterator[PatternRow]:
    """Yield on rank 0 the rows of all trainings, as they are measured; the other ranks yield nothing."""
    contenders = replace(measuring.options, algorithms=options.algorithms or measuring.options.algorithms)
    for training in trainings:
        settings = settings_of(training, options, measuring.settings)
        if training.reason or training.mesh is None:
            yield from _on_leader(measuring, partial(_skipped, settings, training.reason))
            continue
        with training.mesh as mesh:
            yield from _replayed(measuring, options, contenders, training, mesh, settings)
        measuring.give_back()


def _replayed(
    measuring: Measuring,
    options: StrategyOptions,
    contenders: Options,
    training: Training,
    mesh: Mesh,
    settings: Mapping[str, Any],
) -> Iterator[PatternRow]:
    job = measuring.job
    traffic = STRATEGIES[training.strategy].traffic(training.job, mesh, job.rank)
    without_nccl = measuring.ways.without_nccl
    replay = Replay(job.comm, mesh, traffic, options.scale, contenders, job.nnodes, options.overlap, without_nccl)
    try:
        reason = "" if replay.kinds else "makes no call on this mesh"
        reason = reason or measuring.no_room(replay.largest_nbytes) or _pool_filled(measuring, replay)
        if reason:
            yield from _on_leader(measuring, partial(_skipped, settings, reason))
        else:
            yield from _step(measuring, options, training.strategy, replay, settings)
    finally:
        replay.free()


def _pool_filled(measuring: Measuring, replay: Replay) -> str:
    """Make the buffers of a step; return on all ranks why some rank cannot, "" if all can."""
    lacking = ""
    try:
        replay.fill_pool(measuring.seed)
    except MemoryError as error:
        lacking = f"{OUT_OF_MEMORY}: {error}"
    return measuring.job.reason(lacking) or ""


def _on_leader(measuring: Measuring, make: Callable[[], Sequence[PatternRow]]) -> Sequence[PatternRow]:
    return make() if measuring.job.leads else ()


def _skipped(settings: Mapping[str, Any], reason: str) -> list[PatternRow]:
    return [skipped_row(settings, reason)]


def _step(
    measuring: Measuring, options: StrategyOptions, name: str, replay: Replay, settings: Mapping[str, Any]
) -> Iterator[PatternRow]:
    alone: list[Alone] = []
    for kind in replay.kinds:
        measuring.guard.at(f"{name}: {kind}")
        alone.append(_alone(measuring, replay, kind, options.max_seconds))
    yield from _on_leader(measuring, partial(alone_rows, alone, settings, measuring.seed))
    if options.overlap:
        for one in alone:
            measuring.guard.at(f"{name}: {one.kind} beside computing")
            timed = _overlap(measuring, one)
            yield from _on_leader(measuring, partial(overlap_rows, one, timed, settings))
    missing = [one for one in alone if one.best is None]
    if missing:
        reason = f"no contender for {missing[0].kind}: {missing[0].contenders[0].reason or 'its results were wrong'}"
        yield from _on_leader(measuring, partial(_skipped, settings, reason))
        return
    measuring.guard.at(f"{name}: the whole step")
    yield from _whole(measuring, replay, alone, settings, options.max_seconds)


def _alone(measuring: Measuring, replay: Replay, kind: Kind, max_seconds: float | None) -> Alone:
    """Measure the contenders for one kind; those that are not needed for whole steps are freed."""
    job = measuring.job
    job.agree(fingerprint(kind, replay.names(kind)), str(kind))
    sets = replay.sets(kind)
    contenders = replay.ready(kind, sets)
    ready = [one for one in contenders if not one.reason]
    measuring.first_calls(ready, sets)
    right = [one for one in ready if not one.wrong]
    taken = measuring.sample(right, max_seconds=max_seconds)
    samples = dict(zip([one.label for one in right], taken, strict=False))
    measuring.check(right, sets)
    right = [one for one in right if not one.wrong]
    medians = np.array([np.median(samples[one.label].slowest) if job.leads else 0.0 for one in right])
    best = right[int(job.follow(np.array([medians.argmin()]))[0])] if right else None
    named = {word.partition(":")[0] for word in measuring.options.algorithms}
    for one in contenders:
        if one is not best and one.label != NATIVE and one.label.partition(":")[0] not in named:
            one.free()
    calls = job.comm.gather({phase: replay.step.times(kind, phase) for phase in replay.phases(kind)}, 0)
    return Alone(
        kind, replay.parts[kind], replay.groups(kind), replay.why(kind), contenders, samples, best, calls or []
    )


def _whole(
    measuring: Measuring,
    replay: Replay,
    alone: Sequence[Alone],
    settings: Mapping[str, Any],
    max_seconds: float | None,
) -> Sequence[PatternRow]:
    """Replay the whole step in each way, in turns with each of its calls alone, of which its cost is a ratio.

    Check once more that all calls still give what they must.
    """
    named = [word for word in measuring.options.algorithms if any(one.find(word) for one in alone)]
    ways = [Way(NATIVE, _way(alone, NATIVE)), *(Way(f"{word}, else native", _way(alone, word)) for word in named)]
    ways.append(Way(BEST, {one.kind: one.best for one in alone if one.best is not None}))
    if replay.buckets:
        both = (ways[0], ways[-1])
        ways += [replace(way, buckets=how) for way in both for how in ("left out", "none", "polled")]
    calls = {id(one): one for way in ways for one in way.chosen.values()}
    nsets = max(len(one.plans) for one in calls.values())
    replays = [Contender(str(way), [replay.whole(way.chosen, way.buckets)] * nsets) for way in ways]
    measuring.first_calls(replays, [_Unchecked()] * nsets)
    samples = measuring.sample([*replays, *calls.values()], max_seconds=max_seconds)
    for one in alone:
        used = list({id(way.chosen[one.kind]): way.chosen[one.kind] for way in ways}.values())
        measuring.check(used, replay.sets(one.kind))
    beside = dict(zip(calls, samples[len(ways) :], strict=False))
    make = partial(whole_rows, ways, samples[: len(ways)], beside, alone, replay.buckets, settings, measuring.seed)
    return _on_leader(measuring, make)


def _way(alone: Sequence[Alone], algorithm: str) -> dict[Kind, Contender]:
    """Choose `algorithm` for each kind that it can serve, else the native call, else the best."""
    chosen = {one.kind: one.find(algorithm) or one.find(NATIVE) or one.best for one in alone}
    return {kind: contender for kind, contender in chosen.items() if contender is not None}


def _overlap(measuring: Measuring, alone: Alone) -> list[Timed]:
    """Measure native and the best beside computing for as long as the call takes alone."""
    found = []
    for label in dict.fromkeys([NATIVE, *([alone.best.label] if alone.best else [])]):
        contender = alone.find(label)
        if contender is None:
            continue
        seconds = float(np.median(alone.samples[label].slowest)) if measuring.job.leads else 0.0
        work = Work(float(measuring.job.follow(np.array([seconds]))[0]))
        ways = {
            "alone": contender.plans,
            "work": [work] * len(contender.plans),
            "none": [Overlapped(plan, work, polled=False) for plan in contender.plans],
            "polled": [Overlapped(plan, work, polled=True) for plan in contender.plans],
        }
        taken = measuring.sample([Contender(way, plans, first_seconds=2 * seconds) for way, plans in ways.items()])
        found.append(Timed(label, dict(zip(ways, taken, strict=False))))
    return found


class _Unchecked:
    """Buffers of a whole step, which is not checked as such: its calls are, before and after."""

    def reset(self, meet: Callable[[], Any]) -> None:
        meet()

    def wrong(self) -> int:
        return 0
