"""Which contenders may hand GPU memory to MPI: those that child processes were seen to do it with.

An MPI that knows nothing of GPUs ends the process that hands it such memory, some only for some calls or sizes, and
what a library says of itself was seen to be wrong. So each call is tried in processes of their own, in both size
classes, and that decides. Contenders by hand send persistent messages, whatever they carry out: one such exchange is
tried for all of them.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

from bench.launch import find_mpirun, outside
from bench.probes import NBYTES, probe
from collectives.names import NATIVE_FORMS

EXCHANGE, BY_HAND = "sendrecv_exchange", "direct"
SHORT_NBYTES = 4 << 10
"""Up to here a vector is short; of longer ones parts are short too, so that both size classes must have been moved."""
AT_ONCE = 4
"""So many tries at the same time at most: each takes memory of the GPU."""


class Case(NamedTuple):
    """What is tried: a primitive's contender on so many bytes."""

    primitive: str
    contender: str
    nbytes: int

    def __str__(self) -> str:
        return f"{self.primitive} {self.contender} of {self.nbytes} bytes"


@dataclass(frozen=True)
class Evidence:
    """What was tried, an empty text where it worked, else how it did not; and what the library says of itself.

    `compiled`, `queried`: that it was built for CUDA, and that it takes such memory now; None where it does not say.
    """

    found: Mapping[Case, str]
    compiled: bool | None = None
    queried: bool | None = None

    def refusal(self, primitive: str, contender: str, nbytes: int) -> str:
        """Return why a contender may not hand over vectors of `nbytes`, an empty text if it may."""
        for one in _cases_of(primitive, contender, NBYTES[:1] if nbytes <= SHORT_NBYTES else NBYTES):
            why = self.found.get(one, "was not tried")
            if why:
                return f"MPI was not seen to take GPU memory: {one} {why}"
        return ""

    def facts(self) -> dict[str, Any]:
        """Return what is known, for run.json."""
        tried = {str(case): why or "works" for case, why in self.found.items()}
        return {"compiled_for_cuda": self.compiled, "says_it_takes_it": self.queried, "tried": tried}


def _cases_of(primitive: str, contender: str, sizes: Sequence[int]) -> list[Case]:
    form = contender.partition(":")[0]  # the library's own algorithms are its plain call
    what = (primitive, form) if form in NATIVE_FORMS else (EXCHANGE, BY_HAND)
    return [Case(*what, nbytes) for nbytes in sizes]


def cases(contenders: Mapping[str, Iterable[str]]) -> list[Case]:
    """Return what must be tried for these contenders of each primitive, each once, the plain exchange first."""
    wanted = [
        case for primitive, names in contenders.items() for name in names for case in _cases_of(primitive, name, NBYTES)
    ]
    return sorted(dict.fromkeys(wanted), key=lambda one: one.primitive != EXCHANGE)


def look(
    wanted: Sequence[Case],
    attempt: Callable[[Case], str],
    compiled: bool | None = None,
    queried: bool | None = None,
) -> Evidence:
    """Try each case. One is enough where it fails and the library says itself that it takes no GPU memory."""
    if wanted and queried is False:
        why = attempt(wanted[0])
        if why:
            told = f"was not tried, since the library says that it takes none, and {wanted[0]} {why}"
            return Evidence({case: why if case == wanted[0] else told for case in wanted}, compiled, queried)
    with ThreadPoolExecutor(max(1, min(AT_ONCE, (os.cpu_count() or 1) // 2))) as pool:
        return Evidence(dict(zip(wanted, pool.map(attempt, wanted), strict=True)), compiled, queried)


def attempt(case: Case) -> str:
    """Try one case in child processes; return an empty text if it works, else how it did not."""
    mpirun = find_mpirun()
    if mpirun is None:
        return "was not tried: there is no mpirun beside this Python nor in PATH"
    words = (case.primitive, case.contender, str(case.nbytes))
    return probe(mpirun, "direct", *words, environ=outside(os.environ))


def compiled_for_cuda() -> bool | None:
    """Return whether the MPI library was built for CUDA, None if it does not say."""
    from mpi4py import MPI

    from collectives.mpit import ToolError, ToolInterface

    configured = re.search("--with(out)?-cuda", MPI.Get_library_version())
    if configured:  # MPICH
        return configured[0] == "--with-cuda"
    try:
        with ToolInterface() as tool:
            return bool(tool.read("mpi_built_with_cuda_support"))  # Open MPI
    except ToolError:
        return None


def says_it_takes_it() -> bool | None:
    """Return what the library answers when asked whether it takes GPU memory now, None if it cannot be asked."""
    from collectives.mpit import ToolError, library_path

    try:
        library = ctypes.CDLL(str(library_path()))
        return bool(library.MPIX_Query_cuda_support())
    except (ToolError, OSError, AttributeError):
        return None
