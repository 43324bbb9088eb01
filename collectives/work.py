"""A plan on work arrays instead of the caller's: copied in before the call and out after it.

Two uses: half precision accumulated in float32, and buffers between guards when debugging.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from collectives.bind import Bound
from collectives.plan import Plan


class WorkPlan(Plan):
    """`make` gets the problem with work arrays in place of the caller's and returns the plan that works on them.

    `array` makes a work array like the caller's. `after` is called when a call is complete.
    """

    def __init__(
        self,
        bound: Bound,
        array: Callable[[Any], Any],
        make: Callable[[Bound], Plan],
        after: Callable[[], None] | None = None,
    ) -> None:
        send, recv = (None if one is None else array(one) for one in (bound.send, bound.recv))
        some = recv if send is None else send
        self._inner = make(replace(bound, send=send, recv=recv, dtype=None if some is None else some.dtype))
        self._after = after
        self.layout = self._inner.layout
        self.scratch_nbytes = self._inner.scratch_nbytes + sum(one.nbytes for one in (send, recv) if one is not None)
        alias = bound.problem.in_place or bound.problem.primitive.one_buffer
        self._into = [(send, bound.send)] if send is not None else []
        self._into += [(recv, bound.recv)] if recv is not None and alias else []
        self._from = [(bound.recv, recv)] if recv is not None else []
        self._under_way = False

    def __call__(self) -> None:
        _copy(self._into)
        self._inner()
        self._finish()

    def start(self) -> None:
        _copy(self._into)
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
        _copy(self._from)
        if self._after is not None:
            self._after()

    def free(self) -> None:
        self._inner.free()


def _copy(pairs: list[tuple[Any, Any]]) -> None:
    for target, source in pairs:
        np.copyto(target, source, casting="unsafe")
