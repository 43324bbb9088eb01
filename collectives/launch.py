"""What must be settled before MPI is loaded, from the launcher's variables alone.

MPICH and Open MPI read their settings once, when MPI starts. So `prepare` must run before `mpi4py.MPI` is imported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

# What the launchers tell each rank: ranks in all, own rank, ranks on this node.
WORLD_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
WORLD_RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")
LOCAL_SIZES = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")

# MPICH spins while it waits. With more ranks than CPUs the rank that it waits for then has no CPU: 8 ranks on 2 CPUs
# took 966 us for 4 bytes, and 73 us when they yield after 100 polls. Open MPI yields by itself.
YIELD = {"MPIR_CVAR_POLLS_BEFORE_YIELD": "100"}

# Open MPI's osc/ucx prints warnings about missing devices wherever a window is made.
QUIET = {"OMPI_MCA_osc": "^ucx"}


@dataclass(frozen=True)
class Launch:
    """How the ranks were started, and what was set because of it."""

    nranks: int | None  # as the launcher says; None when it says nothing
    rank: int
    local_nranks: int
    cpus: int  # that this rank may run on
    thread_level: str
    set_here: Mapping[str, str] = field(default_factory=dict)

    @property
    def oversubscribed(self) -> bool:
        """Whether this node has more ranks than CPUs they may run on."""
        return self.local_nranks > self.cpus


def prepare(environ: dict[str, str] | os._Environ[str] = os.environ) -> Launch:
    """Set what MPI reads when it starts, unless the user has set it, and return what was found.

    Thread level: ``funneled`` where every rank has a CPU. Where not, ``multiple``, since below it MPICH's shared-memory
    collectives spin and ignore the yield setting. `MPI4PY_RC_THREAD_LEVEL` overrides.
    """
    launch = _look(environ)
    wanted = {**QUIET, **(YIELD if launch.oversubscribed else {})}
    added = {name: value for name, value in wanted.items() if name not in environ}
    environ.update(added)
    import mpi4py

    mpi4py.rc.thread_level = launch.thread_level
    return Launch(**{**launch.__dict__, "set_here": added})


def _look(environ: Mapping[str, str]) -> Launch:
    nranks = _number(environ, WORLD_SIZES)
    local = _number(environ, LOCAL_SIZES) or nranks or 1
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # A launcher that binds each rank to a core of its own leaves one CPU in the mask: count what the node has then.
    if cpus < local and _bound(environ):
        cpus = os.cpu_count() or cpus
    level = environ.get("MPI4PY_RC_THREAD_LEVEL") or ("multiple" if local > cpus else "funneled")
    return Launch(nranks, _number(environ, WORLD_RANKS) or 0, local, cpus, level)


def _bound(environ: Mapping[str, str]) -> bool:
    return any(name.startswith(("OMPI_", "HYDI_", "SLURM_CPU_BIND")) for name in environ)


def _number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    return next((int(environ[name]) for name in names if environ.get(name, "").isdigit()), None)
