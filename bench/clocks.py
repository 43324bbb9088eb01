"""One time for all ranks: rank 0's.

The monotonic clock of a host is the same for all its processes. Clocks of different hosts have nothing in common, so
they are never just subtracted: the offset to rank 0's and its drift are estimated by ping-pong (Cristian 1989), and the
error that is left is kept beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from bench.timing import Clock, clock

EXCHANGES = 50  # ping-pongs of one look; the quickest counts


class Look(NamedTuple):
    """One look at rank 0's clock: how far ahead it is when the own one shows `at`, give or take `error`."""

    at: float
    offset: float
    error: float


@dataclass(frozen=True)
class Relation:
    """Rank 0's clock is ahead by ``offset + drift * (time - since)``; off by `error` seconds at most."""

    offset: float = 0.0
    drift: float = 0.0
    since: float = 0.0
    error: float = 0.0

    def shared(self, own: Any) -> Any:
        """Return times of the own clock as rank 0's."""
        return own + self.offset + self.drift * (own - self.since)

    def own(self, shared: Any) -> Any:
        """Return times of rank 0's clock as the own one's."""
        return (shared - self.offset + self.drift * self.since) / (1 + self.drift)


SAME = Relation()


def best_look(exchanges: Sequence[tuple[float, float, float]]) -> Look:
    """Return the look with the least error from exchanges of (own time before, rank 0's time, own time after).

    Rank 0 read its clock somewhere between the two readings of the own one, so half of the time between is the error.
    """
    before, theirs, after = min(exchanges, key=lambda times: times[2] - times[0])
    middle = (before + after) / 2
    return Look(middle, theirs - middle, (after - before) / 2)


def relation(first: Look, latest: Look) -> Relation:
    """Return how the clocks are related, from the first look and the latest; drift is known once they are apart."""
    apart = latest.at - first.at
    if apart <= 0:
        return Relation(latest.offset, 0.0, latest.at, latest.error)
    return Relation(latest.offset, (latest.offset - first.offset) / apart, latest.at, latest.error)


class Clocks:
    """How this rank's clock is related to rank 0's. All ranks make it and call `look` together."""

    def __init__(self, comm: MPI.Intracomm, now: Clock = clock, one_host: bool | None = None) -> None:
        """`one_host`: whether all ranks share a clock; None finds out from MPI."""
        self._now = now
        self._node = comm.Split_type(MPI.COMM_TYPE_SHARED) if one_host is None else comm.Split(comm.Get_rank())
        leads = self._node.Get_rank() == 0
        self._leaders = comm.Split(0 if leads else MPI.UNDEFINED)
        nnodes = comm.allreduce(int(leads))
        self.one_host = nnodes == 1 if one_host is None else one_host
        self.relation = SAME
        self._first: Look | None = None
        self.look()

    def look(self) -> None:
        """Look at rank 0's clock again. On one host there is nothing to do."""
        if self.one_host:
            return
        look = None
        if self._leaders != MPI.COMM_NULL:
            for leader in range(1, self._leaders.Get_size()):
                if self._leaders.Get_rank() == 0:
                    self._answer(leader)
                elif self._leaders.Get_rank() == leader:
                    look = best_look([self._ask() for _ in range(EXCHANGES)])
        look = self._node.bcast(look, 0)
        if look is not None:
            self._first = self._first or look
            self.relation = relation(self._first, look)

    def free(self) -> None:
        """Free the communicators."""
        self._node.Free()
        if self._leaders != MPI.COMM_NULL:
            self._leaders.Free()

    def _ask(self) -> tuple[float, float, float]:
        theirs = np.empty(1)
        before = self._now()
        self._leaders.Send(theirs[:0], 0)
        self._leaders.Recv(theirs, 0)
        return before, float(theirs[0]), self._now()

    def _answer(self, leader: int) -> None:
        time = np.empty(1)
        for _ in range(EXCHANGES):
            self._leaders.Recv(time[:0], leader)
            time[0] = self._now()
            self._leaders.Send(time, leader)
