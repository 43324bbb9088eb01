"""Measure what algorithms on shared memory must reach, and say by how much it is reached or missed.

python -m bench.windows measures everything. Its ranks run ``python -m bench.windows point ...``: all contenders on
all memories of one point in turns, so that every figure is a paired ratio of one run, of whatever memory. (A sweep has
a point for each memory, and its ratios are to the library on the same memory.)
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.check import Checked
from bench.launch import prepare
from bench.options import MEMORIES
from bench.samples import Samples, paired
from bench.statistics import paired_ratio
from bench.targets import EIGHT, Figure
from bench.timing import Limits, sample, seconds_of

DTYPE = "float32"
WARMUP = 2
SEED = 1
COPIES = 9  # samples of the machine's copy rate
BOUNDED = ("allreduce", "allgather", "broadcast", "reduce_scatter", "alltoall")
MIB = 1 << 20


# ---------------------------------------------------------------------------------------------------------------
# One point, on all ranks


def least_nbytes(primitive: str, nranks: int, nbytes: int) -> int:
    """Return the bytes that must be read and written once on the node for a vector of `nbytes`."""
    reads_and_writes = {
        "allreduce": nranks + nranks,
        "allgather": 1 + nranks,
        "broadcast": 1 + nranks - 1,
        "reduce_scatter": nranks + 1,
        "alltoall": nranks + nranks,
        "gather": 1 + 1,
        "scatter": 1 + 1,
        "reduce": nranks + 1,
    }
    return reads_and_writes[primitive] * nbytes


def point(primitive_name: str, nbytes: int, iters: int, max_seconds: float) -> None:
    """Measure one point; rank 0 prints a JSON object: samples by "contender memory", and the copy rate."""
    from mpi4py import MPI

    from bench.job import Job
    from bench.memories import buffer_sets
    from collectives import PRIMITIVES, barrier

    job = Job(MPI.COMM_WORLD)
    primitive = PRIMITIVES[primitive_name]
    problem = primitive.problem(job.nranks, nbytes // np.dtype(DTYPE).itemsize)
    names = [name for name in primitive.algorithms if name.startswith("window")]
    wait = barrier.plan(job.comm, algorithm="dissemination")
    plans: dict[str, Any] = {}
    for memory in MEMORIES:
        if memory == "shared" and primitive_name not in ("allreduce", "allgather", "broadcast"):
            continue
        (checked,) = buffer_sets(job, problem, DTYPE, "sum", memory)
        for name in [*(("native",) if memory != "shared" else ()), *names]:
            try:
                plan = primitive.plan(job.comm, *checked.arrays, algorithm=name, count=problem.count)
            except ValueError as reason:
                if job.leads:
                    print(f"# {name} {memory}: {reason}", file=sys.stderr)
                continue
            _check(f"{name} {memory}", plan, checked, job, wait)
            plans[f"{name} {memory}"] = plan
    samples = _sampled(plans, wait, job, iters, max_seconds)
    rate = _copy_rate(job, nbytes) if nbytes >= MIB else 0.0
    if job.leads:
        told = {name: {"seconds": one.slowest.tolist(), "turns": one.turns.tolist()} for name, one in samples.items()}
        print(json.dumps({"samples": told, "copy_rate": rate}), flush=True)


COMPOSITIONS = (
    "two_level",
    "multi_leader",
    "multi_lane",
    "two_level:outer=rabenseifner",
    "multi_lane:outer=rabenseifner",
    "multi_lane:outer=spread",
)


def cluster(nbytes: int, iters: int) -> int:
    """Measure all-reduces on several nodes against the library's and against what the links carry; print figures."""
    from mpi4py import MPI

    from bench.job import Job
    from bench.memories import buffer_sets
    from collectives import PRIMITIVES, barrier

    job = Job(MPI.COMM_WORLD)
    allreduce = PRIMITIVES["allreduce"]
    problem = allreduce.problem(job.nranks, nbytes // np.dtype(DTYPE).itemsize)
    if job.nnodes == 1:
        raise RuntimeError("all ranks are on one node; run this across several, see tests/cluster/run.sh")
    (checked,) = buffer_sets(job, problem, DTYPE, "sum", "registered")
    wait = barrier.plan(job.comm, algorithm="dissemination")
    plans = {}
    for name in ("native", "ring", *COMPOSITIONS):
        plans[name] = allreduce.plan(job.comm, *checked.arrays, algorithm=name)
        _check(name, plans[name], checked, job, wait)
    taken = _sampled(plans, wait, job, iters, 120)
    rate = _stream_rate(job, job.nodes[0][0], job.nodes[1][0], checked.arrays[0])
    if not job.leads:
        return 0
    bound = 2 * (job.nnodes - 1) / job.nnodes * nbytes / rate
    seconds = {name: float(np.median(one.slowest)) for name, one in taken.items()}
    for name, median in seconds.items():
        print(f"# {name}: {median * 1e3:.1f} ms, {bound / median:.2f} of the link bound")
    best = min(COMPOSITIONS, key=lambda name: seconds[name])
    ratio = paired_ratio(*paired(taken["native"], taken[best]))
    what = f"allreduce {nbytes / MIB:g} MiB, {job.nnodes} nodes of {job.local_nranks}"
    interval = f"{best}, {ratio.low:.2f} to {ratio.high:.2f}"
    share = bound / seconds[best]
    figures = [
        Figure(what, ratio.value, 1.5, unit="x", interval=interval),
        Figure(f"{what}, share of the link bound", share, 0.75, interval=f"{best}, links at {rate * 8e-9:.3f} Gbit/s"),
    ]
    print(*figures, sep="\n", flush=True)
    return int(not all(one.reached for one in figures))


def _stream_rate(job: Any, source: int, target: int, array: np.ndarray[Any, Any]) -> float:
    """Return the bytes a second that arrive where one rank sends `array` to another over and over; others wait."""
    seconds = np.zeros(COPIES)
    for index in range(COPIES):
        job.wait_idly()
        if job.rank == source:
            job.comm.Send(array, target)
        elif job.rank == target:
            _, seconds[index] = seconds_of(lambda: job.comm.Recv(np.empty_like(array), source))
    job.most(seconds)
    return float(array.nbytes / np.median(seconds))


def _sampled(
    plans: Mapping[str, Callable[[], Any]], wait: Callable[[], Any], job: Any, iters: int, max_seconds: float
) -> dict[str, Samples]:
    """Return on rank 0 the samples of each plan; plans take turns as contenders of a sweep do."""
    limits = Limits(iters, WARMUP, max_seconds)
    return dict(zip(plans, sample([list(plans.values())], wait, job, limits, SEED), strict=False))


def _check(label: str, plan: Any, checked: Checked, job: Any, wait: Callable[[], Any]) -> None:
    """Call `plan` twice on fresh buffers; stop if anything is wrong."""
    for _ in range(2):
        checked.reset(wait)
        plan()
        wrong = int(job.total(np.array([checked.wrong()], np.int64))[0])
        if wrong:
            raise RuntimeError(f"{label}: {wrong} elements are wrong")


def _copy_rate(job: Any, nbytes: int) -> float:
    """Return bytes read and written per second when as many ranks as there are CPUs copy, the others asleep."""
    from collectives import alloc

    copiers = min(job.nranks, len(os.sched_getaffinity(0)))
    source, target = (alloc(job.comm, nbytes if job.rank < copiers else 0, np.uint8) for _ in range(2))
    source[:], target[:] = 1, 2
    seconds = np.zeros(COPIES)
    for index in range(COPIES):
        job.wait_idly()
        if job.rank < copiers:
            _, seconds[index] = seconds_of(lambda: np.copyto(target, source))
    job.most(seconds)
    return float(2 * nbytes * copiers / np.median(seconds))


# ---------------------------------------------------------------------------------------------------------------
# All points, and what must be reached


def _samples(seconds: Sequence[float], turns: Sequence[int]) -> Samples:
    """Return samples of which only the slowest rank's seconds are known."""
    return Samples(np.array([seconds]), np.zeros((1, len(seconds))), np.array(turns))


class Measured:
    """The samples of one point."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self.samples = {label: _samples(**one) for label, one in found["samples"].items()}
        self.medians = {label: float(np.median(one.slowest)) for label, one in self.samples.items()}
        self.copy_rate = found["copy_rate"]

    def best(self, memory: str) -> str:
        """Return the fastest window algorithm on `memory`."""
        labels = [label for label in self.samples if label.startswith("window") and label.endswith(f" {memory}")]
        return min(labels, key=lambda label: self.medians[label])

    def ratio(self, what: str, memory: str, against: Sequence[str], target: float) -> Figure:
        """Return how many times as fast as the best native on `against` the best window algorithm on `memory` is."""
        label = self.best(memory)
        native = min((f"native {one}" for one in against), key=lambda one: self.medians[one])
        one = paired_ratio(*paired(self.samples[native], self.samples[label]))
        milliseconds = self.medians[label] * 1e3, self.medians[native] * 1e3
        words = f"{label} {milliseconds[0]:.4g} ms, {native} {milliseconds[1]:.4g} ms, {one.low:.2f} to {one.high:.2f}"
        return Figure(f"{what}, {memory}", one.value, target, unit="x", interval=words)

    def bound(self, what: str, nbytes: int, target: float) -> Figure:
        """Return which share of the memory bound the best window algorithm on registered memory reaches."""
        label = self.best("registered")
        share = nbytes / self.copy_rate / self.medians[label]
        interval = f"{label}, copies at {self.copy_rate / 1e9:.1f} GB/s read and written"
        return Figure(f"{what}, share of the memory bound", share, target, interval=interval)


def measure(mpirun: str, nranks: int, primitive: str, nbytes: int, iters: int, **environment: str) -> Measured:
    """Run one point under mpirun."""
    command = [mpirun, "-n", str(nranks), sys.executable, "-m", "bench.windows", "point", primitive, str(nbytes)]
    command += [str(iters)]
    done = subprocess.run(
        command, check=True, env={**os.environ, **environment}, timeout=600, stdout=subprocess.PIPE, text=True
    )
    return Measured(json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{"))))


def figures(mpirun: str, mpich: bool) -> Iterator[Figure]:
    """Yield every figure."""
    for nranks, registered in ((2, 3.5), (4, 3.5), (8, 3.0)):
        for primitive in BOUNDED:
            found = measure(mpirun, nranks, primitive, 64 * MIB, 15)
            what = f"{primitive} 64 MiB, {nranks} ranks"
            if primitive == "allreduce":
                yield found.ratio(what, "registered", ["registered"], registered)
                if nranks == 8:
                    yield found.ratio(what, "plain", ["plain"], 2.2)
                    yield found.ratio(what, "shared", ["registered"], 6.0)
            yield found.bound(what, least_nbytes(primitive, nranks, 64 * MIB), 0.7)
    for level, target in (("multiple", 1.1 if mpich else 0.8), ("funneled", 0.8)):
        found = measure(mpirun, 2, "allreduce", 8, 4000, MPI4PY_RC_THREAD_LEVEL=level)
        what = f"allreduce 8 bytes, 2 ranks, thread level {level}"
        yield max(
            (found.ratio(what, memory, [memory], target) for memory in ("plain", "registered")),
            key=lambda one: one.value,
        )
    for primitive in EIGHT:
        found = measure(mpirun, 4, primitive, 16 * MIB, 25)
        target = 1.35 if primitive == "alltoall" else 1.5
        yield found.ratio(f"{primitive} 16 MiB, 4 ranks", "registered", ["plain", "registered"], target)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if every target is reached, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m bench.windows", description=(__doc__ or "").split("\n")[0])
    beside = Path(sys.executable).with_name("mpirun")
    parser.add_argument("--mpirun", default=str(beside) if beside.exists() else "mpirun", help="default: %(default)s")
    options = parser.parse_args(argv)
    version = subprocess.run([options.mpirun, "--version"], capture_output=True, text=True, check=True).stdout
    mpich = "Open MPI" not in version and "open-mpi" not in version
    print(f"# windows on {'MPICH' if mpich else 'Open MPI'}", flush=True)
    missed = 0
    for figure in figures(options.mpirun, mpich):
        missed += not figure.reached
        print(figure, flush=True)
    print(f"# {missed} missed" if missed else "# all reached")
    return 1 if missed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["point"]:
        prepare()
        point(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), max_seconds=20)
    elif sys.argv[1:2] == ["cluster"]:
        prepare()
        sys.exit(cluster(16 * MIB, 9))
    else:
        sys.exit(main())
