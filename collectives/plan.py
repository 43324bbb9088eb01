"""Bind an algorithm's layout, or the library's own call, to a communicator and buffers: a call made ready.

A `Plan` is called many times, each call only starts, waits and combines. `start`, `test` and `wait` split a call.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from mpi4py import MPI

from collectives import buffers
from collectives.layout import RECV, SCRATCH, SEND, Fold, Layout, Move, Options, Region, Start, Wait, lay_out
from collectives.registry import Algorithm, Primitive, Problem, UnknownNameError, offsets
from collectives.transports.message import WINDOW, MessageTransport

NATIVE = ("native", "native_persistent")
MPI_OPS = {"sum": MPI.SUM, "prod": MPI.PROD, "max": MPI.MAX, "min": MPI.MIN}
CALLS_KEPT = 16
"""How many plans of one-shot calls a communicator keeps; each keeps its buffers alive."""


class NotApplicable(ValueError):
    """The algorithm's preconditions are not met here; the message says which one."""


# ---------------------------------------------------------------------------------------------------------------
# What a communicator carries


@dataclass
class _Attached:
    """What collbench keeps with a user's communicator: a private one, tags given out, plans of one-shot calls."""

    comm: MPI.Intracomm
    nplans: int = 0
    first_tags: dict[Any, int] = field(default_factory=dict)
    calls: OrderedDict[Any, Plan] = field(default_factory=OrderedDict)
    kept_alive: list[Any] = field(default_factory=list)

    def next_first_tag(self) -> int:
        """Return the first tag of the next plan. Plans are made by all ranks in the same order, so all agree."""
        windows = (self.comm.Get_attr(MPI.TAG_UB) + 1) // WINDOW
        self.nplans += 1
        return (self.nplans - 1) % windows * WINDOW

    def release(self) -> None:
        """Free the requests of one-shot calls."""
        while self.calls:
            self.calls.popitem()[1].free()


@cache
def _keyval() -> int:
    def on_free(comm: MPI.Comm, keyval: int, attached: _Attached) -> None:
        attached.release()
        if not MPI.Is_finalized():
            attached.comm.Free()

    return MPI.Comm.Create_keyval(delete_fn=on_free)


def _attached(comm: MPI.Intracomm) -> _Attached:
    """Return what is attached to `comm`; the first time, all its ranks make the private communicator together."""
    attached = comm.Get_attr(_keyval())
    if attached is None:
        attached = _Attached(comm.Dup())
        comm.Set_attr(_keyval(), attached)
    return attached


# ---------------------------------------------------------------------------------------------------------------
# From arguments to a problem


@dataclass(frozen=True)
class _Bound:
    """A problem with this rank's arrays, checked."""

    problem: Problem
    rank: int
    send: Any
    recv: Any
    dtype: Any


def _is_in_place(array: Any) -> bool:
    return array is MPI.IN_PLACE


def _bind(
    primitive: Primitive,
    comm: MPI.Intracomm,
    arrays: tuple[Any, ...],
    root: int,
    count: int | None,
    counts: Sequence[Any] | None,
) -> _Bound:
    """Find out which problem the arguments are, and check the buffers against it."""
    rank, nranks = comm.Get_rank(), comm.Get_size()
    if primitive.one_buffer:
        arrays = (None, *arrays)
    if len(arrays) > 2:
        raise TypeError(f"{primitive.name} takes at most two buffers, not {len(arrays)}")
    send, recv = (*arrays, None, None)[:2]
    in_place = _is_in_place(send) or _is_in_place(recv)
    send = None if send is None or _is_in_place(send) else buffers.flat(send, "send")
    recv = None if recv is None or _is_in_place(recv) else buffers.flat(recv, "receive")
    if in_place and recv is None:  # MPI names the receive buffer IN_PLACE at a scatter's root
        send, recv = None, send
    frozen = None if counts is None else tuple(tuple(one) if isinstance(one, Sequence) else int(one) for one in counts)
    if count is None:
        count = _count(primitive, nranks, rank, root, send, recv, frozen)
    problem = primitive.problem(nranks, count, root=root, counts=frozen, in_place=in_place)
    one = send if send is not None else recv
    bound = _Bound(problem, rank, send, recv, None if one is None else one.dtype)
    _check(bound)
    return bound


def _count(
    primitive: Primitive, nranks: int, rank: int, root: int, send: Any, recv: Any, counts: tuple[Any, ...] | None
) -> int:
    """Derive the whole vector's elements from this rank's buffers."""
    if counts is not None:
        return sum(sum(one) if isinstance(one, tuple) else one for one in counts)
    probe = primitive.problem(nranks, nranks, root=root)
    shares = [(send, primitive.send_count(probe, rank)), (recv, primitive.recv_count(probe, rank))]
    if primitive.one_buffer:
        shares = [(recv, nranks)]
    for array, share in sorted(shares, key=lambda one: -one[1]):
        if array is not None and share:
            return array.size * nranks // share
    if primitive.send_count(probe, rank) or primitive.recv_count(probe, rank):
        raise ValueError(f"{primitive.name}: rank {rank} passed no buffer; it has a part in this call")
    return 0


def _check(bound: _Bound) -> None:
    problem, rank, primitive = bound.problem, bound.rank, bound.problem.primitive
    wanted = {"send": primitive.send_count(problem, rank), "receive": primitive.recv_count(problem, rank)}
    aliasing = primitive.aliasing(problem, rank) if problem.in_place or primitive.one_buffer else None
    if aliasing is not None:
        wanted = {"send": 0, "receive": max(wanted["send"] + aliasing[0], wanted["receive"] + aliasing[1])}
    elif problem.in_place and bound.send is None and wanted["send"]:
        raise ValueError(f"{primitive.name}: there is no in-place form on rank {rank}; pass both buffers")
    for (what, needed), array in zip(wanted.items(), (bound.send, bound.recv), strict=True):
        if primitive.one_buffer and what == "send":
            continue
        if needed and array is None:
            raise ValueError(
                f"{primitive.name}: rank {rank} needs a {what} buffer of {needed} elements and passed none"
            )
        if needed and array.size != needed:
            raise ValueError(
                f"{primitive.name}: the {what} buffer of rank {rank} has {array.size} elements; {needed} are needed"
            )
    if bound.send is not None and bound.recv is not None:
        if bound.send.dtype != bound.recv.dtype:
            raise ValueError(
                f"{primitive.name}: send buffer of {bound.send.dtype} and receive buffer of {bound.recv.dtype}; "
                "both must have the same dtype"
            )
        if buffers.overlap(bound.send, bound.recv):
            raise ValueError(
                f"{primitive.name}: send and receive buffer overlap; pass MPI.IN_PLACE for an in-place call"
            )


# ---------------------------------------------------------------------------------------------------------------
# Plans


class Plan:
    """A call made ready. Call it, or `start` it and then `wait`; `free` it at the end (or use ``with``)."""

    scratch_nbytes = 0
    layout: Layout | None = None

    def __call__(self) -> None:
        """Carry out the call."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin the call."""
        raise NotImplementedError

    def test(self) -> bool:
        """Go on as far as possible without waiting; return whether the call is complete."""
        raise NotImplementedError

    def wait(self) -> None:
        """Carry out the rest of a call that was begun."""
        raise NotImplementedError

    def free(self) -> None:
        """Give back what MPI holds for this plan. Allowed at any time, also after an interrupted call."""
        raise NotImplementedError

    def __enter__(self) -> Plan:
        return self

    def __exit__(self, *exception: object) -> None:
        self.free()


class HandPlan(Plan):
    """A hand-written algorithm, bound: a flat list of ready calls, waits among them."""

    def __init__(
        self, attached: _Attached, bound: _Bound, layout: Layout, combine: Callable[..., Any], **options: Any
    ) -> None:
        scratch, first_tag = options.pop("scratch"), options.pop("first_tag")
        self.layout = layout
        self.scratch_nbytes = layout.scratch_count * (bound.dtype.itemsize if bound.dtype else 1)
        self._attached = attached
        self._arrays = {SEND: bound.send, RECV: bound.recv, SCRATCH: _scratch(scratch, layout, bound.dtype)}
        self._transport = MessageTransport(attached.comm, layout.transfers, self._arrays, first_tag, **options)
        self._calls = [self._ready(instruction, combine) for instruction in layout.program]
        self._tests = {
            index: self._transport.test(one.transfers)
            for index, one in enumerate(layout.program)
            if isinstance(one, Wait)
        }
        self._position: int | None = None
        self._freed = False

    def _view(self, region: Region) -> Any:
        return self._arrays[region.buffer][region.start : region.stop]

    def _ready(self, instruction: Any, combine: Callable[..., Any]) -> Callable[[], Any]:
        if isinstance(instruction, Start):
            return self._transport.start(instruction.transfers)
        if isinstance(instruction, Wait):
            return self._transport.wait(instruction.transfers)
        if isinstance(instruction, Move):
            return partial(buffers.copy, self._view(instruction.target), self._view(instruction.source))
        return partial(combine, *map(self._view, instruction))

    def __call__(self) -> None:
        if self._position is not None:
            raise RuntimeError("this plan is under way; wait() for it before it is called again")
        self._position = 0
        for call in self._calls:
            call()
        self._position = None

    def start(self) -> None:
        if self._position is not None:
            raise RuntimeError("this plan is under way; wait() for it before it is started again")
        self._position = 0
        self._advance()

    def _advance(self) -> bool:
        """Carry out instructions up to the first wait that would block."""
        position = self._position
        if position is None:
            return True
        while position < len(self._calls):
            if position in self._tests:
                if not self._tests[position]():
                    self._position = position
                    return False
            else:
                self._calls[position]()
            position += 1
        self._position = None
        return True

    def test(self) -> bool:
        return self._advance()

    def wait(self) -> None:
        if self._position is None:
            return
        for call in self._calls[self._position :]:
            call()
        self._position = None

    def free(self) -> None:
        if not self._freed:
            self._freed = True
            if not self._transport.free():
                self._attached.kept_alive.append(self._arrays)
            self._calls, self._tests, self._position = [], {}, None


def _scratch(arena: Any, layout: Layout, dtype: Any) -> Any:
    """Return the plan's scratch: of `arena` (an array of bytes that contenders share) if given and large enough."""
    if dtype is None:
        return buffers.empty(0, "u1")
    nbytes = layout.scratch_count * dtype.itemsize
    if arena is not None:
        if arena.nbytes < nbytes:
            raise ValueError(f"scratch of {arena.nbytes} bytes was passed; {nbytes} are needed")
        return arena.view("u1")[:nbytes].view(dtype)
    return buffers.empty(layout.scratch_count, dtype)


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

    def __init__(self, comm: MPI.Intracomm, bound: _Bound, op: str, persistent: bool) -> None:
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


def _native_call(bound: _Bound, op: str) -> NativeCall:
    problem, rank, primitive = bound.problem, bound.rank, bound.problem.primitive
    datatype = None if bound.dtype is None else MPI.Datatype.fromcode(bound.dtype.char)
    send, recv = (None if array is None else [array, datatype] for array in (bound.send, bound.recv))
    if problem.in_place and primitive.aliasing(problem, rank) is not None:
        # MPI wants IN_PLACE for the buffer whose data already lies in the other one.
        send, recv = (recv, MPI.IN_PLACE) if primitive.name == "scatter" else (MPI.IN_PLACE, recv)
    return NativeCall(problem, rank, send, recv, MPI_OPS[op])


def make(
    primitive: Primitive,
    comm: MPI.Intracomm,
    *arrays: Any,
    algorithm: str | Algorithm = "native",
    op: str = "sum",
    root: int = 0,
    count: int | None = None,
    counts: Sequence[Any] | None = None,
    scratch: Any = None,
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
        scratch: an array of bytes to use as scratch, so that several plans share it.
        synchronous: use synchronous sends, which shows whether an algorithm relies on buffering.

    Raises:
        UnknownNameError: algorithm, parameter or op that does not exist.
        NotApplicable: the algorithm's preconditions are not met.
        ValueError: root, counts or buffers do not fit.
        TypeError: a buffer of a kind that cannot be used.

    """
    if op not in MPI_OPS:
        raise UnknownNameError(f"there is no operation {op!r} (there are: {', '.join(MPI_OPS)})")
    bound = _bind(primitive, comm, arrays, root, count, counts)
    unmet = primitive.unmet(bound.problem)
    if unmet:
        raise NotApplicable(unmet)
    if algorithm in NATIVE:
        return NativePlan(comm, bound, op, algorithm == "native_persistent")
    attached = _attached(comm)
    return _make_by_hand(attached, bound, primitive.find(algorithm), op, attached.next_first_tag, scratch, synchronous)


def _make_by_hand(
    attached: _Attached,
    bound: _Bound,
    algorithm: Algorithm,
    op: str,
    first_tag: Callable[[], int],
    scratch: Any,
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
    bound = _bind(primitive, comm, arrays, root, count, counts)
    chosen = primitive.find(algorithm)
    attached = _attached(comm)
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
