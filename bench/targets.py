"""Measure what this project must reach, and say by how much it is reached or missed.

python -m bench.targets core|catalogue

Each target is a sweep of its own, so a figure is measured exactly as a user would measure it: paired ratios of
contenders that took turns in one run. Times of the machine as such (proofs, layouts, plans) are medians.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median
from types import MappingProxyType
from typing import Any

from bench.rows import ROWS_FILE, is_handwritten, read_rows, read_run
from bench.timing import seconds_of

EIGHT = ("broadcast", "scatter", "gather", "reduce", "allgather", "allreduce", "reduce_scatter", "alltoall")

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Figure:
    """One figure that was measured: what, its value, what it must be, and whether it is."""

    what: str
    value: float
    target: float
    at_least: bool = True
    unit: str = ""
    interval: str = ""

    @property
    def reached(self) -> bool:
        """Whether the target is reached."""
        return self.value >= self.target if self.at_least else self.value <= self.target

    def __str__(self) -> str:
        verdict = "reached" if self.reached else "MISSED "
        sign = ">=" if self.at_least else "<="
        return f"{verdict} {self.value:8.2f}{self.unit} {sign} {self.target:g}{self.unit}  {self.what}  {self.interval}"


class Sweeper:
    """Runs sweeps under mpirun, one after the other, and reads their rows; `facts` are the last one's run.json."""

    def __init__(self, mpirun: str, echo: bool) -> None:
        self.mpirun, self.echo = mpirun, echo
        self.facts: Mapping[str, Any] = {}

    def rows(self, nranks: int, *words: str, **environment: str) -> Rows:
        """Run ``bench.sweep`` with these words and return its rows."""
        return self.results(nranks, words, lambda folder: read_rows(folder / ROWS_FILE).rows, environment)

    def results(
        self,
        nranks: int,
        words: Sequence[str],
        read: Callable[[Path], Rows],
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> Rows:
        """Run ``bench.sweep`` with these words and return what `read` finds in its folder."""
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "run"
            command = [self.mpirun, "-n", str(nranks), sys.executable, "-m", "bench.sweep", *words]
            command += ["--output", str(output), "--no-plots", "--quiet"]
            if self.echo:
                print("#", *(f"{name}={value}" for name, value in environment.items()), *command, flush=True)
            subprocess.run(command, check=True, env={**os.environ, **environment}, timeout=1200)
            self.facts = read_run(output)
            return read(output)


def best(rows: Rows) -> dict[tuple[str, int], Mapping[str, Any]]:
    """Return the best hand-written row of each primitive and size."""
    found: dict[tuple[str, int], Mapping[str, Any]] = {}
    for row in rows:
        if row["status"] == "ok" and is_handwritten(row["algorithm"]) and row["native_ratio"] is not None:
            key = (row["primitive"], row["nbytes"])
            if key not in found or row["native_ratio"] > found[key]["native_ratio"]:
                found[key] = row
    return found


def _ratio(what: str, row: Mapping[str, Any], target: float) -> Figure:
    interval = f"{row['algorithm']} {row['native_ratio_low']:.2f} to {row['native_ratio_high']:.2f}"
    return Figure(what, row["native_ratio"], target, unit="x", interval=interval)


def core(sweep: Sweeper, mpich: bool) -> Iterator[Figure]:
    """Yield what the core must reach on 2 cores."""
    for nranks in (2, 4, 8):
        rows = sweep.rows(nranks, "allreduce", "-b", "16M", "-e", "16M", "-n", "30", "--max-seconds", "20")
        row = best(rows)["allreduce", 16 << 20]
        yield _ratio(f"allreduce 16 MiB, {nranks} ranks", row, 1.2 if mpich else 1.15)
    for level, target in (("funneled", 0.7), ("multiple", 0.85 if mpich else 0.7)):
        words = ("allreduce", "-b", "8", "-e", "8", "-n", "2000", "--max-seconds", "10")
        row = best(sweep.rows(2, *words, MPI4PY_RC_THREAD_LEVEL=level))["allreduce", 8]
        yield _ratio(f"allreduce 8 bytes, 2 ranks, thread level {level}", row, target)
    cells = best(sweep.rows(4, *EIGHT, "-b", "256K", "-e", "16M", "-f", "4", "-n", "30", "--max-seconds", "6"))
    good = [row["native_ratio"] >= 0.97 for row in cells.values()]
    yield Figure(f"share of {len(good)} cells, 256 KiB to 16 MiB, 4 ranks, at least 0.97x", sum(good) / len(good), 0.8)
    ratios = [row["native_ratio"] for row in cells.values()]
    yield Figure("geometric mean of these cells", geometric_mean(ratios), 1.0, unit="x")

    rows, seconds = seconds_of(lambda: sweep.rows(8))
    yield Figure("a whole sweep with defaults, 8 ranks", seconds, 150, at_least=False, unit=" s")
    checked = [row for row in rows if row["status"] == "ok"]
    yield Figure("its rows that were checked", sum(row["wrong"] == 0 for row in checked) / len(checked), 1.0)
    slowest = max(row["plan_us"] for row in checked if is_handwritten(row["algorithm"]))
    yield Figure("median time to make a plan, 8 ranks, in that sweep", _median_plan_ms(checked), 2, False, " ms")
    yield Figure("slowest of these plans", slowest / 1000, 20, False, " ms")
    peak = sweep.facts["peak_rank_nbytes"] / 2**20
    yield Figure("the most memory a rank had in that sweep", peak, 300, at_least=False, unit=" MiB")
    yield _listing(sweep.mpirun)
    yield from _pure()


def _listing(mpirun: str) -> Figure:
    command = [mpirun, "-n", "8", sys.executable, "-m", "bench.sweep", "--list"]
    seconds = seconds_of(lambda: subprocess.run(command, check=True, capture_output=True, timeout=60))[1]
    return Figure("listing the catalogue, 8 ranks", seconds, 4, False, " s")


def _median_plan_ms(rows: Rows) -> float:
    return median(row["plan_us"] for row in rows if is_handwritten(row["algorithm"])) / 1000


def _prove(names: tuple[str, str]) -> None:
    from collectives import PRIMITIVES
    from collectives.proof import prove, proved_ranks

    algorithm = PRIMITIVES[names[0]].find(names[1])
    for nranks, root in proved_ranks(algorithm, 64):
        prove(algorithm, nranks, root)


def _pure() -> Iterator[Figure]:
    from collectives import PRIMITIVES
    from collectives.layout import lay_out

    # A v-form has the generators and the contract of its plain form; what differs is counts, which no proof looks at.
    # What goes by nodes is on one node its inner part alone; its tests prove it on nodes.
    distinct = {
        (one.generate, primitive.inputs, primitive.outputs): (primitive.name, one.name)
        for primitive in reversed(PRIMITIVES.values())
        for one in primitive.algorithms.values()
        if not one.takes_nodes
    }

    def proofs() -> None:
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_prove, distinct.values()))

    yield Figure(f"proofs of {len(distinct)} flat algorithms, 1 to 64 ranks", seconds_of(proofs)[1], 60, False, " s")
    allreduce = PRIMITIVES["allreduce"]
    problem, ring = allreduce.problem(1024, 1 << 22), allreduce.find("ring")
    milliseconds = median(seconds_of(lambda: lay_out(problem, ring, 5))[1] for _ in range(9)) * 1000
    yield Figure("layout of one rank of a ring of 1024", milliseconds, 50, False, " ms")


def catalogue(sweep: Sweeper, mpich: bool) -> Iterator[Figure]:
    """Yield what the whole catalogue must reach on 2 cores, ordinary memory, float32."""
    large: list[float] = []
    for nranks in (2, 4, 8):
        words = ("-b", "128K", "-e", "64M", "-f", "8", "-n", "15", "--max-seconds", "10")
        cells = best(sweep.rows(nranks, *EIGHT, *words))
        for primitive in EIGHT:
            ratios = [row["native_ratio"] for (name, _), row in cells.items() if name == primitive]
            large += ratios
            copies = nranks == 2 and primitive in ("broadcast", "gather", "allgather", "alltoall")
            what = f"{primitive}, 128 KiB to 64 MiB, {nranks} ranks: geometric mean"
            target = 0.97 if copies else 0.0 if nranks == 2 else 1.0
            yield Figure(what, geometric_mean(ratios), target, unit="x", interval=", ".join(f"{r:.2f}" for r in ratios))
        worst = min(cells.values(), key=lambda row: row["native_ratio_high"])
        what = f"worst cell, {nranks} ranks: {worst['primitive']} {worst['nbytes']} bytes, upper end of its interval"
        yield Figure(what, worst["native_ratio_high"], 0.85, unit="x")
        if nranks == 8:
            yield _ratio("allreduce 64 MiB, 8 ranks", cells["allreduce", 64 << 20], 1.9)
    yield Figure(f"geometric mean of all {len(large)} cells from 128 KiB on", geometric_mean(large), 1.25, unit="x")
    for nranks, target in ((2, 0.85 if mpich else 0.7), (4, 0.75 if mpich else 0.6)):
        words = ("-b", "8", "-e", "4K", "-f", "8", "-n", "300", "--max-seconds", "3")
        ratios = [row["native_ratio"] for row in best(sweep.rows(nranks, *EIGHT, *words)).values()]
        yield Figure(f"8 bytes to 4 KiB, {nranks} ranks: geometric mean", geometric_mean(ratios), target, unit="x")


SUITES: dict[str, Callable[[Sweeper, bool], Iterator[Figure]]] = {"core": core, "catalogue": catalogue}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if every target is reached, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m bench.targets", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("suite", choices=SUITES, help="which targets")
    add_launch_options(parser)
    options = parser.parse_args(argv)
    version = subprocess.run([options.mpirun, "--version"], capture_output=True, text=True, check=True).stdout
    mpich = "Open MPI" not in version and "open-mpi" not in version
    print(f"# {options.suite} on {'MPICH' if mpich else 'Open MPI'}", flush=True)
    return told(SUITES[options.suite](Sweeper(options.mpirun, options.echo), mpich))


def add_launch_options(parser: argparse.ArgumentParser) -> None:
    """Add what says how sweeps are launched: --mpirun and --echo."""
    beside = Path(sys.executable).with_name("mpirun")
    parser.add_argument("--mpirun", default=str(beside) if beside.exists() else "mpirun", help="default: %(default)s")
    parser.add_argument("--echo", action="store_true", help="show the commands")


def told(figures: Iterable[Figure]) -> int:
    """Print each figure as it is measured; return 0 if every target is reached, 1 if not."""
    missed = 0
    for figure in figures:
        missed += not figure.reached
        print(figure, flush=True)
    print(f"# {missed} missed" if missed else "# all reached")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
