"""What the library's default most likely ran: of its own algorithms the nearest in time that leaves the same trace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.samples import Samples, paired
from bench.sizes import format_size
from collectives.evidence import DTYPE
from collectives.operations import dtype_of

if TYPE_CHECKING:
    from bench.points import Point
    from collectives.choices import Request


def distance(one: Samples | None, other: Samples | None) -> float:
    """Return how far apart the times of two contenders are, as the absolute logarithm of their ratio."""
    if one is None or other is None:
        return math.inf
    here, there = paired(one, other)
    return abs(math.log(float(np.median(here / there)))) if len(here) else math.inf


def guess(comm: Any, point: Point, requests: Sequence[Request]) -> dict[str, Any]:
    """Return the columns for the row of native at `point`. All ranks call it; each look takes about a second.

    requests: what the library can be told to run there, the nearest in time to native first. The first that leaves the
    trace of native in a call of as many bytes, out of place, rooted at rank 0, is the guess; forms, which choose an
    algorithm by themselves, are looked at last.
    """
    from collectives.forcing import forcing_of

    proofs = forcing_of(comm).proofs
    count = point.count * dtype_of(point.dtype).itemsize // DTYPE.itemsize
    ordered = sorted({one.label: one for one in requests}.values(), key=lambda one: one.choice.is_form)
    where = f"in a call of {format_size(point.nbytes)}B it leaves the trace of"
    for place, one in enumerate(ordered):
        if proofs.guess(one.choice.primitive, count, [one]):
            passed = ", ".join(other.choice.name for other in ordered[:place])
            nearer = f", not that of {passed}" if passed else ", the nearest in time"
            return {"native_guess": one.label, "evidence": f"{where} {one.choice.name}{nearer}"}
    names = ", ".join(one.choice.name for one in ordered)
    return {"evidence": f"{where} none of {names}"}
