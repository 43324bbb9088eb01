"""A guard against hangs: where nothing goes on for too long, every rank shows where it stands and the job ends."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from time import sleep

from bench.timing import Clock, clock

STATUS = 1  # of a job that a guard ended
GRACE = 2.0  # seconds between a rank's stack and its end, so that all ranks can show theirs
LOOKS = 4  # of the guard within its limit; each wakes a thread, which a measurement would rather not have


class Guard:
    """Watches one rank from a thread of its own. `alive` says that something goes on; `at` says with what.

    MPI calls let other threads run while they block, so the guard sees a rank that waits for ever. It ends the process,
    upon which the launcher ends the others.
    """

    def __init__(self, rank: int, limit: float, end: Callable[[int], None] = os._exit, now: Clock = clock) -> None:
        """`limit`: seconds without a sign of life; 0 never ends anything."""
        self.rank, self.limit = rank, limit
        self.note: Callable[[], str] = str
        self._end, self._now = end, now
        self._what = ""
        self._last: float | None = None
        self._main = threading.get_ident()
        if limit:
            threading.Thread(target=self._watch, name="guard", daemon=True).start()

    def at(self, what: str) -> None:
        """Watch from now on; `what` goes on."""
        self._what = what
        self.alive()

    def alive(self) -> None:
        """Note that something goes on."""
        self._last = self._now()

    def rest(self) -> None:
        """Watch no longer, until `at` is called again."""
        self._last = None

    def _watch(self) -> None:
        while not self._expired():
            sleep(self.limit / LOOKS)
        sys.stderr.write(self.report())
        sys.stderr.flush()
        sleep(GRACE)
        self._end(STATUS)

    def _expired(self) -> bool:
        last = self._last
        return last is not None and self._now() - last > self.limit

    def report(self) -> str:
        """Return what this rank has been at, and its stack."""
        frame = sys._current_frames().get(self._main)
        stack = "".join(traceback.format_stack(frame)) if frame else ""
        note = self.note()
        return (
            f"bench: rank {self.rank} has not got on for {self.limit:g} s with: {self._what}{note and f' ({note})'}; "
            f"the job ends. Where it stands:\n{stack}"
        )
