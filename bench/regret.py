"""What the library's default cost: against the library's own best, against ours, and each algorithm against its twin.

Reads rows as `bench.tables` gives them. Loads pandas, so never while timing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd

from bench.rows import is_forced, is_handwritten
from bench.sizes import format_size
from bench.tables import drawable


class Best(NamedTuple):
    """The fastest of several contenders at one size: the default's time over its time, with the 95% interval."""

    contender: str
    ratio: float
    low: float
    high: float

    @property
    def shown(self) -> bool:
        """Whether the interval excludes that it is as fast as the default."""
        return self.low > 1 or self.high < 1


class Cell(NamedTuple):
    """One size of a sweep: the default's time and what it most likely ran, the library's own best, and ours."""

    nbytes: int
    native_us: float
    guess: str
    own: Best | None
    ours: Best | None


def own_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the library's own algorithms that were asked for by name, not those that ran instead."""
    forced = rows[rows["algorithm"].map(is_forced)]
    return forced[forced["requested"] == forced["algorithm"]]


def cells(rows: pd.DataFrame) -> list[Cell]:
    """Return what the default cost at each size of a sweep at which one of the library's own was measured."""
    found = []
    for nbytes, part in rows.groupby("nbytes"):
        native = drawable(part[part["algorithm"] == "native"], "time_us_p50")
        own, ours = own_rows(part), part[part["algorithm"].map(is_handwritten)]
        if not native.empty and not own.empty:
            first = native.iloc[0]
            guess = first["native_guess"].removeprefix("native:")
            found.append(Cell(int(str(nbytes)), float(first["time_us_p50"]), guess, _best(own), _best(ours)))
    return found


def guesses(found: list[Cell]) -> str:
    """Return what the default most likely ran, in words: `binomial at 8 to 4K, ring at 32K`."""
    spans: list[tuple[str, list[str]]] = []
    for one in found:
        if not spans or spans[-1][0] != one.guess:
            spans.append((one.guess, []))
        spans[-1][1].append(format_size(one.nbytes))
    words = [
        f"{guess or 'something not recognised'} at {' to '.join(dict.fromkeys((sizes[0], sizes[-1])))}"
        for guess, sizes in spans
    ]
    return ", ".join(words)


def same_algorithm(rows: pd.DataFrame) -> Mapping[tuple[str, str], Mapping[int, float]]:
    """Return the time of the library's implementation over ours of the same algorithm, by both names and by size."""
    ratios: dict[tuple[str, str], dict[int, float]] = {}
    times = drawable(rows, "time_us_p50").set_index(["algorithm", "nbytes"])["time_us_p50"]
    for row in drawable(own_rows(rows), "time_us_p50").to_dict("records"):
        ours = times.get((row["counterpart"], row["nbytes"]))
        if ours is not None:
            pair = row["algorithm"], row["counterpart"]
            ratios.setdefault(pair, {})[int(row["nbytes"])] = row["time_us_p50"] / float(ours)
    return ratios


def _best(rows: pd.DataFrame) -> Best | None:
    with_ratio = drawable(rows, "native_ratio")
    if with_ratio.empty:
        return None
    row: Any = with_ratio.nlargest(1, "native_ratio").iloc[0]
    return Best(row["contender"], row["native_ratio"], row["native_ratio_low"], row["native_ratio_high"])
