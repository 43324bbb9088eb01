"""Computing beside a call: how much of the call's time does it hide, with a library that is polled and one that is not.

The work is NumPy's, on an array that stays in the nearest cache, in slices of some tens of microseconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.timing import seconds_of

SLICE_ELEMENTS = 16 << 10
TRIALS = 50


class Work:
    """So many slices of work as take `seconds`, found out when it is made; called, it does them all."""

    def __init__(self, seconds: float) -> None:
        self._values = np.full(SLICE_ELEMENTS, 1.0)
        self.slice()
        each = min(seconds_of(self.slice)[1] for _ in range(TRIALS))
        self.nslices = max(1, round(seconds / each))

    def slice(self) -> None:
        """Do one slice."""
        np.sqrt(self._values, out=self._values)

    def __call__(self) -> None:
        """Do the whole work."""
        for _ in range(self.nslices):
            self.slice()


class Beside:
    """Calls that are under way beside others, one at a time, as buckets of gradients are."""

    def __init__(self) -> None:
        self._plan: Any = None

    def begin(self, plan: Any) -> None:
        """Wait for the one before, and start this one."""
        self.finish()
        plan.start()
        self._plan = plan

    def poll(self) -> None:
        """Let the one under way go on."""
        if self._plan is not None:
            self._plan.test()

    def finish(self) -> None:
        """Wait for the one under way."""
        if self._plan is not None:
            self._plan.wait()
            self._plan = None


class Overlapped:
    """A call that is started, then the work, then the wait for it. polled: the plan is tested after each slice."""

    def __init__(self, plan: Any, work: Work, polled: bool) -> None:
        self.plan, self.work, self.polled = plan, work, polled

    def __call__(self) -> None:
        """Do both."""
        self.plan.start()
        if self.polled:
            for _ in range(self.work.nslices):
                self.work.slice()
                self.plan.test()
        else:
            self.work()
        self.plan.wait()
