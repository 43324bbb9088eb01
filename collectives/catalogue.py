"""The catalogue of algorithms as a table: what each needs and what it costs, counted from its rounds."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from collectives import PRIMITIVES
from collectives.count import count
from collectives.registry import Algorithm, Primitive

SOURCE = re.compile(r"[(;]([^(;]*?\b(?:19|20)\d\d)[;)]")
"""What a docstring cites: ``(Bruck et al. 1997)``, or one of several, ``(van de Geijn; Thakur et al. 2005)``."""


class Entry(NamedTuple):
    """One algorithm of the catalogue, as text.

    `messages` (sent), `sent`, `received` and `combined` are each of the rank that has most, the last three in units of
    the whole vector. They are ``-`` where the algorithm does not apply to so many ranks.
    """

    primitive: str
    algorithm: str
    parameters: str
    rounds: str
    messages: str
    sent: str
    received: str
    combined: str
    keeps_order: str
    source: str
    needs: str


HEADINGS = Entry._make(name.replace("_", " ") for name in Entry._fields)
RIGHT_ALIGNED = ("rounds", "messages", "sent", "received", "combined")


def rows(nranks: int = 8, primitives: Iterable[Primitive] = PRIMITIVES.values()) -> list[Entry]:
    """Return one entry for each algorithm, counted at `nranks` ranks."""
    return [_entry(algorithm, nranks) for primitive in primitives for algorithm in primitive.algorithms.values()]


def table(nranks: int = 8, primitives: Iterable[Primitive] = PRIMITIVES.values()) -> str:
    """Return the entries as aligned text, with a heading and a note on what was counted."""
    note = (
        f"# counted at {nranks} ranks, each for the rank that has most: messages it sends; what it sends, receives\n"
        "# and combines in units of the whole vector. Round by round: python -m collectives.explain PRIMITIVE -a NAME"
    )
    return f"{note}\n{aligned([HEADINGS, *rows(nranks, primitives)])}"


def aligned(entries: Sequence[Entry]) -> str:
    """Return entries as lines of which the columns are aligned; the first is the heading."""
    widths = [max(map(len, column)) for column in zip(*entries, strict=True)]
    places = [">" if name in RIGHT_ALIGNED else "<" for name in Entry._fields]
    return "\n".join(
        "  ".join(f"{text:{place}{width}}" for text, place, width in zip(entry, places, widths, strict=True)).rstrip()
        for entry in entries
    )


def _entry(algorithm: Algorithm, nranks: int) -> Entry:
    primitive = algorithm.primitive
    whole = nranks * algorithm.nchunks(nranks)  # so that no block or chunk is rounded
    problem = primitive.problem(nranks, whole)
    rounds = messages = sent = received = combined = "-"
    if not algorithm.unmet(problem):
        counted = count(algorithm, problem)
        rounds, messages = str(counted.rounds), str(counted.messages_max)
        moved = (counted.sent_count_max, counted.received_count_max, counted.combined_count_max)
        sent, received, combined = (f"{one / whole:.4g}" for one in moved)
    cited = SOURCE.findall(" ".join((inspect.getdoc(algorithm.generate) or "").split()))
    return Entry(
        primitive=primitive.name,
        algorithm=algorithm.name,
        parameters=" ".join(f"{key}={value}" for key, value in algorithm.parameters.items()) or "-",
        rounds=rounds,
        messages=messages,
        sent=sent,
        received=received,
        combined=combined,
        keeps_order=("yes" if algorithm.keeps_order else "no") if primitive.combines else "-",
        source="; ".join(one.strip() for one in cited) or "-",
        needs=", ".join(need.words for need in (*primitive.needs, *algorithm.needs)) or "-",
    )
