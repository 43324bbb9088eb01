"""Line up the same points of several runs and say what changed, from the intervals of their medians.

python -m bench.compare RUN_A RUN_B [...] [--fail-above 10%]

Each run is compared with the first. Status 1 where a point got slower than allowed and the difference is shown.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.cautions import LOAD
from bench.rows import ROWS_FILE, RowsError, read_rows
from bench.sizes import format_size
from bench.statistics import INDISTINCT, Verdict, holm, verdict
from bench.usage import UsageError
from collectives.printing import reader_may_leave

POINT = (
    "primitive",
    "algorithm",
    "requested",
    "ngroups",
    "stride",
    "nnodes",
    "ppn",
    "device",
    "transport",
    "dtype",
    "op",
    "root",
    "in_place",
)
ALIKE = ("nranks", "memory", "cadence", "sync")
"""What runs must share: times of one and of the other measure different things."""

NORMAL = 1.959964  # standard errors from the middle of a 95% interval to its end
PICTURE = "compare"


class Change(NamedTuple):
    """One contender at one point in two runs: time now over time before, its p value corrected for all points."""

    run: str
    primitive: str
    algorithm: str
    point: str
    nbytes: int
    before_us: float
    now_us: float
    ratio: float
    p_value: float

    @property
    def verdict(self) -> Verdict:
        """Whether it got faster or slower."""
        return verdict(1 / self.ratio, self.p_value)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare as the command line asks; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", help="folders of runs; the first is what others are compared with"
    )
    parser.add_argument("--fail-above", metavar="SHARE", help="status 1 where a point is slower by more, such as 10%%")
    parser.add_argument("--across", metavar="NAME,...", default="", help=f"allow runs to differ in {', '.join(ALIKE)}")
    parser.add_argument("--all", action="store_true", help="list every point, not only those that changed")
    parser.add_argument("-o", "--output", metavar="DIR", help="where the picture goes (default: the last run's folder)")
    parser.add_argument("--no-plots", action="store_true", help="draw nothing")
    words = parser.parse_args(argv)
    try:
        limit = None if words.fail_above is None else share(words.fail_above)
        runs = named(words.runs)
        if len(runs) < 2:
            raise UsageError("RUN", ", ".join(words.runs), "a comparison needs two runs: name two folders")
        rows = {name: load(path) for name, path in runs.items()}
        changes = compare(rows, across(words.across))
    except (UsageError, RowsError) as error:
        print(f"bench.compare: {error}", file=sys.stderr)
        return 2
    with reader_may_leave():
        print(*lines(changes, words.all), *loads(rows), sep="\n")
    if not words.no_plots:
        from bench.changes import draw

        for picture in draw(changes, Path(words.output or list(runs.values())[-1]), PICTURE):
            print(f"# {picture}")
    worse = [one for one in changes if limit is not None and one.ratio > 1 + limit and one.verdict == "slower"]
    if worse:
        print(f"# FAILED: {len(worse)} points slower by more than {limit:.0%}")
    return 1 if worse else 0


def named(paths: Sequence[str]) -> dict[str, Path]:
    """Return the folders by name, by their whole path where two have the same name."""
    names = [Path(path).resolve().name for path in paths]
    return {path if names.count(name) > 1 else name: Path(path) for path, name in zip(paths, names, strict=True)}


def share(text: str) -> float:
    """Return the share that ``10%`` or ``0.1`` means. Raises UsageError for anything else."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not value >= 0 or not math.isfinite(value):
        raise UsageError("--fail-above", text, "must be a share such as 10% or 0.1")
    return value


def across(text: str) -> tuple[str, ...]:
    """Return in what runs may differ. Raises UsageError for what is none of `ALIKE`."""
    names = tuple(filter(None, text.split(",")))
    for name in names:
        if name not in ALIKE:
            raise UsageError("--across", name, f"known: {', '.join(ALIKE)}", "unknown column")
    return names


def load(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a run that were measured, the last one of what was measured again."""
    path = folder / ROWS_FILE
    if not path.exists():
        raise UsageError("RUN", folder, f"has no {ROWS_FILE}: name the folder of a run")
    measured = [row for row in read_rows(path)[0] if row["status"] == "ok" and row["time_us_p50"]]
    if not measured:
        raise UsageError("RUN", folder, "has no row that was measured")
    return measured


def compare(runs: Mapping[str, Sequence[Mapping[str, Any]]], allowed: Iterable[str] = ()) -> list[Change]:
    """Return the change of every point that the first run shares with another.

    Raises UsageError where runs differ in one of `ALIKE` that is not `allowed`.
    """
    first, *others = runs
    strict = [column for column in ALIKE if column not in allowed]
    for column in strict:
        kinds = {name: sorted({str(_get(row, column)) for row in rows}) for name, rows in runs.items()}
        for name in others:
            if not set(kinds[name]) & set(kinds[first]):
                what = f"{column} {', '.join(kinds[name])}, and {first} {', '.join(kinds[first])}"
                raise UsageError(
                    "RUN", name, f"was made with {what}: times mean different things; --across {column} allows it"
                )
    # Rows of older schemas lack columns; what only one run knows of cannot tell its points from another's.
    known = [column for column in POINT if all(column in rows[0] for rows in runs.values())]
    key: Callable[[Mapping[str, Any]], tuple[Any, ...]] = lambda row: tuple(  # noqa: E731
        _get(row, column) for column in (*known, *strict, "count")
    )
    before = {key(row): row for row in runs[first]}
    pairs = [(name, before[key(row)], row) for name in others for row in runs[name] if key(row) in before]
    if not pairs:
        raise UsageError("RUN", ", ".join(runs), "share no point: measure the same primitives, sizes and dtypes")
    p_values = holm([_p_value(old, new) for _, old, new in pairs])
    return [_change(name, old, new, p) for (name, old, new), p in zip(pairs, p_values, strict=True)]


def lines(changes: Sequence[Change], everything: bool) -> list[str]:
    """Return the table: what changed, or every point, the worst first; and the sum of it."""
    shown = [one for one in changes if everything or one.verdict != "no difference shown"]
    width = max([len(one.point) for one in shown] + [5])
    table = [f"# {'now/before':>10} {'before_us':>12} {'now_us':>12}  {'verdict':<20} {'point':<{width}}  run"]
    for one in sorted(shown, key=lambda one: -one.ratio):
        times = f"{one.ratio:12.3f} {one.before_us:12.2f} {one.now_us:12.2f}"
        table.append(f"{times}  {one.verdict:<20} {one.point:<{width}}  {one.run}")
    for run in dict.fromkeys(one.run for one in changes):
        own = [one for one in changes if one.run == run]
        mean = math.exp(math.fsum(math.log(one.ratio) for one in own) / len(own))
        counts = {name: sum(one.verdict == name for one in own) for name in ("slower", "faster", "no difference shown")}
        words = ", ".join(f"{count} {name}" for name, count in counts.items())
        table.append(f"# {run}: {len(own)} points, {words}; geometric mean of now/before {mean:.3f}")
    return table


def loads(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return a note where other programs kept the machine busier during one run than during another."""
    known = {
        name: [row["other_load"] for row in rows if row.get("other_load") is not None] for name, rows in runs.items()
    }
    means = {name: sum(values) / len(values) for name, values in known.items() if values}
    if not means or max(means.values()) - min(means.values()) <= LOAD:
        return []
    words = ", ".join(f"{mean:.1f} in {name}" for name, mean in means.items())
    return [f"# other programs kept CPUs busy meanwhile: {words}; what changed may be that"]


def _change(run: str, old: Mapping[str, Any], new: Mapping[str, Any], p_value: float) -> Change:
    words = [new["primitive"], new["algorithm"], format_size(new["nbytes"]), new["dtype"], new["op"]]
    before, now = old["time_us_p50"], new["time_us_p50"]
    point = " ".join(word for word in words if word)
    return Change(run, new["primitive"], new["algorithm"], point, new["nbytes"], before, now, now / before, p_value)


def _p_value(old: Mapping[str, Any], new: Mapping[str, Any]) -> float:
    """Return the p value of medians within `INDISTINCT` of each other.

    Their logarithms are taken as normal with the widths of their intervals.
    """
    errors = []
    for row in (old, new):
        low, high = _get(row, "time_us_low"), _get(row, "time_us_high")
        if not low or not high:
            return 1.0  # rows of the first schema have no interval, so nothing can be shown
        errors.append(math.log(high / low) / (2 * NORMAL))
    beyond = max(0.0, abs(math.log(new["time_us_p50"] / old["time_us_p50"])) - math.log1p(INDISTINCT))
    error = math.hypot(*errors)
    return math.erfc(beyond / error / math.sqrt(2)) if error else float(beyond == 0)


def _get(row: Mapping[str, Any], column: str) -> Any:
    # What all rows of earlier schemas were made with.
    defaults = {"cadence": "isolated", "sync": "barrier", "requested": ""}
    return row.get(column) or defaults.get(column, row.get(column))


if __name__ == "__main__":
    sys.exit(main())
