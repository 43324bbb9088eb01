"""How many CPUs of the leader's host other programs keep busy while a point is measured."""

from __future__ import annotations

from time import process_time

import numpy as np

from bench.job import Job
from bench.machine import busy_seconds
from bench.timing import clock

LEAST_SECONDS = 0.5  # between two looks: the system counts in hundredths of a second


class Load:
    """The load by others, from look to look. All ranks call it together; rank 0 knows."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._last = self._now()
        self._value: float | None = None

    def look(self) -> float | None:
        """Return the CPUs busy with other programs since the last look, or before it where that was just now."""
        now = self._now()
        if now is None or self._last is None:
            return None
        seconds, busy, own = (after - before for after, before in zip(now, self._last, strict=True))
        if seconds >= LEAST_SECONDS:
            self._value, self._last = max(0.0, (busy - own) / seconds), now
        return self._value

    def _now(self) -> tuple[float, float, float] | None:
        """Return time, busy time of all CPUs, and of this job's ranks on the leader's host."""
        own = self._job.total(np.array([process_time() if self._job.with_leader else 0.0]))
        busy = busy_seconds()
        return None if busy is None else (clock(), busy, float(own[0]))
