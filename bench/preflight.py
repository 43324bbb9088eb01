"""What could spoil a run, found before it begins; each finding with its remedy.

Only what would make results wrong is an error (`launch.check_one_world`); all else is told and recorded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from bench.launch import Launch

SHM = Path("/dev/shm")
SHM_NBYTES_OF_RANK = 64 << 20
"""Shared memory that a rank of either library may want; containers give 64 MiB in all by default."""

SEGMENTS = re.compile(r"(mpich_shm_|mpich_shar_|vader_segment\.|sm_segment\.|psm2_shm|osc_rdma|ucx_shm_|fi_shm)")
MODULE = re.compile(r"bench\.(sweep|selftest|windows|targets)$")
PTRACE = 19  # CAP_SYS_PTRACE


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: as it should be (`ok`), or not (`warn`), or fatal (`error`), and what helps."""

    name: str
    level: Literal["ok", "warn", "error"]
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.remedy}" if self.remedy else self.what


def findings(launch: Launch, nranks: int, thread_level: str, mpi: str, pids: Collection[int]) -> list[Finding]:
    """Return all findings of this rank's host. `pids` are the ranks of this job on it."""
    return [
        _ranks(launch, nranks),
        _cpus(launch),
        _others(Path("/proc"), pids, _affinity(os.getpid())),
        _shm(_free(SHM), launch.local_nranks),
        _stale(stale_segments(SHM, Path("/proc"), os.getuid())),
        _single_copy(_ptrace_scope(), _may_ptrace(Path("/proc/self/status")), mpi),
        _thread_level(launch, thread_level),
        _user(os.getuid(), os.environ, mpi),
    ]


def told(found: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return findings for run.json."""
    return [asdict(one) for one in found]


def _ranks(launch: Launch, nranks: int) -> Finding:
    if launch.nranks not in (None, nranks):
        what = f"the launcher started {launch.nranks} ranks and MPI sees {nranks}"
        return Finding("launcher", "error", what, "use the mpirun of the MPI that mpi4py loads")
    return Finding("launcher", "ok", f"{nranks} ranks, as MPI sees them too")


def _cpus(launch: Launch) -> Finding:
    what = f"{launch.local_nranks} ranks on {launch.cpus} CPUs"
    if launch.oversubscribed:
        return Finding("cpus", "warn", what, "times hold waiting for a turn to run; use as many ranks as CPUs")
    return Finding("cpus", "ok", what)


def _affinity(pid: int) -> set[int]:
    try:
        return set(os.sched_getaffinity(pid))
    except (OSError, AttributeError):
        return set()


def _others(
    proc: Path, pids: Collection[int], cpus: Collection[int], affinity: Callable[[int], set[int]] = _affinity
) -> Finding:
    """Look for other runs of this project that may use CPUs of this one."""
    rivals = [pid for pid in _runs(proc) if pid not in pids and affinity(pid) & set(cpus)]
    if rivals:
        what = f"another run may use the same CPUs (process {', '.join(map(str, rivals[:8]))})"
        return Finding("other runs", "warn", what, "wait for its end, or bind the runs to different CPUs")
    return Finding("other runs", "ok", "none uses the same CPUs")


def _runs(proc: Path) -> Iterator[int]:
    for folder in proc.glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "python" in Path(words[0]).name and any(MODULE.match(word) for word in words):
            yield int(folder.name)


def _free(folder: Path) -> int | None:
    try:
        info = os.statvfs(folder)
    except OSError:
        return None
    return info.f_bavail * info.f_frsize


def _shm(free: int | None, nranks: int) -> Finding:
    if free is None:
        return Finding("shared memory", "warn", f"there is no {SHM}", "MPI may fall back to slower ways, or fail")
    what = f"{free / 2**20:.0f} MiB free in {SHM}"
    if free < SHM_NBYTES_OF_RANK * nranks:
        remedy = f"enlarge it (docker run --shm-size={-(-SHM_NBYTES_OF_RANK * nranks // 2**30)}g), or expect bus errors"
        return Finding("shared memory", "warn", what, remedy)
    return Finding("shared memory", "ok", what)


def stale_segments(shm: Path, proc: Path, uid: int) -> list[Path]:
    """Return the user's files of MPI in `shm` that no process has mapped. Another user's are nobody's business."""
    try:
        own = [path for path in shm.iterdir() if SEGMENTS.match(path.name) and path.stat().st_uid == uid]
    except OSError:
        return []
    if not own:
        return []
    mapped = set()
    for maps in proc.glob("[0-9]*/maps"):
        try:
            lines = maps.read_text(errors="replace").splitlines()
        except OSError:
            continue
        mapped |= {line.split(maxsplit=5)[5].removesuffix(" (deleted)") for line in lines if "/" in line}
    return [path for path in own if str(path) not in mapped]


def _stale(paths: Sequence[Path]) -> Finding:
    if not paths:
        return Finding("stale segments", "ok", f"none of yours in {SHM}")
    nbytes = sum(path.stat().st_size for path in paths if path.exists())
    what = f"{len(paths)} files of {nbytes / 2**20:.0f} MiB in {SHM} that no process uses ({paths[0].name}, ...)"
    return Finding("stale segments", "warn", what, "left by killed jobs of yours; remove them when none is running")


def _ptrace_scope() -> int:
    try:
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return 0


def _may_ptrace(status: Path) -> bool:
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return False
    bits = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    return bool(bits >> PTRACE & 1)


def _single_copy(scope: int, may_ptrace: bool, mpi: str) -> Finding:
    """Say whether a rank may copy from another's memory, which large messages on one host profit from."""
    if scope == 0 or may_ptrace:
        return Finding("single copy", "ok", "ranks may copy straight from each other's memory")
    off = "OMPI_MCA_smsc=^cma" if "Open MPI" in mpi else "MPIR_CVAR_CH4_CMA_ENABLE=0"
    remedy = f"docker run --cap-add=SYS_PTRACE, or set {off} where errors are printed"
    return Finding("single copy", "warn", f"ptrace_scope is {scope}, so large messages are copied twice", remedy)


def _thread_level(launch: Launch, thread_level: str) -> Finding:
    if thread_level != launch.thread_level:
        what = f"asked for thread level {launch.thread_level} and got {thread_level}"
        return Finding("thread level", "warn", what, "compare only with runs of the same level")
    return Finding("thread level", "ok", thread_level)


def _user(uid: int, environ: Mapping[str, str], mpi: str) -> Finding:
    if uid or "Open MPI" not in mpi:
        return Finding("user", "ok", f"user {uid} may start jobs")
    if environ.get("OMPI_ALLOW_RUN_AS_ROOT") and environ.get("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        return Finding("user", "ok", "root, which Open MPI was told to allow")
    remedy = "set OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
    return Finding("user", "warn", "Open MPI's mpirun refuses root", remedy)
