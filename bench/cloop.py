"""A loop of MPI calls in C, with which those of mpi4py are compared.

It is compiled by the MPI's own compiler wrapper, before MPI is loaded, since a process must not fork afterwards, and
kept for later runs. Where there is none, or it fails, what mpi4py adds to a call is not known, and the reason is.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("loop.c")
COMPILE_SECONDS = 60


class Unknown(RuntimeError):
    """There is no loop in C; the message says why."""


@dataclass(frozen=True)
class Built:
    """Where the compiled loop is, or why there is none."""

    path: Path | None = None
    reason: str = ""


def build(environ: Mapping[str, str] = os.environ) -> Built:
    """Compile the loop, unless that was done before. Called before MPI is loaded, by one rank."""
    wrapper = find_wrapper(environ)
    if wrapper is None:
        return Built(reason="there is no mpicc beside this Python nor in the PATH")
    try:
        made_from = SOURCE.read_bytes() + str(wrapper).encode() + str(wrapper.stat().st_mtime_ns).encode()
        kept = _cache(environ) / f"loop-{hashlib.blake2b(made_from, digest_size=8).hexdigest()}.so"
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
                new = Path(folder) / kept.name
                command = [str(wrapper), "-O2", "-shared", "-fPIC", str(SOURCE), "-o", str(new)]
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_SECONDS)
                new.replace(kept)  # whole, or not there, for runs that begin at the same time
    except subprocess.CalledProcessError as error:
        return Built(reason=f"{wrapper} failed: {' '.join(error.stderr.split())[-200:]}")
    except (OSError, subprocess.TimeoutExpired) as error:
        return Built(reason=f"{wrapper}: {error}")
    return Built(kept)


def find_wrapper(environ: Mapping[str, str]) -> Path | None:
    """Return the compiler wrapper of the MPI beside this Python, where wheels have it, or else of the PATH."""
    beside = Path(sys.executable).with_name("mpicc")
    found = str(beside) if beside.exists() else shutil.which("mpicc", path=environ.get("PATH"))
    return None if found is None else Path(found)


def _cache(environ: Mapping[str, str]) -> Path:
    given = environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path(environ.get("HOME", tempfile.gettempdir())) / ".cache") / "collbench"


class Loop:
    """All-reduces in C on the buffers and the communicator of a plan in Python."""

    def __init__(self, built: Built, comm: Any, send: Any, recv: Any) -> None:
        """Raises Unknown where there is no loop, or where it belongs to another MPI than the one that is loaded."""
        if built.path is None:
            raise Unknown(built.reason)
        try:
            self._call = ctypes.CDLL(str(built.path)).collbench_allreduces
        except (OSError, AttributeError) as error:
            raise Unknown(f"{built.path}: {error}") from error
        self._arguments = comm.py2f(), *(ctypes.c_void_p(one.ctypes.data) for one in (send, recv)), send.size
        self._keep = send, recv
        if self._call(*self._arguments, 0) == -1:
            raise Unknown("the mpicc that was found belongs to another MPI than the one that mpi4py loads")

    def __call__(self, calls: int) -> None:
        """Make so many calls."""
        error = self._call(*self._arguments, calls)
        if error:
            raise RuntimeError(f"the all-reduce in C ended with MPI error {error}")
