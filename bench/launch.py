"""How the ranks were started, whether a command can go on with that, and how a job beside it is started."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.usage import UsageError
from collectives.launch import Launch, prepare

__all__ = ["Launch", "check_one_world", "find_mpirun", "outside", "prepare"]

TOLD = ("PMI_", "PMI2_", "PMIX_", "PRTE_", "OMPI_", "OPAL_", "HYDI_", "HYDRA_", "MPI_LOCAL", "SLURM_", "PALS_", "PBS_")
"""How the names begin of what launchers and batch systems tell the ranks that they start."""

CHOSEN = ("_MCA_", "OMPI_ALLOW_", "_PREFIX")
"""What such names contain where a user chose the value."""


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


def find_mpirun() -> str | None:
    """Return the mpirun beside this Python, as the wheels put it there, else that in PATH; None without any."""
    beside = Path(sys.executable).with_name("mpirun")
    return str(beside) if beside.exists() else shutil.which("mpirun")


def outside(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a job that a rank starts beside its own: without what made it a rank.

    What the user has set for MPI stays. A batch system is left out, since its allocation is in use: the job is on this
    host.
    """
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(TOLD) or any(word in name for word in CHOSEN)
    }
