"""The folder of a run and what people see of it: rows.csv, run.json, a table on stdout, progress on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import pattern_table
from bench.cautions import sentences
from bench.pattern_rows import STRATEGIES_FILE, PatternRow, read_patterns
from bench.points import Point
from bench.rows import ROWS_FILE, Row, RowWriter, read_rows, write_run
from bench.samples import Samples
from bench.sizes import format_size
from bench.table import SAMPLES_FILE, SamplesTable
from bench.twins import flags

# What the table shows: heading, width, how a row's value is written.
COLUMNS = (
    ("nbytes", 10),
    ("primitive", 17),
    ("algorithm", 24),
    ("time_us", 12),
    ("p5_us", 11),
    ("p95_us", 11),
    ("algbw_GBps", 11),
    ("busbw_GBps", 11),
    ("native_ratio", 21),
    ("wrong", 7),
)


class Output:
    """What rank 0 writes while a sweep runs; on the other ranks nothing happens."""

    def __init__(self, folder: Path, facts: Mapping[str, Any], leads: bool, quiet: bool) -> None:
        self.folder, self.facts, self.leads, self.quiet = folder, facts, leads, quiet
        self._writer: RowWriter | None = None
        self._steps: RowWriter | None = None
        self._table: SamplesTable | None = None
        self._cautions: list[list[str]] = []
        self._own: list[dict[str, Any]] = []  # rows of the library's own algorithms
        self._settings = {**facts["made_with"]["options"], "oversubscribed": facts["oversubscribed"]} if leads else {}
        if leads:
            folder.mkdir(parents=True, exist_ok=True)
            write_run(folder, facts)
            self._writer = RowWriter(folder / ROWS_FILE)
            if self._settings["samples"]:
                self._table = SamplesTable(folder / SAMPLES_FILE)
            self._say(*(f"# {line}" for line in headings(facts)))
            if self._settings["primitives"]:
                self._say("#" + line_of([name for name, _ in COLUMNS])[1:])

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *exception: object) -> None:
        for file in (self._writer, self._steps, self._table):
            if file is not None:
                file.close()

    def write(self, row: Row) -> None:
        """Append a row to the file and to the table."""
        if self._writer is not None:
            self._writer.write(row)
            self._say(table_line(row))
            if row.time_us_p50 is not None:
                self._cautions.append(row.cautions.split())
            if row.requested:
                self._own.append(asdict(row))

    def write_step(self, row: PatternRow) -> None:
        """Append a row about a training step to the file of such rows and to its table."""
        if not self.leads:
            return
        if self._steps is None:
            self._steps = RowWriter(self.folder / STRATEGIES_FILE, PatternRow)
            self._say(pattern_table.heading())
        self._steps.write(row)
        if pattern_table.shown(row):
            self._say(pattern_table.line(row))

    def section(self, words: str) -> None:
        """Say in the table what the rows below are about; nothing where there are no words."""
        if self.leads and words:
            self._say(f"# {words}")

    def write_samples(self, point: Point, samples: Mapping[str, Samples]) -> None:
        """Append every sample taken at a point to the table of samples, where it was asked for."""
        if self._table is not None:
            self._table.write(point, samples)

    def progress(self, points: Sequence[Point]) -> Iterator[Point]:
        """Yield the points, on a terminal with a live line that says how far the sweep is."""
        if not self.leads or self.quiet or not sys.stderr.isatty():
            yield from points
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(compact=True))
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("", total=sum(map(_weight, points)))
            for point in points:
                progress.update(task, description=f"{point.primitive.name} {format_size(point.nbytes)}")
                yield point
                progress.advance(task, _weight(point))

    def draw(self) -> None:
        """Draw the pictures of the run; a missing library is said, not fatal."""
        try:
            from bench.pattern_plots import draw_patterns
            from bench.plots import draw
        except ImportError as reason:
            print(f"no pictures: {reason}", file=sys.stderr, flush=True)
            return
        if self._settings["primitives"]:
            rows, notices = read_rows(self.folder / ROWS_FILE)
            for notice in notices:
                print(notice, file=sys.stderr, flush=True)
            draw(rows, self.folder)
        if self._steps is not None:
            draw_patterns(read_patterns(self.folder / STRATEGIES_FILE).rows, self.folder)

    def end(self, counts: Mapping[str, int], facts: Mapping[str, Any]) -> None:
        """Add what is known only in the end to run.json; say how it went and where the results are."""
        if self.leads:
            write_run(self.folder, {**self.facts, **facts})
            words = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
            notes = [*sentences(self._cautions, self._settings), *flags(self._own)]
            for sentence in () if self.quiet else notes:
                print(f"note: {sentence}", file=sys.stderr, flush=True)
            self._say(f"# {'FAILED' if counts.get('wrong') else 'OK'}: {words or 'no'} rows in {self.folder}/")

    def _say(self, *lines: str) -> None:
        if not self.quiet:
            # One write for each line, so that no launcher can cut one in two.
            for line in lines:
                sys.stdout.write(f"{line}\n")
            sys.stdout.flush()


def _weight(point: Point) -> float:
    """How long a point takes, roughly: a constant, and time in proportion to its bytes."""
    return 1 + point.nbytes / (2 << 20)


def headings(facts: Mapping[str, Any]) -> Iterable[str]:
    """Yield the lines above the table: what ran where."""
    software, host = facts["software"], facts["hosts"][0]
    yield f"collbench {software['collbench']}: {' '.join(facts['command'][1:])}"
    versions = f"mpi4py {software['mpi4py']}, numpy {software['numpy']}"
    yield f"{software['mpi']}, {versions}, thread level {facts['thread_level']}"
    crowd = ", more ranks than CPUs: no scaling result" if facts["oversubscribed"] else ""
    yield f"{facts['nranks']} ranks on {facts['nnodes']} node(s), {host['cpus_usable']} CPUs of {host['cpu']}{crowd}"


def table_line(row: Row) -> str:
    """Return a row as one aligned line; what is no number is a dash."""
    ratio = "-"
    if row.native_ratio is not None and row.native_ratio_low is not None and row.native_ratio_high is not None:
        ratio = f"{row.native_ratio:.2f} ({row.native_ratio_low:.2f}-{row.native_ratio_high:.2f})"
    times = [_number(value, 2) for value in (row.time_us_p50, row.time_us_p5, row.time_us_p95)]
    widths = [_number(value, 3) for value in (row.algbw_GBps, row.busbw_GBps)]
    where = "" if row.memory == "plain" else f", {row.memory}"
    cells = [str(row.nbytes), row.primitive, row.algorithm + where, *times, *widths, ratio, _number(row.wrong, 0)]
    note = "" if row.status == "ok" else f"  # {row.status}: {row.reason}"
    if row.requested not in ("", row.algorithm):
        note += f"  # {row.requested} was asked for"
    return line_of(cells) + note


def line_of(cells: Sequence[str]) -> str:
    """Return cells under their headings: numbers to the right, names to the left."""
    names = {"primitive", "algorithm"}
    return " ".join(
        cell.ljust(width) if name in names else cell.rjust(width)
        for cell, (name, width) in zip(cells, COLUMNS, strict=True)
    )


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
