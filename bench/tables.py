"""Rows as tables for people to read: which belong together, and which is best. Loads pandas, so never while timing."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bench.rows import SETTINGS, is_handwritten

# What is drawn, calculated with or compared; blank is not a number here.
NUMBERS = (
    "time_us_p50",
    "time_us_p5",
    "time_us_p95",
    "busbw_GBps",
    "native_ratio",
    "native_ratio_low",
    "native_ratio_high",
)

LATER = ("requested", "evidence", "forced_with", "counterpart", "native_guess")


def measured(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the rows with status ok as a table, with a column `contender`: what a line of a figure is called.

    What was measured again counts with its last row. What the library ran in place of another of its own algorithms is
    called by both: `native:ring (ran bruck)`.
    """
    table = pd.DataFrame(list(rows))
    if table.empty:
        return table
    table = table.reindex(columns=table.columns.union(SETTINGS, sort=False))  # older rows have fewer
    table = table[table["status"] == "ok"].reset_index(drop=True).astype(dict.fromkeys(NUMBERS, float))
    ways = table.groupby(["primitive", "algorithm"])["transport"].transform("nunique")
    table["contender"] = table["algorithm"].where(ways <= 1, table["algorithm"] + " (" + table["transport"] + ")")
    for column in LATER:  # rows of earlier schemas lack them
        table[column] = table[column].fillna("") if column in table else ""
    instead = (table["requested"] != "") & (table["requested"] != table["algorithm"])
    both = table["requested"] + " (ran " + table["algorithm"].str.removeprefix("native:") + ")"
    table["contender"] = table["contender"].where(~instead, both)
    return table.drop_duplicates(["primitive", "contender", "nbytes", *SETTINGS], keep="last")


def sweeps(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield each sweep: the rows of a primitive that differ in size and contender only.

    Its name is the primitive's, followed by the settings that vary: `allreduce, float64`.
    """
    if table.empty:
        return
    for primitive, rows in table.groupby("primitive", sort=False):
        varying = [column for column in SETTINGS if rows[column].nunique(dropna=False) > 1]
        if not varying:
            yield str(primitive), rows
            continue
        for values, part in rows.groupby(varying, sort=False, dropna=False):
            words = [_setting(column, value) for column, value in zip(varying, values, strict=True)]
            yield ", ".join([str(primitive), *words]), part


def best_handwritten(table: pd.DataFrame) -> pd.DataFrame:
    """Return the row of the best hand-written algorithm of each sweep and size.

    Best is the largest native ratio. The column `sweep` has the name that `sweeps` gives.
    """
    best = []
    for name, part in sweeps(table):
        rows = drawable(part[part["algorithm"].map(is_handwritten)], "native_ratio")
        if not rows.empty:
            best.append(rows.loc[rows.groupby("nbytes")["native_ratio"].idxmax()].assign(sweep=name))
    return pd.concat(best, ignore_index=True) if best else pd.DataFrame()


def drawable(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the rows whose value can be drawn on any axis."""
    values = rows[column]
    return rows[np.isfinite(values) & (values > 0)]


def shared_settings(rows: pd.DataFrame) -> str:
    """Return what all rows share, in words; what differs is left out."""
    words = []
    for column in ("nranks", "dtype", "op", "root", "device"):
        values = [value for value in rows[column].unique() if not _blank(value)]
        if len(values) == 1:
            words.append(_setting(column, values[0]))
    if rows["oversubscribed"].any():
        words.append("more ranks than CPUs")
    return " · ".join([*words, *rows["run"].unique()[:1]])


def _blank(value: Any) -> bool:
    return value is None or value == "" or value != value  # the last is how a number that is none shows itself


def _setting(column: str, value: Any) -> str:
    """Return a setting in words: `8 ranks`, `root 0`, `float32`."""
    if _blank(value):
        return f"no {column}"
    if column == "ppn":
        return f"{int(value)} a node"
    if column == "nranks":
        return f"{value} rank" if value == 1 else f"{value} ranks"
    if column in ("run", "device", "memory", "dtype", "op"):
        return str(value)
    return f"{column} {int(value)}"
