"""What links carry, for estimates: latency and bandwidth inside a node and between nodes, given or measured.

A TOML file gives them; every value is what one GPU sees when all GPUs of its node send at once:

    [inside]
    latency = "3us"
    bandwidth = "400G"   # 1e9 bytes a second
    [between]
    latency = "8us"
    bandwidth = "50G"

A run of the sweep (its folder or its `run.json`) has them measured: by ping-pong between the first and the last rank,
which crosses the network where the run had several nodes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.rows import ROWS_FILE, RUN_FILE, RowsError, read_rows, read_run
from bench.usage import UsageError
from strategies.models import toml_reader

OPTION = "--network"
PLACES = ("inside", "between")
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


@dataclass(frozen=True)
class Link:
    """latency: seconds of the smallest message. bandwidth: bytes a second of one rank."""

    latency: float
    bandwidth: float


@dataclass(frozen=True)
class Network:
    """Links inside a node and between nodes; `notes` tell what of it is a guess."""

    inside: Link
    between: Link
    notes: tuple[str, ...] = ()


def read_network(words: str) -> Network:
    """Read the network from files, separated by commas, each of which gives what it has.

    Raises UsageError naming the file and what is wrong with it.
    """
    found: dict[str, Link] = {}
    notes: list[str] = []
    for word in words.split(","):
        path = Path(word.strip())
        found |= _given(path) if path.suffix == ".toml" else _measured(path, notes)
    missing = [place for place in PLACES if place not in found]
    for place in missing:
        (other,) = (one for one in PLACES if one != place)
        found[place] = found[other]
        notes.append(f"links {place} nodes are not given and taken to be as those {other}")
    return Network(found["inside"], found["between"], tuple(notes))


def _given(path: Path) -> dict[str, Link]:
    try:
        toml = toml_reader()
        values = toml.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:  # a TOMLDecodeError is a ValueError
        raise UsageError(OPTION, path, f"cannot be read as TOML: {error}", "cannot use") from error
    links = {place: values[place] for place in PLACES if place in values}
    if not links or set(values) - set(PLACES):
        odd = ", ".join(sorted(set(values) - set(PLACES))) or "nothing"
        raise UsageError(OPTION, path, f"has {odd}: write [inside] and [between]", "cannot use")
    return {place: _link(path, place, link) for place, link in links.items()}


def _link(path: Path, place: str, values: Any) -> Link:
    if not isinstance(values, dict) or set(values) != {"latency", "bandwidth"}:
        raise UsageError(OPTION, path, f"[{place}] must have latency and bandwidth and nothing else", "cannot use")
    try:
        return Link(seconds(values["latency"]), rate(values["bandwidth"]))
    except ValueError as error:
        raise UsageError(OPTION, path, f"[{place}]: {error}", "cannot use") from error


def _measured(path: Path, notes: list[str]) -> dict[str, Link]:
    folder = path.parent if path.name == RUN_FILE else path
    try:
        facts = read_run(folder)
        rows = read_rows(folder / ROWS_FILE).rows
    except (OSError, RowsError) as error:
        remedy = f"is neither a .toml file nor a run ({error}): name one"
        raise UsageError(OPTION, path, remedy, "cannot use") from error
    times = _pingpongs(rows)
    if len(times) < 2:
        remedy = "has no two sizes of sendrecv_pingpong: measure python -m bench.sweep sendrecv_pingpong"
        raise UsageError(OPTION, path, remedy, "cannot use")
    place = "between" if int(facts.get("nnodes", 1)) > 1 else "inside"
    if place == "between":
        notes.append("bandwidth between nodes was measured with one pair of ranks, not with all GPUs of a node sending")
    return {place: fitted(times)}


def _pingpongs(rows: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Return the shortest time in seconds of each size, native or by hand."""
    times: dict[int, float] = {}
    for row in rows:
        if row["primitive"] == "sendrecv_pingpong" and row["status"] == "ok" and row["time_us_p50"]:
            times[row["nbytes"]] = min(times.get(row["nbytes"], float("inf")), row["time_us_p50"] * 1e-6)
    return times


def fitted(times: Mapping[int, float]) -> Link:
    """Return the link on which messages take so long: latency from the smallest, bandwidth from the largest."""
    small, large = min(times), max(times)
    return Link(times[small], (large - small) / max(times[large] - times[small], 1e-12))


def seconds(value: Any) -> float:
    """Read a time: seconds as a number, or text such as "3us". Raises ValueError saying what would do."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:
        return float(value)
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(s|ms|us|µs|ns)\s*", str(value))
    if not match:
        raise ValueError(f"{value!r} is no time; write seconds, or text such as '3us'")
    return float(match[1]) * SECONDS[match[2]]


def rate(value: Any) -> float:
    """Read a rate: a number, or text such as "400G", in powers of 1000. Raises ValueError saying what would do."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([KMGTP]?)\s*", str(value))
    if not match or float(match[1]) <= 0:
        raise ValueError(f"{value!r} is no rate; write a number above 0, or text such as '400G'")
    return float(match[1]) * PREFIXES[match[2]]
