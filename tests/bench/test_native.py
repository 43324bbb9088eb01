import os
import subprocess
import sys

import pytest

from tests.waiting import HANG_S

pytestmark = pytest.mark.launch  # MPI is loaded in a process of its own, and each tells something else


def run(*words):
    """Run the command alone, without a launcher."""
    # Open MPI refuses to start for root otherwise.
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [sys.executable, "-m", "bench.native", *words]
    return subprocess.run(
        command, env=os.environ | allowed, capture_output=True, text=True, timeout=HANG_S, check=False
    )


@pytest.fixture(scope="module")
def catalogue():
    ran = run()
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_library_and_what_decides_are_told(catalogue):
    first, *others = catalogue.splitlines()
    assert first.startswith(("# MPICH Version", "# Open MPI v"))
    assert any(
        "coll_tuned_priority = 30" in line or "MPIR_CVAR_DEVICE_COLLECTIVES = percoll" in line for line in others
    )


def test_names_stand_beside_what_we_call_the_same(catalogue):
    rows = [line.split() for line in catalogue.split("allreduce, MPI_Allreduce\n")[1].split("\n\n")[0].splitlines()]
    ours = {row[0]: row[-1] for row in rows}
    assert rows[0][:2] == ["contender", "id"]
    assert ours["native:ring"] == "ring"
    assert ours["native:recursive_doubling"] == "recursive_doubling"


def test_parameters_have_their_values(catalogue):
    assert "radix=4" in catalogue or "radix=2" in catalogue


def test_a_primitive_without_a_choice_says_so():
    assert "sendrecv_ring: no choice of the library's own, only native" in run("sendrecv_ring").stdout


def test_an_unknown_primitive_is_refused():
    ran = run("allreduc")
    assert ran.returncode == 2
    assert "unknown primitive 'allreduc'" in ran.stderr
    assert "allreduce" in ran.stderr


def test_help_needs_no_mpi():
    ran = run("--help")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "python -m bench.native [PRIMITIVE ...]" in ran.stdout
