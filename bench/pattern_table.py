"""Rows of training steps as lines for people: of each kind of call the native one, the best, and what went wrong."""

from __future__ import annotations

from bench.pattern_rows import WHOLE, PatternRow
from bench.sizes import format_size
from collectives.names import NATIVE

# Heading and width; names stand to the left, numbers to the right.
COLUMNS = (
    ("strategy", -10),
    ("phase", -9),
    ("axis", -8),
    ("primitive", -15),
    ("nbytes", 8),
    ("calls", 6),
    ("algorithm", -24),
    ("time_us", 12),
    ("step_us", 13),
    ("share", 6),
    ("exposed", 8),
    ("native_ratio", 21),
)


def heading() -> str:
    """Return the line above the table."""
    return "#" + _line([name for name, _ in COLUMNS])[1:]


def shown(row: PatternRow) -> bool:
    """Whether a row is shown: all are in the file."""
    return row.best or row.algorithm == NATIVE or row.primitive == WHOLE or row.status in ("wrong", "failed")


def line(row: PatternRow) -> str:
    """Return a row as one aligned line; what is no number is a dash."""
    ratio = "-"
    if row.native_ratio is not None and row.native_ratio_low is not None and row.native_ratio_high is not None:
        ratio = f"{row.native_ratio:.2f} ({row.native_ratio_low:.2f}-{row.native_ratio_high:.2f})"
    cells = [
        row.strategy,
        row.phase or "-",
        row.axis or "-",
        row.primitive,
        "-" if row.nbytes is None else format_size(row.nbytes),
        "-" if row.calls is None else str(row.calls),
        f"{row.algorithm}{f' ({row.progress})' if row.progress else ''}" or "-",
        _number(row.time_us_p50, 2),
        _number(row.step_us, 2),
        _number(row.share, 2),
        _number(row.exposed, 2),
        ratio,
    ]
    return _line(cells) + ("" if row.status == "ok" else f"  # {row.status}: {row.reason}")


def _line(cells: list[str]) -> str:
    return " ".join(
        cell.ljust(-width) if width < 0 else cell.rjust(width) for cell, (_, width) in zip(cells, COLUMNS, strict=True)
    )


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
