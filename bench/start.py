"""How a sample begins on all ranks alike: behind a barrier, or at an agreed instant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from bench.timing import Clock, clock

TRIALS = 200  # rounds from which it is learnt how long before the instant ranks must hear of it
LATE, LONGER, LONGEST = 0.1, 1.5, 0.01  # with more late than this, the lead gets so many times longer, up to seconds
MARGIN = 2.0  # times the 95th percentile of these


class Clocks(Protocol):
    """What a start needs of the clocks."""

    @property
    def relation(self) -> Any:
        """How the own clock is related to rank 0's."""


class Deadline:
    """Rank 0 names an instant, soon; every rank spins until its clock shows it. One that hears of it too late says so.

    A rank that leaves a barrier early begins early; here all begin within one look at the clock, if each has a CPU.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        barrier: Callable[[], Any],
        clocks: Clocks,
        now: Clock = clock,
        lead: float | None = None,
    ) -> None:
        """`lead`: seconds between naming the instant and the instant; None finds out how many are needed."""
        self._barrier, self._clocks, self._now = barrier, clocks, now
        self._leads = comm.Get_rank() == 0
        self._instant = np.zeros(1)
        self._tell = comm.Bcast
        self.lead = 0.0
        self.lead = self._needed(comm) if lead is None else lead

    def __call__(self) -> bool:
        """Wait for the instant; return whether it had passed when this rank heard of it."""
        self._barrier()
        if self._leads:
            self._instant[0] = self._now() + self.lead
        self._tell(self._instant, 0)
        instant, now = self._clocks.relation.own(float(self._instant[0])), self._now
        if now() >= instant:
            return True
        while now() < instant:
            pass
        return False

    def relax(self, late: float) -> None:
        """Name later instants from now on where a share `late` of samples had a rank that heard too late."""
        if late > LATE:
            self.lead = min(LONGER * self.lead, LONGEST)

    def _needed(self, comm: MPI.Intracomm) -> float:
        """Return a lead that all ranks meet nearly always."""
        delays = np.empty(TRIALS)
        for trial in range(TRIALS):
            self()
            delays[trial] = self._now() - self._clocks.relation.own(float(self._instant[0]))
        comm.Allreduce(MPI.IN_PLACE, delays, MPI.MAX)
        return MARGIN * float(np.percentile(delays, 95))
