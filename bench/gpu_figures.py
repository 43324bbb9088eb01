"""What algorithms on shared GPU memory must reach, from rows of a sweep and from what the same GPU can do at best."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.targets import Figure, best

Rows = Sequence[Mapping[str, Any]]

LARGE_NBYTES = 16 << 20
"""From which vector on such algorithms are compared with the library's calls."""

MIB = 1 << 20


def windowed(rows: Rows, primitive: str, nbytes: int) -> Mapping[str, Any] | None:
    """Return the fastest row of an algorithm on shared memory at one point, None if none was measured."""
    found = [
        row
        for row in rows
        if (row["primitive"], row["nbytes"], row["status"]) == (primitive, nbytes, "ok")
        and row["transport"] == "window"
    ]
    return min(found, key=lambda row: row["time_us_p50"], default=None)


def share_of_bound(row: Mapping[str, Any], copy_GBps: float) -> Figure:  # noqa: N803 -- a unit
    """Compare an all-reduce with the memory that it must read and write: each rank's vector and each rank's result.

    `copy_GBps` is what copies on the device read and write, of all ranks together. Where ranks have GPUs of their own
    the links between these bound it instead.
    """
    seconds = 2 * row["nranks"] * row["nbytes"] / copy_GBps / 1e9
    what = f"allreduce of {row['nbytes'] / MIB:g} MiB, {row['nranks']} ranks, window: share of the bound of its memory"
    interval = f"{row['algorithm']}, copies at {copy_GBps:.0f} GB/s read and written"
    return Figure(what, seconds / (row["time_us_p50"] / 1e6), 0.6, interval=interval)


def over_floor(row: Mapping[str, Any], floor_us: float) -> Figure:
    """Compare a small all-reduce with an empty kernel between two fences."""
    what = f"allreduce of {row['nbytes']} bytes, {row['nranks']} ranks, window: over the floor"
    interval = f"{row['algorithm']} {row['time_us_p50']:.1f} us, an empty kernel between two fences {floor_us:.1f} us"
    return Figure(what, row["time_us_p50"] / floor_us, 1.5, at_least=False, unit="x", interval=interval)


def over_library(rows: Rows, nranks: int) -> Iterator[Figure]:
    """Compare each primitive with the library's call on the same buffers, which goes through the host."""
    for (primitive, nbytes), row in best(rows).items():
        what = f"{primitive} of {nbytes / MIB:g} MiB, {nranks} ranks, window: over the library's call, staged"
        interval = f"{row['algorithm']} {row['native_ratio_low']:.2f} to {row['native_ratio_high']:.2f}"
        yield Figure(what, row["native_ratio"], 10, unit="x", interval=interval)
