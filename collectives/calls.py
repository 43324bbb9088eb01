"""Calls of a primitive, by hand or native: made ready as a plan, or carried out once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from mpi4py import MPI

from collectives import buffers, devices, kernels, nccl
from collectives.attached import Attached, CallablePlan, already_attached_to, attached_to
from collectives.bind import Bound, bind
from collectives.choices import is_forced
from collectives.cutting import Options
from collectives.debug import check_disjoint, debugging, guarded_plan, watched
from collectives.forcing import ForcedPlan
from collectives.ipc import Unreachable
from collectives.layout import Layout, Unshareable, lay_out
from collectives.names import NATIVE_FORMS, NCCL_FORMS, UnknownNameError
from collectives.native import NativePlan
from collectives.operations import FOREIGN, SMALL, Operation, find_operation
from collectives.plan import HandPlan, NotApplicable, Plan
from collectives.problem import Nodes, nodes_of
from collectives.regions import RECV, SEND
from collectives.registry import Algorithm, Primitive
from collectives.rounds import Combine, PullReduce, RecvReduce, as_rounds
from collectives.settling import settle
from collectives.staging import stage
from collectives.transports import AUTO, DIRECT, STAGED, TRANSPORTS
from collectives.transports.direct import DirectPlan
from collectives.transports.gpu_window import GpuWindowTransport, Memory
from collectives.transports.staged import Streams
from collectives.transports.window import WindowTransport
from collectives.work import WorkPlan

OVERLAP_FROM_NBYTES = 256 << 10
"""From which length of its messages a plan on a GPU gives copies streams of their own. To be tuned on a GPU."""

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
    nodes: Nodes | None = None,
    ppn: int | None = None,
    transport: str = AUTO,
    dtype: str | None = None,
) -> Plan:
    """Make one call ready. All ranks of `comm` make the same plans in the same order.

    Args:
        primitive: what to do.
        comm: among whom.
        arrays: send and receive buffer (broadcast: the one buffer; barrier: none), flat or of any contiguous shape;
            None where a rank has none; `MPI.IN_PLACE` as MPI has it.
        algorithm: ``native``, ``native_persistent``, one of the library's own (``native:ring``, see
            `collectives.forcing`), NCCL (``nccl``, see `collectives.nccl`), or an algorithm's name with parameters
            (``chain:segments=8``).
        op: the name of one of `operations.OPERATIONS`, or an `Operation` of your own.
        root: of the rooted primitives.
        count: elements of the whole vector, where a rank cannot tell from its own block (uneven gather, scatter).
        counts: elements of each rank's block where they are not the even cut; for all-to-all the matrix, row by source.
        scratch: an `Arena` from which scratch is taken, so that several plans share it.
        synchronous: use synchronous sends, which shows whether an algorithm relies on buffering.
        nodes: the ranks of each node, for algorithms that take account of them; as MPI sees them if not given.
        ppn: so many ranks after one another make a node, instead of `nodes`.
        transport: how data goes between buffers on GPUs: ``staged`` through the host, messages and shared memory alike,
            or ``direct``, for an MPI that takes memory of GPUs. One that does not ends the process; `bench.probes`
            finds out which it is. ``auto``: messages through the host, and what ranks of a node share in memory of
            their GPUs, or of the host where these cannot open one another's.
        dtype: what elements mean where arrays cannot tell, as CuPy's: bfloat16, held in uint16, and float8_e4m3fn and
            float8_e5m2, held in uint8.

    Raises:
        UnknownNameError: algorithm, parameter or op that does not exist.
        NotApplicable: a precondition of primitive, algorithm or operation is not met, or the library cannot do it.
        ValueError: root, counts or buffers do not fit.
        TypeError: a buffer of a kind that cannot be used.

    """
    operation = find_operation(op)
    _check_transport(transport)
    bound = _bound(primitive, comm, arrays, operation, root, count, counts, dtype)
    if algorithm in NATIVE_FORMS or is_forced(algorithm):
        unmet = _unmet_in_common(bound, already_attached_to(comm), str(algorithm), False)
        if unmet:
            raise NotApplicable(unmet)
        return _make_native(comm, bound, operation, str(algorithm), transport)
    attached = attached_to(comm)
    if algorithm in NCCL_FORMS:
        return nccl.make(attached, bound, operation, str(algorithm))
    chosen = primitive.find(algorithm)
    if ppn is not None:
        nodes = nodes_of(bound.problem.nranks, ppn)
    tag = attached.next_first_tag
    return _make_by_hand(attached, bound, chosen, operation, tag, scratch, synchronous, nodes, transport)


def _check_transport(transport: str) -> None:
    if transport not in TRANSPORTS:
        raise UnknownNameError(f"there is no transport {transport!r} (there are: {', '.join(TRANSPORTS)})")


def _make_native(comm: MPI.Intracomm, bound: Bound, operation: Operation, algorithm: str, transport: str) -> Plan:
    """Return the library's own call: for buffers on a GPU on these, or on pinned memory with copies around it."""

    def own(bound: Bound) -> Plan:
        if is_forced(algorithm):
            return ForcedPlan(comm, bound, operation, algorithm)
        return NativePlan(comm, bound, operation, algorithm == "native_persistent")

    if not bound.on_device:
        return own(bound)
    if transport == DIRECT:
        if bound.problem.primitive.combines and operation.mpi_name is None:
            raise NotApplicable(f"MPI combines with {operation.name} on the host: use transport {STAGED}")
        return DirectPlan(own(bound))
    return WorkPlan(bound, lambda array: devices.pinned(array.shape, array.dtype).view(bound.dtype), own)


def _bound(
    primitive: Primitive,
    comm: MPI.Intracomm,
    arrays: tuple[Any, ...],
    operation: Operation,
    root: int,
    count: int | None,
    counts: Sequence[Any] | None,
    dtype: str | None,
) -> Bound:
    """Return the problem that the arguments are, after what can be refused for native and by hand alike."""
    bound = bind(primitive, comm, arrays, root, count, counts, operation.width if primitive.combines else 1, dtype)
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
    nodes: Nodes | None = None,
    transport: str = AUTO,
) -> Plan:
    if algorithm.takes_nodes or algorithm.shares_memory(bound.problem):
        bound = _with_nodes(bound, attached, nodes)
    unmet = (
        algorithm.unmet(bound.problem, operation.commutative)
        or _unmet_accumulation(bound, algorithm, operation)
        or _unmet_kernel(bound, operation)
        or _unmet_sharing(bound, attached, algorithm)
        or _unmet_in_common(bound, attached, algorithm.label, algorithm.shares_memory(bound.problem))
    )
    if unmet:
        raise NotApplicable(unmet)
    tag = first_tag()
    accumulate = algorithm.how.get("accumulate")
    in_registers = accumulate is not None and _combines_at_once(bound, algorithm) and _has_kernel(bound, operation)

    def bare(bound: Bound, arena: buffers.Arena | None) -> Plan:
        unit = buffers.unit(bound.held, operation.width)
        shares_memory = algorithm.shares_memory(bound.problem)
        own: dict[str, Any] = {}
        memory: Memory | None = None
        on_device = bound.on_device
        through_host = on_device and (shares_memory or transport != DIRECT)
        options = Options.of(algorithm, unit.itemsize, message_cap(), on_device, through_host)
        if shares_memory:
            bound, options, own, memory = _registered(bound, attached, options, transport)
            options = replace(options, fused=memory is not None and _has_kernel(bound, operation))
        unshareable = ""
        try:
            layout = lay_out(bound.problem, algorithm, bound.rank, options)
        except Unshareable as reason:
            unshareable = str(reason)
        if shares_memory:  # nodes may differ, and all ranks must go on or none
            unshareable = max(attached.comm.allgather(unshareable))
        if unshareable:
            raise NotApplicable(unshareable)
        window = streams = None
        if shares_memory:
            window = _window(attached, layout, own, unit.itemsize, algorithm.staged, memory)
        elif on_device and transport == DIRECT:
            layout, streams = settle(layout), Streams(False)
        elif on_device:
            overlapped = layout.longest_message * unit.itemsize >= OVERLAP_FROM_NBYTES
            layout, streams = stage(layout, overlapped), Streams(overlapped)
        watch = None
        if debugging():
            check_disjoint(layout)
            watch = watched(bound, layout, algorithm.label)
        rounded = not in_registers
        return HandPlan(attached, bound, layout, operation, tag, arena, synchronous, watch, window, streams, rounded)

    def perhaps_guarded(bound: Bound) -> Plan:
        return guarded_plan(bound, bare) if debugging() else bare(bound, scratch)

    if accumulate is None or in_registers:
        return perhaps_guarded(bound)
    wide = np.dtype(str(accumulate))
    return WorkPlan(bound, lambda array: buffers.empty(array.shape, wide, array), perhaps_guarded, dtype=wide)


def _has_kernel(bound: Bound, operation: Operation) -> bool:
    """Whether one kernel can combine what all ranks have and write the result to all of them."""
    return bound.dtype is not None and kernels.applies(operation, bound.dtype.name, 2 * bound.problem.nranks)


def _combines_at_once(bound: Bound, algorithm: Algorithm) -> bool:
    """Whether all combinations are by one kernel over the vectors of all ranks, so that no partial result is stored."""
    problem = bound.problem
    if not (bound.on_device and algorithm.shares_memory(problem)):
        return False
    rounds = chain.from_iterable(as_rounds(algorithm.rounds(problem, rank)) for rank in range(problem.nranks))
    combining = [one for one in chain.from_iterable(rounds) if isinstance(one, (PullReduce, RecvReduce, Combine))]
    return all(isinstance(one, PullReduce) and len(one.peers) == problem.nranks for one in combining)


def _with_nodes(bound: Bound, attached: Attached, nodes: Nodes | None) -> Bound:
    """Return the problem with the ranks of each node: as given, else as MPI sees them."""
    nodes = nodes or attached.shared.nodes
    return replace(bound, problem=replace(bound.problem, nodes=None if len(nodes) == 1 else nodes))


def _unmet_sharing(bound: Bound, attached: Attached, algorithm: Algorithm) -> str | None:
    """Return why ranks that are taken to be on one node cannot share memory, None if they can, or need not."""
    if algorithm.shares_memory(bound.problem):
        if bound.on_device and len(bound.problem.groups) > 1:
            return f"{algorithm.label} sends between nodes what lies in shared memory, which GPUs cannot yet"
        for node in bound.problem.groups:
            if not any(set(node) <= set(real) for real in attached.shared.nodes):
                return f"{algorithm.label} shares memory inside nodes, and ranks {list(node)} are not on one"
    return None


def _window(
    attached: Attached, layout: Layout, own: dict[str, Any], itemsize: int, staged: bool, memory: Memory | None
) -> WindowTransport | GpuWindowTransport:
    comm, shared, slots_nbytes = attached.comm, attached.shared, layout.shared_count * itemsize
    if memory is None:
        return WindowTransport(comm, shared, layout.groups, own, slots_nbytes, staged)
    try:
        return GpuWindowTransport(comm, shared, memory, layout.groups, own, slots_nbytes, staged)
    except Unreachable as reason:
        raise NotApplicable(str(reason)) from reason


def _unmet_in_common(bound: Bound, attached: Attached | None, label: str, shares_memory: bool) -> str | None:
    """Return why there cannot be one result for all ranks of a node, None if there can, or if none is asked for."""
    memory: Any = None if attached is None else attached.gpu_window if bound.on_device else attached.window
    if attached is None or memory is None or bound.recv is None or not memory.in_common(bound.recv):
        return None
    if not shares_memory:
        return f"{label} writes every rank's result apart, and this receive buffer is one for all ranks of a node"
    if bound.problem.groups != attached.shared.nodes:
        return f"{label}: one result for all ranks of a node goes by the nodes that there are, not by pretended ones"
    return None


def _registered(
    bound: Bound, attached: Attached, options: Options, transport: str
) -> tuple[Bound, Options, dict[str, Any], Memory | None]:
    """Find out, with all ranks of the node, which buffers lie in shared memory, and where the own ones do.

    A buffer counts as shared if that of every rank is. Only the root may know that a call is in place, and a rank
    without buffers does not know that those of others lie on GPUs: then the memory is returned that these access.
    """
    shared = attached.shared
    find = attached.gpu.find if bound.on_device else shared.find
    arrays = {SEND: bound.send, RECV: bound.recv}
    own: dict[str, Any] = {name: find(array) for name, array in arrays.items() if array is not None and array.size}
    told = shared.node.allgather((bound.problem.in_place, own, bound.on_device))
    everyone = [(in_place, places) for in_place, places, _ in told]
    registered = frozenset(
        name for name in (SEND, RECV) if all(places[name] is not None for _, places in everyone if name in places)
    )
    in_place = any(one for one, _ in everyone)
    common = len(everyone) > 1 and RECV in own and len({places.get(RECV) for _, places in everyone}) == 1
    common = common and own[RECV] is not None
    if common and in_place:
        raise NotApplicable(f"{bound.problem.primitive.name}: one receive buffer for all ranks cannot be in place")
    found = {name: place for name, place in own.items() if place is not None}
    bound = replace(bound, problem=replace(bound.problem, in_place=in_place))
    if not any(on_device for *_, on_device in told):
        return bound, replace(options, shared=registered, common=common), found, None
    if transport != STAGED and not attached.gpu.unreachable():
        return bound, replace(options, shared=registered, common=common), found, attached.gpu
    if common:
        raise NotApplicable(f"one result in GPU memory for all ranks of a node is written there: not with {transport}")
    return bound, options, {}, attached.mapped  # on the GPUs no rank sees the buffers of another


def _unmet_accumulation(bound: Bound, algorithm: Algorithm, operation: Operation) -> str | None:
    """Return why partial results cannot be kept in another dtype, None if they can, or need not."""
    accumulate = algorithm.how.get("accumulate")
    if accumulate is None or bound.dtype is None:
        return None
    if accumulate != "float32" or bound.dtype.name not in SMALL or operation.name not in ("sum", "prod"):
        return (
            f"accumulate={accumulate} with {operation.name} of {bound.dtype.name}: "
            f"only sums and products of {', '.join(SMALL)} are accumulated, in float32"
        )
    return None


def _unmet_kernel(bound: Bound, operation: Operation) -> str | None:
    """Return why what arrays on a GPU hold cannot be combined there, None if it can, or need not be."""
    primitive, dtype = bound.problem.primitive, bound.dtype
    if not (primitive.combines and bound.on_device and dtype.name in FOREIGN):
        return None
    if kernels.applies(operation, dtype.name, 3):
        return None
    return f"{operation.name} of {dtype.name} on a GPU: CuPy has no such arrays, so only the named operations exist"


def _made_together(attached: Attached, plan: CallablePlan | None) -> bool:
    """Whether all ranks have kept a plan, and those that they made together, as they do on shared memory."""
    number = 0 if plan is None else plan.number
    least = np.array([number, -number])
    attached.comm.Allreduce(MPI.IN_PLACE, least, MPI.MIN)
    return bool(least[0] == -least[1] > 0)


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
    transport: str = AUTO,
    dtype: str | None = None,
) -> None:
    """Carry out one call. A hand-written algorithm's plan is kept with the communicator for the next such call.

    The arguments are those of `make`.
    """
    if algorithm in (*NATIVE_FORMS, *NCCL_FORMS) or is_forced(algorithm):
        how: dict[str, Any] = {"op": op, "root": root, "count": count, "counts": counts}
        how |= {"transport": transport, "dtype": dtype}
        with make(primitive, comm, *arrays, algorithm=algorithm, **how) as once:
            once()
        return
    _check_transport(transport)
    operation = find_operation(op)
    bound = _bound(primitive, comm, arrays, operation, root, count, counts, dtype)
    chosen = primitive.find(algorithm)
    attached = attached_to(comm)
    # Tags go by what all ranks see alike, so that a rank that finds its plan kept and one that does not agree.
    alike = (primitive.name, chosen.label, bound.problem.count, bound.problem.counts, operation, root)
    if alike not in attached.first_tags:
        attached.first_tags[alike] = attached.next_first_tag()
    here = tuple(None if one is None else (buffers.address(one), one.size) for one in (bound.send, bound.recv))
    key = (alike, bound.problem.in_place, str(bound.dtype), bound.on_device and transport, here)
    plan: CallablePlan | None = attached.calls.get(key)
    if chosen.shares_memory(bound.problem) and not _made_together(attached, plan) and plan is not None:
        attached.calls.pop(key).free()
        plan = None
    if plan is None:
        tag = attached.first_tags[alike]
        plan = _make_by_hand(attached, bound, chosen, operation, lambda: tag, None, False, transport=transport)
        attached.calls[key] = plan
        if chosen.shares_memory(bound.problem):
            attached.nshared += 1
            plan.number = attached.nshared
        if len(attached.calls) > CALLS_KEPT:
            attached.calls.popitem(last=False)[1].free()
    attached.calls.move_to_end(key)
    plan()
