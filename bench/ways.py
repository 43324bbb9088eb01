"""How contenders move data between GPUs: what was asked for, and what was seen to work."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from bench import direct
from bench.contenders import ALL
from bench.direct import Evidence
from bench.gpus import Gpu
from bench.job import Job
from bench.launch import find_mpirun, outside
from bench.options import Options
from bench.probes import NCCL_SECONDS, probe
from bench.rows import is_nccl
from collectives.communicators import ALLOW_SHARING, unavailable
from collectives.names import NATIVE
from collectives.problem import Problem
from collectives.registry import find


class Ways:
    """How each contender moves data, with buffers on GPUs or not.

    `wanted` is one of `options.TRANSPORTS`. `nccl_refusal` says why NCCL is not to be tried, where it is not, and
    `unreachable` why GPUs cannot open one another's memory; an empty text if they can, None where it was not tried.
    """

    def __init__(
        self,
        wanted: str = "auto",
        on_gpu: bool = False,
        evidence: Evidence | None = None,
        nccl_refusal: str = "",
        unreachable: str | None = None,
    ) -> None:
        self.wanted, self.on_gpu, self.evidence, self.nccl_refusal = wanted, on_gpu, evidence, nccl_refusal
        self.unreachable = unreachable

    def of(self, problem: Problem, label: str, nbytes: int) -> tuple[str, str]:
        """Return how a contender moves data, and why it is skipped; an empty text if it is not."""
        primitive = problem.primitive
        if _shares_memory(problem, label):
            on_host = self.on_gpu and not primitive.synchronises and (self.wanted == "staged" or self._falls_back)
            return ("staged", "") if on_host else ("window", self.unreachable or self._unwanted("window"))
        if not self.on_gpu or primitive.synchronises:
            return "message", ""
        if is_nccl(label):
            return "nccl", self.without_nccl
        if self.wanted in ("auto", "direct") and self.evidence is not None:
            refusal = self.evidence.refusal(primitive.name, label, nbytes)
            if self.wanted == "direct" or not refusal:
                return "direct", refusal
        # The baseline has no other way than this, so it is measured whatever was asked for.
        return "staged", "" if label == NATIVE else self._unwanted("staged")

    @property
    def _falls_back(self) -> bool:
        """Whether what GPUs of a node share goes through the host, as they cannot open one another's memory."""
        return self.wanted == "auto" and bool(self.unreachable)

    @property
    def without_nccl(self) -> str:
        """Why NCCL does not take part; an empty text if it does."""
        return self.nccl_refusal or self._unwanted("nccl")

    def _unwanted(self, way: str) -> str:
        return "" if self.wanted in ("auto", way) else f"its transport is {way}"

    def facts(self) -> dict[str, Any]:
        """Return what was found out, for run.json."""
        found: dict[str, Any] = {} if self.evidence is None else {"gpu_memory_for_mpi": self.evidence.facts()}
        if self.unreachable is not None:
            found["gpu_memory_for_peers"] = self.unreachable or "opened"
        return found | ({"nccl": self.nccl_refusal or "allowed"} if self.on_gpu else {})


def find_ways(job: Job, options: Options, gpu: Gpu | None, contenders: Mapping[str, Sequence[str]]) -> Ways:
    """Return how the contenders of each primitive move data, after trying what must be tried. All ranks together.

    Rank 0 tries in child processes, while the others wait without using a CPU.
    """
    if gpu is None:
        return Ways()
    evidence, refusal = None, ""
    if job.leads and options.transport in ("auto", "direct"):
        evidence = _evidence(contenders)
    shared = job.nranks > 1 and bool(job.comm.allreduce(int(gpu.ranks > 1)))
    asked = _replays_nccl(options) or any(is_nccl(name) for names in contenders.values() for name in names)
    if job.leads and asked and shared and options.transport == "auto":
        refusal = unavailable() or _try_sharing(job.local_nranks)
    job.wait_idly()
    evidence, refusal = job.comm.bcast((evidence, refusal), 0)
    if asked and shared and not refusal:
        os.environ.setdefault(*ALLOW_SHARING)  # before NCCL first looks
    unreachable = None
    if options.transport in ("auto", "window") and any(
        _shares_memory(find(primitive).problem(2, 2), name) for primitive, names in contenders.items() for name in names
    ):
        unreachable = _unreachable(job)
    return Ways(options.transport, True, evidence, refusal, unreachable)


def _shares_memory(problem: Problem, label: str) -> bool:
    algorithm = problem.primitive.algorithms.get(label.partition(":")[0])
    return algorithm is not None and algorithm.shares_memory(problem)


def _unreachable(job: Job) -> str:
    """Return on all ranks why one cannot open the memory of another's GPU, an empty text if all can."""
    from collectives import release
    from collectives.attached import attached_to
    from collectives.shared import SharedMemoryError

    try:
        why = job.reason(attached_to(job.comm).gpu.unreachable())
    except SharedMemoryError as reason:  # on all ranks
        why = str(reason)
    release(job.comm)  # what it was tried with
    return why


def _replays_nccl(options: Options) -> bool:
    """Whether NCCL is to take part in training steps, as it does unless algorithms are named."""
    if options.strategies is None:
        return False
    named = options.strategies.algorithms or options.algorithms
    return not named or any(is_nccl(one) or one == ALL for one in named)


def _evidence(contenders: Mapping[str, Sequence[str]]) -> Evidence:
    wanted = {
        primitive: [
            name for name in names if not _shares_memory(find(primitive).problem(2, 2), name) and not is_nccl(name)
        ]
        for primitive, names in contenders.items()
        if not find(primitive).synchronises
    }
    said = direct.compiled_for_cuda(), direct.says_it_takes_it()
    return direct.look(direct.cases(wanted), direct.attempt, *said)


def _try_sharing(nranks: int) -> str:
    """Return why NCCL is not to be used where ranks share GPUs, an empty text if it was seen to work."""
    mpirun = find_mpirun()
    if mpirun is None:
        return "ranks share a GPU, and there is no mpirun to try NCCL with"
    name, value = ALLOW_SHARING
    why = probe(mpirun, "nccl", nranks=nranks, limit=NCCL_SECONDS, environ={name: value, **outside(os.environ)})
    return f"ranks share a GPU, and NCCL {why}" if why else ""
