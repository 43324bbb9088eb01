"""Messages from one rank to another as a pattern has them: to the next stage or neighbour, from the one before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from bench.check import MEETINGS, Empty, Guarded, fill
from bench.contenders import Contender
from collectives import buffers, devices
from collectives.names import NATIVE

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
            self.send.put(self._input)
        if self.recv is not None:
            self.recv.poison()
        for _ in range(MEETINGS):
            meet()

    def wrong(self) -> int:
        """Return how many elements differ from what must be there."""
        pairs = ((self.send, self._input), (self.recv, self._expected))
        return sum(
            int((guarded.get() != there).sum()) + int(not guarded.intact)
            for guarded, there in pairs
            if guarded is not None
        )


class _Outgoing:
    """Something to send, again and again: the buffer, or a copy in pinned memory of one on a GPU."""

    def __init__(self, comm: MPI.Intracomm, array: Any, to: int, tag: int, persistent: bool) -> None:
        host = _on_host(array)
        self._copy = None if host is array else devices.start_copy(host, array)
        arguments = [host, MPI.BYTE], to, tag
        self.request = comm.Send_init(*arguments) if persistent else None
        self._isend = partial(comm.Isend, *arguments)

    def start(self) -> Any:
        """Begin to send, and return the request."""
        if self._copy is not None:
            self._copy()
            devices.synchronise()
        if self.request is None:
            return self._isend()
        self.request.Start()
        return self.request


class MessagePlan:
    """Sends and receives of one kind. Called, it does one of each that this rank has, and waits for both.

    In a step, `send` does not wait, so that no ranks can wait for each other in a circle; `finish` does at its end.
    Messages from and to a GPU go through pinned memory of the host.
    nsends: how many sends of a step may be under way at once, where each needs a request or a copy of its own.
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
        self._sends, self._receives = send_to is not None, receive_from is not None
        self._under_way: list[tuple[Any, _Outgoing]] = []
        self._begun: list[Any] = []
        self._owned: list[Any] = []
        self._free: list[_Outgoing] = []
        self._each_its_own = False
        self._irecv: Any = None
        self._receiver: Any = None
        self._bring: Callable[[], Any] | None = None
        if send_to is not None:
            self._each_its_own = persistent or devices.is_device(send)
            number = nsends if self._each_its_own else 1
            self._free = [_Outgoing(comm, send, send_to, tag, persistent) for _ in range(number)]
            self._owned += [one.request for one in self._free if one.request is not None]
        if receive_from is not None:
            host = _on_host(recv)
            if host is not recv:
                self._bring = devices.start_copy(recv, host)
            arguments = [host, MPI.BYTE], receive_from, tag
            self._irecv = partial(comm.Irecv, *arguments)
            if persistent:
                self._receiver = comm.Recv_init(*arguments)
                self._owned.append(self._receiver)

    def __call__(self) -> None:
        """Send and receive once, as far as this rank does."""
        self.start()
        self.wait()

    def send(self) -> None:
        """Begin to send once more."""
        if not self._free:
            self.finish()
        one = self._free.pop() if self._each_its_own else self._free[0]
        self._under_way.append((one.start(), one))

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
        MPI.Request.Waitall([request for request, _ in self._under_way])
        if self._each_its_own:
            self._free += [one for _, one in self._under_way]
        self._under_way = []

    def start(self) -> None:
        """Begin one call."""
        if self._receives:
            self._begin_receive()
        if self._sends:
            self.send()

    def test(self) -> bool:
        """Let MPI go on; return whether the call is complete."""
        return all(request.Test() for request in (*self._begun, *(request for request, _ in self._under_way)))

    def wait(self) -> None:
        """Complete the call."""
        if self._receives:
            self._end_receive()
        self.finish()

    def free(self) -> None:
        """Give back persistent requests."""
        for request in self._owned:
            request.Free()
        self._owned, self._free = [], []

    def _begin_receive(self) -> None:
        if self._receiver is not None:
            self._receiver.Start()
            self._begun.append(self._receiver)
        else:
            self._begun.append(self._irecv())

    def _end_receive(self) -> None:
        for request in self._begun:
            request.Wait()
        self._begun.clear()
        if self._bring is not None:
            self._bring()
            devices.synchronise()


def _on_host(array: Any) -> Any:
    """Return an array of bytes itself, or as large a one in pinned memory where it lies on a GPU."""
    return buffers.pinned(array.size, np.uint8) if devices.is_device(array) else array


def message_contenders(
    comm: MPI.Intracomm, tag: int, send_to: int | None, receive_from: int | None, nsends: int, sets: Sequence[Any]
) -> list[Contender]:
    """Return both contenders with their plans made, one for each set of buffers."""

    def plan(one: Any, persistent: bool) -> MessagePlan:
        # As bytes, since MPI may not know the type.
        send, recv = (None if each is None else each.array.view("u1") for each in (one.send, one.recv))
        return MessagePlan(comm, tag, send, send_to, recv, receive_from, persistent, nsends)

    return [Contender(name, [plan(one, name == DIRECT) for one in sets]) for name in CONTENDERS]
