"""The rows of a run: the project's only CSV schema, its writer and its reader, and `run.json` beside it.

A row is the summary of one contender at one point. `rows.csv` is tidy, has units in its names and is only appended
to; what holds for the whole run (host, versions, command) is in `run.json`. Nothing here loads pandas.
"""

import csv
import io
import json
import math
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import NoneType, TracebackType
from typing import Any, Literal, NamedTuple, get_args, get_type_hints

SCHEMA = 3
# History of the schema. Columns keep their names and their order; new ones are appended.
# 1: the first, up to `reason`.
# 2: how samples were taken (`cadence` to `cache`), the first call, intervals, skew, stragglers, verdict, cautions.
# 3: nodes (`between_nbytes_max`, `ppn`), GPUs (`ranks_per_gpu`), the library's own algorithms (`requested` to
# `native_guess`), NCCL (`form`).

ROWS_FILE = "rows.csv"
RUN_FILE = "run.json"

Status = Literal["ok", "wrong", "skipped", "failed"]


class RowsError(ValueError):
    """A file of rows that cannot be read or appended to; the text names the file, the reason and the remedy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One contender at one point; the order of the fields is the order of the columns, None is a blank cell.

    Raises ValueError for an unknown status, for a status other than ok without its reason, and for a number that is
    not finite.
    """

    schema: int = SCHEMA
    run: str  # name of the run's folder
    primitive: str
    algorithm: str  # what ran, with its parameters: native, ring, chain:segments=16
    nranks: int
    ngroups: int = 1  # communicators of nranks ranks that ran it at the same time
    stride: int = 1  # between the world ranks of neighbours in one of them
    nnodes: int = 1
    device: str = "cpu"
    transport: str = "message"
    memory: str = "plain"
    dtype: str
    op: str = ""  # blank where nothing is combined
    root: int | None = None  # blank where no rank is special
    in_place: bool = False
    count: int  # elements of the whole vector
    nbytes: int  # bytes of the whole vector, as moved: count x itemsize
    block_nbytes: int | None = None  # one rank's share, what OSU and IMB call the size
    rounds: int | None = None
    messages_max: int | None = None  # sent by the rank that sends most
    sent_nbytes_max: int | None = None  # sent by the rank that sends most
    scratch_nbytes: int | None = None  # by the rank that needs most
    plan_us: float | None = None  # making the plan, once per communicator and buffers
    iters: int = 0  # samples behind the times below
    time_us_p50: float | None = None  # a sample is the maximum over ranks
    time_us_mean: float | None = None
    time_us_min: float | None = None
    time_us_p5: float | None = None
    time_us_p95: float | None = None
    time_us_max: float | None = None
    algbw_GBps: float | None = None  # noqa: N815 -- GB is a unit, 1e9 bytes
    busbw_GBps: float | None = None  # noqa: N815
    baseline: str = ""
    native_ratio: float | None = None  # baseline time over this time: above 1 is faster
    native_ratio_low: float | None = None  # ends of the 95% interval
    native_ratio_high: float | None = None
    thread_level: str = ""
    oversubscribed: bool = False  # more ranks on a node than CPUs they may run on
    wrong: int | None = None  # elements that differed, over all ranks; blank when not checked
    status: Status = "ok"
    reason: str = ""
    cadence: str = "isolated"  # or streaming: `calls` back to back in a sample, the time divided
    sync: str = "barrier"  # how a sample began on all ranks alike, or deadline
    calls: int = 1  # in a sample
    rotate: int = 1  # sets of buffers that samples walked through
    footprint_nbytes: int | None = None  # buffers and scratch of the rank that has most, all sets
    cache: str = ""  # the smallest cache that holds what the ranks of a host touch, or memory
    first_call_us: float | None = None  # of the plan, before warm-up
    time_us_low: float | None = None  # ends of the 95% interval of the median
    time_us_high: float | None = None
    skew_us: float | None = None  # between the first and the last rank to begin a sample, the median
    slowest_rank: int | None = None  # took longest most often
    slowest_share: float | None = None  # in this share of the samples
    retaken: int | None = None  # samples that did not count, since a rank was late for their start
    other_load: float | None = None  # CPUs of the leader's host that other programs kept busy
    native_p: float | None = None  # of the sign test of a speed within 1%, corrected for all contenders of the point
    verdict: str = ""  # faster or slower than the baseline, or no difference shown
    cautions: str = ""  # reasons not to take the times at face value, see bench.cautions
    between_nbytes_max: int | None = None  # sent to other nodes by the node that sends most; nodes as `ppn` says
    ppn: int | None = None  # ranks on a node, the most; fewer than nranks / nnodes where nodes were pretended
    ranks_per_gpu: int | None = None  # on the GPU that most of them share; blank for buffers on the host
    requested: str = ""  # of the library's own algorithms, where `algorithm` is what it ran
    proved: bool | None = None  # that it ran, by more than a variable's value; blank where nothing was requested
    evidence: str = ""  # that it ran, or why there is none; of native, for the guess
    forced_with: str = ""  # the variables that were set, layers above put out of the way among them
    counterpart: str = ""  # our own implementation of the same algorithm
    native_guess: str = ""  # what native most likely ran
    form: str = ""  # of NCCL: a collective of its own, or grouped sends and receives

    def __post_init__(self) -> None:
        if self.status not in get_args(Status):
            raise ValueError(f"status {self.status!r} is none of {', '.join(get_args(Status))}")
        if self.status != "ok" and not self.reason:
            raise ValueError(f"status {self.status!r} of {self.primitive}/{self.algorithm} needs its reason")
        for column in COLUMNS:
            value = getattr(self, column)
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{column}={value} is no number; leave it out where it has no meaning")


# What sets points apart besides their size; a run that has several of one is several sweeps.
SETTINGS = (
    *("run", "nranks", "ngroups", "stride", "nnodes", "ppn", "device", "memory", "dtype", "op", "root", "in_place"),
)


def columns_of(kind: type) -> tuple[str, ...]:
    """Return the columns of a file of such rows: the fields of the dataclass `kind`."""
    return tuple(field.name for field in fields(kind))


COLUMNS = columns_of(Row)
REQUIRED = COLUMNS[: COLUMNS.index("reason") + 1]  # later columns are not, so that old files stay readable


def is_forced(algorithm: str) -> bool:
    """Say whether a contender is one of the library's own algorithms, which it was told to run."""
    return algorithm.startswith("native:")


def is_nccl(algorithm: str) -> bool:
    """Say whether a contender is NCCL."""
    return algorithm.partition(":")[0] == "nccl"


def is_handwritten(algorithm: str) -> bool:
    """Say whether a contender is one of this project's algorithms, not the call of a library."""
    return not algorithm.startswith(("native", "nccl"))


def algbw_GBps(nbytes: int, time_us: float) -> float | None:  # noqa: N802 -- named as its column
    """Return bytes of the whole vector over time, in 1e9 bytes a second; None where nothing is moved."""
    return nbytes / (time_us * 1e-6) / 1e9 if nbytes else None


def busbw_GBps(nbytes: int, time_us: float, factor: float, nranks: int) -> float | None:  # noqa: N802
    """Return algbw x `factor`, the primitive's bus factor; None where nothing is moved or one rank is alone."""
    algbw = algbw_GBps(nbytes, time_us)
    return None if algbw is None or nranks == 1 else algbw * factor


class RowWriter:
    """Appends rows to a CSV file; a kill at any moment loses at most the row being written.

    `kind` is the dataclass whose fields are the columns.

    A new or empty file gets the header. A last line that an earlier writer left torn is cut off. Raises RowsError when
    the file has other columns, OSError when it cannot be written.
    """

    def __init__(self, path: Path, kind: type = Row):
        self.path, self._columns = path, columns_of(kind)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._continue()
        except BaseException:
            self.close()
            raise

    def write(self, row: Any) -> None:
        """Append one row, of the kind the file is for, and wait until it is on the disk."""
        self._append(_line(_text(getattr(row, column)) for column in self._columns))

    def close(self) -> None:
        """Close the file; every row written is already in it."""
        os.close(self._file)

    def __enter__(self) -> "RowWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _continue(self) -> None:
        whole = _whole_lines(self.path.read_bytes())
        os.ftruncate(self._file, len(whole))
        header = _line(iter(self._columns))
        if not whole:
            self._append(header)
        elif not whole.startswith(header):
            raise RowsError(f"{self.path} has other columns than schema {SCHEMA}; write to a new file")

    def _append(self, line: bytes) -> None:
        # One call per line: a reader, or a kill, never sees a line begun by one call and ended by another.
        if os.write(self._file, line) != len(line):
            raise OSError(f"{self.path} took only a part of a row; is the disk full?")
        os.fsync(self._file)


class Reading(NamedTuple):
    """What the files had."""

    rows: list[dict[str, Any]]  # by column, typed as in Row; None for blank; unknown columns as text
    notices: list[str]  # one sentence for each thing that was skipped or dropped


def read_rows(*paths: Path, kind: type = Row) -> Reading:
    """Read the rows of these CSV files, one after the other; `kind` is the dataclass that they were written from.

    Columns are found by the header: unknown ones are kept, a missing one raises RowsError naming it, as does a value
    that its column cannot hold. A torn last line is dropped and a file without rows skipped, with a notice each.
    """
    reading = Reading([], [])
    for path in paths:
        content = path.read_bytes()
        whole = _whole_lines(content)
        rows = list(_parsed(path, whole, kind))
        if whole != content:
            reading.notices.append(f"{path}: dropped a torn last line of {len(content) - len(whole)} bytes")
        if not rows:
            what = "has a header and no rows" if whole else "is empty"
            reading.notices.append(f"{path}: skipped, it {what}; its run ended before the first row")
        reading.rows.extend(rows)
    return reading


def write_run(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write `run.json` into `folder`; whoever reads it meanwhile sees the old one or the new one, whole."""
    new = folder / f".{RUN_FILE}.new"
    with new.open("w", encoding="utf-8") as file:
        json.dump(facts, file, indent=2, default=str)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, folder / RUN_FILE)


def read_run(folder: Path) -> dict[str, Any]:
    """Read `run.json` of a run. Raises FileNotFoundError where there is none, RowsError where it is no JSON object."""
    path = folder / RUN_FILE
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise RowsError(f"{path} is no JSON: {error}; repair or remove it") from error
    if not isinstance(facts, dict):
        raise RowsError(f"{path} holds a {type(facts).__name__}, not an object of facts; repair or remove it")
    return facts


def _whole_lines(content: bytes) -> bytes:
    return content[: content.rfind(b"\n") + 1]


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return f"{value:.9g}"  # a nanosecond in a second; more digits would be noise
    # A line break inside a reason would make two torn lines of one row, and a NUL a file that is no text.
    return " ".join("".join(letter if letter.isprintable() else " " for letter in str(value)).split())


def _line(cells: Iterator[str]) -> bytes:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue().encode()


def _parsed(path: Path, content: bytes, kind: type) -> Iterator[dict[str, Any]]:
    reader = csv.reader(io.StringIO(content.decode("utf-8-sig", errors="replace"), newline=""))
    header = next(reader, None)
    if header is None:
        return
    required = REQUIRED if kind is Row else columns_of(kind)
    types = {column: set(get_args(hint)) or {hint} for column, hint in get_type_hints(kind).items()}
    missing = [column for column in required if column not in header]
    if missing:
        raise RowsError(f"{path} lacks the column {', '.join(missing)}; it is no file of rows, or was edited")
    for cells in reader:
        where = f"{path}, line {reader.line_num}"
        if len(cells) != len(header):
            raise RowsError(f"{where} has {len(cells)} cells for {len(header)} columns; repair or remove the line")
        yield {
            column: _value(column, types.get(column, {str}), cell, where)
            for column, cell in zip(header, cells, strict=True)
        }


def _value(column: str, kinds: Collection[type], cell: str, where: str) -> Any:
    """Return a cell as one of `kinds`; text, and every cell of an unknown column, stays as it is."""
    try:
        if cell == "" and NoneType in kinds:
            return None
        if bool in kinds:
            return bool(int(cell))
        if int in kinds:
            return int(cell)
        return float(cell) if float in kinds else cell
    except ValueError as error:
        raise RowsError(f"{where}: {cell!r} is no value for {column}; repair or remove the line") from error
