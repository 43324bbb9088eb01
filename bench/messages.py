"""Messages from one rank to another as a pattern has them: to the next stage or neighbour, from the one before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

from bench.check import MEETINGS, Empty, Guarded, fill
from bench.contenders import NATIVE, Contender

DIRECT = "direct"
CONTENDERS = (NATIVE, DIRECT)
"""Sends and receives of their own for every message, or persistent ones."""


class CheckedMessage:
    """A rank's buffers of one kind of message; `source` is the group rank from which it comes, None if none does."""

    def __init__(
        self, count: int, dtype: str, place: int, sends: bool, source: int | None, empty_send: Empty, empty_recv: Empty
    ) -> None:
        self.send = Guarded(count, dtype, empty_send) if sends else None
        self.recv = Guarded(count, dtype, empty_recv) if source is not None else None
        self._input = fill(count, place, dtype, "sum")
        self._expected = None if source is None else fill(count, source, dtype, "sum")

    def reset(self, meet: Callable[[], Any]) -> None:
        """Put the input into the send buffer and poison the receive buffer; `meet` as often as `Checked` does."""
        if self.send is not None:
            self.send.array[:] = self._input
        if self.recv is not None:
            self.recv.poison()
        for _ in range(MEETINGS):
            meet()

    def wrong(self) -> int:
        """Return how many elements differ from what must be there."""
        pairs = ((self.send, self._input), (self.recv, self._expected))
        return sum(
            int((guarded.array != there).sum()) + int(not guarded.intact)
            for guarded, there in pairs
            if guarded is not None
        )


class MessagePlan:
    """Sends and receives of one kind. Called, it does one of each that this rank has, and waits for both.

    In a step, `send` does not wait, so that no ranks can wait for each other in a circle; `finish` does at its end.
    nsends: persistent requests to make, for as many sends of a step as may be under way at once.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        tag: int,
        send: Any,
        send_to: int | None,
        recv: Any,
        receive_from: int | None,
        persistent: bool,
        nsends: int,
    ) -> None:
        self._comm, self._persistent = comm, persistent
        self._sending = None if send_to is None else (send, send_to, tag)
        self._receiving = None if receive_from is None else (recv, receive_from, tag)
        self._under_way: list[Any] = []
        self._begun: list[Any] = []
        self._owned: list[Any] = []
        self._free: list[Any] = []
        self._receiver: Any = None
        if persistent:
            if self._sending:
                self._free = [comm.Send_init(*self._sending) for _ in range(nsends)]
            if self._receiving:
                self._receiver = comm.Recv_init(*self._receiving)
            self._owned = [*self._free, *([self._receiver] if self._receiver else [])]

    def __call__(self) -> None:
        """Send and receive once, as far as this rank does."""
        self.start()
        self.wait()

    def send(self) -> None:
        """Begin to send once more."""
        assert self._sending is not None
        if not self._persistent:
            self._under_way.append(self._comm.Isend(*self._sending))
            return
        if not self._free:
            self.finish()
        request = self._free.pop()
        request.Start()
        self._under_way.append(request)

    def receive(self) -> None:
        """Receive once and wait for it."""
        self._begin_receive()
        self._end_receive()

    def shift(self) -> None:
        """Receive and begin to send, and wait for what is received."""
        self._begin_receive()
        self.send()
        self._end_receive()

    def finish(self) -> None:
        """Wait until all that was sent has left."""
        MPI.Request.Waitall(self._under_way)
        if self._persistent:
            self._free += self._under_way
        self._under_way = []

    def start(self) -> None:
        """Begin one call."""
        if self._receiving:
            self._begin_receive()
        if self._sending:
            self.send()

    def test(self) -> bool:
        """Let MPI go on; return whether the call is complete."""
        return all(request.Test() for request in (*self._begun, *self._under_way))

    def wait(self) -> None:
        """Complete the call."""
        if self._receiving:
            self._end_receive()
        self.finish()

    def free(self) -> None:
        """Give back persistent requests."""
        for request in self._owned:
            request.Free()
        self._owned, self._free = [], []

    def _begin_receive(self) -> None:
        assert self._receiving is not None
        if self._persistent:
            self._receiver.Start()
            self._begun.append(self._receiver)
        else:
            self._begun.append(self._comm.Irecv(*self._receiving))

    def _end_receive(self) -> None:
        for request in self._begun:
            request.Wait()
        self._begun.clear()


def message_contenders(
    comm: MPI.Intracomm, tag: int, send_to: int | None, receive_from: int | None, nsends: int, sets: Sequence[Any]
) -> list[Contender]:
    """Return both contenders with their plans made, one for each set of buffers."""

    def plan(one: Any, persistent: bool) -> MessagePlan:
        # As bytes, since MPI may not know the type.
        send, recv = (None if each is None else [each.array.view("u1"), MPI.BYTE] for each in (one.send, one.recv))
        return MessagePlan(comm, tag, send, send_to, recv, receive_from, persistent, nsends)

    return [Contender(name, [plan(one, name == DIRECT) for one in sets]) for name in CONTENDERS]
