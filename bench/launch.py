"""How the ranks were started, and whether a command can go on with that."""

from __future__ import annotations

from bench.usage import UsageError
from collectives.launch import Launch, prepare

__all__ = ["Launch", "check_one_world", "prepare"]


def check_one_world(launch: Launch, nranks: int) -> None:
    """Raise UsageError where the launcher started more ranks than MPI sees: they belong to two different MPIs."""
    if launch.nranks is not None and launch.nranks != nranks:
        raise UsageError(
            "mpirun",
            f"{launch.nranks} ranks",
            f"each sees a world of {nranks}: mpirun and the MPI that mpi4py loads are different ones; "
            "use the mpirun of this environment, or see python -m mpi4py --mpi-library",
            "cannot use",
        )
