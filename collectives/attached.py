"""What collbench keeps with a user's communicator; it goes when the communicator is freed."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from mpi4py import MPI

from collectives.communicators import Communicators
from collectives.ipc import GpuMemory
from collectives.mapped import MappedMemory
from collectives.shared import SharedMemory
from collectives.transports.message import WINDOW


class Freed(Protocol):
    """What is to be given back in the end."""

    def free(self) -> None:
        """Give it back."""


class CallablePlan(Protocol):
    """A call made ready. `number` counts those that all ranks made together."""

    number: int

    def __call__(self) -> None:
        """Carry it out."""

    def free(self) -> None:
        """Give them back."""


@dataclass
class Attached:
    """What collbench keeps with a user's communicator: a private one, tags given out, plans of one-shot calls."""

    comm: MPI.Intracomm
    nplans: int = 0
    nshared: int = 0
    first_tags: dict[Any, int] = field(default_factory=dict)
    calls: OrderedDict[Any, CallablePlan] = field(default_factory=OrderedDict)
    unfinished: list[tuple[list[MPI.Request], Any]] = field(default_factory=list)  # sends, and the buffers they need
    forcing: Freed | None = None  # see collectives.forcing
    window: SharedMemory | None = None
    gpu_window: GpuMemory | None = None
    mapped_window: MappedMemory | None = None
    nccl_communicators: Communicators | None = None

    @property
    def shared(self) -> SharedMemory:
        """What its ranks on one node share; the first time, all its ranks find that out together."""
        if self.window is None:
            self.window = SharedMemory(self.comm)
        return self.window

    @property
    def gpu(self) -> GpuMemory:
        """What of their GPUs' memory its ranks on one node share."""
        if self.gpu_window is None:
            self.gpu_window = GpuMemory(self.shared)
        return self.gpu_window

    @property
    def mapped(self) -> MappedMemory:
        """What of the host's memory its ranks on one node share and their GPUs access."""
        if self.mapped_window is None:
            self.mapped_window = MappedMemory(self.shared)
        return self.mapped_window

    @property
    def nccl(self) -> Communicators:
        """NCCL's communicators of its ranks."""
        if self.nccl_communicators is None:
            self.nccl_communicators = Communicators(self.comm)
        return self.nccl_communicators

    def next_first_tag(self) -> int:
        """Return the first tag of the next plan. Plans are made by all ranks in the same order, so all agree."""
        windows = (_highest_tag() + 1) // WINDOW - 1  # the last is for `drain`
        self.nplans += 1
        return (self.nplans - 1) % windows * WINDOW

    def release(self) -> None:
        """Free the requests of one-shot calls, and what was kept for forcing."""
        while self.calls:
            self.calls.popitem()[1].free()
        if self.forcing is not None:
            self.forcing.free()
            self.forcing = None


def _highest_tag() -> int:
    """Return the largest tag, which MPI tells of the world (MPI-5.0 section 9.1.2), Open MPI of nothing else."""
    highest = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
    assert isinstance(highest, int)
    return highest


def drain(comm: MPI.Intracomm) -> None:
    """Receive what interrupted calls left behind; a communicator with unreceived messages cannot be freed everywhere.

    All ranks together. Each sends every other one a last message, and receives all that comes before that of the other:
    messages between two ranks do not overtake one another (MPI-5.0 section 3.5).
    """
    last = _highest_tag()
    peers = [peer for peer in range(comm.Get_size()) if peer != comm.Get_rank()]
    requests = [comm.Isend([None, 0, MPI.BYTE], peer, last) for peer in peers]
    status = MPI.Status()
    for peer in peers:
        tag = None
        while tag != last:
            message = comm.Mprobe(peer, MPI.ANY_TAG, status)
            tag = status.Get_tag()
            message.Recv([bytearray(status.Get_count(MPI.BYTE)), MPI.BYTE])
    MPI.Request.Waitall(requests)


@cache
def _keyval() -> int:
    def on_free(comm: MPI.Comm, keyval: int, attached: Attached) -> None:
        attached.release()
        if not MPI.Is_finalized():
            if comm not in (MPI.COMM_WORLD, MPI.COMM_SELF):  # those go with MPI, when nothing can be received any more
                drain(attached.comm)
                for requests, _ in attached.unfinished:
                    MPI.Request.Waitall(requests)
            for requests, _ in attached.unfinished:
                for request in requests:
                    request.Free()
            if attached.nccl_communicators is not None:
                attached.nccl_communicators.free()
            if attached.gpu_window is not None:
                attached.gpu_window.free()
            if attached.window is not None:  # only now that nothing is under way from memory in it
                attached.window.free()
            attached.comm.Free()

    return MPI.Comm.Create_keyval(delete_fn=on_free)


def attached_to(comm: MPI.Intracomm) -> Attached:
    """Return what is attached to `comm`; the first time, all its ranks make the private communicator together."""
    attached = already_attached_to(comm)
    if attached is None:
        attached = Attached(comm.Dup())
        comm.Set_attr(_keyval(), attached)
    return attached


def already_attached_to(comm: MPI.Intracomm) -> Attached | None:
    """Return what is attached to `comm`, None if nothing is."""
    attached = comm.Get_attr(_keyval())
    return attached if isinstance(attached, Attached) else None
