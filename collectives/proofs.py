"""Evidence that an algorithm of the library is what runs when it is told to use it: its traces among the others'."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from mpi4py import MPI

from collectives.attached import attached_to
from collectives.bind import Bound
from collectives.choices import PREFIX, Choice, Request
from collectives.evidence import BLOCK_COUNT, SMALL_COUNTS, Trace, sample, trace
from collectives.forced import Forced
from collectives.mpit import NoVariable, Watched
from collectives.native import NativePlan
from collectives.operations import OPERATIONS, Operation
from collectives.plan import NotApplicable, Plan
from collectives.registry import Primitive

if TYPE_CHECKING:
    from collectives.forcing import Forcing

SUM = OPERATIONS["sum"]

WAITING = "pml_ob1_posted_recvq_length"
"""Open MPI's performance variable that tells for how many messages of each rank a rank is waiting."""


class Proof(NamedTuple):
    """Whether more than a variable's value shows that an algorithm is what runs, and why or why not."""

    proved: bool
    why: str


class Proofs:
    """The traces of a library's algorithms on one communicator, looked at once each. All ranks call its methods."""

    def __init__(self, forcing: Forcing) -> None:
        self._forcing = forcing
        self._traces: dict[tuple[str, int | None], Trace | None] = {}

    def prove(self, request: Request) -> Proof:
        """Look for evidence that `request` is what runs when it is forced, in calls of 64 KiB a block. Takes seconds.

        It is proved if it leaves the trace of our own implementation of the same algorithm, or if every other
        algorithm that the library has for that function leaves another trace, if need be with other parameters.
        """
        choice = request.choice
        own = self.trace(request)
        if own is None:
            return Proof(False, "it cannot be carried out here")
        if not own.settled:
            return Proof(False, "what was seen changed from look to look; the machine may be busy")
        others = [
            one
            for one in self._forcing.library.choices(choice.primitive)
            if one.name != choice.name and not one.is_form
        ]
        traces = {one.name: self.trace(Request(one, {})) for one in others}
        known = [name for name, one in traces.items() if one is not None and one.settled]
        twins = [one for one in others if traces[one.name] == own]
        ours = self._forcing.library.ours(request)
        if ours is not None and self._by_hand(choice.primitive, ours) == own._replace(combined=()):
            different = [name for name in known if traces[name] != own] or self._different_by_hand(
                choice.primitive, own
            )
            if different:
                return Proof(True, f"it leaves the trace of our own {ours}, and {different[0]} leaves another")
        if not known:
            return Proof(False, "the library has no other algorithm to tell it from")
        apart = {twin.name: self._told_apart_by(request, twin) for twin in twins}
        alike = [name for name, how in apart.items() if how is None]
        if alike:
            return Proof(False, f"{', '.join(alike)} would leave the same trace")
        told = [name for name in known if name not in apart] + [f"{name} {how}" for name, how in apart.items()]
        return Proof(True, f"it leaves another trace than {', '.join(told)}")

    def prove_instead(self, request: Request, instead: Request, count: int) -> Proof:
        """Look for evidence that at `count` elements the library runs `instead` when `request` is forced.

        Looked at are 64 KiB a block if the library does the same there, otherwise as many elements.
        """
        comm, large = self._forcing.comm, self._forcing.comm.size * BLOCK_COUNT
        for looked_at in (large, count):
            bound = sample(request.choice.primitive, comm.size, comm.rank, looked_at)
            if looked_at <= large and self._forcing.outcome(request, bound, SUM).effective == instead.choice.name:
                count = looked_at
                break
        else:
            return Proof(False, "at so many elements that was not looked at")
        own = self.trace(request, count)
        others = [
            self.trace(Request(one, {}), count)
            for one in self._forcing.library.choices(request.choice.primitive)
            if one.name not in (request.choice.name, instead.choice.name)
        ]
        if own is None or not own.settled or own != self.trace(instead, count):
            return Proof(False, "that was not seen")
        if own in others:
            return Proof(False, "what was seen fits, but not only that")
        return Proof(True, f"it leaves the trace of {instead.choice.name}")

    def guess(
        self, primitive: Primitive, count: int | None = None, among: Sequence[Request] | None = None
    ) -> list[str]:
        """Return the names whose trace at `count` elements is that of the library's default, empty if none has it.

        Looked at are the requests in `among`; if not given, all that the library lists.
        """
        if among is None:
            among = [Request(one, {}) for one in self._forcing.library.choices(primitive)]
        default = self._kept(
            f"default {primitive.name}", count, lambda: self._look(primitive, self._forcing.comm, nullcontext, count)
        )
        traces = [(one.label.removeprefix(PREFIX), self.trace(one, count)) for one in among]
        return [name for name, one in traces if one is not None and one.settled and one == default]

    def trace(self, request: Request, count: int | None = None) -> Trace | None:
        """Return the trace of `request`, None where the library does not carry it out."""

        def look() -> Trace | None:
            choice, comm = request.choice, self._forcing.comm
            bound = sample(choice.primitive, comm.size, comm.rank, count)
            if self._forcing.outcome(request, bound, SUM).effective is None:
                return None
            try:
                forced = Forced(comm, request, self._forcing.library)
            except NotApplicable:
                return None
            seen = self._look(choice.primitive, forced.comm, forced.armed, count)
            forced.free()
            return seen

        return self._kept(f"{request.choice.function} {request.label}", count, look)

    def _different_by_hand(self, primitive: Primitive, own: Trace) -> list[str]:
        """Return the first of our own algorithms that leaves another trace, if there is one."""
        seen = own._replace(combined=())
        return list(
            islice(
                (f"our own {name}" for name in primitive.algorithms if _differ(self._by_hand(primitive, name), seen)), 1
            )
        )

    def _by_hand(self, primitive: Primitive, name: str) -> Trace | None:
        """Return the trace of an algorithm of our own, None if it does not apply."""
        comm = self._forcing.comm

        def look() -> Trace | None:
            bound = sample(primitive, comm.size, comm.rank)
            arrays = [bound.recv] if primitive.one_buffer else [bound.send, bound.recv]
            try:
                plan = primitive.plan(
                    comm, *([] if primitive.synchronises else arrays), algorithm=name, count=bound.problem.count
                )
            except ValueError:  # it does not apply, or has no such parameter
                return None
            with plan:
                return self._watched(attached_to(comm).comm, lambda waiting: trace(comm, bound, plan, waiting))

        return self._kept(f"ours {primitive.name} {name}", None, look)

    def _told_apart_by(self, request: Request, twin: Choice) -> str | None:
        """Return how two algorithms differ after all: on small blocks, or in what a parameter does; None if not."""
        small = (self._forcing.comm.size * count for count in SMALL_COUNTS)  # both, since buffers may happen to be full
        if all(_differ(*(self.trace(one, count) for one in (request, Request(twin, {})))) for count in small):
            return "(small blocks)"
        pairs = [(choice, key) for choice in (request.choice, twin) for key in choice.parameters]
        for choice, key in pairs:
            variable = choice.parameters[key]
            for value in self._forcing.library.other_values(choice, key):
                if _differ(*(self.trace(one.also_setting(variable, value)) for one in (request, Request(twin, {})))):
                    return f"(another {key})"
        return None

    def _look(
        self,
        primitive: Primitive,
        comm: MPI.Intracomm,
        armed: Callable[[], AbstractContextManager[None]],
        count: int | None,
    ) -> Trace | None:
        bound = sample(primitive, comm.size, comm.rank, count)
        try:
            with NativePlan(comm, bound, SUM, False) as plan:
                carry_out = _inside(armed, plan)
                seen = self._watched(comm, lambda waiting: trace(self._forcing.comm, bound, carry_out, waiting))
        except MPI.Exception:  # the same on all ranks: the library refuses before anything is sent
            return None
        return seen._replace(combined=self._combined(bound, comm, armed)) if primitive.combines else seen

    def _combined(
        self, bound: Bound, comm: MPI.Intracomm, armed: Callable[[], AbstractContextManager[None]]
    ) -> tuple[tuple[int, ...], ...]:
        """Return how many elements each rank combined at a time, empty where the library wants its own operations."""
        counts: list[int] = []

        def add(left: Any, right: Any, out: Any) -> None:
            counts.append(len(left))
            np.add(left, right, out=out)

        try:
            with NativePlan(comm, bound, Operation("counted sum", add), False) as plan:
                _inside(armed, plan)()
        except MPI.Exception:
            return ()
        return tuple(map(tuple, self._forcing.comm.allgather(counts)))

    def _watched(self, comm: MPI.Intracomm, look: Callable[[Callable[[], tuple[int, ...]]], Trace]) -> Trace:
        """Call `look` with what tells for whom this rank is waiting on `comm`, where the library tells."""
        try:
            waiting: Watched = self._forcing.tool.watch(WAITING, comm)
        except NoVariable:
            return look(tuple)
        try:
            return look(waiting)
        finally:
            waiting.free()

    def _kept(self, label: str, count: int | None, look: Callable[[], Trace | None]) -> Trace | None:
        if (label, count) not in self._traces:
            self._traces[label, count] = look()
        return self._traces[label, count]


def _differ(one: Trace | None, other: Trace | None) -> bool:
    return one is not None and other is not None and one.settled and other.settled and one != other


def _inside(armed: Callable[[], AbstractContextManager[None]], plan: Plan) -> Callable[[], None]:
    def carry_out() -> None:
        with armed():
            plan()

    return carry_out
