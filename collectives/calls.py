"""Calls of a primitive, by hand or native: made ready as a plan, or carried out once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from collectives import buffers
from collectives.attached import Attached, CallablePlan, attached_to
from collectives.bind import Bound, bind
from collectives.debug import check_disjoint, debugging, guarded_plan, watched
from collectives.layout import Options, lay_out
from collectives.native import NATIVE, NativePlan
from collectives.operations import HALF, Operation, find_operation
from collectives.plan import HandPlan, NotApplicable, Plan
from collectives.registry import Algorithm, Primitive
from collectives.work import WorkPlan

CALLS_KEPT = 16
"""How many plans of one-shot calls a communicator keeps; each keeps its buffers alive."""


def make(
    primitive: Primitive,
    comm: MPI.Intracomm,
    *arrays: Any,
    algorithm: str | Algorithm = "native",
    op: str | Operation = "sum",
    root: int = 0,
    count: int | None = None,
    counts: Sequence[Any] | None = None,
    scratch: buffers.Arena | None = None,
    synchronous: bool = False,
) -> Plan:
    """Make one call ready. All ranks of `comm` make the same plans in the same order.

    Args:
        primitive: what to do.
        comm: among whom.
        arrays: send and receive buffer (broadcast: the one buffer; barrier: none), flat or of any contiguous shape;
            None where a rank has none; `MPI.IN_PLACE` as MPI has it.
        algorithm: ``native``, ``native_persistent``, or an algorithm's name with parameters (``chain:segments=8``).
        op: the name of one of `operations.OPERATIONS`, or an `Operation` of your own.
        root: of the rooted primitives.
        count: elements of the whole vector, where a rank cannot tell from its own block (uneven gather, scatter).
        counts: elements of each rank's block where they are not the even cut; for all-to-all the matrix, row by source.
        scratch: an `Arena` from which scratch is taken, so that several plans share it.
        synchronous: use synchronous sends, which shows whether an algorithm relies on buffering.

    Raises:
        UnknownNameError: algorithm, parameter or op that does not exist.
        NotApplicable: a precondition of primitive, algorithm or operation is not met, or the library cannot do it.
        ValueError: root, counts or buffers do not fit.
        TypeError: a buffer of a kind that cannot be used.

    """
    operation = find_operation(op)
    bound = _bound(primitive, comm, arrays, operation, root, count, counts)
    if algorithm in NATIVE:
        return NativePlan(comm, bound, operation, algorithm == "native_persistent")
    attached = attached_to(comm)
    chosen = primitive.find(algorithm)
    return _make_by_hand(attached, bound, chosen, operation, attached.next_first_tag, scratch, synchronous)


def _bound(
    primitive: Primitive,
    comm: MPI.Intracomm,
    arrays: tuple[Any, ...],
    operation: Operation,
    root: int,
    count: int | None,
    counts: Sequence[Any] | None,
) -> Bound:
    """Return the problem that the arguments are, after what can be refused for native and by hand alike."""
    bound = bind(primitive, comm, arrays, root, count, counts, operation.width if primitive.combines else 1)
    unmet = primitive.unmet(bound.problem)
    if not unmet and primitive.combines and bound.dtype is not None:
        unmet = operation.undefined_for(bound.dtype)
    if unmet:
        raise NotApplicable(unmet)
    return bound


def _make_by_hand(
    attached: Attached,
    bound: Bound,
    algorithm: Algorithm,
    operation: Operation,
    first_tag: Callable[[], int],
    scratch: buffers.Arena | None,
    synchronous: bool,
) -> Plan:
    unmet = algorithm.unmet(bound.problem, operation.commutative) or _unmet_accumulation(bound, algorithm, operation)
    if unmet:
        raise NotApplicable(unmet)
    tag = first_tag()

    def bare(bound: Bound, arena: buffers.Arena | None) -> Plan:
        unit = buffers.unit(bound.dtype, operation.width)
        layout = lay_out(bound.problem, algorithm, bound.rank, Options.of(algorithm, unit.itemsize, message_cap()))
        watch = None
        if debugging():
            check_disjoint(layout)
            watch = watched(bound, layout, algorithm.label)
        return HandPlan(attached, bound, layout, operation, tag, arena, synchronous, watch)

    def perhaps_guarded(bound: Bound) -> Plan:
        return guarded_plan(bound, bare) if debugging() else bare(bound, scratch)

    accumulate = algorithm.how.get("accumulate")
    if accumulate is None:
        return perhaps_guarded(bound)
    return WorkPlan(bound, lambda array: np.empty(array.shape, str(accumulate)), perhaps_guarded)


def _unmet_accumulation(bound: Bound, algorithm: Algorithm, operation: Operation) -> str | None:
    """Return why partial results cannot be kept in another dtype, None if they can, or need not."""
    accumulate = algorithm.how.get("accumulate")
    if accumulate is None or bound.dtype is None:
        return None
    if accumulate != "float32" or bound.dtype.name not in HALF or operation.name not in ("sum", "prod"):
        return (
            f"accumulate={accumulate} with {operation.name} of {bound.dtype.name}: "
            f"only sums and products of {' and '.join(HALF)} are accumulated, in float32"
        )
    return None


def message_cap() -> int:
    """Return the bytes of the largest message: COLLBENCH_MESSAGE_CAP, by default just below 2 GiB."""
    return int(os.environ.get("COLLBENCH_MESSAGE_CAP", (1 << 31) - (1 << 20)))


def call(
    primitive: Primitive,
    comm: MPI.Intracomm,
    *arrays: Any,
    algorithm: str | Algorithm = "native",
    op: str | Operation = "sum",
    root: int = 0,
    count: int | None = None,
    counts: Sequence[Any] | None = None,
) -> None:
    """Carry out one call. A hand-written algorithm's plan is kept with the communicator for the next such call.

    The arguments are those of `make`.
    """
    if algorithm in NATIVE:
        with make(primitive, comm, *arrays, algorithm=algorithm, op=op, root=root, count=count, counts=counts) as plan:
            plan()
        return
    operation = find_operation(op)
    bound = _bound(primitive, comm, arrays, operation, root, count, counts)
    chosen = primitive.find(algorithm)
    attached = attached_to(comm)
    # Tags go by what all ranks see alike, so that a rank that finds its plan kept and one that does not agree.
    alike = (primitive.name, chosen.label, bound.problem.count, bound.problem.counts, operation, root)
    if alike not in attached.first_tags:
        attached.first_tags[alike] = attached.next_first_tag()
    here = tuple(None if one is None else (one.ctypes.data, one.size) for one in (bound.send, bound.recv))
    key = (alike, bound.problem.in_place, str(bound.dtype), here)
    plan: CallablePlan | None = attached.calls.get(key)
    if plan is None:
        plan = _make_by_hand(attached, bound, chosen, operation, lambda: attached.first_tags[alike], None, False)
        attached.calls[key] = plan
        if len(attached.calls) > CALLS_KEPT:
            attached.calls.popitem(last=False)[1].free()
    attached.calls.move_to_end(key)
    plan()
