"""The wire of a step: through it one rank makes its collective calls on a mesh, and each of them is written down.

    wire = Wire(comm, mesh)
    total = wire.allreduce("tp", partial)
    wire.records[-1].call        # Call("allreduce", "tp", ...)

Calls take arrays and give new ones that lie beside them: on the host, or on a GPU. On axes that have one rank nothing
is called and nothing written down, so that the step of one process is the same code on a mesh of one rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

import collectives
from collectives import buffers
from collectives.devices import cupy_module
from collectives.problem import Problem
from strategies.arrays import module_of, to_host
from strategies.mesh import EXPERT_REPLICA_AXES, REPLICA_AXES, Mesh
from strategies.traffic import Call

Array: TypeAlias = NDArray[Any]
Axes: TypeAlias = str | Iterable[str]

# Axes that are used together: gradients are summed, or shards kept, over the first four; counts of tokens gathered over
# the last.
GROUPS = (
    REPLICA_AXES,
    EXPERT_REPLICA_AXES,
    tuple(axis for axis in REPLICA_AXES if axis != "dp_replicate"),
    tuple(axis for axis in EXPERT_REPLICA_AXES if axis != "dp_replicate"),
    ("etp", "ep"),
)


class Record(NamedTuple):
    """A call as it was made.

    sent, received: bytes that the transport moved to and from each group rank. problem: what the algorithm solved.
    Empty and None where a native call hides them; a message to one rank is no problem of an algorithm.
    """

    call: Call
    sent: tuple[int, ...] = ()
    received: tuple[int, ...] = ()
    problem: Problem | None = None


class Wire:
    """One rank's way to the others.

    comm: a communicator of mesh.nranks ranks; None for a mesh of one rank.
    algorithms: by primitive, "native" where none is named. device: where tensors lie, "cpu" or "cuda".

    The communicators of every axis and of `GROUPS` are made here, together, since later the ranks are at different
    places. A message that is sent to one rank waits for nobody (`send`), and all are complete after `finish`, so that
    stages and neighbours cannot wait for each other in a circle.
    """

    def __init__(
        self,
        comm: Any,
        mesh: Mesh,
        algorithms: Mapping[str, str] | None = None,
        device: str = "cpu",
    ):
        self.mesh = mesh
        self.rank = comm.Get_rank() if comm is not None else 0
        self.phase = "setup"
        self._on_device = device == "cuda"
        self.records: list[Record] = []
        self._algorithms = dict(algorithms or {})
        self._under_way: list[tuple[Any, Array]] = []
        single = [(axis,) for axis in mesh.axes if axis != "repeat"]
        used = dict.fromkeys((mesh.used(axes), False) for axes in (*single, *GROUPS)) | {(mesh.used("pp"), True): None}
        self._groups = {(axes, ends): mesh.communicator(comm, axes, ends) for axes, ends in used if axes}

    @property
    def calls(self) -> list[Call]:
        """The calls made so far, in order."""
        return [record.call for record in self.records]

    def placed(self, values: Array) -> Array:
        """Return values of the host where the tensors of this rank lie: the same array, or a copy on the GPU."""
        placed: Array = cupy_module().asarray(values) if self._on_device else values
        return placed

    def coordinate(self, axis: str) -> int:
        """Tell where this rank stands on `axis`."""
        return self.mesh.coordinate(axis, self.rank)

    def allreduce(self, axes: Axes, values: Array, op: str = "sum", ends: bool = False) -> Array:
        """Combine `values`, of any shape, over the group; all get the result, of the same shape."""
        if not self.mesh.used(axes):
            return values
        recv = _empty(values.shape, values)
        self._collective("allreduce", axes, values, recv, values.nbytes, ends=ends, op=op)
        return recv

    def allgather(self, axes: Axes, block: Array) -> Array:
        """Give the blocks of all, (n, *block.shape); all blocks have the same shape."""
        if not self.mesh.used(axes):
            return block[None]
        recv = _empty((self.mesh.length(axes), *block.shape), block)
        self._collective("allgather", axes, block, recv, recv.nbytes)
        return recv

    def allgatherv(self, axes: Axes, rows: Array, counts: Sequence[int]) -> Array:
        """Give the rows of all, one rank's after the other's: (sum of counts, ...) from (own count, ...)."""
        if not self.mesh.used(axes):
            return rows
        width = _width(rows)
        recv = _empty((int(sum(counts)), *rows.shape[1:]), rows)
        elements = [int(count) * width for count in counts]
        sends, receives = (rows.nbytes,) * len(elements), tuple(count * rows.itemsize for count in elements)
        self._collective("allgatherv", axes, rows, recv, recv.nbytes, (sends, receives), counts=elements)
        return recv

    def reduce_scatter(self, axes: Axes, blocks: Array, op: str = "sum") -> Array:
        """Combine blocks (n, ...) over the group and give this rank its block (...)."""
        if not self.mesh.used(axes):
            return blocks[0]
        recv = _empty(blocks.shape[1:], blocks)
        self._collective("reduce_scatter", axes, blocks, recv, blocks.nbytes, op=op)
        return recv

    def reduce_scatterv(self, axes: Axes, rows: Array, counts: Sequence[int], op: str = "sum") -> Array:
        """Combine rows (sum of counts, ...) over the group and give this rank its own (own count, ...)."""
        if not self.mesh.used(axes):
            return rows
        width = _width(rows)
        recv = _empty((int(counts[self.mesh.group_rank(axes, self.rank)]), *rows.shape[1:]), rows)
        elements = [int(count) * width for count in counts]
        sends, receives = tuple(count * rows.itemsize for count in elements), (recv.nbytes,) * len(elements)
        self._collective("reduce_scatterv", axes, rows, recv, rows.nbytes, (sends, receives), counts=elements, op=op)
        return recv

    def alltoall(self, axes: Axes, blocks: Array) -> Array:
        """Send block i of (n, ...) to group rank i; block i of the result is what group rank i sent."""
        if not self.mesh.used(axes):
            return blocks
        recv = _empty(blocks.shape, blocks)
        self._collective("alltoall", axes, blocks, recv, blocks.nbytes)
        return recv

    def alltoallv(self, axes: Axes, rows: Array, counts: Array) -> Array:
        """Send rows (sum of own row of counts, ...) to the group's ranks in order.

        counts: (n, n), rows from each group rank to each; the result has (sum of own column, ...) rows.
        """
        if not self.mesh.used(axes):
            return rows
        place, width = self.mesh.group_rank(axes, self.rank), _width(rows)
        recv = _empty((int(counts[:, place].sum()), *rows.shape[1:]), rows)
        elements = [[int(count) * width for count in line] for line in counts]
        sends = tuple(count * rows.itemsize for count in elements[place])
        receives = tuple(line[place] * rows.itemsize for line in elements)
        self._collective("alltoallv", axes, rows, recv, rows.nbytes, (sends, receives), counts=elements)
        return recv

    def broadcast(self, axes: Axes, values: Array, root: int = 0) -> Array:
        """Give all what group rank `root` has."""
        if not self.mesh.used(axes):
            return values
        buffer = values.copy()
        self._collective("broadcast", axes, None, buffer, buffer.nbytes, root=root)
        return buffer

    def reduce(self, axes: Axes, values: Array, root: int, op: str = "sum") -> Array | None:
        """Combine `values` over the group; group rank `root` gets the result, the others None."""
        if not self.mesh.used(axes):
            return values
        here = self.mesh.group_rank(axes, self.rank) == root
        recv = _empty(values.shape, values) if here else None
        self._collective("reduce", axes, values, recv, values.nbytes, root=root, op=op)
        return recv

    def shift(self, axis: str, values: Array) -> Array:
        """Send to the next rank on `axis` and receive from the one before, around the ring.

        Messages to one rank go through the host where tensors lie on a GPU.
        """
        if not self.mesh.used(axis):
            return values
        place, nranks = self.mesh.group_rank(axis, self.rank), self.mesh.length(axis)
        left, right = (place - 1) % nranks, (place + 1) % nranks
        recv = np.empty(values.shape, values.dtype)
        comm = self._comm(axis)
        request = comm.Irecv(recv, left, 0)
        self._send(comm, values, right, 0)
        request.Wait()
        self._message(axis, values, send_to=right, receive_from=left)
        return self.placed(recv)

    def send(self, axis: str, values: Array, to: int, tag: int = 0) -> None:
        """Send to group rank `to` without waiting. tag: what the message is, since messages may overtake."""
        self._send(self._comm(axis), values, to, tag)
        self._message(axis, values, send_to=to)

    def receive(self, axis: str, shape: tuple[int, ...], source: int, tag: int = 0) -> Array:
        """Receive float64 values of this shape from group rank `source`."""
        recv = np.empty(shape)
        self._comm(axis).Recv(recv, source, tag)
        self._message(axis, recv, receive_from=source)
        return self.placed(recv)

    def finish(self) -> None:
        """Wait until all that was sent has left."""
        for request, _ in self._under_way:
            request.Wait()
        self._under_way.clear()

    def _comm(self, axes: Axes, ends: bool = False) -> Any:
        used = self.mesh.used(axes)
        if (used, ends) not in self._groups:
            known = ", ".join(axes + (" ends" if ends else "") for axes, ends in self._groups)
            raise ValueError(f"no communicator was made for {used} (there are: {known}); add it to GROUPS")
        return self._groups[used, ends]

    def _send(self, comm: Any, values: Array, to: int, tag: int) -> None:
        # A copy, since the caller may write on while the message is under way.
        kept = to_host(values) if buffers.is_device(values) else np.array(values, order="C")
        self._under_way.append((comm.Isend(kept, to, tag), kept))

    def _message(self, axis: str, values: Array, send_to: int | None = None, receive_from: int | None = None) -> None:
        nranks = self.mesh.length(axis)
        sent, received = (
            tuple(values.nbytes if place == end else 0 for place in range(nranks)) for end in (send_to, receive_from)
        )
        call = Call(
            "sendrecv", self.mesh.used(axis), values.nbytes, self.phase, dtype=str(values.dtype),
            send_to=send_to, receive_from=receive_from,
        )  # fmt: skip
        self.records.append(Record(call, sent, received))

    def _collective(
        self,
        name: str,
        axes: Axes,
        send: Array | None,
        recv: Array | None,
        nbytes: int,
        peers: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
        ends: bool = False,
        counts: Any = None,
        **options: Any,
    ) -> None:
        """Carry out one call and write it down. peers: bytes for and from each, in the v forms."""
        comm = self._comm(axes, ends)
        one = send if send is not None else recv
        assert one is not None  # every rank has a part in every call of a strategy
        call = Call(
            name, self.mesh.used(axes), nbytes, self.phase, dtype=str(one.dtype), ends=ends,
            op=options.get("op", ""), root=options.get("root"), sends=peers[0], receives=peers[1],
        )  # fmt: skip
        send = None if send is None else module_of(send).ascontiguousarray(send)
        primitive = collectives.PRIMITIVES[name]
        arrays = (recv,) if primitive.one_buffer else (send, recv)
        algorithm = self._algorithms.get(name, "native")
        with primitive.plan(comm, *arrays, algorithm=algorithm, counts=counts, **options) as plan:
            plan()
            layout = plan.layout
        if layout is None:
            self.records.append(Record(call))
            return
        sent, received = [0] * comm.Get_size(), [0] * comm.Get_size()
        for transfer in layout.transfers:
            moved = sum(region.stop - region.start for region in transfer.regions) * one.itemsize
            (sent if transfer.outgoing else received)[transfer.peer] += moved
        self.records.append(Record(call, tuple(sent), tuple(received), layout.problem))


def _empty(shape: tuple[int, ...], like: Array) -> Array:
    empty: Array = buffers.empty(shape, like.dtype, like)
    return empty


def _width(rows: Array) -> int:
    """Count the elements of a row, also where there are no rows."""
    return int(np.prod(rows.shape[1:]))
