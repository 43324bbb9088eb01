"""A flag for algorithms of the library that bear two names and take the same time everywhere: it may have run one.

Pure: rows in, sentences out; no pandas, so that the sweep itself can say it at its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from bench.rows import SETTINGS

ALIKE = 0.05
"""Medians that differ by no more than this share are the same time, if their 95% intervals overlap too."""

FEWEST = 3
"""Sizes at which times must be the same: at one or two that happens by chance."""

Row = Mapping[str, Any]


def flags(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each two of the library's own algorithms that took the same time at all their sizes."""
    sweeps: dict[tuple[Any, ...], dict[str, dict[int, Row]]] = {}
    for row in rows:
        if row["status"] == "ok" and row.get("requested") and row["requested"] == row["algorithm"]:
            sweep = sweeps.setdefault((row["primitive"], *(row.get(column) for column in SETTINGS)), {})
            sweep.setdefault(row["algorithm"], {})[row["nbytes"]] = row
    return [
        _sentence(key[0], one, other, list(sweep[one].values()) + list(sweep[other].values()))
        for key, sweep in sweeps.items()
        for one, other in combinations(sweep, 2)
        if _same(sweep[one], sweep[other])
    ]


def _same(one: Mapping[int, Row], other: Mapping[int, Row]) -> bool:
    sizes = set(one) & set(other)
    return len(sizes) >= FEWEST and all(_same_time(one[nbytes], other[nbytes]) for nbytes in sizes)


def _same_time(one: Row, other: Row) -> bool:
    columns = ("time_us_p50", "time_us_low", "time_us_high")
    if any(row.get(column) is None for row in (one, other) for column in columns):
        return False
    faster, slower = sorted((one, other), key=lambda row: row["time_us_p50"])
    alike = slower["time_us_p50"] <= (1 + ALIKE) * faster["time_us_p50"]
    return bool(alike and slower["time_us_low"] <= faster["time_us_high"])


def _sentence(primitive: str, one: str, other: str, rows: Sequence[Row]) -> str:
    if all(row["proved"] for row in rows):
        remedy = "what they exchange tells them apart all the same, see evidence"
    else:
        remedy = "the library may have run one for both, so do not build on the names"
    return f"{primitive}: {one} and {other} took the same time at all sizes; {remedy}."
