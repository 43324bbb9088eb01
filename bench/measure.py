"""Measure one point: make contenders ready, check them, sample them in turns, check again, write their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.check import Checked
from bench.contenders import NATIVE, Contender, make_ready
from bench.job import THREAD_LEVELS, Job
from bench.launch import Launch
from bench.machine import memory
from bench.options import Options
from bench.points import Point, fingerprint
from bench.rows import Row, algbw_GBps, busbw_GBps
from bench.statistics import paired_ratio, summarise
from bench.timing import Limits, sample
from collectives import Arena, barrier

MEMORY_SHARE = 0.8
"""How much of the memory that is free a point may take."""


class Measuring:
    """What stays the same from point to point."""

    def __init__(self, job: Job, launch: Launch, options: Options, run: str, seed: int) -> None:
        from mpi4py import MPI

        self.job, self.launch, self.options, self.run, self.seed = job, launch, options, run, seed
        self.thread_level = THREAD_LEVELS[MPI.Query_thread()]
        self.barrier = barrier.plan(job.comm, algorithm="dissemination")
        self.free_nbytes = memory("MemAvailable")

    def free(self) -> None:
        """Give back what MPI holds."""
        self.barrier.free()

    def rows(self, point: Point, names: Sequence[str]) -> list[Row]:
        """Return the rows of all contenders at `point`. Buffers and plans are gone when it returns."""
        self.job.agree(fingerprint(point, names), str(point))
        problem = point.problem(self.job.nranks)
        reason = problem.primitive.unmet(problem) or self._too_large(point)
        if reason:
            return [self._row(point, Contender(name, reason=reason)) for name in names]
        checked = Checked(problem, self.job.rank, point.dtype, point.op)
        contenders = make_ready(names, self.job.comm, checked, Arena())
        try:
            return self._measured(point, checked, contenders)
        finally:
            for contender in contenders:
                if contender.plan is not None:
                    contender.plan.free()

    def _measured(self, point: Point, checked: Checked, contenders: list[Contender]) -> list[Row]:
        ready = [one for one in contenders if one.plan is not None]
        costs = self._costs(ready, checked)
        self._check(ready, checked)
        right = [one for one in ready if not one.wrong]
        limits = Limits(self.options.iters, self.options.warmup, self.options.max_seconds)
        durations = sample([one.plan for one in right], self.barrier, self.job, limits, self.seed)
        durations /= point.primitive.legs
        self._check(right, checked)
        seconds = {id(one): mine for one, mine in zip(right, durations, strict=True)}
        native = next((seconds[id(one)] for one in right if one.label == NATIVE and not one.wrong), None)
        return [self._row(point, one, seconds.get(id(one)), native, costs.get(id(one), {})) for one in contenders]

    def _too_large(self, point: Point) -> str | None:
        """Return why the point does not fit in memory, as rank 0 sees it, or None.

        A rank holds a send and a receive buffer, the input and the expected result to compare with, and scratch.
        """
        needed = 6 * point.nbytes * self.job.local_nranks
        limit = self.options.memory_limit or (None if self.free_nbytes is None else MEMORY_SHARE * self.free_nbytes)
        if self.job.decide(limit is None or needed <= limit):
            return None
        return f"needs {needed / 2**20:.0f} MiB on a node, of which {(limit or 0) / 2**20:.0f} MiB may be used"

    def _check(self, contenders: Sequence[Contender], checked: Checked) -> None:
        """Call each contender once on fresh buffers and count wrong elements over all ranks."""
        if not self.options.check:
            return
        wrong = np.zeros(len(contenders), np.int64)
        for index, contender in enumerate(contenders):
            checked.reset()
            self.barrier()
            contender.plan()
            wrong[index] = checked.wrong()
        for contender, count in zip(contenders, self.job.total(wrong), strict=True):
            contender.wrong = (contender.wrong or 0) + int(count)

    def _costs(self, contenders: Sequence[Contender], checked: Checked) -> dict[int, dict[str, Any]]:
        """Return what each plan costs the rank that pays most: time to make it, messages, bytes sent, scratch."""
        itemsize = np.dtype(checked.dtype).itemsize
        table = np.zeros((len(contenders), 5))
        for figures, one in zip(table, contenders, strict=True):
            layout = one.plan.layout
            if layout is not None:
                figures[1:4] = layout.nrounds, layout.nmessages, layout.sent_count * itemsize
            figures[0], figures[4] = one.plan_seconds * 1e6, one.plan.scratch_nbytes
        costs = {}
        for one, (plan_us, rounds, messages, sent, scratch) in zip(contenders, self.job.most(table), strict=True):
            costs[id(one)] = {"plan_us": float(plan_us)}
            if one.plan.layout is not None:
                costs[id(one)] |= {
                    "rounds": int(rounds),
                    "messages_max": int(messages),
                    "sent_nbytes_max": int(sent),
                    "scratch_nbytes": int(scratch),
                }
        return costs

    def _row(
        self,
        point: Point,
        contender: Contender,
        seconds: np.ndarray[Any, Any] | None = None,
        native: np.ndarray[Any, Any] | None = None,
        costs: dict[str, Any] | None = None,
    ) -> Row:
        primitive, nranks = point.primitive, self.job.nranks
        status, reason = ("skipped", contender.reason) if contender.reason else ("ok", "")
        if contender.wrong:
            status, reason = "wrong", f"{contender.wrong} elements differ from what they must be"
        figures: dict[str, Any] = dict(costs or {})
        if seconds is not None:
            one = summarise(seconds * 1e6)
            figures |= {f"time_us_{name}": value for name, value in one._asdict().items()} | {
                "iters": len(seconds),
                "algbw_GBps": algbw_GBps(point.nbytes, one.p50),
                "busbw_GBps": busbw_GBps(point.nbytes, one.p50, primitive.busbw_factor(nranks), nranks),
            }
            if native is not None:
                ratio = paired_ratio(native, seconds, self.seed)
                figures |= {
                    "baseline": NATIVE,
                    "native_ratio": ratio.value,
                    "native_ratio_low": ratio.low,
                    "native_ratio_high": ratio.high,
                }
        blocks = not primitive.vector and not primitive.name.startswith("sendrecv")
        return Row(
            run=self.run,
            primitive=primitive.name,
            algorithm=contender.label,
            nranks=nranks,
            nnodes=self.job.nnodes,
            dtype="" if primitive.synchronises else point.dtype,
            op=point.op if primitive.combines else "",
            root=point.root if primitive.rooted else None,
            count=point.count,
            nbytes=point.nbytes,
            block_nbytes=-(-point.count // nranks) * (point.nbytes // max(1, point.count)) if blocks else point.nbytes,
            thread_level=self.thread_level,
            oversubscribed=self.launch.oversubscribed,
            wrong=contender.wrong,
            status=status,
            reason=reason,
            **figures,
        )
