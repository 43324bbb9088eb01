"""`python -m bench.report DIR`: write `report.md` beside the rows of a run, with its tables, pictures and machine."""

import argparse
import html
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from bench.cautions import FEW, WIDE, sentences
from bench.pattern_plots import draw_patterns
from bench.pattern_rows import STRATEGIES_FILE, read_patterns
from bench.plots import LIBRARY, draw
from bench.regret import Best, cells, guesses, same_algorithm
from bench.rows import ROWS_FILE, RUN_FILE, RowsError, is_forced, read_rows, read_run
from bench.sizes import format_size
from bench.tables import best_handwritten, drawable, measured, sweeps
from bench.twins import flags
from bench.usage import UsageError
from collectives.printing import reader_may_leave

REPORT_FILE = "report.md"
STEPS = "Training steps"
RESULTS_FOLDER = Path("results")
NEWEST = "newest"

RATIO = (
    "Native time over the algorithm's time, the median of paired samples with its 95% interval: above 1, the "
    "hand-written algorithm is faster."
)
REGRET = (
    "How many times as long the default took as the library's own best, and as ours, paired sample by sample, with the "
    "95% interval; bold where it excludes 1."
)
LEFT_OUT = ("primitive", "algorithm", "dtype", "op", "memory", "status", "reason")
MEASURES = {
    "Median time in µs": "time_us_p50",
    "Bus bandwidth in GB/s (1e9 bytes a second)": "busbw_GBps",
    "Native time over this time": "native_ratio",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the report that the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    parser.add_argument(
        "folder", metavar="DIR", nargs="?", default=NEWEST, help="folder of a run (default: the newest in results/)"
    )
    parser.add_argument("--pictures", action="store_true", help="draw the pictures again and write no report")
    options = parser.parse_args(argv)
    try:
        folder = newest(RESULTS_FOLDER) if options.folder == NEWEST else Path(options.folder)
        report = redraw(folder) if options.pictures else write(folder)
    except (UsageError, RowsError) as error:
        print(f"bench.report: {error}", file=sys.stderr)
        return 2
    with reader_may_leave():
        print(report)
    return 0


def newest(results: Path) -> Path:
    """Return the run whose rows were written last. Raises UsageError where there is none."""
    rows = sorted(results.glob(f"*/{ROWS_FILE}"), key=lambda path: path.stat().st_mtime)
    if not rows:
        raise UsageError("DIR", NEWEST, f"no run in {results}/ has rows: make one with make sweep, or name a folder")
    return rows[-1].parent


def redraw(folder: Path) -> Path:
    """Draw the pictures of the run in `folder`; return where they are. Raises as `write` does."""
    rows, _ = _rows(folder)
    _drawn(rows, folder)
    return folder / "plots"


def write(folder: Path) -> Path:
    """Draw the pictures of the run in `folder` and write its report; return the report's path.

    Every `rows*.csv` of the folder is read, so rows of several runs can be put side by side. Raises UsageError where
    there is nothing to report, RowsError where a file is not one of rows.
    """
    rows, notices = _rows(folder)
    try:
        facts = read_run(folder)
    except FileNotFoundError:
        facts = {}
        notices.append(f"{folder / RUN_FILE}: missing, so this report knows nothing of the machine")
    pictures = {name: [path.relative_to(folder) for path in paths] for name, paths in _drawn(rows, folder).items()}
    report = folder / REPORT_FILE
    report.write_text(markdown(folder.resolve().name, rows, facts, pictures, notices), encoding="utf-8")
    return report


def _rows(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    files = sorted(folder.glob("rows*.csv"))
    if not files:
        raise UsageError("DIR", folder, f"has no {ROWS_FILE}: name the folder of a run")
    rows, notices = read_rows(*files)
    if not rows and (folder / STRATEGIES_FILE).exists():
        return [], []  # only training steps were measured
    if not rows:
        raise UsageError("DIR", folder, "; ".join(notices))
    return rows, notices


def _drawn(rows: Sequence[dict[str, Any]], folder: Path) -> dict[str, list[Path]]:
    pictures = draw(rows, folder) if rows else {}
    if (folder / STRATEGIES_FILE).exists():
        pictures[STEPS] = draw_patterns(read_patterns(folder / STRATEGIES_FILE).rows, folder)
    return pictures


def markdown(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Any],
    pictures: Mapping[str, Sequence[Path]],
    notices: Sequence[str],
) -> str:
    """Return the report as Markdown text.

    name: of the run. rows: as read. facts: of `run.json`, of any shape. pictures: by sweep, as `plots.draw` returns
    them, relative to the report. notices: of the reader.
    """
    table = measured(rows)
    parts = [f"# {name}"]
    cautions = [*warnings(rows, facts), *flags(rows), *notices]
    if cautions:
        parts += ["## Warnings", "\n".join(f"- {_escaped(caution)}" for caution in cautions)]
    best = best_handwritten(table)
    if not best.empty:
        parts += ["## Best hand-written algorithm against the MPI library", RATIO, _summary(best)]
    parts += _shown("all primitives", pictures.get("", ()))
    if pictures.get(STEPS):
        parts += [f"## {STEPS}", *_shown(STEPS, pictures[STEPS])]
    for sweep, part in sweeps(table):
        own = [path for path in pictures.get(sweep, ()) if path.stem.endswith(f"_{LIBRARY.name}")]
        parts += [f"## {sweep}", *_shown(sweep, [path for path in pictures.get(sweep, ()) if path not in own])]
        others = part[~part["algorithm"].map(is_forced)]
        for caption, column in MEASURES.items():
            if not drawable(others, column).empty:
                parts += [f"{caption}:", _by_size(others, column)]
        parts += _library(sweep, part, own)
    left_out = [row for row in rows if row["status"] != "ok"]
    if left_out:
        parts += ["## Left out", "Rows without a measurement that counts.", _left_out(left_out)]
    if facts:
        parts += ["## Machine", _table(("fact", "value"), _flat(facts))]
    return "\n\n".join(parts) + "\n"


def warnings(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any] | None = None) -> list[str]:
    """Return a sentence for each reason not to take the rows at face value, with what would help.

    facts: of `run.json`, so that nothing is advised that was done already.
    """
    ok = [row for row in rows if row["status"] == "ok"]
    settings = {
        **(facts or {}).get("made_with", {}).get("options", {}),
        "oversubscribed": (facts or {}).get("oversubscribed"),
    }
    said = sentences([(row.get("cautions") or "").split() for row in rows], settings)
    ok = [row for row in ok if "cautions" not in row]  # rows of the first schema bear none, so look for them here
    found = {
        "more ranks than CPUs, so times hold waiting for a turn to run; use as many ranks as there are CPUs": [
            row for row in ok if row["oversubscribed"]
        ],
        f"95th percentile of time over {WIDE:g} times the 5th; leave the machine alone, or raise --iters": [
            row for row in ok if (row["time_us_p95"] or 0) > WIDE * (row["time_us_p5"] or math.inf)
        ],
        f"fewer than {FEW} samples; raise --iters or --max-seconds": [row for row in ok if row["iters"] < FEW],
        "results not checked; run with --check 1": [
            row for row in rows if row["status"] == "ok" and row["wrong"] is None
        ],
        "wrong results, which count nowhere; see Left out": [row for row in rows if row["status"] == "wrong"],
        "failed; see Left out": [row for row in rows if row["status"] == "failed"],
    }
    return said + [f"{len(which)} of {len(rows)} rows: {sentence}." for sentence, which in found.items() if which]


def _library(sweep: str, rows: pd.DataFrame, pictures: Sequence[Path]) -> Iterator[str]:
    """Yield what the library's own algorithms say of its default, where some were measured."""
    forced = rows[rows["algorithm"].map(is_forced)]
    if forced.empty:
        return
    found = cells(rows)
    yield f"### {sweep}: the library's own algorithms"
    yield from _shown(sweep, pictures)
    if found:
        yield f"The library's default, native, most likely ran {_escaped(guesses(found))}."
        yield REGRET
        header = ("size", "native in µs", "most likely", "the library's best", "ours")
        yield _table(
            header,
            (
                (
                    format_size(one.nbytes),
                    _number(one.native_us, False),
                    one.guess or "?",
                    _against(one.own),
                    _against(one.ours),
                )
                for one in found
            ),
        )
    ratios = same_algorithm(rows)
    if ratios:
        sizes = sorted({nbytes for one in ratios.values() for nbytes in one})
        yield "The same algorithm, the library's time over that of our implementation: above 1, ours is faster."
        yield _table(
            ("the library's", "ours", *map(format_size, sizes)),
            (
                (*pair, *(_number(one.get(nbytes), one.get(nbytes, 0) > 1) for nbytes in sizes))
                for pair, one in ratios.items()
            ),
        )
    yield "Median time in µs:"
    yield _by_size(forced, "time_us_p50")
    yield _evidence(forced)


def _evidence(forced: pd.DataFrame) -> str:
    """Return what was requested and what ran, and what shows it; sizes with the same evidence share a line."""
    settings = [text.split() for text in forced["forced_with"]]
    common = [one for one in settings[0] if all(one in others for others in settings)]
    columns = ["contender", "proved", "evidence", "forced_with"]
    lines = []
    for (contender, proved, evidence, variables), part in forced.groupby(columns, sort=False, dropna=False):
        sizes = ", ".join(format_size(int(nbytes)) for nbytes in part["nbytes"])
        own = " ".join(one for one in str(variables).split() if one not in common)
        shown = "proved" if proved else "**unproven**"
        lines.append((str(contender), sizes, shown, _escaped(str(evidence)), _escaped(own)))
    away = f" Set for all of them, not for native: `{' '.join(common)}`." if common else ""
    return f"What shows that they ran.{away}\n\n" + _table(("requested", "sizes", "", "evidence", "set"), lines)


def _against(best: Best | None) -> str:
    """Return how much slower the default was than the best, with the interval; bold where that is shown."""
    if best is None:
        return ""
    known = not math.isnan(best.low + best.high)
    interval = f" ({best.low:.2f} to {best.high:.2f})" if known else ""
    ratio = f"**{best.ratio:.2f}**" if best.shown else f"{best.ratio:.2f}"
    return f"{ratio}{interval}<br>{best.contender}"


def _summary(best: pd.DataFrame) -> str:
    """Return sweeps x sizes; a cell has the best algorithm, its ratio and the interval."""
    cells = {}
    for row in best.to_dict("records"):
        interval = f" ({row['native_ratio_low']:.2f} to {row['native_ratio_high']:.2f})"
        known = not math.isnan(row["native_ratio_low"] + row["native_ratio_high"])
        ratio = f"**{row['native_ratio']:.2f}**{interval if known else ''}"
        cells[row["sweep"], row["nbytes"]] = f"{ratio}<br>{row['contender']}"
    sizes = sorted(best["nbytes"].unique().tolist())
    return _table(
        ("primitive", *(format_size(nbytes) for nbytes in sizes)),
        ((sweep, *(cells.get((sweep, nbytes), "") for nbytes in sizes)) for sweep in best["sweep"].unique()),
    )


def _by_size(rows: pd.DataFrame, column: str) -> str:
    """Return sizes x contenders; the best of each size is bold."""
    contenders = list(rows["contender"].unique())
    lines = []
    for nbytes, part in rows.groupby("nbytes"):
        values = drawable(part, column).set_index("contender")[column]
        best = values.min() if column == "time_us_p50" else values.max()
        cells = [_number(values.get(name), values.get(name) == best) for name in contenders]
        lines.append((format_size(int(str(nbytes))), *cells))
    return _table(("size", *contenders), lines)


def _left_out(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what was skipped, wrong or failed; sizes with the same reason share a line."""
    sizes: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        same = tuple(str(row[column]) for column in LEFT_OUT)
        sizes.setdefault(same, []).append(format_size(row["nbytes"]))
    lines = ((*map(_escaped, same), ", ".join(dict.fromkeys(which))) for same, which in sizes.items())
    return _table((*LEFT_OUT, "sizes"), lines)


def _flat(facts: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield facts, those inside of others under `outer.inner`."""
    for key, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            yield _escaped(above + key), _escaped(text)


def _shown(name: str, pictures: Sequence[Path]) -> list[str]:
    return [f"![{name}: {path.stem.rsplit('_', 1)[-1]}]({path.as_posix()})" for path in pictures]


def _table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *lines))


def _number(value: float | None, bold: bool) -> str:
    """Return three digits, without an exponent; nothing for a value that cannot be drawn."""
    if value is None:
        return ""
    text = f"{value:,.0f}" if value >= 100 else f"{value:#.3g}" if value >= 1e-4 else f"{value:.6f}"
    return f"**{text}**" if bold else text


def _escaped(text: str) -> str:
    """Return text that Markdown shows as it is, in a table too."""
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
