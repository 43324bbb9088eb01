"""Buffers on a GPU handed to the MPI library as they are, for its own calls; by hand see `collectives.settling`."""

from __future__ import annotations

from contextlib import AbstractContextManager

from collectives import devices
from collectives.plan import Plan


class DirectPlan(Plan):
    """The library's own call on the GPU's memory, begun when the work on the current stream is done.

    MPI knows nothing of streams. What it has received is there for all work that is put into streams afterwards.
    """

    def __init__(self, inner: Plan) -> None:
        self._inner = inner

    def __call__(self) -> None:
        devices.synchronise()
        self._inner()

    def start(self) -> None:
        devices.synchronise()
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
