"""From what was measured at a point to its rows. Pure: no MPI and no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench import cautions
from bench.contenders import Contender
from bench.points import KEY, Point
from bench.rows import Row, Status, algbw_GBps, busbw_GBps
from bench.samples import Samples, paired
from bench.statistics import INDISTINCT, holm, median_interval, paired_ratio, sign_test, summarise, verdict
from collectives.names import NATIVE


def rows(
    point: Point,
    contenders: Sequence[Contender],
    samples: Mapping[str, Samples],
    costs: Mapping[str, Mapping[str, Any]],
    settings: Mapping[str, Any],
    circumstances: Mapping[str, Any],
    seed: int,
) -> list[Row]:
    """Return a row for each contender at `point`.

    samples, costs: by contender, of those that were measured. settings: columns that all rows of the run share.
    circumstances: what `cautions.found` is told besides the samples.
    """
    measured = {name: one for name, one in samples.items() if one.turns.size}
    native = None if any(one.label == NATIVE and one.wrong for one in contenders) else measured.get(NATIVE)
    pairs = {name: paired(native, one) for name, one in measured.items()} if native is not None else {}
    pairs = {name: pair for name, pair in pairs.items() if len(pair[0])}
    # Whether any of them differs is asked for all at once, so that one in twenty is not called different by chance.
    others = [name for name in pairs if name != NATIVE]
    corrected = dict(zip(others, holm([sign_test(*pairs[name], INDISTINCT) for name in others]), strict=True))
    made = []
    for contender in contenders:
        figures = dict(costs.get(contender.label, {}))
        one = measured.get(contender.label)
        if one is not None:
            figures |= _times(point, one, settings["nranks"], seed)
            unproven = ["unproven"] * (contender.told.get("proved") is False)
            figures["cautions"] = " ".join([*_cautions(one, circumstances), *unproven])
        if contender.label in pairs:
            ratio = paired_ratio(*pairs[contender.label], seed)
            figures |= {
                "baseline": NATIVE,
                "native_ratio": ratio.value,
                "native_ratio_low": ratio.low,
                "native_ratio_high": ratio.high,
            }
            if contender.label in corrected:
                p_value = corrected[contender.label]
                figures |= {"native_p": p_value, "verdict": verdict(ratio.value, p_value)}
        made.append(_row(point, contender, settings, figures, one is not None or contender.label not in samples))
    return made


def _times(point: Point, one: Samples, nranks: int, seed: int) -> dict[str, Any]:
    times = one.slowest * 1e6
    whole = summarise(times)
    low, high = median_interval(times, seed)
    rank, share = one.straggler
    return {f"time_us_{name}": value for name, value in whole._asdict().items()} | {
        "iters": len(times),
        "calls": one.calls,
        "algbw_GBps": algbw_GBps(point.nbytes, whole.p50),
        "busbw_GBps": busbw_GBps(point.nbytes, whole.p50, point.primitive.busbw_factor(nranks), nranks),
        "time_us_low": low,
        "time_us_high": high,
        "skew_us": one.skew * 1e6,
        "slowest_rank": rank,
        "slowest_share": share,
        "retaken": one.retaken,
    }


def _cautions(one: Samples, circumstances: Mapping[str, Any]) -> tuple[str, ...]:
    return cautions.found(one.slowest, skew=one.skew, calls=one.calls, retaken=one.retaken, **circumstances)


def _row(
    point: Point, contender: Contender, settings: Mapping[str, Any], figures: Mapping[str, Any], in_time: bool
) -> Row:
    primitive, nranks = point.primitive, settings["nranks"]
    status: Status = "skipped" if contender.reason else "ok"
    reason = contender.reason
    if contender.wrong:
        status, reason = "wrong", f"{contender.wrong} elements differ from what they must be"
    elif not in_time:
        status, reason = "failed", "ranks were late for the start of every sample; try --sync barrier"
    blocks = not primitive.vector and not primitive.name.startswith("sendrecv")
    return Row(
        **dict(zip(KEY, point.key, strict=True)),
        **{"algorithm": contender.label, **contender.told},
        nbytes=point.nbytes,
        block_nbytes=-(-point.count // nranks) * (point.nbytes // max(1, point.count)) if blocks else point.nbytes,
        wrong=contender.wrong,
        status=status,
        reason=reason,
        **settings,
        **figures,
    )
