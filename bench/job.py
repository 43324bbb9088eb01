"""An MPI job of ours: agree, or stop. What one rank finds out all ranks know, and no path waits for ever."""

from __future__ import annotations

import faulthandler
import os
import platform
import sys
import traceback
from collections.abc import Callable, Sequence
from time import sleep
from typing import Any, NoReturn, TypeVar

import numpy as np
from mpi4py import MPI

from bench.usage import UsageError
from collectives.problem import Nodes

Result = TypeVar("Result")

THREAD_LEVELS = {
    MPI.THREAD_SINGLE: "single",
    MPI.THREAD_FUNNELED: "funneled",
    MPI.THREAD_SERIALIZED: "serialized",
    MPI.THREAD_MULTIPLE: "multiple",
}


TOLD_SECONDS = 0.5
"""How long a failed rank waits for the launcher to pass its last words on; an abort at once can swallow them."""


class Job:
    """The ranks of one communicator and how they come to agree. All methods are called by all ranks."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.rank, self.nranks = comm.Get_rank(), comm.Get_size()
        node = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank, self.local_nranks = node.Get_rank(), node.Get_size()
        self.with_leader = node.bcast(self.rank, 0) == 0  # whether this rank is on rank 0's node
        self._local_pids = node.allgather(os.getpid())
        here = tuple(node.allgather(self.rank))
        self.nodes: Nodes = tuple(sorted(set(comm.allgather(here))))
        node.Free()
        self.missing: list[int] = []
        self.nnodes = len(self.nodes)

    @property
    def leads(self) -> bool:
        """Whether this is the rank that decides, prints and writes."""
        return self.rank == 0

    def total(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the sum of `values` over ranks."""
        self.comm.Allreduce(MPI.IN_PLACE, values, MPI.SUM)
        return values

    def most(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the maximum of `values` over ranks."""
        self.comm.Allreduce(MPI.IN_PLACE, values, MPI.MAX)
        return values

    def gather(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
        """Return the values of all ranks, stacked, on rank 0; None elsewhere."""
        stacked = np.empty((self.nranks, *values.shape), values.dtype) if self.leads else None
        self.comm.Gather(np.ascontiguousarray(values), stacked, 0)
        return stacked

    def follow(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return rank 0's values; those of the others have the same shape."""
        values = np.ascontiguousarray(values)
        self.comm.Bcast(values, 0)
        return values

    def decide(self, choice: bool) -> bool:
        """Return rank 0's choice."""
        flag = np.array([choice], np.uint8)
        self.comm.Bcast(flag, 0)
        return bool(flag[0])

    def reason(self, reason: str) -> str:
        """Return on all ranks the reason of the first rank that has one, with that rank; an empty text if none has."""
        if not self.total(np.array([bool(reason)], np.int64))[0]:
            return ""
        rank, first = next((rank, one) for rank, one in enumerate(self.comm.allgather(reason)) if one)
        return f"rank {rank}: {first}"

    def on_leader(self, action: Callable[[], Result]) -> Result:
        """Carry out `action` on rank 0 and return its result, or raise its UsageError, on all ranks."""
        outcome: Any = None
        if self.leads:
            try:
                outcome = action()
            except UsageError as error:
                outcome = error
        outcome = self.comm.bcast(outcome, 0)
        if isinstance(outcome, UsageError):
            raise outcome
        return outcome

    def agree(self, fingerprint: int, what: str) -> None:
        """Raise RuntimeError on all ranks, naming the odd ones, unless all have the same fingerprint.

        While rank 0 waits for others, `missing` names them, for a guard to tell.
        """
        all_of_them = np.full(self.nranks, fingerprint, np.uint64)
        if self.leads:
            self.missing = list(range(1, self.nranks))
            # By name, not from any source: MPICH 5.0 was seen not to match such a receive where peers are on two hosts.
            requests = [self.comm.Irecv(all_of_them[peer : peer + 1], peer) for peer in self.missing]
            while self.missing:
                self.missing.remove(MPI.Request.Waitany(requests) + 1)
        else:
            self.comm.Send(all_of_them[:1], 0)
        self.comm.Bcast(all_of_them, 0)
        values, counts = np.unique(all_of_them, return_counts=True)
        if len(values) > 1:
            odd = np.flatnonzero(all_of_them != values[counts.argmax()])
            raise RuntimeError(f"ranks {odd.tolist()} are about to measure something else than the others: {what}")

    def findings(self, look: Callable[[Sequence[int]], Result]) -> dict[str, Result]:
        """Let one rank of each host look, given the processes of this job there; return on rank 0 what each found."""
        found = (platform.node(), look(self._local_pids)) if self.local_rank == 0 else None
        return dict(filter(None, self.comm.gather(found, 0) or []))

    def wait_idly(self) -> None:
        """Wait for all ranks without using a CPU, while rank 0 does something long."""
        request = self.comm.Ibarrier()
        while not request.Test():
            sleep(0.02)


def run(main: Callable[[], int]) -> NoReturn:
    """Run `main` as the whole job: its result is the exit status, a usage error ends all ranks alike with status 2,
    and any other exception on any rank ends the whole job at once, with that rank's traceback.
    """
    faulthandler.enable()
    try:
        status = main()
    except SystemExit:
        raise
    except UsageError as error:
        # Every rank raises the same one, so all leave by themselves.
        if MPI.COMM_WORLD.Get_rank() == 0:
            print(f"{_program()}: {error}", file=sys.stderr, flush=True)
        status = 2
    except BaseException as error:
        rank = MPI.COMM_WORLD.Get_rank()
        lines = traceback.format_exc()
        print(f"{_program()}: rank {rank} failed, the job ends\n{lines}", file=sys.stderr, end="", flush=True)
        sleep(TOLD_SECONDS)
        MPI.COMM_WORLD.Abort(130 if isinstance(error, KeyboardInterrupt) else 1)
        raise
    sys.exit(status)


def _program() -> str:
    arguments: Sequence[str] = sys.orig_argv
    return arguments[arguments.index("-m") + 1] if "-m" in arguments[:-1] else "collbench"
