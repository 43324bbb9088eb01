"""Measure collectives, native and by hand, over a sweep of sizes; check every result; write rows and draw them.

mpirun -n 8 python -m bench.sweep [PRIMITIVE ...] [options]

`sweep` reads as the pipeline: options, points, measure, rows, pictures.
"""

from __future__ import annotations

import platform
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.launch import Launch, check_one_world, prepare
from bench.usage import UsageError

if TYPE_CHECKING:
    from bench.job import Job
    from bench.options import Options

SEED = 20260815
"""Of the order in which contenders take turns and of the bootstrap; recorded in run.json."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; every rank leaves with the same status: 0 all right, 1 something was wrong, 2 bad usage."""
    launch = prepare()  # before MPI is loaded
    from bench.job import run

    run(lambda: sweep(sys.argv[1:] if argv is None else argv, launch))


def sweep(argv: Sequence[str], launch: Launch) -> int:
    """Carry out one sweep and return the exit status."""
    from mpi4py import MPI

    from bench.contenders import NATIVE_FORMS, labels
    from bench.job import Job
    from bench.measure import Measuring
    from bench.options import parse_or_exit
    from bench.output import Output
    from bench.points import points
    from collectives import PRIMITIVES

    check_one_world(launch, MPI.COMM_WORLD.Get_size())
    job = Job(MPI.COMM_WORLD)
    known = {name: [*NATIVE_FORMS, *primitive.algorithms] for name, primitive in PRIMITIVES.items()}
    options = parse_or_exit(argv, job.rank, job.nranks, known)
    if options.show == "list":
        if job.leads:
            from collectives.catalogue import print_catalogue

            print_catalogue(options.primitives)
        return 0
    check_device(options.device)
    contenders = {name: labels(PRIMITIVES[name], options) for name in options.primitives}
    everything = list(points(options))
    folder = job.on_leader(lambda: new_folder(options, job))

    statuses: Counter[str] = Counter()
    measuring = Measuring(job, launch, options, folder.name, SEED)
    with Output(folder, facts(job, launch, measuring.thread_level), job.leads, options.quiet) as output:
        for point in output.progress(everything):
            for row in measuring.rows(point, contenders[point.primitive.name]):
                output.write(row)
                statuses[row.status] += 1
        if job.leads and options.plots:
            output.draw()
        output.end(statuses)
    job.wait_idly()
    measuring.free()
    return 1 if statuses["wrong"] or statuses["failed"] else 0


def check_device(device: str) -> None:
    """Raise UsageError where the device that was asked for cannot be used."""
    if device == "cuda":
        raise UsageError("--device", device, "device buffers are not supported yet: use cpu", "cannot use")


def new_folder(options: Options, job: Job) -> Path:
    """Return the folder of this run, found to be usable. Raises UsageError where it is not."""
    from bench.options import check_output, default_output

    folder = options.output or default_output(datetime.now(timezone.utc), platform.node(), job.nranks)
    check_output(folder)
    return folder


def facts(job: Job, launch: Launch, thread_level: str) -> dict[str, Any]:
    """Return what holds for the whole run, for run.json; all ranks tell their host."""
    from bench import machine

    hosts = job.comm.gather(machine.host_facts() if job.local_rank == 0 else None, 0)
    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "nranks": job.nranks,
        "nnodes": job.nnodes,
        "thread_level": thread_level,
        "oversubscribed": launch.oversubscribed,
        "seed": SEED,
        "set_by_collbench": dict(launch.set_here),
        "hosts": [host for host in hosts or [] if host],
        "software": machine.software_facts(),
        **machine.run_facts(),
    }


if __name__ == "__main__":
    main()
