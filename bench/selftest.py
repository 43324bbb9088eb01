"""Measure everything against itself: how often is a difference claimed where there is none?

mpirun -n 4 python -m bench.selftest [PRIMITIVE ...] [options of bench.sweep]

Each contender at each point is made ready twice and both take turns, exactly as contenders of a sweep do, with more
samples than there, so that smaller differences show. One is claimed where the p value of the two is at most 5%, so
about one in twenty may be. Status 1: more than that.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import NamedTuple

from bench.launch import Launch, check_one_world, prepare

DEFAULTS = ("-e", "1M", "-f", "64", "--iters", "300", "--max-seconds", "8", "--no-plots")
CLAIM = 0.05  # of cells in which a difference may be claimed


class Cell(NamedTuple):
    """One contender at one point, against itself: the median ratio of the two, and the p value of no difference."""

    point: str
    algorithm: str
    ratio: float
    p_value: float


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; the status is 0 where differences are claimed as rarely as promised."""
    launch = prepare()  # before MPI is loaded
    from bench.job import run

    run(lambda: selftest(sys.argv[1:] if argv is None else argv, launch))


def selftest(argv: Sequence[str], launch: Launch) -> int:
    """Measure a grid, print a line for each cell on rank 0, and return the exit status."""
    import numpy as np
    from mpi4py import MPI

    from bench.contenders import labels, nodes_seen
    from bench.job import Job
    from bench.library import own_algorithms
    from bench.measure import Measuring
    from bench.options import parse_or_exit
    from bench.points import points
    from bench.samples import paired
    from bench.statistics import INDISTINCT, sign_test
    from bench.sweep import SEED
    from collectives import PRIMITIVES
    from collectives.names import NATIVE_FORMS

    check_one_world(launch, MPI.COMM_WORLD.Get_size())
    job = Job(MPI.COMM_WORLD)
    own = own_algorithms(argv)
    known = {name: [*NATIVE_FORMS, *one.algorithms, *own.names(one)] for name, one in PRIMITIVES.items()}
    options = parse_or_exit([*DEFAULTS, *argv], job.rank, job.nranks, known)
    nnodes = len(nodes_seen(options, job.nodes, job.nranks))
    contenders = {name: labels(PRIMITIVES[name], options, nnodes, own) for name in options.primitives}
    measuring = Measuring(job, launch, options, "selftest", SEED)
    cells: list[Cell] = []
    for point in points(options):
        names = contenders[point.primitive.name]
        for what, name, one, other in measuring.against_itself(point, names):
            pair = paired(one, other)
            cell = Cell(what, name, float(np.median(pair[0] / pair[1])), sign_test(*pair, INDISTINCT))
            cells.append(cell)
            if not options.quiet:
                print(f"{cell.ratio:7.4f}  p {cell.p_value:6.4f}  {cell.algorithm:<24} {cell.point}", flush=True)
    measuring.free()
    if job.leads:
        print(*verdict(cells), sep="\n", flush=True)
    return 0 if job.decide(not cells or within_promise(cells)) else 1


def claims(cells: Sequence[Cell]) -> int:
    """Return in how many cells a difference is claimed."""
    return sum(cell.p_value <= CLAIM for cell in cells)


def within_promise(cells: Sequence[Cell]) -> bool:
    """Say whether claims are no more than 5% of cells, give or take what chance allows in 99 of 100 such tests."""
    n = len(cells)
    return claims(cells) <= CLAIM * n + 2.33 * math.sqrt(n * CLAIM * (1 - CLAIM))


def verdict(cells: Sequence[Cell]) -> list[str]:
    """Return the lines that sum it up."""
    if not cells:
        return ["# no cell was measured"]
    off = sorted(abs(cell.ratio - 1) for cell in cells)
    return [
        f"# a difference was claimed in {claims(cells)} of {len(cells)} cells ({claims(cells) / len(cells):.1%})",
        f"# |ratio - 1|: median {off[len(off) // 2]:.2%}, 95th percentile {off[int(0.95 * (len(off) - 1))]:.2%}",
        "# OK" if within_promise(cells) else "# FAILED: claimed more often than in 5% of cells",
    ]


if __name__ == "__main__":
    main()
