"""Facts about the machine, the libraries and the run, for `run.json`. Nothing here starts a process."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Sequence
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
        "mpi": mpi(),
        "mpi_standard": ".".join(map(str, MPI.Get_version())),
        "mpi4py": mpi4py.__version__,
        "numpy": numpy.__version__,
        "git": git_revision(Path(__file__).resolve().parent.parent),
    }


def mpi() -> str:
    """Return the first line of what the MPI library calls itself."""
    from mpi4py import MPI

    return " ".join(MPI.Get_library_version().split("\n")[0].strip("\x00 ").split())


def rank_facts() -> dict[str, Any]:
    """Return where this rank runs."""
    cpus_of_rank = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return {"host": platform.node(), "pid": os.getpid(), "cpus": cpus_of_rank}


def resident_nbytes() -> int:
    """Return the bytes of memory that this process has now; what it shares counts in equal parts for all that do.

    Zero where the system does not tell (proc_pid_smaps(5), Pss).
    """
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)


def give_back() -> None:
    """Let the C library return to the system what large arrays left free in its heap, where it can (glibc).

    It keeps freed memory that lies below something still used: after a few points of 16 MiB that was 130 MiB a rank.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def run_facts() -> dict[str, Any]:
    """Return how the run was started."""
    return {"command": list(sys.orig_argv), "environment": environment()}


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


def cache_levels() -> list[tuple[str, int, int]]:
    """Return name, bytes and number of CPUs that share it of each data cache of the first CPU, small ones first."""
    levels = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, nbytes, shared = (
                (index / name).read_text().strip() for name in ("level", "type", "size", "shared_cpu_list")
            )
        except OSError:
            continue
        if kind != "Instruction":
            levels.append((f"L{level}", int(nbytes[:-1]) * {"K": 1 << 10, "M": 1 << 20}[nbytes[-1]], len(cpus(shared))))
    return levels


def ncpus() -> int:
    """Return how many CPUs the host has."""
    return os.cpu_count() or 1


def cpus(text: str) -> list[int]:
    """Return the CPUs in a list as Linux writes it: `0-3,8`."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def cache_of(nbytes: int, nranks: int, levels: Sequence[tuple[str, int, int]], ncpus: int) -> str:
    """Return the first cache into which what `nranks` ranks of a host touch fits, `nbytes` each; else `memory`.

    Ranks are taken to be spread evenly over caches of the same level. Blank where nothing is known of caches.
    """
    for name, size, shared in levels:
        ranks_of_one = -(-nranks * shared // max(ncpus, shared))
        if nbytes * ranks_of_one <= size:
            return name
    return "memory" if levels else ""


def busy_seconds() -> float | None:
    """Return the seconds that all CPUs of the host together have been busy so far, to a hundredth."""
    try:
        words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, words)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def governed() -> bool:
    """Say whether the system changes the CPUs' frequency as it sees fit."""
    paths = Path("/sys/devices/system/cpu").glob("cpu*/cpufreq/scaling_governor")
    return any(path.read_text().strip() != "performance" for path in paths)


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
