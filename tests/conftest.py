"""How the tests run, alone and under mpirun.

`python -m pytest` runs the tests that need no MPI, and loads none. `mpirun -n 4 python -m pytest -m mpi` runs the
others, on all ranks alike: a test that fails on one rank fails on all, with the failing ranks named, and only rank 0
writes. They are in files named `test_mpi_*.py`, which import MPI. Tests marked `full` take minutes and run
only with `-m full`. A test that takes longer than five minutes hangs, whatever else the machine does: then the stacks
of its process are written and the process ends, and with it the whole job.
"""

import faulthandler
import os
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

import pytest
from hypothesis import settings

LIMIT_S, FULL_LIMIT_S = 300, 1800
LAUNCHED = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
"""What a launcher sets for the processes that it starts."""


def _under_mpirun():
    return any(name in os.environ for name in LAUNCHED)


# Examples are the same in every run and on every rank, and a busy machine makes any one of them slow.
settings.register_profile("collbench", deadline=None, derandomize=True, database=None)
settings.load_profile("collbench")


@pytest.hookimpl(tryfirst=True)  # before the terminal reporter takes hold of stdout
def pytest_configure(config):
    # pytest does not capture here, so this is the real stderr, not what is captured from a test.
    config.limit_stderr = os.fdopen(os.dup(2), "w")
    config.addinivalue_line("markers", "full: takes minutes; runs only with -m full")
    config.world = None
    if _under_mpirun():
        # A folder of its own for each rank: pytest numbers and sweeps the common one as if it were there alone.
        config.own_folder = tempfile.TemporaryDirectory(prefix="collbench-tests-")
        config.option.basetemp = Path(config.own_folder.name) / "tests"
        # Ranks that wait give their CPU away: results matter here, time does not, and others may use the machine.
        os.environ.setdefault("MPIR_CVAR_POLLS_BEFORE_YIELD", "100")
        os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "true")
        from bench.launch import prepare

        prepare()
        from mpi4py import MPI

        config.world = MPI.COMM_WORLD.Dup()
        if config.world.Get_rank() > 0:
            config.silence = open(os.devnull, "w")  # noqa: SIM115 - stays open as long as pytest
            sys.stdout = config.silence


def pytest_unconfigure(config):
    config.limit_stderr.close()
    if config.world is not None:
        sys.stdout.flush()
        config.world.Barrier()  # a rank that ends with failures ends the job, and rank 0 must have told of them
        config.world.Free()
        config.own_folder.cleanup()


def pytest_report_header(config):
    if config.world is None:
        return "MPI: none; for the other tests: mpirun -n 4 python -m pytest -m mpi"
    from mpi4py import MPI

    vendor, version = MPI.get_vendor()
    return f"MPI: {vendor} {'.'.join(map(str, version))}, {config.world.Get_size()} ranks"


def pytest_ignore_collect(collection_path, config):
    """Leave files alone that belong to the other way of running."""
    if collection_path.is_file() and collection_path.name.startswith("test_mpi_") == (config.world is None):
        return True
    return None


def pytest_collection_modifyitems(config, items):
    """Keep the tests that belong to this way of running."""

    def belongs(item):
        marks = {mark.name for mark in item.iter_markers()}
        here = ("mpi" in marks) == (config.world is not None)
        return here and ("full" not in marks or "full" in config.option.markexpr)

    kept, left = [], []
    for item in items:
        (kept if belongs(item) else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    limit = FULL_LIMIT_S if item.get_closest_marker("full") else LIMIT_S
    faulthandler.dump_traceback_later(limit, exit=True, file=item.config.limit_stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test; under mpirun it ends on all ranks as it ends on the worst."""
    comm = pyfuncitem.config.world
    if comm is None:
        return (yield)
    own, result = None, None
    try:
        result = yield
    except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
        own = error
    skips = isinstance(own, pytest.skip.Exception)
    told = None if own is None else (skips, str(own) if skips else _told(own))
    ends = comm.allgather(told)
    failed = [rank for rank, end in enumerate(ends) if end is not None and not end[0]]
    skipped = [rank for rank, end in enumerate(ends) if end is not None and end[0]]
    if failed:
        texts = dict.fromkeys(ends[rank][1] for rank in failed)  # most often the same on all
        message = f"failed on rank {', '.join(map(str, failed))} of {comm.Get_size()}\n\n" + "\n".join(texts)
        pytest.fail(message, pytrace=False)
    if skipped and len(skipped) < len(ends):
        pytest.fail(f"skipped on rank {', '.join(map(str, skipped))} only: {ends[skipped[0]][1]}", pytrace=False)
    if own is not None:
        raise own
    return result


def _told(error):
    """Return an exception with its traceback from the test on, as text."""
    frames = traceback.extract_tb(error.__traceback__)
    inner = [one for one in frames if not {"_pytest", "pluggy", "conftest.py"} & set(Path(one.filename).parts)]
    return "".join([*traceback.format_list(inner), *traceback.format_exception_only(error)])


STANDIN = Path(__file__).parent / "standin"


def _forget_cupy():
    for name in [name for name in sys.modules if name.split(".")[0] in ("cupy", "cupyx", "cupy_backends")]:
        del sys.modules[name]


def _real_gpu():
    """CuPy, if it is installed and sees a GPU."""
    try:
        import cupy

        return cupy if cupy.cuda.runtime.getDeviceCount() else None
    except Exception:  # whatever keeps CuPy from working
        return None


@pytest.fixture(scope="module")
def gpu(pytestconfig):
    """CuPy where there is a GPU, else the stand-in for it, which has `machine` and is gone after the module's tests.

    The stand-in is for up to 4 ranks, with more only if tests marked `full` are asked for too: a call then moves more
    messages in the same ways, and layouts of more ranks are tested on the host and without MPI.
    """
    cupy = _real_gpu()
    if cupy is not None:
        yield cupy
        return
    nranks = 1 if pytestconfig.world is None else pytestconfig.world.Get_size()
    if nranks > 4 and "full" not in pytestconfig.option.markexpr:
        pytest.skip("the stand-in for a GPU is for up to 4 ranks, or for -m 'mpi or full'")
    _forget_cupy()
    sys.path.insert(0, str(STANDIN))
    import cupy

    yield cupy
    sys.path.remove(str(STANDIN))
    _forget_cupy()


@pytest.fixture(scope="session")
def c_compiler():
    """With it the stand-in builds kernels."""
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("there is no C compiler, with which the stand-in for a GPU builds kernels")


@pytest.fixture(scope="module")
def kernels(gpu, request):
    """What `gpu` is, where it runs kernels of ours."""
    if hasattr(gpu, "machine"):
        request.getfixturevalue("c_compiler")
    return gpu


@pytest.fixture
def standin(gpu):
    """The stand-in with its counts at nothing; skipped where a real GPU is."""
    if not hasattr(gpu, "machine"):
        pytest.skip("a real GPU counts nothing")
    gpu.machine.counts.clear()
    yield gpu
    gpu.machine.eager = False


@pytest.fixture(scope="session")
def comm(pytestconfig):
    """A communicator of all ranks that the tests share."""
    comm = pytestconfig.world.Dup()
    yield comm
    comm.Free()


@pytest.fixture
def fresh_comm(pytestconfig):
    """A communicator of all ranks for one test alone."""
    comm = pytestconfig.world.Dup()
    yield comm
    comm.Free()
