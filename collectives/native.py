"""The library's own calls as plans: blocking, non-blocking for `start`, or persistent (MPI-4.0 section 6.13)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from collectives import buffers
from collectives.bind import Bound
from collectives.operations import Operation
from collectives.plan import NotApplicable, Plan
from collectives.problem import Problem
from collectives.vector import offsets


@dataclass(frozen=True)
class NativeCall:
    """The library's own call with its message specifications, from which a primitive's `native` chooses.

    `general` asks for the form with a count for each rank even where all blocks have the same number of elements.
    """

    problem: Problem
    rank: int
    send: Any
    recv: Any
    op: Any
    general: bool = False

    @property
    def even(self) -> bool:
        """Whether the form with one count for all ranks is to be called."""
        return self.problem.even and not self.general

    def blocks(self, specification: Any, counts: Sequence[int] | None = None) -> Any:
        """Return `specification` with a count and a displacement for each rank."""
        if specification is MPI.IN_PLACE or specification is None:
            return specification
        counts = tuple(self.problem.block_counts if counts is None else counts)
        array, datatype = specification
        return [array, counts, offsets(counts), datatype]


class NativePlan(Plan):
    """The library's own call: blocking, non-blocking for `start`, or persistent (MPI-4.0 section 6.13)."""

    def __init__(
        self, comm: MPI.Intracomm, bound: Bound, operation: Operation, persistent: bool, general: bool = False
    ) -> None:
        primitive = bound.problem.primitive
        self._comm, self._requests, self._persistent = comm, [], persistent
        self._owned: list[Any] = []
        calls = primitive.native(self._native_call(bound, operation, general))
        self._named = [(name, arguments) for name, *arguments in calls]
        self._calls: list[Callable[[], Any]] = [
            partial(getattr(comm, name), *arguments) for name, arguments in self._named
        ]
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
        # One by one: MPICH 5.0 refuses to test a list of requests in which a persistent collective is.
        return all(request.Test() for request in self._requests)

    def wait(self) -> None:
        for request in self._requests:
            request.Wait()

    def free(self) -> None:
        if self._persistent:
            for request in self._requests:
                request.Free()
        for one in self._owned:
            one.Free()
        self._requests, self._owned = [], []

    def _native_call(self, bound: Bound, operation: Operation, general: bool) -> NativeCall:
        problem, rank, primitive = bound.problem, bound.rank, bound.problem.primitive
        dtype = bound.dtype or buffers.empty(0, "u1").dtype
        datatype = self._datatype(dtype, primitive.combines, operation.width)
        op = self._op(operation, dtype) if primitive.combines else None
        send, recv = bound.send, bound.recv
        if send is None and primitive.inputs(problem, rank, 1):  # an empty block still takes part
            send = buffers.empty(0, dtype)
        if recv is None and primitive.outputs(problem, rank, 1):
            recv = buffers.empty(0, dtype)
        send, recv = (None if array is None else [array, datatype] for array in (send, recv))
        if problem.in_place and primitive.aliasing(problem, rank) is not None:
            # MPI wants IN_PLACE for the buffer whose data already lies in the other one.
            send, recv = (recv, MPI.IN_PLACE) if primitive.name.startswith("scatter") else (MPI.IN_PLACE, recv)
        return NativeCall(problem, rank, send, recv, op, general)

    def _datatype(self, dtype: Any, combines: bool, width: int) -> MPI.Datatype:
        """Return MPI's type of a unit; what is only moved needs none of its own and goes as bytes."""
        try:
            one = MPI.Datatype.fromcode(dtype.char)
        except ValueError as reason:
            if combines:
                raise NotApplicable(f"this MPI library has no type for {dtype.name}") from reason
            one, width = MPI.BYTE, dtype.itemsize
        if width == 1 or (not combines and dtype.itemsize == 1):
            return one
        several = one.Create_contiguous(width).Commit()
        self._owned.append(several)
        return several

    def _op(self, operation: Operation, dtype: Any) -> MPI.Op:
        """Return MPI's operation, or one made of your own. Tried on one element, since libraries differ."""
        if operation.mpi_name is None:

            def combine(left: Any, right: Any, datatype: MPI.Datatype) -> None:
                units = [np.frombuffer(one, dtype) for one in (left, right)]
                if operation.width > 1:
                    units = [one.reshape(-1, operation.width) for one in units]
                operation.combine(*units, out=units[1])

            op = MPI.Op.Create(combine, operation.commutative)
            self._owned.append(op)
            return op
        op = getattr(MPI, operation.mpi_name)
        try:
            op.Reduce_local(*([np.ones(1, dtype), MPI.Datatype.fromcode(dtype.char)] for _ in range(2)))
        except MPI.Exception as reason:
            raise NotApplicable(f"this MPI library does not define {operation.name} for {dtype.name}") from reason
        return op
