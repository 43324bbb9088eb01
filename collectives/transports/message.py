"""Two-sided messages: each transfer of a layout is one persistent MPI request (MPI-5.0 section 3.9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from mpi4py import MPI

from collectives.program import Transfer
from collectives.regions import Region

FEW = 4
"""Up to so many requests are started and waited for one by one: an exchange of 8 bytes took 1.26 us, against 1.62 us
with a list of both (MPICH 5.0, 2 ranks)."""

WINDOW = 1 << 14
"""How many tags a plan has. Two of its messages with one tag are this many apart, so never under way together."""


class MessageTransport:
    """Persistent requests for the transfers of one plan.

    Messages are matched by tag, since requests that start together may start in any order: tag = the plan's first
    tag + the ordinal of the message between its two ranks, modulo `WINDOW`.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        transfers: Sequence[Transfer],
        arrays: Mapping[Any, Any],
        first_tag: int,
        synchronous: bool = False,
    ) -> None:
        self._datatypes: list[MPI.Datatype] = []
        self._arrays = arrays
        self._outgoing = [one.outgoing for one in transfers]
        send = comm.Ssend_init if synchronous else comm.Send_init
        self._requests: list[Any] = [
            (send if one.outgoing else comm.Recv_init)(
                self._buffer(one.regions), one.peer, first_tag + one.ordinal % WINDOW
            )
            for one in transfers
        ]

    def _buffer(self, regions: Sequence[Region]) -> list[Any]:
        if not regions:
            return [None, 0, MPI.BYTE]
        views = [self._arrays[one.buffer][one.start : one.stop] for one in regions]
        if len(views) == 1:
            return [views[0], views[0].nbytes, MPI.BYTE]
        addresses = [MPI.Get_address(view) for view in views]
        datatype = MPI.BYTE.Create_hindexed([view.nbytes for view in views], addresses).Commit()
        self._datatypes.append(datatype)
        return [MPI.BOTTOM, 1, datatype]

    def start(self, transfers: Sequence[int]) -> list[Callable[[], Any]]:
        """Return calls that start these transfers: one each where they are few, which is faster, else one for all."""
        requests = [self._requests[one] for one in transfers]
        return [one.Start for one in requests] if len(requests) <= FEW else [partial(MPI.Prequest.Startall, requests)]

    def wait(self, transfers: Sequence[int]) -> list[Callable[[], Any]]:
        """Return calls that wait for these transfers."""
        requests = [self._requests[one] for one in transfers]
        return [one.Wait for one in requests] if len(requests) <= FEW else [partial(MPI.Request.Waitall, requests)]

    def test(self, transfers: Sequence[int]) -> Callable[[], bool]:
        """Return a call that says whether these transfers are complete; it lets MPI make progress."""
        requests = [self._requests[one] for one in transfers]
        return partial(MPI.Request.Testall, requests)

    def free(self) -> list[MPI.Request]:
        """Give the requests back, but for sends still under way, which are returned.

        A receive under way is cancelled. A send cannot be: its request and buffer must be kept until it is complete.
        """
        under_way: list[MPI.Request] = []
        for request, outgoing in zip(self._requests, self._outgoing, strict=True):
            if not request.Get_status():
                if outgoing:
                    under_way.append(request)
                    continue
                request.Cancel()
                request.Wait()
            request.Free()
        self._requests = []
        for datatype in self._datatypes:
            datatype.Free()
        self._datatypes = []
        return under_way
