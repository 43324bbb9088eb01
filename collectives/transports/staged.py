"""The queues of a GPU in which copies and kernels of a staged plan wait for their turn: see `collectives.staging`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from collectives import devices
from collectives.program import After, Mark, Move, Settle
from collectives.staging import COMPUTE, IN, OUT, lane_of


class Streams:
    """The lanes of a staged layout as CUDA streams, and its events.

    Kernels go into CuPy's current stream as it is when a call is made, since CuPy itself puts them there. Copies do too
    unless they are `overlapped`: then they have streams of their own.
    """

    def __init__(self, overlapped: bool) -> None:
        cuda = devices.cupy_module().cuda
        self._cuda = cuda
        self._own = {lane: cuda.Stream(non_blocking=True) for lane in (OUT, IN) if overlapped}
        self._events: dict[int, Any] = {}

    def copy(self, move: Move, target: Any, source: Any) -> Callable[[], Any]:
        """Return a call that starts a copy between host and GPU."""
        return devices.start_copy(target, source, self._own.get(lane_of(move)))

    def ready(self, instruction: Mark | After | Settle) -> Callable[[], Any]:
        """Return a call that carries out an instruction about an event."""
        event = self._event(instruction.number)
        if isinstance(instruction, Settle):
            return event.synchronize
        own = self._own.get(instruction.lane)
        if isinstance(instruction, Mark):
            return self._record(event) if own is None else partial(own.record, event)
        assert own is not None or instruction.lane == COMPUTE
        return self._wait(event) if own is None else partial(own.wait_event, event)

    def test(self, settle: Settle) -> Callable[[], bool]:
        """Return a call that says whether an event has come."""
        event = self._event(settle.number)
        return lambda: bool(event.done)

    def _event(self, number: int) -> Any:
        if number not in self._events:
            self._events[number] = self._cuda.Event(disable_timing=True)
        return self._events[number]

    def _record(self, event: Any) -> Callable[[], Any]:
        current = self._cuda.get_current_stream
        return lambda: current().record(event)

    def _wait(self, event: Any) -> Callable[[], Any]:
        current = self._cuda.get_current_stream
        return lambda: current().wait_event(event)
