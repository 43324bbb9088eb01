"""Data that can be checked: fill, guard, expect, count what is wrong. The same for every contender, native too.

Values are small integers that depend on the position and the rank, with a period that is no power of two, so that
sums are exact in any order and a block in the wrong place is seen. Equality is the test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np

from collectives import buffers, devices
from collectives.operations import FLOAT8, HALF, OPERATIONS, dtype_of, kind_of, stored
from collectives.problem import Problem
from collectives.reference import expected

PERIOD = 1009  # a prime, so that no cut of a power of two elements looks like another
GUARD_NBYTES = 64
GUARD = 0xA5
FRACTION_BITS = {"float8_e5m2": 2, "float8_e4m3fn": 3, "float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}
POISON = 0x5C  # what a receive buffer holds before a checked call


def fill(count: int, rank: int, dtype: str, op: str) -> np.ndarray[Any, Any]:
    """Return `count` elements of `rank`'s input for `op`.

    Sums: integers from -6 to 6 (0 to 12 where unsigned; -1 to 1 in half precision, whose whole numbers are exact only
    up to 256). In 8 bits they are exact only up to 8: of any 11 neighbouring ranks one has a 1, one a -1, all others 0.
    Products: ones and here and there a two.
    """
    position = np.arange(min(count, PERIOD))
    mixed = position * 31 + rank * 17
    if op == "prod":
        period = np.where(mixed % 11 == 0, 2, 1)
    elif dtype in FLOAT8:
        period = np.where(mixed % 11 == 0, 1, np.where(mixed % 11 == 5, -1, 0))
    else:
        nvalues = 3 if dtype in HALF else 13
        period = mixed % nvalues - (0 if kind_of(dtype_of(dtype)) in "ub" else nvalues // 2)
    return np.resize(period.astype(dtype_of(dtype)), count)


Empty: TypeAlias = Callable[[int], Any]


def ordinary(nbytes: int) -> np.ndarray[Any, Any]:
    """Return uninitialised bytes of ordinary memory."""
    return np.empty(nbytes, np.uint8)


def on_gpu(nbytes: int) -> Any:
    """Return uninitialised bytes of a GPU's memory."""
    return devices.cupy_module().empty(nbytes, np.uint8)


def guarded_nbytes(count: int, dtype: str) -> int:
    """Return the bytes that a `Guarded` array takes."""
    return count * dtype_of(dtype).itemsize + 3 * GUARD_NBYTES


class Guarded:
    """An array between guard bytes, aligned to a cache line, in memory that `empty` gives."""

    def __init__(self, count: int, dtype: str, empty: Empty = ordinary) -> None:
        self._dtype = dtype_of(dtype)
        nbytes = count * self._dtype.itemsize
        block = empty(guarded_nbytes(count, dtype))
        start = GUARD_NBYTES + -(buffers.address(block) + GUARD_NBYTES) % GUARD_NBYTES
        self._guards = block[start - GUARD_NBYTES : start], block[start + nbytes :][:GUARD_NBYTES]
        for guard in self._guards:
            guard.fill(GUARD)
        self.array = block[start : start + nbytes].view(
            stored(self._dtype) if devices.is_device(block) else self._dtype
        )

    def poison(self) -> None:
        """Fill the array with bytes that no result has."""
        self.array.view(np.uint8).fill(POISON)

    def put(self, values: np.ndarray[Any, Any], start: int = 0) -> None:
        """Set the elements from `start` on."""
        if len(values):
            buffers.copy(self.array[start : start + len(values)], values.view(self.array.dtype))

    def get(self) -> np.ndarray[Any, Any]:
        """Return the elements on the host."""
        return buffers.to_host(self.array).view(self._dtype)

    @property
    def intact(self) -> bool:
        """Whether both guards are as they were."""
        return all((buffers.to_host(guard) == GUARD).all() for guard in self._guards)


def buffer_counts(problem: Problem, rank: int) -> tuple[int, int]:
    """Return the elements of a rank's send and receive buffer; where they are one, that is the receive buffer."""
    primitive = problem.primitive
    nsend, nrecv = primitive.send_count(problem, rank), primitive.recv_count(problem, rank)
    aliasing = primitive.aliasing(problem, rank) if problem.in_place or primitive.one_buffer else None
    return (nsend, nrecv) if aliasing is None else (0, max(nsend + aliasing[0], nrecv + aliasing[1]))


def _nobody() -> None:
    pass


MEETINGS = 3
"""How often ranks meet while buffers are set up."""


class Buffers(Protocol):
    """Buffers of a call that can be set up and looked at."""

    def reset(self, meet: Callable[[], Any]) -> None:
        """Put the input into them; `meet` waits for all ranks, as often on each."""

    def wrong(self) -> int:
        """Return how many elements differ from what must be there after the call."""


class Checked:
    """A rank's buffers of one problem, what they must hold before, and what they must hold afterwards.

    `empty_send` and `empty_recv` give their memory; they are called on every rank, if for nothing, as shared memory
    wants it.
    """

    def __init__(
        self,
        problem: Problem,
        rank: int,
        dtype: str,
        op: str,
        empty_send: Empty = ordinary,
        empty_recv: Empty = ordinary,
    ) -> None:
        primitive = problem.primitive
        self.problem, self.rank, self.dtype, self.op = problem, rank, dtype, op
        self._aliasing = primitive.aliasing(problem, rank) if problem.in_place or primitive.one_buffer else None
        sends, receives = primitive.inputs(problem, rank, 1), primitive.outputs(problem, rank, 1)
        nsend, nrecv = buffer_counts(problem, rank)
        send, recv = Guarded(nsend, dtype, empty_send), Guarded(nrecv, dtype, empty_recv)
        self.send = send if sends and self._aliasing is None else None
        self.recv = recv if receives or self._aliasing is not None else None
        self._input = self._input_of(rank)
        self._expected = expected(problem, rank, self._input_of, OPERATIONS[op].combine)

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The buffers as a primitive's call takes them; `IN_PLACE` where MPI has it."""
        send, recv = (None if one is None else one.array for one in (self.send, self.recv))
        if self.problem.in_place and self._aliasing is not None and not self.problem.primitive.one_buffer:
            from mpi4py import MPI

            return (recv, MPI.IN_PLACE) if self.problem.primitive.name.startswith("scatter") else (MPI.IN_PLACE, recv)
        if not self.problem.primitive.inputs(self.problem, self.problem.root, 1):
            return ()
        return (recv,) if self.problem.primitive.one_buffer else (send, recv)

    @property
    def footprint_nbytes(self) -> int:
        """Bytes of this rank's send and receive buffer."""
        return sum(one.array.nbytes for one in (self.send, self.recv) if one is not None)

    def reset(self, meet: Callable[[], Any] = _nobody) -> None:
        """Poison the receive buffer and put the input into the send buffer.

        `meet` waits for all ranks, before, between and after: where they share a buffer, none may still be looking at
        the last result in it, nor poison what another has just put in.
        """
        meet()
        if self.recv is not None:
            self.recv.poison()
            buffers.settle(self.recv.array)
        meet()
        own = self._input
        if self._aliasing is not None and self.recv is not None:
            self.recv.put(own, self._aliasing[0])
        elif self.send is not None:
            self.send.put(own)
        meet()

    def randomise(self, seed: int) -> None:
        """Fill the send buffer with bits that nothing can compress and no arithmetic is slow with: no result to check.

        Floats lie between 1 and 2, so that none is denormal or infinite, nor a sum or product of some.
        """
        buffer = self.send if self.send is not None else self.recv
        if buffer is None:
            return
        filled = np.frombuffer(np.random.default_rng(seed).bytes(buffer.array.nbytes), dtype_of(self.dtype)).copy()
        array = filled
        if array.dtype.kind == "c":
            array = array.view(array.real.dtype)
        if array.dtype.kind == "b":
            array.view(np.uint8)[:] &= 1
        elif kind_of(array.dtype) == "f":
            bits = array.view(f"u{array.itemsize}")
            bits &= bits.dtype.type((1 << FRACTION_BITS[array.dtype.name]) - 1)
            bits |= np.ones(1, array.dtype).view(bits.dtype)[0]
        buffer.put(filled)

    def wrong(self) -> int:
        """Return how many elements differ from what must be there: results, changed inputs, broken guards."""
        count = 0
        if self._expected is not None and self.recv is not None:
            start = 0 if self._aliasing is None else self._aliasing[1]
            count += int((self.recv.get()[start:][: len(self._expected)] != self._expected).sum())
        if self.send is not None:
            count += int((self.send.get() != self._input).sum())
        return count + sum(not one.intact for one in (self.send, self.recv) if one is not None)

    def _input_of(self, rank: int) -> np.ndarray[Any, Any]:
        return fill(self.problem.primitive.send_count(self.problem, rank), rank, self.dtype, self.op)
