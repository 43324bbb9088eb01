"""A made-up machine whose rows are the same every time, and a way to start real jobs."""

import math
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.rows import Row, algbw_GBps, busbw_GBps
from tests.waiting import HANG_S

SIZES = (8, 64, 512, 4096, 32768, 262144, 2097152, 16777216)

# Rounds and times the vector crosses the busiest link, as functions of the number of ranks.
COSTS = {
    "allreduce": {
        "ring": (lambda n: 2 * (n - 1), lambda n: 2 * (n - 1) / n),
        "recursive_doubling": (lambda n: math.log2(n), lambda n: math.log2(n)),
        "rabenseifner": (lambda n: 2 * math.log2(n), lambda n: 2.2 * (n - 1) / n),
        "spread": (lambda n: 2.4, lambda n: 1.7 * (n - 1) / n),
        "reduce_broadcast": (lambda n: 2 * math.log2(n), lambda n: 2 * math.log2(n)),
    },
    "allgather": {
        "ring": (lambda n: n - 1, lambda n: (n - 1) / n),
        "bruck": (lambda n: math.log2(n), lambda n: 1.3 * (n - 1) / n),
        "gather_broadcast": (lambda n: 1 + math.log2(n), lambda n: 2.5),
    },
    "reduce_scatter": {
        "pairwise": (lambda n: n - 1, lambda n: (n - 1) / n),
        "reduce_then_scatter": (lambda n: 1 + math.log2(n), lambda n: 2.0),
    },
    "broadcast": {
        "binomial": (lambda n: math.log2(n), lambda n: math.log2(n)),
        "scatter_allgather": (lambda n: n, lambda n: 1.6),
        "chain:segments=16": (lambda n: 16 + n, lambda n: 1.1),
    },
    "barrier": {"dissemination": (lambda n: math.log2(n), lambda n: 0), "linear": (lambda n: n, lambda n: 0)},
}
NATIVE = {"allreduce": 1.8, "allgather": 0.95, "reduce_scatter": 1.4, "broadcast": 1.5, "barrier": 0}
FACTORS = {
    "allreduce": lambda n: 2 * (n - 1) / n,
    "allgather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "barrier": lambda n: 1.0,
}


def _jitter(*key):
    """A number between 0 and 1 that depends on `key` alone, through no hash that changes between processes."""
    return math.modf(abs(math.sin(sum(ord(letter) * (7 + place) for place, letter in enumerate(repr(key))))) * 1e4)[0]


def _time_us(primitive, algorithm, nranks, nbytes):
    if algorithm.startswith("native"):
        rounds, crossings = math.log2(max(nranks, 2)) * 0.8, NATIVE[primitive]
        if algorithm == "native_persistent":
            rounds *= 0.95
    else:
        rounds, crossings = (cost(max(nranks, 2)) for cost in COSTS[primitive][algorithm])
    time = 1.4 + 2.1 * rounds + nbytes * crossings / 6e3
    return time * (1 + 0.1 * _jitter(primitive, algorithm, nbytes))


@pytest.fixture(scope="session")
def row():
    """Make a row of which only the named columns matter."""

    def make(**columns):
        given = {
            "run": "20250102T030405Z-atlas-n8",
            "primitive": "allreduce",
            "algorithm": "ring",
            "nranks": 8,
            "dtype": "float32",
            "count": 1024,
            "nbytes": 4096,
        }
        return Row(**{**given, **columns})

    return make


@pytest.fixture(scope="session")
def stored(row):
    """Make the rows of a whole run."""

    def make(primitives=tuple(COSTS), sizes=SIZES, nranks=8, algorithms=None, native=True, **columns):
        rows = []
        for primitive in primitives:
            names = ["native", "native_persistent"] * native + list(COSTS[primitive])
            for nbytes in sizes if primitive != "barrier" else (0,):
                base = _time_us(primitive, "native", nranks, nbytes)
                for algorithm in names:
                    if algorithms is not None and algorithm not in algorithms:
                        continue
                    time = _time_us(primitive, algorithm, nranks, nbytes)
                    spread = 0.04 + 0.3 * _jitter("spread", algorithm, nbytes) / (1 + nbytes / 1e5)
                    ratio = base / time if native else None
                    half = 0.02 + 0.05 * _jitter("half", algorithm, nbytes)
                    fixed = {
                        "primitive": primitive,
                        "algorithm": algorithm,
                        "nranks": nranks,
                        "count": nbytes // 4,
                        "nbytes": nbytes,
                        "op": "sum" if "reduce" in primitive else "",
                        "root": 0 if primitive == "broadcast" else None,
                        "iters": 50,
                        "time_us_p50": time,
                        "time_us_mean": time * 1.02,
                        "time_us_min": time * (1 - 0.5 * spread),
                        "time_us_p5": time * (1 - 0.3 * spread),
                        "time_us_p95": time * (1 + spread),
                        "time_us_max": time * (1 + 3 * spread),
                        "algbw_GBps": algbw_GBps(nbytes, time),
                        "busbw_GBps": busbw_GBps(nbytes, time, FACTORS[primitive](nranks), nranks),
                        "baseline": "native" if native else "",
                        "native_ratio": ratio,
                        "native_ratio_low": ratio and ratio * (1 - half),
                        "native_ratio_high": ratio and ratio * (1 + half),
                        "thread_level": "multiple",
                        "oversubscribed": True,
                        "wrong": 0,
                    }
                    rows.append(row(**{**fixed, **columns}))
        return rows

    return make


@pytest.fixture(scope="session")
def with_own(stored):
    """Make the rows of a run in which the library was told to use its own algorithms too."""

    def make(primitive="allreduce", sizes=SIZES, names=("ring", "recursive_doubling", "rabenseifner"), proved=True):
        rows = stored([primitive], sizes=sizes)
        for one in list(rows):
            if one.algorithm in names:
                time = one.time_us_p50 * (1.1 + 0.3 * _jitter("own", one.algorithm, one.nbytes))
                own = f"native:{one.algorithm}"
                told = {
                    "requested": own,
                    "proved": proved,
                    "evidence": f"it leaves the trace of our own {one.algorithm}, and linear leaves another",
                    "forced_with": f"coll_han_priority=0 coll_tuned_{primitive}_algorithm={names.index(one.algorithm)}",
                    "counterpart": one.algorithm,
                }
                rows.append(replace(one, algorithm=own, time_us_p50=time, **told))
            elif one.algorithm == "native":
                guess = "native:recursive_doubling" if one.nbytes < 1 << 15 else "native:rabenseifner"
                rows[rows.index(one)] = replace(one, native_guess=guess, evidence="the nearest in time")
        return rows

    return make


@pytest.fixture(scope="session")
def as_read():
    """Turn rows into what reading them back gives."""
    return lambda rows: [asdict(one) for one in rows]


ROOT = Path(__file__).parents[2]

# Open MPI refuses root, and more ranks than CPUs, unless told otherwise. Ranks that wait give their CPU away: results
# matter here, time does not, and other tests run at the same time.
LAUNCHING = {
    "MPIR_CVAR_POLLS_BEFORE_YIELD": "100",
    "OMPI_MCA_mpi_yield_when_idle": "true",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


@pytest.fixture(scope="session")
def mpirun():
    """The mpirun of this environment, or else of the PATH."""
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        pytest.skip("there is no mpirun beside this Python nor in the PATH")
    return found


@pytest.fixture
def begin(mpirun):
    """Start `python WORDS` on some ranks, without mpirun on 0; what still runs at the end of the test is ended."""
    begun = []

    def start(nranks, *words, **environment):
        process = subprocess.Popen(
            [*([mpirun, "-n", str(nranks)] if nranks else []), sys.executable, *map(str, words)],
            cwd=ROOT,
            env={**os.environ, **LAUNCHING, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        begun.append(process)
        return process

    yield start
    for process in begun:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)  # mpirun then ends its ranks
            try:
                process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


@pytest.fixture
def launch(begin):
    """Run `python WORDS` on some ranks to its end."""

    def run(nranks, *words, **more):
        process = begin(nranks, *words, **more)
        out, err = process.communicate(timeout=HANG_S)
        return SimpleNamespace(status=process.returncode, out=out, err=err)

    return run


@pytest.fixture
def alone(launch):
    """Run `python WORDS` without mpirun to its end."""
    return lambda *words, **more: launch(0, *words, **more)


@pytest.fixture
def ranks_of():
    """Find processes by a word of their command line: the ranks of a job, by a path that only it has."""

    def find(word):
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if any(str(word) in one for one in words) and "python" in words[0]:
                found.append(int(folder.name))
        return sorted(found)

    return find
