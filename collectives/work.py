"""A plan on work arrays instead of the caller's: copied in before the call and out after it.

Three uses: small floats accumulated in float32, the library's own calls on buffers of a GPU, which it is given in
pinned memory of the host, and buffers between guards when debugging.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from collectives import buffers, combining, devices
from collectives.bind import Bound
from collectives.plan import Plan, PlanAround


class WorkPlan(PlanAround):
    """`make` gets the problem with work arrays in place of the caller's and returns the plan that works on them.

    `array` makes a work array like the caller's, whose elements are of `dtype` (None: of the caller's). `after` is
    called when a call is complete.
    """

    def __init__(
        self,
        bound: Bound,
        array: Callable[[Any], Any],
        make: Callable[[Bound], Plan],
        after: Callable[[], None] | None = None,
        dtype: Any = None,
    ) -> None:
        send, recv = (None if one is None else array(one) for one in (bound.send, bound.recv))
        super().__init__(make(replace(bound, send=send, recv=recv, dtype=dtype or bound.dtype)))
        self._after = after
        self.scratch_nbytes += sum(one.nbytes for one in (send, recv) if one is not None)
        problem, primitive = bound.problem, bound.problem.primitive
        alias = problem.in_place or primitive.one_buffer
        into = [(send, bound.send)] if send is not None else []
        into += [(recv, bound.recv)] if recv is not None and alias else []
        # Where there is no result the receive buffer is the caller's to keep.
        results = recv is not None and primitive.outputs(problem, bound.rank, 1)
        back = [(bound.recv, recv)] if results else []
        if dtype is not None and bound.on_device:
            self._into, self._from = (combining.converters(bound.dtype.name, pairs) for pairs in (into, back))
        else:
            self._into, self._from = buffers.copiers(into), buffers.copiers(back)
        if self._from and buffers.is_device(recv):
            self._from.append(devices.synchronise)  # a call ends complete
        self._under_way = False

    def __call__(self) -> None:
        _carry_out(self._into)
        self._inner()
        self._finish()

    def start(self) -> None:
        _carry_out(self._into)
        self._inner.start()
        self._under_way = True

    def test(self) -> bool:
        if self._under_way and self._inner.test():
            self._finish()
        return not self._under_way

    def wait(self) -> None:
        if self._under_way:
            self._inner.wait()
            self._finish()

    def _finish(self) -> None:
        self._under_way = False
        _carry_out(self._from)
        if self._after is not None:
            self._after()


def _carry_out(calls: list[Callable[[], Any]]) -> None:
    for call in calls:
        call()
