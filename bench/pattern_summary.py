"""From what was measured of a training step to its rows. Pure: no MPI and no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from bench.contenders import Contender
from bench.pattern import MESSAGE, Buckets, Kind, Part, imbalance, stride_of
from bench.pattern_rows import BEST, WHOLE, PatternRow
from bench.rows import Status
from bench.samples import Samples, paired
from bench.statistics import paired_ratio, summarise
from bench.strategy_options import StrategyOptions, Training
from collectives.names import NATIVE


@dataclass(frozen=True)
class Alone:
    """What was measured of one kind of call alone.

    parts: of the ranks that make it. groups: which make it at the same time. why: what its calls are for, by phase.
    samples: of the contenders that were right. best: the fastest. calls: how many each rank makes in a step, by phase.
    Samples and calls are known on rank 0.
    """

    kind: Kind
    parts: Mapping[int, Part]
    groups: Sequence[tuple[int, ...]]
    why: Mapping[str, str]
    contenders: Sequence[Contender]
    samples: Mapping[str, Samples]
    best: Contender | None
    calls: Sequence[Mapping[str, int]]

    def find(self, label: str) -> Contender | None:
        """Return the contender of this label if it can be called and was right."""
        return next((one for one in self.contenders if one.label == label and one.plans and not one.wrong), None)

    def seconds(self, contender: Contender | None) -> float:
        """Return the median time of a call."""
        return float(np.median(self.samples[contender.label].slowest)) if contender else 0.0

    def calls_of(self, rank: int) -> int:
        """Count the calls of a rank in a step."""
        return sum(self.calls[rank].values())

    @property
    def most_calls(self) -> int:
        """Calls of the rank that makes most."""
        return max(map(self.calls_of, range(len(self.calls))))


@dataclass(frozen=True)
class Timed:
    """Samples of one contender alone, of the work, and of both together: "alone", "work", "none", "polled"."""

    label: str
    samples: Mapping[str, Samples]


@dataclass(frozen=True)
class Way:
    """A way to replay a whole step: the contender for each kind, and how buckets of gradients are called."""

    label: str
    chosen: Mapping[Kind, Contender]
    buckets: Buckets = "in turn"

    def __str__(self) -> str:
        words = {
            "in turn": "",
            "left out": ", without buckets",
            "none": ", buckets beside",
            "polled": ", buckets beside",
        }
        return self.label + words[self.buckets]


def settings_of(training: Training, options: StrategyOptions, shared: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that all rows of a training have in common."""
    job, mesh = training.job, training.mesh
    return {
        **{column: shared[column] for column in ("run", "nranks", "thread_level", "oversubscribed", "rotate")},
        "strategy": training.strategy,
        "variant": job.variant,
        "mesh": mesh.spec if mesh else options.mesh,
        "order": mesh.order if mesh else options.order,
        "model": job.model.name,
        "batch": job.batch,
        "seq": job.seq,
        "micro_batches": job.micro_batches,
        "scale": str(options.scale),
        **{column: shared[column] for column in ("device", "ranks_per_gpu") if column in shared},
    }


def skipped_row(settings: Mapping[str, Any], reason: str) -> PatternRow:
    """Return the row of a step that is not replayed."""
    return PatternRow(**{"primitive": WHOLE, "algorithm": "", **settings}, status="skipped", reason=reason)


def alone_rows(alone: Sequence[Alone], settings: Mapping[str, Any], seed: int) -> list[PatternRow]:
    """Return a row for each kind, phase and contender."""
    sums = {
        way: sum(
            one.most_calls * one.seconds(one.find(NATIVE) or one.best if way == NATIVE else one.best) for one in alone
        )
        for way in (NATIVE, BEST)
    }
    return [
        _alone_row(one, phase, contender, settings, sums, seed)
        for one in alone
        for phase in one.why
        for contender in one.contenders
    ]


def _alone_row(
    alone: Alone,
    phase: str,
    contender: Contender,
    settings: Mapping[str, Any],
    sums: Mapping[str, float],
    seed: int,
) -> PatternRow:
    figures: dict[str, Any] = {}
    samples = alone.samples.get(contender.label)
    best = alone.best is not None and contender.label == alone.best.label
    calls = max(one.get(phase, 0) for one in alone.calls)
    status: Status = "ok"
    reason = contender.reason
    if reason:
        status = "skipped"
    elif contender.wrong:
        status, reason = "wrong", f"{contender.wrong} elements differ from what they must be"
    elif samples is not None and samples.turns.size:
        figures = _times(samples, alone.samples.get(NATIVE), seed)
        figures["step_us"] = calls * figures["time_us_p50"]
        figures["slowest_group"] = _slowest_group(samples, alone.groups)
        whole = sums[BEST] if best else sums[NATIVE] if contender.label == NATIVE else 0.0
        figures["share"] = figures["step_us"] / 1e6 / whole if whole else None
    else:
        status, reason = "failed", "ranks were late for the start of every sample; try --sync barrier"
    return PatternRow(
        **_about(alone, phase, settings, calls),
        algorithm=contender.label,
        best=best,
        wrong=contender.wrong,
        status=status,
        reason=reason,
        **figures,
    )


def _about(alone: Alone, phase: str, settings: Mapping[str, Any], calls: int) -> dict[str, Any]:
    kind, parts = alone.kind, list(alone.parts.values())
    return {
        **settings,
        "phase": phase,
        "axis": kind.axis + (" ends" if kind.ends else ""),
        "group_nranks": len(alone.groups[0]),
        "stride": stride_of(alone.groups[0]),
        "ngroups": len(alone.groups),
        "primitive": kind.primitive,
        "why": alone.why[phase],
        "op": kind.op,
        "calls": calls,
        "nbytes": max(part.nbytes for part in parts),
        "imbalance": imbalance([part.received_nbytes for part in parts]) if kind.primitive != MESSAGE else 1.0,
    }


def _times(samples: Samples, native: Samples | None, seed: int) -> dict[str, Any]:
    whole = summarise(samples.slowest * 1e6)
    figures: dict[str, Any] = {
        "iters": len(samples.slowest),
        "time_us_p50": whole.p50,
        "time_us_p5": whole.p5,
        "time_us_p95": whole.p95,
    }
    if native is not None and native.turns.size:
        pair = paired(native, samples)
        if len(pair[0]):
            ratio = paired_ratio(*pair, seed)
            figures |= {"baseline": NATIVE, "native_ratio": ratio.value}
            figures |= {"native_ratio_low": ratio.low, "native_ratio_high": ratio.high}
    return figures


def _slowest_group(samples: Samples, groups: Sequence[tuple[int, ...]]) -> int:
    """Return the number of the group whose slowest rank was the slowest of all most often."""
    by_group = np.array([samples.seconds[list(group)].max(axis=0) for group in groups])
    return Counter(by_group.argmax(axis=0).tolist()).most_common(1)[0][0]


def whole_rows(
    ways: Sequence[Way],
    samples: Sequence[Samples],
    calls: Mapping[int, Samples],
    alone: Sequence[Alone],
    buckets: Sequence[Kind],
    settings: Mapping[str, Any],
    seed: int,
) -> list[PatternRow]:
    """Return a row for each way in which the whole step was replayed. `samples` in the order of `ways`.

    `calls` are samples of single calls, by the identity of their contender, taken in the same turns as the steps.
    Of buckets beside other calls, exposed is the time of the step beyond that of one without them.
    """
    without = {
        way.label: float(np.median(taken.slowest)) * 1e6
        for way, taken in zip(ways, samples, strict=True)
        if way.buckets == "left out"
    }
    ranks = range(len(alone[0].calls))
    made = []
    for way, taken in zip(ways, samples, strict=True):
        parts = [one for one in alone if way.buckets != "left out" or one.kind not in buckets]
        figures = _times(taken, samples[0], seed)
        summed = _summed(parts, way, calls, ranks)
        figures["alone_us"] = float(np.median(summed.slowest)) * 1e6
        pair = paired(taken, summed)
        if way.buckets == "in turn" and len(pair[0]):
            cost = paired_ratio(*pair, seed)
            figures |= {"alone_ratio": cost.value, "alone_ratio_low": cost.low, "alone_ratio_high": cost.high}
        wrong = sum(contender.wrong or 0 for contender in way.chosen.values())
        checked = all(contender.wrong is not None for contender in way.chosen.values())
        if way.buckets in ("none", "polled"):
            hidden = [one for one in alone if one.kind in buckets]
            exposed = figures["time_us_p50"] - without[way.label]
            figures["exposed_us"] = exposed
            figures["exposed"] = exposed / (_alone_seconds(hidden, way, ranks) * 1e6)
            figures["progress"] = way.buckets
        made.append(
            PatternRow(
                **settings,
                primitive=WHOLE,
                algorithm=str(way),
                calls=max(sum(one.calls_of(rank) for one in parts) for rank in ranks),
                nbytes=max(
                    sum(one.calls_of(rank) * one.parts[rank].nbytes for one in parts if rank in one.parts)
                    for rank in ranks
                ),
                step_us=figures["time_us_p50"],
                best=str(way) == BEST,
                wrong=wrong if checked else None,
                status="wrong" if wrong else "ok",
                reason=f"{wrong} elements differ from what they must be" if wrong else "",
                **figures,
            )
        )
    return made


def _summed(parts: Sequence[Alone], way: Way, calls: Mapping[int, Samples], ranks: Iterable[int]) -> Samples:
    """Return what the calls of a step take alone, turn by turn, of the rank for which that is most."""
    busiest = max(ranks, key=lambda rank: sum(one.calls_of(rank) * one.seconds(way.chosen[one.kind]) for one in parts))
    made = [(one.calls_of(busiest), calls[id(way.chosen[one.kind])]) for one in parts]
    turns = reduce(np.intersect1d, [samples.turns for _, samples in made])
    seconds = sum(times * samples.slowest[np.isin(samples.turns, turns)] for times, samples in made)
    return Samples(np.atleast_2d(seconds), np.zeros((1, len(turns))), turns)


def _alone_seconds(parts: Sequence[Alone], way: Way, ranks: Iterable[int]) -> float:
    """Return the sum of calls measured alone, of the rank for which it is largest."""
    return max(sum(one.calls_of(rank) * one.seconds(way.chosen[one.kind]) for one in parts) for rank in ranks)


def overlap_rows(alone: Alone, timed: Sequence[Timed], settings: Mapping[str, Any]) -> list[PatternRow]:
    """Return rows about computing beside a call: of native and of the best, with and without polling.

    Exposed is what the call and the work took together beyond the work, whatever the sign: less than nothing is noise,
    more than the call alone is what both cost each other.
    """
    made = []
    for one in timed:
        call, work = (float(np.median(one.samples[way].slowest)) for way in ("alone", "work"))
        for progress in ("none", "polled"):
            figures = _times(one.samples[progress], None, 0)
            exposed = figures["time_us_p50"] - work * 1e6
            for phase in alone.why:
                calls = max(ranks.get(phase, 0) for ranks in alone.calls)
                made.append(
                    PatternRow(
                        **_about(alone, phase, settings, calls),
                        algorithm=one.label,
                        best=alone.best is not None and one.label == alone.best.label,
                        progress=progress,
                        exposed=exposed / (call * 1e6),
                        exposed_us=exposed,
                        step_us=calls * exposed,
                        **figures,
                    )
                )
    return made
