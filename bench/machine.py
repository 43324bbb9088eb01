"""Facts about the machine, the libraries and the run, for `run.json`. Nothing here starts a process."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

from bench import __version__

# Environment that can change a result; what else a user has set is nobody's business.
PREFIXES = ("MPI", "OMPI_", "PRTE_", "PMIX_", "UCX_", "FI_", "I_MPI_", "SLURM_J", "SLURM_N", "NCCL_", "CUDA_")
NAMES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "COLLBENCH_MESSAGE_CAP", "COLLBENCH_DEBUG")
HIDDEN = ("TOKEN", "KEY", "SECRET", "PASS", "COOKIE")


def host_facts() -> dict[str, Any]:
    """Return what is to know about this host."""
    return {
        "host": platform.node(),
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "cpus_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_nbytes": memory("MemTotal"),
        "kernel": platform.release(),
        "caches": caches(),
    }


def software_facts() -> dict[str, Any]:
    """Return versions of what takes part."""
    import mpi4py
    import numpy
    from mpi4py import MPI

    return {
        "collbench": __version__,
        "python": platform.python_version(),
        "mpi": MPI.Get_library_version().split("\n")[0].strip("\x00 "),
        "mpi_standard": ".".join(map(str, MPI.Get_version())),
        "mpi4py": mpi4py.__version__,
        "numpy": numpy.__version__,
        "git": git_revision(Path(__file__).resolve().parent.parent),
    }


def run_facts() -> dict[str, Any]:
    """Return how the run was started."""
    return {"command": [sys.executable, *sys.orig_argv[1:]], "environment": environment()}


def environment(environ: Any = os.environ) -> dict[str, str]:
    """Return the variables that can change a result."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if (name in NAMES or name.startswith(PREFIXES)) and not any(word in name for word in HIDDEN)
    }


def memory(field: str) -> int | None:
    """Return a field of /proc/meminfo in bytes, None where there is none."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), None)


def caches() -> dict[str, str]:
    """Return the caches of the first CPU by level and kind, as Linux names them."""
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, nbytes = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        found[f"L{level} {kind.lower()}"] = nbytes
    return found


def git_revision(folder: Path) -> str | None:
    """Return the revision that is checked out in `folder`, read from its files, None where it is no checkout."""
    git = folder / ".git"
    try:
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        name = head.removeprefix("ref: ")
        if (git / name).exists():
            return (git / name).read_text().strip()
        packed = (git / "packed-refs").read_text().splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {name}")), None)
    except OSError:
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
