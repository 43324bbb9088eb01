"""NCCL's communicators, through CuPy: one for each algorithm that it is asked for.

NCCL reads NCCL_ALGO when a communicator is made, so it is set meanwhile and then as it was before. NCCL calls it a
variable for debugging and does not tell what it ran: nothing shows that it obeyed.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from mpi4py import MPI

ALLOW_SHARING = ("NCCL_MULTI_RANK_GPU_ENABLE", "1")
"""What lets NCCL (from 2.30, as an experiment) use a GPU for several ranks; it is read when NCCL first needs it."""


class Refused(ValueError):
    """NCCL is missing, or refuses these ranks; the message says why."""


def unavailable() -> str:
    """Return why NCCL cannot be used here, with the remedy; an empty text if it can."""
    try:
        nccl_module()
    except ImportError as reason:
        return str(reason)
    return ""


def nccl_module() -> Any:
    """Return CuPy's interface to NCCL.

    Raises:
        ImportError: there is none; the message has the remedy.

    """
    remedy = "install nvidia-nccl-cu12 or -cu13, as your CuPy's CUDA is"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CuPy warns of what is told below
            nccl = import_module("cupy.cuda.nccl")
    except ImportError as error:
        raise ImportError(f"this CuPy has no NCCL ({error}): {remedy}") from error
    if not getattr(nccl, "available", False):
        raise ImportError(f"this CuPy has no NCCL: {remedy}")
    return nccl


class Communicators:
    """NCCL's communicators of the ranks of an MPI communicator: one for each algorithm that was asked for."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._made: dict[str, Any] = {}

    def of(self, algorithm: str) -> Any:
        """Return the communicator that was told to use `algorithm`, or nothing. All ranks together.

        Raises:
            Refused: on all ranks: NCCL is missing on some, or refuses these ranks.

        """
        if algorithm not in self._made:
            self._agree(unavailable())
            with _environment("NCCL_ALGO", algorithm):
                self._made[algorithm] = self._make()
        return self._made[algorithm]

    def _make(self) -> Any:
        nccl, rank, nranks = nccl_module(), self._comm.Get_rank(), self._comm.Get_size()
        identity, made, why = None, None, ""
        try:
            identity = nccl.get_unique_id() if rank == 0 else None
        except RuntimeError as error:
            why = str(error)
        self._agree(why)
        identity = self._comm.bcast(identity, 0)
        try:
            made = nccl.NcclCommunicator(nranks, identity, rank)
        except RuntimeError as error:
            why = str(error)
        self._agree(why)
        return made

    def _agree(self, why: str) -> None:
        reasons = self._comm.allgather(why)
        told = next(((rank, one) for rank, one in enumerate(reasons) if one), None)
        if told is not None:
            raise Refused(told[1] if all(reasons) else f"rank {told[0]}: {told[1]}")

    def free(self) -> None:
        """Destroy them. All ranks together."""
        for one in self._made.values():
            one.destroy()
        self._made = {}


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set a variable meanwhile, unless the value is empty."""
    before = os.environ.get(name)
    if value:
        os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before
