"""Measure one point: make contenders ready, check them, sample them in turns, check again, write their rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from bench import gpus, machine, summary
from bench.ceilings import copy_seconds
from bench.check import Buffers, Checked, on_gpu, ordinary
from bench.clocks import Clocks
from bench.contenders import LARGE_NBYTES, OUT_OF_MEMORY, Contender, agree, greedy, make_ready, nodes_seen
from bench.groups import Group
from bench.guard import Guard
from bench.guess import distance, guess
from bench.idle import Idle
from bench.job import THREAD_LEVELS, Job
from bench.launch import Launch
from bench.library import told
from bench.load import Load
from bench.memories import buffer_sets
from bench.options import Options
from bench.points import Point, fingerprint
from bench.rows import Row, is_forced
from bench.samples import Samples
from bench.start import Deadline
from bench.timing import Limits, sample, seconds_of
from bench.ways import Ways
from collectives import Arena, barrier, devices, release
from collectives.ipc import Unreachable
from collectives.names import NATIVE
from collectives.operations import dtype_of
from collectives.shared import SharedMemoryError

MEMORY_SHARE = 0.8
"""How much of the memory that is free a point may take."""


class Measuring:
    """What stays the same from point to point. Rank 0 has the samples, and makes the rows."""

    def __init__(
        self,
        job: Job,
        launch: Launch,
        options: Options,
        run: str,
        seed: int,
        gpu: gpus.Gpu | None = None,
        ways: Ways | None = None,
    ) -> None:
        from mpi4py import MPI

        self.job, self.options, self.seed, self.gpu = job, options, seed, gpu
        self._shuffles = count(seed)  # an order of its own for each point, so that what it favours is not the same
        self.ways = ways or Ways(options.transport, gpu is not None)
        self.guard = Guard(job.rank, options.hang_seconds)
        self.guard.note = self._missing
        self.guard.at("starting")
        self.barrier = barrier.plan(job.comm, algorithm="dissemination")
        self.clocks = Clocks(job.comm)
        self.start = Deadline(job.comm, self.barrier, self.clocks) if options.sync == "deadline" else self.barrier
        self.load = Load(job)
        self.limits = Limits(options.iters, options.warmup, options.max_seconds, options.precision, options.cadence)
        self.nodes = nodes_seen(options, job.nodes, job.nranks)
        self.settings = {
            "run": run,
            "nnodes": job.nnodes,
            "ppn": max(map(len, self.nodes)),
            "thread_level": THREAD_LEVELS[MPI.Query_thread()],
            "oversubscribed": launch.oversubscribed,
            "cadence": options.cadence,
            "sync": options.sync,
            "rotate": options.rotate,
        }
        self.shares_gpu = False
        if gpu is not None:
            most = int(job.most(np.array([gpu.ranks]))[0])
            self.shares_gpu = most > 1
            self.settings |= {"device": "cuda", "ranks_per_gpu": most}
        self.among(Group.whole(job.comm))
        self.peak_nbytes = 0  # the most memory that this rank was seen to have at a point
        self.empty_seconds = 0.0  # what an empty call takes in the same loop
        self._free_nbytes = machine.memory("MemAvailable")
        self._caches, self._governed = machine.cache_levels(), machine.governed()

    def among(self, group: Group) -> None:
        """From now on measure the calls of this group, beside as many others as it says."""
        self.group = group
        self.settings |= {"nranks": group.nranks, "ngroups": group.ngroups, "stride": group.stride}

    def free(self) -> None:
        """Give back what MPI holds, and end the guard's watch."""
        self.guard.rest()
        self.barrier.free()
        self.clocks.free()

    def rows(
        self,
        point: Point,
        names: Sequence[str],
        done: Collection[str] = (),
        keep: Callable[[Point, Mapping[str, Samples]], None] | None = None,
    ) -> list[Row]:
        """Return on rank 0 the rows of the contenders at `point`, without those that are `done`.

        `keep` gets the samples behind them.

        The baseline is measured in any case. Buffers and plans are gone when it returns.
        """
        names = [name for name in names if name not in done or name == NATIVE]
        if set(names) <= set(done):
            return []
        self.guard.at(str(point))
        self.job.agree(fingerprint(point, names), str(point))
        reason = point.unmet(self.group.nranks) or self.no_room(point.nbytes)
        made = self._skipped(point, names, reason) if reason else self._measured(point, names, keep or _forget)
        self.give_back(point.nbytes >= LARGE_NBYTES)
        return [row for row in made if (row.requested or row.algorithm) not in done]

    def give_back(self, everything: bool = False) -> None:
        """Give back what of the GPU's memory is not used, which other ranks on it may need; or of all memory."""
        if self.gpu is not None:
            gpus.release()
        if everything:
            if self.group.taking_part:
                release(self.group.comm)
            machine.give_back()

    def _skipped(self, point: Point, names: Sequence[str], reason: str) -> list[Row]:
        return self._rows(point, [Contender(name, reason=reason) for name in names])

    def _way(self, point: Point, name: str) -> tuple[str, str]:
        """Return how a contender moves data at `point`, and why it is skipped; an empty text if it is not."""
        return self.ways.of(point.problem(self.group.nranks), name, point.nbytes)

    def _of_other_transports(self, point: Point, names: Sequence[str]) -> list[Contender]:
        """Return, as skipped, the contenders that do not, or cannot, move data in the way that was asked for."""
        refusals = {name: self._way(point, name)[1] for name in names}
        return [Contender(name, reason=reason) for name, reason in refusals.items() if reason]

    def _greedy(self, point: Point, names: Sequence[str]) -> list[Contender]:
        """Return, as skipped, the contenders that want too much memory for what nobody asked for by name."""
        if self.options.algorithms:
            return []
        problem, itemsize = point.problem(self.group.nranks), dtype_of(point.dtype).itemsize
        reasons = {name: greedy(problem, name, itemsize) for name in names}
        return [Contender(name, reason=reason) for name, reason in reasons.items() if reason]

    def _measured(self, point: Point, names: Sequence[str], keep: Any) -> list[Row]:
        others = [*self._of_other_transports(point, names), *self._greedy(point, names)]
        names = [name for name in names if name not in {one.label for one in others}]
        if not names:
            return self._rows(point, others)
        lacking = ""
        try:
            sets, contenders = self._made_ready(point, names)
        except (SharedMemoryError, Unreachable) as reason:  # which all ranks find out together
            lacking = str(reason)
        if lacking:  # and nothing holds any more what was made before
            self.give_back(everything=True)
            return self._skipped(point, [*names, *(one.label for one in others)], lacking)
        try:
            ready = [one for one in contenders if one.plans]
            for one in contenders if self.group.taking_part else ():
                self.guard.alive()
                one.told = told(one.label, one.plans)
            costs = self._costs(ready, sets)
            floor = self._floor_seconds(point, sets)
            self.first_calls(ready, sets)
            right = [one for one in ready if not one.wrong]
            for checked in sets:
                checked.randomise(self.seed + self.job.rank)
            self.clocks.look()
            self.load.look()
            names = [one.label for one in right]
            samples = dict(zip(names, self.sample(right, point.primitive.legs), strict=False))
            load = self.load.look()
            self.check(right, sets)
            self._guess(point, right, samples)
            self.peak_nbytes = max(self.peak_nbytes, machine.resident_nbytes())
        finally:
            for contender in contenders:
                contender.free()
        for one in ready:
            costs[one.label]["first_call_us"] = one.first_seconds * 1e6 / point.primitive.legs
        keep(point, samples)
        return self._rows(point, [*contenders, *others], samples, costs, load, floor)

    def _made_ready(self, point: Point, names: Sequence[str]) -> tuple[list[Any], list[Contender]]:
        """Return the sets of buffers and the contenders on them; of a rank without a part, those that do nothing."""
        group = self.group
        if not group.taking_part:
            idle = [Idle(point.dtype) for _ in range(self.options.rotate)]
            contenders = [Contender(name, list(idle)) for name in names]
            agree(self.job.comm, contenders)
            return idle, contenders
        sets = self._buffer_sets(point)
        start = group.comm.Barrier if group.words else self.barrier
        anywhere = str if group.words else self.job.reason
        ways = {name: self._way(point, name)[0] for name in names}
        ppn = self.options.ppn
        contenders = make_ready(names, group.comm, sets, Arena(), start, ppn, anywhere, ways.__getitem__)
        if group.words:
            agree(self.job.comm, contenders)
        return sets, contenders

    def against_itself(self, point: Point, names: Sequence[str]) -> list[tuple[str, str, Samples, Samples]]:
        """Measure each contender at `point` twice; return on rank 0 point, name and the samples of both."""
        self.guard.at(str(point))
        if point.unmet(self.job.nranks) or self.no_room(point.nbytes):
            return []
        sets = self._buffer_sets(point)
        twice = [name for name in names for _ in "AB"]
        contenders = make_ready(twice, self.job.comm, sets, Arena(), self.barrier, self.options.ppn)
        try:
            ready = [one for one in contenders if one.plans]
            self.first_calls(ready, sets)
            taken = self.sample(ready, point.primitive.legs)
        finally:
            for contender in contenders:
                contender.free()
        pairs = zip(ready[::2], taken[::2], taken[1::2], strict=False)
        return [(str(point), one.label, first, second) for one, first, second in pairs]

    def sample(self, contenders: Sequence[Contender], legs: int = 1, max_seconds: float | None = None) -> list[Samples]:
        """Return the samples of each contender, on rank 0, of one of the `legs` of a call; turns walk through plans.

        max_seconds: of sampling, where it is not as the options say.
        """
        if not contenders:
            return []
        calls = [list(plans) for plans in zip(*(one.plans for one in contenders), strict=True)]
        firsts = [one.first_seconds for one in contenders]
        limits = self.limits if max_seconds is None else replace(self.limits, max_seconds=max_seconds)
        taken = sample(
            calls,
            self.start if self.gpu is None else self._start_with_idle_gpu,
            self.job,
            limits,
            next(self._shuffles),
            firsts,
            shared=self.clocks.relation.shared,
            alive=self.guard.alive,
            armed=[one.armed() for one in contenders],
            relax=self.start.relax if isinstance(self.start, Deadline) else _content,
        )
        return [one.scaled(1 / legs) for one in taken]

    def _guess(self, point: Point, contenders: Sequence[Contender], samples: Mapping[str, Samples]) -> None:
        """Let the row of the library's default say which of the library's own algorithms it most likely is."""
        rivals = [one for one in contenders if is_forced(one.label)]
        native = [one for one in contenders if one.label == NATIVE]
        if len(rivals) < 2 or not native:  # of one alone nothing can be told
            return
        distances = np.full(len(rivals), np.inf)
        if self.job.leads:
            for place, one in enumerate(rivals):
                distances[place] = distance(samples.get(NATIVE), samples.get(one.label))
        order = np.argsort(self.job.follow(distances), kind="stable")
        self.guard.alive()
        if self.group.taking_part:
            native[0].told = guess(
                self.group.comm, point, [rivals[place].plans[0].innermost.running for place in order]
            )

    def _buffer_sets(self, point: Point) -> list[Checked]:
        group, problem = self.group, point.problem(self.group.nranks)
        nsets, on_device = self.options.rotate, self.gpu is not None
        if group.words:
            empty = on_gpu if on_device else ordinary
            return [Checked(problem, group.rank, point.dtype, point.op, empty, empty) for _ in range(nsets)]
        sets, lacking = [], ""
        try:
            sets = buffer_sets(self.job, problem, point.dtype, point.op, point.memory, nsets, on_device)
        except SharedMemoryError:
            raise  # on all ranks
        except MemoryError as error:
            lacking = f"{OUT_OF_MEMORY}: {error}"
        reason = self.job.reason(lacking)
        if reason:
            raise SharedMemoryError(reason)
        return sets

    def _floor_seconds(self, point: Point, sets: Sequence[Checked]) -> float:
        """Return how long a call takes at least on a GPU: as long as a copy of half its result, which moves as much
        memory as a call that only writes it; 0 where that tells nothing.

        Ranks take turns, since they may share a GPU. A result that all ranks of a node have in common is written in
        parts.
        """
        if self.gpu is None or point.nbytes < LARGE_NBYTES or point.memory == "shared":
            return 0.0
        result = next((one.recv.array for one in sets if isinstance(one, Checked) and one.recv is not None), None)
        seconds = np.zeros(1)
        for turn in range(int(self.job.most(np.array([self.job.local_nranks]))[0])):
            self.barrier()
            if turn == self.job.local_rank and result is not None and result.size > 1:
                half = result.size // 2
                seconds[0] = copy_seconds(result[:half], result[half : 2 * half])
        return float(self.job.most(seconds)[0])

    def _start_with_idle_gpu(self) -> Any:
        """Begin a sample when this rank's GPU has nothing to do. A call ends when what it put into queues is done."""
        devices.synchronise()
        return self.start()

    def no_room(self, nbytes: int) -> str | None:
        """Return why a vector of `nbytes` does not fit where buffers lie, or None. All ranks together."""
        if self.gpu is not None:
            reason = self.job.reason(gpus.too_large(self.gpu, nbytes, self.options.rotate) or "")
            if reason:
                return reason
        return self.too_large(nbytes)

    def too_large(self, nbytes: int) -> str | None:
        """Return why a vector of `nbytes` does not fit in memory, as rank 0 sees it, or None.

        A rank holds send and receive buffers, the input and the expected result to compare with, and scratch.
        """
        needed = (4 + 2 * self.options.rotate) * nbytes * self.job.local_nranks
        limit = self.options.memory_limit or (None if self._free_nbytes is None else MEMORY_SHARE * self._free_nbytes)
        if self.job.decide(limit is None or needed <= limit):
            return None
        return f"needs {needed / 2**20:.0f} MiB on a node, of which {(limit or 0) / 2**20:.0f} MiB may be used"

    def first_calls(self, contenders: Sequence[Contender], sets: Sequence[Buffers]) -> None:
        """Call each contender for the first time, on checked buffers, and note how long that took."""
        firsts = np.zeros(len(contenders))
        self.check(contenders, sets, firsts)
        for contender, seconds in zip(contenders, self.job.most(firsts), strict=True):
            contender.first_seconds = float(seconds)

    def check(
        self, contenders: Sequence[Contender], sets: Sequence[Buffers], firsts: np.ndarray[Any, Any] | None = None
    ) -> None:
        """Call each contender once on each set, as if for the first time, and count wrong elements over all ranks.

        `firsts` gets the seconds of each contender's call on the first set. Without --check that is all that is done.
        """
        if not self.options.check and firsts is None:
            return
        wrong = np.zeros(len(contenders), np.int64)
        for index, contender in enumerate(contenders):
            self.guard.alive()
            for place, checked in enumerate(sets):
                checked.reset(self.barrier)
                with contender.armed():
                    self.barrier()
                    _, seconds = seconds_of(contender.plans[place])
                if firsts is not None and place == 0:
                    firsts[index] = seconds
                if self.options.check:
                    wrong[index] += checked.wrong()
        if self.options.check:
            for contender, count in zip(contenders, self.job.total(wrong), strict=True):
                contender.wrong = (contender.wrong or 0) + int(count)

    def _costs(self, contenders: Sequence[Contender], sets: Sequence[Checked]) -> dict[str, dict[str, Any]]:
        """Return what each contender costs the rank that pays most: time to plan, messages, bytes sent, memory.

        And the bytes that leave the node that sends most to others.
        """
        buffers = sum(one.footprint_nbytes for one in sets)
        table = np.zeros((len(contenders), 6))
        for figures, one in zip(table, contenders, strict=True):
            plan = one.plans[0]
            if plan.layout is not None:
                figures[1:4] = plan.layout.nrounds, plan.layout.nmessages, plan.layout.sent_count * plan.unit_nbytes
            figures[0], figures[4], figures[5] = (
                one.plan_seconds * 1e6,
                plan.scratch_nbytes,
                buffers + plan.scratch_nbytes,
            )
        between = self._between(contenders)
        costs: dict[str, dict[str, Any]] = {}
        for one, (plan_us, rounds, messages, sent, scratch, footprint) in zip(
            contenders, self.job.most(table), strict=True
        ):
            cache = ""  # a GPU's are another matter
            if self.gpu is None:
                cache = machine.cache_of(int(footprint), self.job.local_nranks, self._caches, machine.ncpus())
            costs[one.label] = {"plan_us": float(plan_us), "footprint_nbytes": int(footprint), "cache": cache}
            if one.plans[0].layout is not None:
                costs[one.label] |= {
                    "rounds": int(rounds),
                    "messages_max": int(messages),
                    "sent_nbytes_max": int(sent),
                    "scratch_nbytes": int(scratch),
                    "between_nbytes_max": between[one.label],
                }
        return costs

    def _between(self, contenders: Sequence[Contender]) -> dict[str, int]:
        """Return the bytes that the node which sends most to others sends there, by contender."""
        here = next(number for number, node in enumerate(self.nodes) if self.job.rank in node)
        table = np.zeros((len(contenders), len(self.nodes)), np.int64)
        for figures, one in zip(table, contenders, strict=True):
            plan = one.plans[0]
            if plan.layout is not None:
                figures[here] = plan.layout.sent_count_beyond(self.nodes[here]) * plan.unit_nbytes
        most = self.job.total(table).max(axis=1)
        return {one.label: int(nbytes) for one, nbytes in zip(contenders, most, strict=True)}

    def _rows(
        self,
        point: Point,
        contenders: Sequence[Contender],
        samples: dict[str, Samples] | None = None,
        costs: dict[str, dict[str, Any]] | None = None,
        load: float | None = None,
        floor: float = 0.0,
    ) -> list[Row]:
        if not self.job.leads:
            return []
        circumstances = {
            "empty": self.empty_seconds,
            "load": load,
            "oversubscribed": self.settings["oversubscribed"],
            "governed": self._governed,
            "shared_gpu": self.shares_gpu,
            "floor": floor,
        }
        known = costs or {}
        ways = {one.label: self._way(point, one.label)[0] for one in contenders}
        costs = {label: {**known.get(label, {}), "transport": way} for label, way in ways.items()}
        settings = self.settings if load is None else {**self.settings, "other_load": load}
        return summary.rows(point, contenders, samples or {}, costs, settings, circumstances, self.seed)

    def _missing(self) -> str:
        missing = self.job.missing
        return f"rank {', '.join(map(str, missing))} has not come to it" if missing else ""


def _content(late: float) -> None:
    pass


def _forget(point: Point, samples: Mapping[str, Samples]) -> None:
    pass
