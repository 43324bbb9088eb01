"""What collbench keeps with a user's communicator; it goes when the communicator is freed."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from mpi4py import MPI

from collectives.transports.message import WINDOW


class CallablePlan(Protocol):
    """A call made ready."""

    def __call__(self) -> None:
        """Carry it out."""

    def free(self) -> None:
        """Give them back."""


@dataclass
class Attached:
    """What collbench keeps with a user's communicator: a private one, tags given out, plans of one-shot calls."""

    comm: MPI.Intracomm
    nplans: int = 0
    first_tags: dict[Any, int] = field(default_factory=dict)
    calls: OrderedDict[Any, CallablePlan] = field(default_factory=OrderedDict)
    kept_alive: list[Any] = field(default_factory=list)

    def next_first_tag(self) -> int:
        """Return the first tag of the next plan. Plans are made by all ranks in the same order, so all agree."""
        highest = self.comm.Get_attr(MPI.TAG_UB)
        assert isinstance(highest, int)  # every communicator has this attribute
        windows = (highest + 1) // WINDOW
        self.nplans += 1
        return (self.nplans - 1) % windows * WINDOW

    def release(self) -> None:
        """Free the requests of one-shot calls."""
        while self.calls:
            self.calls.popitem()[1].free()


@cache
def _keyval() -> int:
    def on_free(comm: MPI.Comm, keyval: int, attached: Attached) -> None:
        attached.release()
        if not MPI.Is_finalized():
            attached.comm.Free()

    return MPI.Comm.Create_keyval(delete_fn=on_free)


def attached_to(comm: MPI.Intracomm) -> Attached:
    """Return what is attached to `comm`; the first time, all its ranks make the private communicator together."""
    attached = comm.Get_attr(_keyval())
    if not isinstance(attached, Attached):
        attached = Attached(comm.Dup())
        comm.Set_attr(_keyval(), attached)
    return attached
