"""Measure what replayed training steps must reach, and say by how much it is reached or missed.

python -m bench.strategy_targets

A step must cost what its calls cost alone, and the best algorithm for each call must beat the library. The model is
tiny with long sequences, so that the messages that matter have 1 MiB and more on any machine's memory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.pattern_rows import BEST, STRATEGIES_FILE, WHOLE, read_patterns
from bench.targets import Figure

STRATEGIES = ("tensor", "sequence", "ulysses", "expert")
STEP = ("--model", "tiny", "--seq", "32768", "-n", "15", "--max-seconds", "5")
REPLAY_COST = 1.05
BEST_RATIO = 1.15

Rows = Sequence[Mapping[str, Any]]


def whole_steps(mpirun: str, nranks: int, echo: bool) -> Rows:
    """Replay the strategies on so many ranks and return the rows about whole steps."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "run"
        command = [mpirun, "-n", str(nranks), sys.executable, "-m", "bench.sweep", "--strategy", ",".join(STRATEGIES)]
        command += [*STEP, "--output", str(output), "--no-plots", "--quiet"]
        if echo:
            print("#", *command, flush=True)
        subprocess.run(command, check=True, timeout=1200)
        rows = read_patterns(output / STRATEGIES_FILE).rows
    return [row for row in rows if row["primitive"] == WHOLE and row["status"] == "ok"]


def figures(mpirun: str, echo: bool, ncpus: int) -> Iterator[Figure]:
    """Yield what replayed steps must reach: their cost where each rank has a CPU, and the best against the library."""
    for row in whole_steps(mpirun, min(ncpus, 8), echo):
        what = f"{row['strategy']}, {row['nranks']} ranks, {row['algorithm']}: the step over the sum of its calls alone"
        yield Figure(what, row["step_us"] / row["alone_us"], REPLAY_COST, at_least=False, unit="x")
    for nranks in (4, 8):
        for row in whole_steps(mpirun, nranks, echo):
            if row["algorithm"] == BEST:
                interval = f"{row['native_ratio_low']:.2f} to {row['native_ratio_high']:.2f}"
                what = f"{row['strategy']}, {nranks} ranks: best per call against all native"
                yield Figure(what, row["native_ratio"], BEST_RATIO, unit="x", interval=interval)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if every target is reached, 1 if not."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.strategy_targets", description=(__doc__ or "").split("\n")[0]
    )
    beside = Path(sys.executable).with_name("mpirun")
    parser.add_argument("--mpirun", default=str(beside) if beside.exists() else "mpirun", help="default: %(default)s")
    parser.add_argument("--echo", action="store_true", help="show the commands")
    options = parser.parse_args(argv)
    missed = 0
    for figure in figures(options.mpirun, options.echo, len(os.sched_getaffinity(0))):
        missed += not figure.reached
        print(figure, flush=True)
    print(f"# {missed} missed" if missed else "# all reached")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
