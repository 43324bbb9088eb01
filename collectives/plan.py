"""Bind an algorithm's layout to a communicator and buffers: a call made ready.

A `Plan` is called many times; each call only starts, waits and combines. `start`, `test` and `wait` split a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from collectives import buffers
from collectives.attached import Attached
from collectives.bind import Bound
from collectives.layout import Layout
from collectives.operations import Operation
from collectives.program import Move, Start, Wait
from collectives.regions import RECV, SCRATCH, SEND, Region
from collectives.transports.message import MessageTransport


class NotApplicable(ValueError):
    """The algorithm's preconditions are not met here; the message says which one."""


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
    """A hand-written algorithm, bound: a flat list of ready calls, waits among them.

    `watch` is told the number of each transfer just before it is started.
    """

    def __init__(
        self,
        attached: Attached,
        bound: Bound,
        layout: Layout,
        operation: Operation,
        first_tag: int,
        scratch: buffers.Arena | None = None,
        synchronous: bool = False,
        watch: Callable[[int], None] | None = None,
    ) -> None:
        if bound.dtype is None and layout.scratch_count:
            raise ValueError(
                f"rank {bound.rank} passes on data and cannot tell its dtype; pass an empty array of that dtype"
            )
        unit = buffers.unit(bound.dtype, operation.width)
        self.layout = layout
        self.scratch_nbytes = layout.scratch_count * unit.itemsize
        self._attached = attached
        self._watch = watch
        scratch_array = (scratch or buffers.Arena()).take(layout.scratch_count, unit)
        self._arrays = {SEND: bound.send, RECV: bound.recv, SCRATCH: scratch_array}
        self._transport = MessageTransport(attached.comm, layout.transfers, self._arrays, first_tag, synchronous)
        self._steps = [self._ready(instruction, operation.combine) for instruction in layout.program]
        self._calls = [call for calls in self._steps for call in calls]
        self._tests = {
            index: self._transport.test(one.transfers)
            for index, one in enumerate(layout.program)
            if isinstance(one, Wait)
        }
        self._position: int | None = None
        self._freed = False

    def _view(self, region: Region) -> Any:
        return self._arrays[region.buffer][region.start : region.stop]

    def _ready(self, instruction: Any, combine: Callable[..., Any]) -> list[Callable[[], Any]]:
        if isinstance(instruction, Start):
            return [*self._watched(instruction.transfers), *self._transport.start(instruction.transfers)]
        if isinstance(instruction, Wait):
            return self._transport.wait(instruction.transfers)
        if isinstance(instruction, Move):
            return [partial(buffers.copy, self._view(instruction.target), self._view(instruction.source))]
        left, right, into = map(self._view, instruction)
        # A third positional argument saves 100 ns, and is what these functions take; others want it by name.
        quick = combine in (np.add, np.multiply)
        return [partial(combine, left, right, into) if quick else partial(combine, left, right, out=into)]

    def _watched(self, transfers: Sequence[int]) -> list[Callable[[], Any]]:
        return [] if self._watch is None else [partial(self._watch, one) for one in transfers]

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
        while position < len(self._steps):
            if position in self._tests:
                if not self._tests[position]():
                    self._position = position
                    return False
            else:
                for call in self._steps[position]:
                    call()
            position += 1
        self._position = None
        return True

    def test(self) -> bool:
        return self._advance()

    def wait(self) -> None:
        if self._position is None:
            return
        for calls in self._steps[self._position :]:
            for call in calls:
                call()
        self._position = None

    def free(self) -> None:
        if not self._freed:
            self._freed = True
            if not self._transport.free():
                self._attached.kept_alive.append(self._arrays)
            self._steps, self._calls, self._tests, self._position = [], [], {}, None
