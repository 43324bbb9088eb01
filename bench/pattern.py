"""The pattern of a training step: which different calls it makes, and in what order each rank makes them. No MPI.

A strategy's `traffic` gives the calls of one rank. Calls that move the same are one `Kind` and are measured once; the
kinds of all ranks together, in an order that all ranks know, are what is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import chain, pairwise
from typing import Literal, TypeAlias

from collectives.problem import Problem
from collectives.registry import find
from strategies.mesh import Mesh
from strategies.traffic import Call, scaled, unrolled

Buckets: TypeAlias = Literal["in turn", "left out", "none", "polled"]
"""How a whole step makes its calls over data-parallel ranks; "none" and "polled": beside others, polled or not."""

MESSAGE = "sendrecv"
UNEVEN = ("alltoallv", "allgatherv", "reduce_scatterv")


@dataclass(frozen=True)
class Kind:
    """What all its calls have in common. Text fields that set nothing apart are blank.

    nbytes: of the whole vector, after scaling; 0 where each rank of a group has another number (v forms).
    use: phase and purpose, where these decide what moves: of messages to one rank, and of v forms.
    """

    primitive: str
    axis: str
    ends: bool
    nbytes: int
    op: str
    root: int | None
    use: str

    def __str__(self) -> str:
        words = [self.primitive, f"over {self.axis}{' ends' if self.ends else ''}"]
        words += [f"{self.nbytes} bytes"] if self.nbytes else []
        words += [f"root {self.root}"] if self.root is not None else []
        return ", ".join([*words, *filter(None, (self.op, self.use))])


def kind_of(call: Call) -> Kind:
    """Return the kind that `call` belongs to."""
    uneven = call.primitive in UNEVEN
    use = f"{call.phase}: {call.why}" if uneven or call.primitive == MESSAGE else ""
    return Kind(call.primitive, call.axis, call.ends, 0 if uneven else call.nbytes, call.op, call.root, use)


@dataclass
class Part:
    """What one rank does in the calls of a kind.

    group: world ranks of the calling rank's group. sends, receives: bytes for and from each of them, in the v forms.
    send_to, receive_from: group ranks, of messages. nbytes: of the whole vector as this rank sees it.
    """

    group: tuple[int, ...]
    nbytes: int
    sends: tuple[int, ...] = ()
    receives: tuple[int, ...] = ()
    send_to: int | None = None
    receive_from: int | None = None

    @property
    def received_nbytes(self) -> int:
        """Bytes meant for this rank: what differs between the ranks of a v form."""
        return sum(self.receives) or self.nbytes


@dataclass
class Step:
    """One rank's training step: its calls in order, each with its kind."""

    calls: list[tuple[Kind, Call]]
    parts: dict[Kind, Part] = field(default_factory=dict)

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """The different kinds, in order of first appearance."""
        return tuple(self.parts)

    @cached_property
    def uses(self) -> list[tuple[Kind, str, str]]:
        """List each kind with the phases and purposes of its calls."""
        return list(dict.fromkeys((kind, call.phase, call.why) for kind, call in self.calls))

    def times(self, kind: Kind, phase: str | None = None) -> int:
        """Count the calls of a kind, of one phase if given; a message sent and one received count as one."""
        calls = [call for one, call in self.calls if one == kind and phase in (None, call.phase)]
        if kind.primitive != MESSAGE:
            return len(calls)
        return (
            max(sum(end is not None for end in ends) for ends in zip(*map(_ends, calls), strict=True)) if calls else 0
        )


def step_of(traffic: Iterable[Call], mesh: Mesh, rank: int, scale: Fraction = Fraction(1)) -> Step:
    """Return the step of `rank`, its messages times `scale`. What is done once before the first step is left out."""
    calls = [(kind_of(one), one) for one in (scaled(call, scale) for call in unrolled(traffic)) if one.phase != "setup"]
    step = Step(calls)
    for kind, call in calls:
        part = step.parts.get(kind)
        if part is None:
            group = mesh.group(call.axis, rank, call.ends)
            step.parts[kind] = part = Part(group, call.nbytes, call.sends, call.receives)
        if (part.sends, part.receives) != (call.sends, call.receives):
            raise ValueError(f"{kind}: rank {rank} makes calls with different counts, which is not foreseen")
        part.send_to = part.send_to if call.send_to is None else call.send_to
        part.receive_from = part.receive_from if call.receive_from is None else call.receive_from
    return step


def all_kinds(of_ranks: Iterable[Sequence[Kind]]) -> list[Kind]:
    """Return the kinds of all ranks, each once, in an order that depends on these lists alone."""
    return list(dict.fromkeys(chain.from_iterable(of_ranks)))


def problem_of(kind: Kind, parts: Mapping[int, Part], rank: int, itemsize: int) -> Problem:
    """Return the problem that `rank`'s group solves with elements of `itemsize` bytes.

    parts: of the ranks of the group, by world rank. Bytes are rounded down to whole elements, to equal blocks where
    the primitive has blocks, and no vector that has bytes is left without an element.
    """
    group = parts[rank].group
    primitive, nranks = find(kind.primitive), len(group)

    def elements(nbytes: int) -> int:
        return max(nbytes // itemsize, min(nbytes, 1))

    if kind.primitive in UNEVEN:
        matrix = tuple(tuple(map(elements, parts[member].sends)) for member in group)
        own = tuple(map(elements, parts[rank].receives))
        if kind.primitive == "alltoallv":
            return primitive.problem(nranks, sum(map(sum, matrix)), counts=matrix)
        counts = own if kind.primitive == "allgatherv" else matrix[0]
        return primitive.problem(nranks, sum(counts), counts=counts)
    count = elements(kind.nbytes)
    if not primitive.vector and count >= nranks:
        count -= count % nranks
    return primitive.problem(nranks, count, root=kind.root or 0)


def stride_of(group: Sequence[int]) -> int | None:
    """Return the distance between neighbours of a group; None where it is not the same for all."""
    strides = {second - first for first, second in pairwise(group)}
    return strides.pop() if len(strides) == 1 else None


def imbalance(received: Sequence[int]) -> float | None:
    """Return what the rank receives that receives most, over the mean; None where nobody receives anything."""
    return max(received) * len(received) / sum(received) if sum(received) else None


def _ends(call: Call) -> tuple[int | None, int | None]:
    return call.send_to, call.receive_from
