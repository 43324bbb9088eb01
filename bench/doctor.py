"""`python -m bench.doctor`, alone or under mpirun: what could spoil a run here, and what helps. Measures nothing."""

from __future__ import annotations

from collections.abc import Sequence

from bench.launch import Launch, prepare
from bench.preflight import Finding, findings


def main() -> None:
    """Print the findings of each host as a table; the status is 1 where a result would be wrong."""
    launch = prepare()  # before MPI is loaded
    from bench.job import run

    run(lambda: doctor(launch))


def doctor(launch: Launch) -> int:
    """Look, print on rank 0, and return the exit status."""
    from mpi4py import MPI

    from bench.job import Job

    job = Job(MPI.COMM_WORLD)
    by_host = job.findings(lambda pids: look(launch, job.nranks, pids))
    if job.leads:
        for host, found in by_host.items():
            print(f"# {host}")
            for line in table(found):
                print(line, flush=True)
    broken = any(one.level == "error" for found in by_host.values() for one in found)
    return 0 if job.decide(not broken) else 1


def look(launch: Launch, nranks: int, pids: Sequence[int]) -> list[Finding]:
    """Return the findings of this host."""
    from mpi4py import MPI

    from bench.job import THREAD_LEVELS
    from bench.machine import mpi

    return findings(launch, nranks, THREAD_LEVELS[MPI.Query_thread()], mpi(), pids)


def table(found: Sequence[Finding]) -> list[str]:
    """Return findings as aligned lines."""
    width = max(len(one.name) for one in found)
    return [f"{one.level:<5}  {one.name:<{width}}  {one}" for one in found]


if __name__ == "__main__":
    main()
