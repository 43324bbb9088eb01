"""Measure what replayed training steps must reach, and say by how much it is reached or missed.

python -m bench.strategy_targets

A step must cost what its calls cost alone, and the best algorithm for each call must beat the library. The model is
tiny with long sequences, so that the messages that matter have 1 MiB and more on any machine's memory.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence

from bench.pattern_rows import BEST, STRATEGIES_FILE, WHOLE, read_patterns
from bench.targets import Figure, Rows, Sweeper, add_launch_options, told

STRATEGIES = ("tensor", "sequence", "ulysses", "expert")
STEP = ("--model", "tiny", "--seq", "32768", "-n", "15", "--max-seconds", "5")
REPLAY_COST = 1.05
BEST_RATIO = 1.15


def whole_steps(sweep: Sweeper, nranks: int) -> Rows:
    """Replay the strategies on so many ranks and return the rows about whole steps."""
    words = ("--strategy", ",".join(STRATEGIES), *STEP)
    rows = sweep.results(nranks, words, lambda folder: read_patterns(folder / STRATEGIES_FILE).rows)
    return [row for row in rows if row["primitive"] == WHOLE and row["status"] == "ok"]


def figures(sweep: Sweeper, ncpus: int) -> Iterator[Figure]:
    """Yield what replayed steps must reach: their cost where each rank has a CPU, and the best against the library."""
    for row in whole_steps(sweep, min(ncpus, 8)):
        what = f"{row['strategy']}, {row['nranks']} ranks, {row['algorithm']}: the step over the sum of its calls alone"
        interval = f"{row['alone_ratio_low']:.2f} to {row['alone_ratio_high']:.2f}"
        yield Figure(what, row["alone_ratio"], REPLAY_COST, at_least=False, unit="x", interval=interval)
    for nranks in (4, 8):
        for row in whole_steps(sweep, nranks):
            if row["algorithm"] == BEST:
                interval = f"{row['native_ratio_low']:.2f} to {row['native_ratio_high']:.2f}"
                what = f"{row['strategy']}, {nranks} ranks: best per call against all native"
                yield Figure(what, row["native_ratio"], BEST_RATIO, unit="x", interval=interval)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if every target is reached, 1 if not."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.strategy_targets", description=(__doc__ or "").split("\n")[0]
    )
    add_launch_options(parser)
    options = parser.parse_args(argv)
    return told(figures(Sweeper(options.mpirun, options.echo), len(os.sched_getaffinity(0))))


if __name__ == "__main__":
    sys.exit(main())
