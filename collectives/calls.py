"""Calls of a primitive, by hand or native: made ready as a plan, or carried out once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

from collectives import buffers
from collectives.attached import Attached, attached_to
from collectives.bind import Bound, bind
from collectives.layout import Options, lay_out
from collectives.native import MPI_OPS, NATIVE, NativePlan
from collectives.plan import HandPlan, NotApplicable, Plan
from collectives.registry import Algorithm, Primitive, UnknownNameError

CALLS_KEPT = 16
"""How many plans of one-shot calls a communicator keeps; each keeps its buffers alive."""


def make(
    primitive: Primitive,
    comm: MPI.Intracomm,
    *arrays: Any,
    algorithm: str | Algorithm = "native",
    op: str = "sum",
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
        op: sum, prod, max or min.
        root: of the rooted primitives.
        count: elements of the whole vector, where a rank cannot tell from its own block (uneven gather, scatter).
        counts: elements of each rank's block where they are not the even cut; for all-to-all the matrix, row by source.
        scratch: an `Arena` from which scratch is taken, so that several plans share it.
        synchronous: use synchronous sends, which shows whether an algorithm relies on buffering.

    Raises:
        UnknownNameError: algorithm, parameter or op that does not exist.
        NotApplicable: the algorithm's preconditions are not met.
        ValueError: root, counts or buffers do not fit.
        TypeError: a buffer of a kind that cannot be used.

    """
    if op not in MPI_OPS:
        raise UnknownNameError(f"there is no operation {op!r} (there are: {', '.join(MPI_OPS)})")
    bound = bind(primitive, comm, arrays, root, count, counts)
    unmet = primitive.unmet(bound.problem)
    if unmet:
        raise NotApplicable(unmet)
    if algorithm in NATIVE:
        return NativePlan(comm, bound, op, algorithm == "native_persistent")
    attached = attached_to(comm)
    return _make_by_hand(attached, bound, primitive.find(algorithm), op, attached.next_first_tag, scratch, synchronous)


def _make_by_hand(
    attached: Attached,
    bound: Bound,
    algorithm: Algorithm,
    op: str,
    first_tag: Callable[[], int],
    scratch: buffers.Arena | None,
    synchronous: bool,
) -> HandPlan:
    unmet = algorithm.unmet(bound.problem)
    if unmet:
        raise NotApplicable(unmet)
    itemsize = bound.dtype.itemsize if bound.dtype else 1
    layout = lay_out(bound.problem, algorithm, bound.rank, Options.of(algorithm, itemsize, message_cap()))
    return HandPlan(
        attached,
        bound,
        layout,
        buffers.COMBINE[op],
        scratch=scratch,
        first_tag=first_tag(),
        synchronous=synchronous,
    )


def message_cap() -> int:
    """Return the bytes of the largest message: COLLBENCH_MESSAGE_CAP, by default just below 2 GiB."""
    return int(os.environ.get("COLLBENCH_MESSAGE_CAP", (1 << 31) - (1 << 20)))


def call(
    primitive: Primitive,
    comm: MPI.Intracomm,
    *arrays: Any,
    algorithm: str | Algorithm = "native",
    op: str = "sum",
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
    if op not in MPI_OPS:
        raise UnknownNameError(f"there is no operation {op!r} (there are: {', '.join(MPI_OPS)})")
    bound = bind(primitive, comm, arrays, root, count, counts)
    chosen = primitive.find(algorithm)
    attached = attached_to(comm)
    # Tags go by what all ranks see alike, so that a rank that finds its plan kept and one that does not agree.
    alike = (primitive.name, chosen.label, bound.problem.count, bound.problem.counts, op, root)
    if alike not in attached.first_tags:
        attached.first_tags[alike] = attached.next_first_tag()
    here = tuple(None if one is None else (one.ctypes.data, one.size) for one in (bound.send, bound.recv))
    key = (alike, bound.problem.in_place, str(bound.dtype), here)
    plan = attached.calls.get(key)
    if plan is None:
        plan = _make_by_hand(attached, bound, chosen, op, lambda: attached.first_tags[alike], None, False)
        attached.calls[key] = plan
        if len(attached.calls) > CALLS_KEPT:
            attached.calls.popitem(last=False)[1].free()
    attached.calls.move_to_end(key)
    plan()
