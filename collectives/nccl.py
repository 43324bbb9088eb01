"""NCCL as a contender, through CuPy: its own collectives, and grouped sends and receives where it has none.

Calls are put into CuPy's current stream. ``nccl`` leaves the choice of algorithm to NCCL, ``nccl:ring`` and
``nccl:tree`` ask for one: see `collectives.communicators`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from collectives import buffers, devices
from collectives.attached import Attached
from collectives.bind import Bound
from collectives.communicators import Refused, nccl_module, unavailable
from collectives.operations import Operation
from collectives.plan import NotApplicable, Plan
from collectives.vector import offsets

OWN, GROUPED = "its own collective", "grouped sends and receives"
COLLECTIVES = ("broadcast", "reduce", "allgather", "allgatherv", "allreduce", "reduce_scatter", "reduce_scatterv")
WITH_TREES = ("allreduce",)
DTYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
BFLOAT16, BFLOAT16_SINCE = 9, 21000
"""NCCL's number for bfloat16, which CuPy has no name for, and the version in which it came: 2.10."""
OPERATIONS = ("sum", "prod", "max", "min")

Call = Callable[[int], Any]
"""Something to be put into the stream with this address."""


def unmet(bound: Bound, operation: Operation, name: str) -> str | None:
    """Return why NCCL, called `name`, cannot carry out this call as far as this rank knows; None if it can."""
    problem, primitive = bound.problem, bound.problem.primitive
    algorithm = name.partition(":")[2]
    if bound.some is not None and not bound.on_device:
        return f"{name} needs buffers on a GPU: pass CuPy arrays"
    if primitive.name not in (*COLLECTIVES, *GROUPS):
        return f"NCCL has no {primitive.name}"
    if algorithm and primitive.name not in COLLECTIVES:
        return f"NCCL sends and receives for {primitive.name} in one way only: use nccl"
    if algorithm == "tree" and primitive.name not in WITH_TREES:
        return f"NCCL has trees for {', '.join(WITH_TREES)} only"
    if primitive.combines and (operation.name not in OPERATIONS or operation.mpi_name is None):
        return f"NCCL cannot combine with {operation.name}"
    if primitive.combines and bound.dtype.name not in (*DTYPES, "bfloat16"):
        return f"NCCL does not combine {bound.dtype.name}"
    if primitive.combines and bound.dtype.name == "bfloat16" and not unavailable():
        version = nccl_module().get_version()
        if version < BFLOAT16_SINCE:
            return f"NCCL combines bfloat16 from 2.10, and this one is {_in_words(version)}: install a newer one"
    if primitive.name.startswith(("allgather", "reduce_scatter")) and not problem.even:
        return f"NCCL's {primitive.name} wants blocks of one length, and these are {list(problem.block_counts)}"
    if problem.in_place and primitive.name.startswith(("reduce_scatter", "alltoall")):
        return f"NCCL has no {primitive.name} in place as MPI has it"
    return None


class NcclPlan(Plan):
    """NCCL's call on CuPy's current stream. `form` says whether it is a collective of its own."""

    def __init__(self, communicator: Any, bound: Bound, operation: Operation) -> None:
        name = bound.problem.primitive.name
        self.form = OWN if name in COLLECTIVES else GROUPED
        self._nccl, self._communicator = nccl_module(), communicator
        self._kept = bound  # the buffers
        self._cuda = devices.cupy_module().cuda
        self._event: Any = None
        self._groups: list[list[Call]]
        if self.form == OWN:
            self._groups = [[_collective(self._nccl, communicator, bound, operation)]]
        else:
            self._groups = [
                [_message(self._nccl, communicator, *message) for message in group] for group in GROUPS[name](bound)
            ]
            self._groups = [group for group in self._groups if group]

    def _begin(self) -> Any:
        stream = self._cuda.get_current_stream()
        for group in self._groups:
            if self.form == OWN:
                group[0](stream.ptr)
                continue
            self._nccl.groupStart()
            try:
                for call in group:
                    call(stream.ptr)
            finally:
                self._nccl.groupEnd()
        return stream

    def __call__(self) -> None:
        self._begin().synchronize()

    def start(self) -> None:
        self._event = self._begin().record(self._cuda.Event(disable_timing=True))

    def test(self) -> bool:
        if self._event is not None:
            self._communicator.check_async_error()
            if self._event.done:
                self._event = None
        return self._event is None

    def wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()
            self._event = None

    def free(self) -> None:
        self.wait()  # NCCL has no way to take a call back
        self._groups = []


def _collective(nccl: Any, communicator: Any, bound: Bound, operation: Operation) -> Call:
    """Return the call of NCCL's own collective."""
    problem, rank, name = bound.problem, bound.rank, bound.problem.primitive.name
    datatype, factor = _datatype(nccl, bound, problem.primitive.combines)
    op = getattr(nccl, f"NCCL_{operation.name.upper()}") if problem.primitive.combines else None
    send, recv = _addresses(bound)
    count, block = problem.count * factor, problem.block_counts[rank] * factor
    if name == "allreduce":
        return lambda stream: communicator.allReduce(send, recv, count, datatype, op, stream)
    if name == "reduce":
        return lambda stream: communicator.reduce(send, recv, count, datatype, op, problem.root, stream)
    if name == "broadcast":
        return lambda stream: communicator.broadcast(recv, recv, count, datatype, problem.root, stream)
    if name.startswith("allgather"):
        return lambda stream: communicator.allGather(send, recv, block, datatype, stream)
    return lambda stream: communicator.reduceScatter(send, recv, block, datatype, op, stream)


def _addresses(bound: Bound) -> tuple[int, int]:
    """Return where the data to be sent begins, and where the result is to begin; in place both are in one buffer."""
    problem, recv = bound.problem, bound.recv
    aliasing = problem.primitive.aliasing(problem, bound.rank) if problem.in_place else None
    if aliasing is not None:
        base = buffers.address(recv)
        return base + aliasing[0] * recv.itemsize, base + aliasing[1] * recv.itemsize
    send, recv = (0 if one is None else buffers.address(one) for one in (bound.send, recv))
    return send, recv or send  # a rank without a result has no place for one, and NCCL puts none there


def _datatype(nccl: Any, bound: Bound, combines: bool) -> tuple[Any, int]:
    """Return NCCL's type, and how many of it an element is: what is only moved goes as bytes where it has none."""
    dtype = bound.dtype
    if dtype.name in DTYPES:
        return getattr(nccl, f"NCCL_{dtype.name.upper()}"), 1
    if combines:
        assert dtype.name == "bfloat16"
        return BFLOAT16, 1
    return nccl.NCCL_UINT8, dtype.itemsize


def _in_words(version: int) -> str:
    """Return a version of NCCL as people write it: 2804 is 2.8.4, and 21003, with a digit more since 2.9, is 2.10.3."""
    major, rest = divmod(version, 10000 if version >= 10000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


Message = tuple[bool, int, Any]
"""Whether it is sent, to or from whom, and the array."""


def _message(nccl: Any, communicator: Any, sent: bool, peer: int, array: Any) -> Call:
    nbytes, address = array.nbytes, buffers.address(array)
    call = communicator.send if sent else communicator.recv
    return lambda stream: call(address, nbytes, nccl.NCCL_UINT8, peer, stream)


def _blocks(array: Any, counts: Sequence[int]) -> list[Any]:
    return [array[start : start + count] for start, count in zip(offsets(tuple(counts)), counts, strict=True)]


def _to_root(bound: Bound) -> list[list[Message]]:
    """Everyone sends to the root, the root too unless its block is there already."""
    problem, rank = bound.problem, bound.rank
    in_place = problem.in_place and rank == problem.root
    messages: list[Message] = [] if in_place or bound.send is None else [(True, problem.root, bound.send)]
    if rank == problem.root:
        received = enumerate(_blocks(bound.recv, problem.block_counts))
        messages += [(False, peer, block) for peer, block in received if not (in_place and peer == rank)]
    return [_nonempty(messages)]


def _from_root(bound: Bound) -> list[list[Message]]:
    """The root sends to everyone, to itself too unless its block stays where it is."""
    problem, rank = bound.problem, bound.rank
    in_place = problem.in_place and rank == problem.root
    messages: list[Message] = []
    if rank == problem.root:
        sent = enumerate(_blocks(bound.recv if in_place else bound.send, problem.block_counts))
        messages += [(True, peer, block) for peer, block in sent if not (in_place and peer == rank)]
    if not in_place and bound.recv is not None:
        messages.append((False, problem.root, bound.recv))
    return [_nonempty(messages)]


def _all_to_all(bound: Bound) -> list[list[Message]]:
    """Everyone sends to everyone, and to itself."""
    problem, primitive = bound.problem, bound.problem.primitive
    messages: list[Message] = []
    for sent, array, lies in ((True, bound.send, primitive.inputs), (False, bound.recv, primitive.outputs)):
        chunks = lies(problem, bound.rank, 1)
        if array is not None:
            blocks = enumerate(_blocks(array, [primitive.chunk_count(problem, chunk, 1) for chunk in chunks]))
            messages += [(sent, peer, block) for peer, block in blocks]
    return [_nonempty(messages)]


def _there_and_back(bound: Bound) -> list[list[Message]]:
    last = bound.problem.nranks - 1
    if bound.rank == 0:
        return [[(True, last, bound.send)], [(False, last, bound.recv)]]
    return [[(False, 0, bound.recv)], [(True, 0, bound.send)]] if bound.rank == last else []


def _one_way(bound: Bound) -> list[list[Message]]:
    last = bound.problem.nranks - 1
    if bound.rank == 0:
        return [[(True, last, bound.send)]]
    return [[(False, 0, bound.recv)]] if bound.rank == last else []


def _both_ways(bound: Bound) -> list[list[Message]]:
    peer = bound.problem.nranks - 1 - bound.rank
    return (
        [[(True, peer, bound.send), (False, peer, bound.recv)]] if bound.rank in (0, bound.problem.nranks - 1) else []
    )


def _to_the_right(bound: Bound) -> list[list[Message]]:
    rank, nranks = bound.rank, bound.problem.nranks
    return [[(True, (rank + 1) % nranks, bound.send), (False, (rank - 1) % nranks, bound.recv)]]


def _nonempty(messages: list[Message]) -> list[Message]:
    return [one for one in messages if one[2].nbytes]


GROUPS: dict[str, Callable[[Bound], list[list[Message]]]] = {
    "gather": _to_root,
    "gatherv": _to_root,
    "scatter": _from_root,
    "scatterv": _from_root,
    "alltoall": _all_to_all,
    "alltoallv": _all_to_all,
    "sendrecv_pingpong": _there_and_back,
    "sendrecv_stream": _one_way,
    "sendrecv_exchange": _both_ways,
    "sendrecv_ring": _to_the_right,
}
"""What is sent and received, group by group, for primitives that NCCL has no collective for."""


def make(attached: Attached, bound: Bound, operation: Operation, name: str) -> NcclPlan:
    """Return NCCL's call, named ``nccl``, ``nccl:ring`` or ``nccl:tree``, as a plan. All ranks together.

    Raises:
        NotApplicable: on all ranks: NCCL is missing or cannot do it.

    """
    # A rank without a part has no buffers, and does not know where those of others lie.
    reason = max(attached.comm.allgather(unmet(bound, operation, name) or ""))
    if reason:
        raise NotApplicable(reason)
    try:
        communicator = attached.nccl.of(name.partition(":")[2])
    except Refused as reason:
        raise NotApplicable(str(reason)) from reason
    return NcclPlan(communicator, bound, operation)
