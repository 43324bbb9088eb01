"""Measure collectives, native and by hand, over a sweep of sizes; check every result; write rows and draw them.

mpirun -n 8 python -m bench.sweep [PRIMITIVE ...] [options]

`sweep` reads as the pipeline: options, points, measure, rows, pictures.
"""

from __future__ import annotations

import gc
import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.cloop import Built, build
from bench.launch import Launch, check_one_world, prepare
from bench.usage import UsageError

if TYPE_CHECKING:
    from bench.job import Job
    from bench.measure import Measuring
    from bench.options import Options

SEED = 20260815
"""Of the order in which contenders take turns and of the bootstrap; recorded in run.json."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; every rank leaves with the same status: 0 all right, 1 something was wrong, 2 bad usage."""
    launch = prepare()  # before MPI is loaded
    built = build() if launch.rank == 0 else Built()
    from bench.job import run

    run(lambda: sweep(sys.argv[1:] if argv is None else argv, launch, built))


def sweep(argv: Sequence[str], launch: Launch, built: Built) -> int:
    """Carry out one sweep and return the exit status."""
    import numpy as np
    from mpi4py import MPI

    from bench import gpus, machine
    from bench.contenders import labels, nodes_seen
    from bench.doctor import look
    from bench.groups import Group, groups
    from bench.job import Job
    from bench.library import own_algorithms
    from bench.measure import Measuring
    from bench.options import parse_or_exit
    from bench.output import Output
    from bench.pattern_rows import STRATEGIES_FILE
    from bench.points import points
    from bench.preflight import told
    from bench.resume import Earlier, earlier, made_with
    from bench.strategy_options import trainings
    from bench.strategy_sweep import rows
    from bench.ways import find_ways
    from collectives import PRIMITIVES
    from collectives.names import NATIVE_FORMS, NCCL_FORMS

    check_one_world(launch, MPI.COMM_WORLD.Get_size())
    job = Job(MPI.COMM_WORLD)
    own = own_algorithms(argv)
    known = {name: [*NATIVE_FORMS, *NCCL_FORMS, *one.algorithms, *own.names(one)] for name, one in PRIMITIVES.items()}
    options = parse_or_exit(argv, job.rank, job.nranks, known)
    if options.show == "list":
        if job.leads:
            from collectives.catalogue import table

            print(table(primitives=[PRIMITIVES[name] for name in options.primitives]), flush=True)
        return 0
    gpu = gpus.choose(job, options.device)
    gpus.check_transport(options.transport, gpu)
    options = replace(options, device="cpu" if gpu is None else "cuda")
    if gpu is not None and options.strategies is not None and options.strategies.overlap:
        if job.leads and not options.quiet:
            print("note: nothing is computed beside calls on GPUs: --overlap is left out", file=sys.stderr, flush=True)
        options = replace(options, strategies=replace(options.strategies, overlap=False))
    check_sync(options.sync, bool(job.most(np.array([launch.oversubscribed], np.uint8))[0]))
    if own.refusal and job.leads:
        print(f"note: only the library's default, native, is measured: {own.refusal}", file=sys.stderr, flush=True)
    nnodes = len(nodes_seen(options, job.nodes, job.nranks))
    contenders = {name: labels(PRIMITIVES[name], options, nnodes, own) for name in options.primitives}
    everything = list(points(options))
    strategies = options.strategies
    steps = job.on_leader(lambda: trainings(strategies, job.nranks)) if strategies else []
    wanted = made_with(options, contenders, nranks=job.nranks, nnodes=job.nnodes, mpi=machine.mpi(), seed=SEED)
    if options.resume:
        folder = options.resume
        before = job.on_leader(lambda: earlier(folder, wanted))
    else:
        folder, before = job.on_leader(lambda: new_folder(options, job)), Earlier()

    found = job.findings(lambda pids: look(launch, job.nranks, pids))
    for host, about in found.items():
        for one in about:
            if one.level != "ok" and not options.quiet:
                print(f"note: {host}: {one}", file=sys.stderr, flush=True)
    statuses = before.statuses
    ways = find_ways(job, options, gpu, contenders)
    gc.freeze()  # what was loaded so far is never garbage, so collecting before each point need not look at it
    measuring = Measuring(job, launch, options, folder.name, SEED, gpu, ways)
    known_facts = {"made_with": wanted, **facts(job, launch, measuring, built)}
    known_facts["preflight"] = {host: told(about) for host, about in found.items()}
    if before.facts:
        resumed = [*before.facts.get("resumed", []), known_facts["started"]]
        known_facts |= {"started": before.facts["started"], "resumed": resumed}
    with Output(folder, known_facts, job.leads, options.quiet) as output:
        for group in groups(job.comm, options.groups):
            measuring.among(group)
            output.section(group.words)
            for point in output.progress(everything):
                names, done = contenders[point.primitive.name], before.done_at(point)
                for row in measuring.rows(point, names, done, output.write_samples):
                    output.write(row)
                    statuses[row.status] += 1
        measuring.among(Group.whole(job.comm))
        if strategies and job.decide(not (folder / STRATEGIES_FILE).exists()):
            for step in rows(measuring, strategies, steps):
                output.write_step(step)
                statuses[step.status] += 1
        measuring.free()
        peak = job.most(np.array([measuring.peak_nbytes]))[0]
        if job.leads and options.plots:
            output.draw()
        output.end(statuses, {"peak_rank_nbytes": int(peak), "ended": now()})
    job.wait_idly()
    return 0 if job.decide(not (statuses["wrong"] or statuses["failed"])) else 1


def now() -> str:
    """Return the time as run.json has it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def check_sync(sync: str, oversubscribed: bool) -> None:
    """Raise UsageError where ranks cannot all be running at an agreed instant."""
    if sync == "deadline" and oversubscribed:
        raise UsageError("--sync", sync, "with more ranks than CPUs a rank may have no CPU at the instant: use barrier")


def new_folder(options: Options, job: Job) -> Path:
    """Return the folder of this run, found to be usable. Raises UsageError where it is not."""
    from bench.options import check_output, default_output

    folder = options.output or default_output(datetime.now(timezone.utc), platform.node(), job.nranks)
    check_output(folder)
    return folder


def facts(job: Job, launch: Launch, measuring: Measuring, built: Built) -> dict[str, Any]:
    """Return what holds for the whole run, for run.json; all ranks tell where they are."""
    import numpy as np

    from bench import gpus, machine
    from bench.overhead import overhead

    costs = overhead(job, measuring.start, built)
    measuring.empty_seconds = costs["empty_call_us"] / 1e6
    ranks = job.comm.gather(machine.rank_facts(), 0)
    hosts = job.comm.gather(machine.host_facts() if job.local_rank == 0 else None, 0)
    gpu = measuring.gpu
    found = job.comm.gather(None if gpu is None else gpus.facts(gpu), 0)
    return {
        "started": now(),
        "nranks": job.nranks,
        "nnodes": job.nnodes,
        "thread_level": measuring.settings["thread_level"],
        "oversubscribed": launch.oversubscribed,
        "seed": SEED,
        "overhead": costs,
        "clock_error_us": float(job.most(np.array([measuring.clocks.relation.error]))[0]) * 1e6,
        "set_by_collbench": dict(launch.set_here),
        "hosts": [host for host in hosts or [] if host],
        "ranks": ranks,
        "gpus": None if gpu is None else found,
        **measuring.ways.facts(),
        "software": machine.software_facts(),
        **machine.run_facts(),
    }


if __name__ == "__main__":
    main()
