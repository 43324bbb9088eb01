"""A plan whose work on a GPU is ordered on a stream of the caller's choice, whichever is current when it is called."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from collectives.plan import Plan


class OnStream(Plan):
    """`plan`, of which everything is done with `stream`, a CuPy stream, as the current one of the thread."""

    def __init__(self, plan: Plan, stream: Any) -> None:
        self._plan, self._stream = plan, stream
        self.layout, self.unit_nbytes, self.scratch_nbytes = plan.layout, plan.unit_nbytes, plan.scratch_nbytes

    def __call__(self) -> None:
        """Carry out the call."""
        with self._stream:
            self._plan()

    def start(self) -> None:
        """Begin the call."""
        with self._stream:
            self._plan.start()

    def test(self) -> bool:
        """Go on as far as possible without waiting; return whether the call is complete."""
        with self._stream:
            return self._plan.test()

    def wait(self) -> None:
        """Carry out the rest of a call that was begun."""
        with self._stream:
            self._plan.wait()

    def free(self) -> None:
        """Give back what MPI holds for this plan."""
        self._plan.free()

    def armed(self) -> AbstractContextManager[None]:
        """Return a context for timed calls."""
        return self._plan.armed()
