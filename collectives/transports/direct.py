"""Buffers on a GPU handed to the MPI library as they are, for its own calls; by hand see `collectives.settling`."""

from __future__ import annotations

from collectives import devices
from collectives.plan import PlanAround


class DirectPlan(PlanAround):
    """The library's own call on the GPU's memory, begun when the work on the current stream is done.

    MPI knows nothing of streams. What it has received is there for all work that is put into streams afterwards.
    """

    def __call__(self) -> None:
        devices.synchronise()
        self._inner()

    def start(self) -> None:
        devices.synchronise()
        self._inner.start()
