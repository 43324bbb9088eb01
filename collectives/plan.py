"""Bind an algorithm's layout to a communicator and buffers: a call made ready.

A `Plan` is called many times; each call only starts, waits and combines. `start`, `test` and `wait` split a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NoReturn

import numpy as np

from collectives import buffers, combining
from collectives.attached import Attached
from collectives.bind import Bound
from collectives.kernels import Combination
from collectives.layout import Layout
from collectives.operations import Operation
from collectives.program import After, Fold, Mark, Move, Reduce, Settle, Start, Sync, Wait
from collectives.regions import HOST, RECV, SCRATCH, SEND, SHARED, Region
from collectives.transports.gpu_window import GpuWindowTransport
from collectives.transports.message import MessageTransport
from collectives.transports.staged import Streams
from collectives.transports.window import WindowTransport


class NotApplicable(ValueError):
    """The algorithm's preconditions are not met here; the message says which one."""


class Plan:
    """A call made ready. Call it, or `start` it and then `wait`; `free` it at the end (or use ``with``).

    `layout`, of a hand-written algorithm, counts in units of `unit_nbytes`. `number` counts the one-shot calls' plans
    that all ranks of a communicator made together.
    """

    number = 0
    scratch_nbytes = 0
    unit_nbytes = 0
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

    @property
    def innermost(self) -> Plan:
        """The plan that communicates, where this one only prepares for it."""
        return self

    def armed(self) -> AbstractContextManager[None]:
        """Return a context for timed calls: what a call must set and restore is done outside of them.

        It can be entered again. A nullcontext says that there is nothing to set.
        """
        return nullcontext()

    def __enter__(self) -> Plan:
        return self

    def __exit__(self, *exception: object) -> None:
        self.free()


class PlanAround(Plan):
    """A plan around another, the `inner` one, which does all that is not said otherwise."""

    def __init__(self, inner: Plan) -> None:
        self._inner = inner
        self.layout, self.unit_nbytes, self.scratch_nbytes = inner.layout, inner.unit_nbytes, inner.scratch_nbytes

    def __call__(self) -> None:
        self._inner()

    def start(self) -> None:
        self._inner.start()

    def test(self) -> bool:
        return self._inner.test()

    def wait(self) -> None:
        self._inner.wait()

    def free(self) -> None:
        self._inner.free()

    @property
    def innermost(self) -> Plan:
        return self._inner.innermost

    def armed(self) -> AbstractContextManager[None]:
        return self._inner.armed()


class HandPlan(Plan):
    """A hand-written algorithm, bound: a flat list of ready calls, waits among them.

    `watch` is told the number of each transfer just before it is started. `window` is the memory of peers, where that
    is accessed; if it is staged, the calls for even and for odd times alternate. `streams` are those of a GPU, where a
    layout is staged through the host. `rounded`: see `Combination`; if not, the layout must have nothing but such.
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
        window: WindowTransport | GpuWindowTransport | None = None,
        streams: Streams | None = None,
        rounded: bool = True,
    ) -> None:
        if bound.dtype is None and layout.scratch_count:
            raise ValueError(
                f"rank {bound.rank} passes on data and cannot tell its dtype; pass an empty array of that dtype"
            )
        unit = buffers.unit(bound.held, operation.width)
        self.layout = layout
        self.unit_nbytes = unit.itemsize
        self.scratch_nbytes = (layout.scratch_count + layout.host_count) * unit.itemsize
        self._attached = attached
        self._watch = watch
        scratch_array = (scratch or buffers.Arena()).take(layout.scratch_count, unit, bound.some)
        self._arrays = {SEND: bound.send, RECV: bound.recv, SCRATCH: scratch_array}
        if window is not None:
            self._arrays[SHARED] = window.slots(layout.rank, layout.shared_count, unit, 0)
        if streams is not None:
            self._arrays[HOST] = buffers.pinned(layout.host_count, unit)
        self._transport = MessageTransport(attached.comm, layout.transfers, self._arrays, first_tag, synchronous)
        self._window, self._unit, self._streams = window, unit, streams
        self._operation, self._dtype, self._rounded = operation, bound.dtype, rounded
        self._by_kernel = bound.on_device and bound.dtype != bound.held
        combine = buffers.function_of(operation.combine, bound.some)
        self._parity = 0
        self._other_steps: list[list[Callable[[], Any]]] = []
        if window is not None and window.staged:
            self._other_steps = [*self._bind(combine, 1), [self._turn]]
            self._steps = [*self._bind(combine, 0), [self._turn]]
        else:
            self._steps = self._bind(combine, 0)
        self._calls = [call for calls in self._steps for call in calls]
        self._other_calls = [call for calls in self._other_steps for call in calls]
        self._tests: dict[int, Callable[[], bool]] = {
            index: self._test(one) for index, one in enumerate(layout.program) if isinstance(one, (Sync, Wait, Settle))
        }
        self._position: int | None = None
        self._freed = False

    def _bind(self, combine: Callable[..., Any], parity: int) -> list[list[Callable[[], Any]]]:
        """Return each instruction of the layout as ready calls, on this set of shared scratch."""
        assert self.layout is not None
        self._parity = parity
        if self._window is not None:
            slots = self._window.slots(self.layout.rank, self.layout.shared_count, self._unit, parity)
            self._arrays[SHARED] = slots
        steps = [self._ready(instruction, combine) for instruction in self.layout.program]
        if isinstance(self._window, GpuWindowTransport):
            steps.append(self._window.ending)
        return steps

    def _turn(self) -> None:
        """Let the next call use the other set of shared scratch."""
        self._calls, self._other_calls = self._other_calls, self._calls
        self._steps, self._other_steps = self._other_steps, self._steps

    def _view(self, region: Region) -> Any:
        if isinstance(region.buffer, tuple):
            assert self._window is not None
            return self._window.region(region, self._unit, self._parity)
        return self._arrays[region.buffer][region.start : region.stop]

    def _ready(self, instruction: Any, combine: Callable[..., Any]) -> list[Callable[[], Any]]:
        if isinstance(instruction, Start):
            return [*self._watched(instruction.transfers), *self._transport.start(instruction.transfers)]
        if isinstance(instruction, Wait):
            return self._transport.wait(instruction.transfers)
        if isinstance(instruction, Move):
            target, source = self._view(instruction.target), self._view(instruction.source)
            if HOST in (instruction.target.buffer, instruction.source.buffer):
                assert self._streams is not None
                return [self._streams.copy(instruction, target, source)]
            return [buffers.copier(target, source)]
        if isinstance(instruction, Sync):
            assert self._window is not None
            return [self._window.meeting(instruction.group)]
        if isinstance(instruction, (Mark, After, Settle)):
            assert self._streams is not None
            return [self._streams.ready(instruction)]
        if isinstance(instruction, Reduce):
            return [self._combiner(*(list(map(self._view, regions)) for regions in instruction))]
        assert isinstance(instruction, Fold)
        assert self._rounded  # a partial result is stored
        left, right, into = map(self._view, instruction)
        if self._by_kernel:
            return [self._combiner([left, right], [into])]
        # A third positional argument saves 100 ns, and is what these functions take; others want it by name.
        quick = combine in (np.add, np.multiply)
        return [partial(combine, left, right, into) if quick else partial(combine, left, right, out=into)]

    def _combiner(self, operands: Sequence[Any], targets: Sequence[Any]) -> Callable[[], Any]:
        what = Combination(self._operation.name, self._dtype.name, len(operands), len(targets), self._rounded)
        return combining.combiner(what, operands, targets)

    def _test(self, instruction: Sync | Wait | Settle) -> Callable[[], bool]:
        if isinstance(instruction, Wait):
            return self._transport.test(instruction.transfers)
        if isinstance(instruction, Settle):
            assert self._streams is not None
            return self._streams.test(instruction)
        assert self._window is not None
        return self._window.meeting(instruction.group).test

    def _watched(self, transfers: Sequence[int]) -> list[Callable[[], Any]]:
        return [] if self._watch is None else [partial(self._watch, one) for one in transfers]

    def __call__(self) -> None:
        if self._position is not None:
            self._refuse()
        self._position = 0
        for call in self._calls:
            call()
        self._position = None

    def start(self) -> None:
        if self._position is not None:
            self._refuse()
        self._position = 0
        self._advance()

    def _refuse(self) -> NoReturn:
        remedy = "has been freed; make a new one" if self._freed else "is under way; wait() before it is begun again"
        raise RuntimeError(f"this plan {remedy}")

    def _advance(self) -> bool:
        """Carry out instructions up to the first wait that would block."""
        position = self._position
        if position is None or self._freed:
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
        if self._position is None or self._freed:
            return
        for calls in self._steps[self._position :]:
            for call in calls:
                call()
        self._position = None

    def free(self) -> None:
        if not self._freed:
            self._freed = True
            under_way = self._transport.free()
            self._steps, self._calls, self._tests, self._position = [], [], {}, 0
            self._other_steps, self._other_calls = [], []
            if under_way:  # from these arrays, or from shared scratch, which must not be given to others meanwhile
                self._attached.unfinished.append((under_way, (self._arrays, self._window)))
            elif self._window is not None:
                self._arrays.pop(SHARED)
                self._window.free()
