"""From the arguments of a call to a problem, with the buffers checked against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mpi4py import MPI

from collectives import buffers
from collectives.operations import dtype_of, stored
from collectives.problem import Problem
from collectives.registry import Primitive


@dataclass(frozen=True)
class Bound:
    """A problem with this rank's arrays, checked. Arrays are (count,), or (count, width): see `Operation.width`.

    `dtype` is what elements mean; arrays on a GPU hold them as `operations.stored` says.
    """

    problem: Problem
    rank: int
    send: Any
    recv: Any
    dtype: Any

    @property
    def some(self) -> Any:
        """One of the arrays, None where the rank has none."""
        return self.recv if self.send is None else self.send

    @property
    def held(self) -> Any:
        """The dtype of the arrays."""
        return stored(self.dtype) if self.on_device and self.dtype is not None else self.dtype

    @property
    def on_device(self) -> bool:
        """Whether the arrays lie on a GPU."""
        return buffers.is_device(self.some)


def _is_in_place(array: Any) -> bool:
    return array is MPI.IN_PLACE


def bind(
    primitive: Primitive,
    comm: MPI.Intracomm,
    arrays: tuple[Any, ...],
    root: int,
    count: int | None,
    counts: Sequence[Any] | None,
    width: int = 1,
    dtype: str | None = None,
) -> Bound:
    """Find out which problem the arguments are, and check the buffers against it.

    `dtype`: what the elements of arrays mean that hold whole numbers of its width.
    """
    rank, nranks = comm.Get_rank(), comm.Get_size()
    if primitive.one_buffer:
        arrays = (None, *arrays)
    if len(arrays) > 2:
        raise TypeError(f"{primitive.name} takes at most two buffers, not {len(arrays)}")
    send, recv = (*arrays, None, None)[:2]
    in_place = _is_in_place(send) or _is_in_place(recv)
    send = None if send is None or _is_in_place(send) else _meant(buffers.flat(send, "send", width), dtype)
    recv = None if recv is None or _is_in_place(recv) else _meant(buffers.flat(recv, "receive", width), dtype)
    if in_place and recv is None:  # MPI names the receive buffer IN_PLACE at a scatter's root
        send, recv = None, send
    frozen = None if counts is None else tuple(tuple(one) if isinstance(one, Sequence) else int(one) for one in counts)
    if count is None:
        count = _count(primitive, nranks, rank, root, send, recv, frozen, in_place)
    problem = primitive.problem(nranks, count, root=root, counts=frozen, in_place=in_place)
    one = send if send is not None else recv
    bound = Bound(problem, rank, send, recv, None if one is None else one.dtype if dtype is None else dtype_of(dtype))
    _check(bound)
    if not bound.on_device:
        return bound
    send, recv = (None if array is None else array.view(bound.held) for array in (send, recv))
    return replace(bound, send=send, recv=recv)


def _meant(array: Any, dtype: str | None) -> Any:
    """Return `array` as one of `dtype`, but on a GPU, whose arrays may know nothing of it, as it is."""
    if dtype is None:
        return array
    meant = dtype_of(dtype)
    if array.dtype not in (meant, stored(meant)):
        raise ValueError(f"an array of {array.dtype} holds no {dtype}; pass one of {stored(meant)}")
    return array if buffers.is_device(array) else array.view(meant)


def _count(
    primitive: Primitive,
    nranks: int,
    rank: int,
    root: int,
    send: Any,
    recv: Any,
    counts: tuple[Any, ...] | None,
    in_place: bool,
) -> int:
    """Derive the whole vector's elements from this rank's buffers."""
    if counts is not None:
        return sum(sum(one) if isinstance(one, tuple) else one for one in counts)
    probe = primitive.problem(nranks, nranks, root=root)
    shares = [(send, primitive.send_count(probe, rank)), (recv, primitive.recv_count(probe, rank))]
    aliasing = primitive.aliasing(probe, rank) if in_place else None
    if primitive.one_buffer:
        shares = [(recv, nranks)]
    elif aliasing is not None:
        shares = [(recv, max(share + start for (_, share), start in zip(shares, aliasing, strict=True)))]
    for array, share in sorted(shares, key=lambda one: -one[1]):
        if array is not None and share:
            return len(array) * nranks // share
    if primitive.send_count(probe, rank) or primitive.recv_count(probe, rank):
        raise ValueError(f"{primitive.name}: rank {rank} passed no buffer; it has a part in this call")
    return 0


def _check(bound: Bound) -> None:
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
        if needed and len(array) != needed:
            raise ValueError(
                f"{primitive.name}: the {what} buffer of rank {rank} has {len(array)} elements; {needed} are needed"
            )
    if bound.send is not None and bound.recv is not None:
        if buffers.is_device(bound.send) != buffers.is_device(bound.recv):
            raise ValueError(
                f"{primitive.name}: one of send and receive buffer lies on the GPU and the other does not; "
                "pass two CuPy arrays, or two NumPy arrays"
            )
        if bound.send.dtype != bound.recv.dtype:
            raise ValueError(
                f"{primitive.name}: send buffer of {bound.send.dtype} and receive buffer of {bound.recv.dtype}; "
                "both must have the same dtype"
            )
        if buffers.overlap(bound.send, bound.recv):
            raise ValueError(
                f"{primitive.name}: send and receive buffer overlap; pass MPI.IN_PLACE for an in-place call"
            )
