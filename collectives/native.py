"""The library's own calls as plans: blocking, non-blocking for `start`, or persistent (MPI-4.0 section 6.13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mpi4py import MPI

from collectives import buffers
from collectives.bind import Bound
from collectives.plan import NotApplicable, Plan
from collectives.registry import Problem, offsets

NATIVE = ("native", "native_persistent")
MPI_OPS = {"sum": MPI.SUM, "prod": MPI.PROD, "max": MPI.MAX, "min": MPI.MIN}


@dataclass(frozen=True)
class NativeCall:
    """The library's own call with its message specifications, from which a primitive's `native` chooses."""

    problem: Problem
    rank: int
    send: Any
    recv: Any
    op: Any

    def blocks(self, specification: Any, counts: Sequence[int] | None = None) -> Any:
        """Return `specification` with a count and a displacement for each rank."""
        if specification is MPI.IN_PLACE or specification is None:
            return specification
        counts = tuple(self.problem.block_counts if counts is None else counts)
        array, datatype = specification
        return [array, counts, offsets(counts), datatype]


class NativePlan(Plan):
    """The library's own call: blocking, non-blocking for `start`, or persistent (MPI-4.0 section 6.13)."""

    def __init__(self, comm: MPI.Intracomm, bound: Bound, op: str, persistent: bool) -> None:
        primitive = bound.problem.primitive
        self._comm, self._requests, self._persistent = comm, [], persistent
        calls = primitive.native(_native_call(bound, op))
        self._named = [(name, arguments) for name, *arguments in calls]
        self._calls = [partial(getattr(comm, name), *arguments) for name, arguments in self._named]
        if persistent:
            if primitive.name.startswith("sendrecv"):
                raise NotApplicable(f"{primitive.name} has no persistent form of its own; a plan by hand is one")
            try:
                self._requests = [getattr(comm, f"{name}_init")(*arguments) for name, arguments in self._named]
            except NotImplementedError as reason:
                raise NotApplicable(f"{primitive.name}: this MPI library has no persistent form") from reason
            (request,) = self._requests
            self._calls = [request.Start, request.Wait]

    def __call__(self) -> None:
        for call in self._calls:
            call()

    def start(self) -> None:
        if self._persistent:
            self._calls[0]()
        else:
            names = [(f"I{name.lower()}", arguments) for name, arguments in self._named]
            self._requests = [getattr(self._comm, name)(*arguments) for name, arguments in names]

    def test(self) -> bool:
        return MPI.Request.Testall(self._requests)

    def wait(self) -> None:
        MPI.Request.Waitall(self._requests)

    def free(self) -> None:
        if self._persistent:
            for request in self._requests:
                request.Free()
        self._requests = []


def _native_call(bound: Bound, op: str) -> NativeCall:
    problem, rank, primitive = bound.problem, bound.rank, bound.problem.primitive
    dtype = bound.dtype or buffers.empty(0, "u1").dtype
    datatype = MPI.Datatype.fromcode(dtype.char)
    send, recv = bound.send, bound.recv
    if send is None and primitive.inputs(problem, rank, 1):  # an empty block still takes part
        send = buffers.empty(0, dtype)
    if recv is None and primitive.outputs(problem, rank, 1):
        recv = buffers.empty(0, dtype)
    send, recv = (None if array is None else [array, datatype] for array in (send, recv))
    if problem.in_place and primitive.aliasing(problem, rank) is not None:
        # MPI wants IN_PLACE for the buffer whose data already lies in the other one.
        send, recv = (recv, MPI.IN_PLACE) if primitive.name == "scatter" else (MPI.IN_PLACE, recv)
    return NativeCall(problem, rank, send, recv, MPI_OPS[op])
