"""Every sample of every rank, as a compressed long table beside the rows."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Mapping
from pathlib import Path

from bench.points import KEY, Point
from bench.samples import Samples

SAMPLES_FILE = "samples.csv.gz"
COLUMNS = (
    *(KEY[0], "algorithm", *KEY[1:]),
    *("turn", "rank", "time_us", "begin_us"),
)
"""`turn` is that in which contenders were compared; `begin_us` is after the first rank to begin."""


class SamplesTable:
    """Appends the samples of a point at a time, each a member of the gzip file: a kill tears the last at most."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        whole = whole_members(path.read_bytes())
        os.ftruncate(self._file, whole)
        if not whole:
            self._append(",".join(COLUMNS) + "\n")

    def write(self, point: Point, samples: Mapping[str, Samples]) -> None:
        """Append the samples of the contenders at `point`."""
        text = io.StringIO()
        primitive, *rest = map(_cell, point.key)
        for name, one in samples.items():
            key = ",".join([primitive, name, *rest])
            first = one.begins.min(axis=0, initial=float("inf"))
            for rank, (seconds, begins) in enumerate(zip(one.seconds, one.begins - first, strict=True)):
                for turn, time, begin in zip(one.turns, seconds, begins, strict=True):
                    text.write(f"{key},{turn},{rank},{time * 1e6:.9g},{begin * 1e6:.9g}\n")
        self._append(text.getvalue())

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _append(self, text: str) -> None:
        member = gzip.compress(text.encode(), mtime=0)
        if os.write(self._file, member) != len(member):
            raise OSError("the table of samples took only a part of a point; is the disk full?")


def _cell(value: object) -> str:
    return "" if value is None else str(int(value)) if isinstance(value, bool) else str(value)


def whole_members(content: bytes) -> int:
    """Return how many bytes of a gzip file are whole members."""
    whole = 0
    while whole < len(content):
        member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            member.decompress(content[whole:])
        except zlib.error:
            return whole
        if not member.eof:
            return whole
        whole = len(content) - len(member.unused_data)
    return whole
