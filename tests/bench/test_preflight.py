import os

import pytest

from bench import machine, preflight
from bench.doctor import table
from bench.launch import Launch

LAUNCH = Launch(nranks=4, rank=0, local_nranks=4, cpus=4, thread_level="funneled")
CROWD = Launch(nranks=8, rank=0, local_nranks=8, cpus=2, thread_level="multiple")


def process(proc, pid, *words, maps=""):
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "cmdline").write_bytes("\0".join([*words, ""]).encode())
    (folder / "maps").write_text(maps)


def test_ranks_of_another_mpi_are_an_error():
    assert preflight._ranks(LAUNCH, 4).level == "ok"
    assert preflight._ranks(LAUNCH, 1).level == "error"
    assert preflight._ranks(Launch(None, 0, 1, 2, "funneled"), 1).level == "ok"


def test_more_ranks_than_cpus_are_told():
    assert preflight._cpus(LAUNCH).level == "ok"
    assert preflight._cpus(CROWD).level == "warn"


def test_another_run_on_the_same_cpus_is_told_and_its_own_ranks_are_not(tmp_path):
    process(tmp_path, 10, "/usr/bin/python3", "-m", "bench.sweep")
    process(tmp_path, 11, "/usr/bin/python3", "-m", "bench.sweep")
    process(tmp_path, 12, "/usr/bin/vim", "bench.sweep")
    process(tmp_path, 13, "/usr/bin/python3", "-m", "http.server")
    cpus = {10: {0, 1}, 11: {2, 3}, 12: {0}, 13: {0}}.get
    assert preflight._others(tmp_path, [10], {0, 1}, cpus).level == "ok"
    finding = preflight._others(tmp_path, [], {0, 1}, cpus)
    assert finding.level == "warn"
    assert "process 10)" in finding.what
    assert preflight._others(tmp_path, [], {2}, cpus).what.endswith("(process 11)")


@pytest.mark.parametrize(("free", "level"), [(1 << 30, "ok"), (64 << 20, "warn"), (None, "warn")])
def test_little_shared_memory_is_told(free, level):
    finding = preflight._shm(free, 4)
    assert finding.level == level
    assert bool(finding.remedy) == (level == "warn")


def test_stale_segments_are_own_files_that_no_process_maps(tmp_path):
    shm, proc = tmp_path / "shm", tmp_path / "proc"
    shm.mkdir()
    for name in ("mpich_shm_1_0", "sm_segment.h.0.a.0", "sem.of_another_program", "mpich_shm_2_0"):
        (shm / name).write_bytes(bytes(1000))
    process(proc, 5, "python", maps=f"7f0-7f1 rw-s 00000000 00:1a 99   {shm}/mpich_shm_1_0\n7f2-7f3 r--p 0 00:00 0\n")
    stale = preflight.stale_segments(shm, proc, os.getuid())
    assert sorted(path.name for path in stale) == ["mpich_shm_2_0", "sm_segment.h.0.a.0"]
    assert preflight.stale_segments(shm, proc, os.getuid() + 1) == []
    assert preflight.stale_segments(tmp_path / "none", proc, os.getuid()) == []
    assert "2 files" in preflight._stale(stale).what
    assert all(path.exists() for path in stale)  # reported, never removed


@pytest.mark.parametrize(
    ("scope", "may", "mpi", "level", "remedy"),
    [
        (0, False, "MPICH", "ok", ""),
        (1, True, "MPICH", "ok", ""),
        (1, False, "MPICH Version: 5.0.2", "warn", "MPIR_CVAR_CH4_CMA_ENABLE=0"),
        (2, False, "Open MPI v5.0.11", "warn", "OMPI_MCA_smsc=^cma"),
    ],
)
def test_single_copy_that_is_denied_is_told_with_this_librarys_variable(scope, may, mpi, level, remedy):
    finding = preflight._single_copy(scope, may, mpi)
    assert finding.level == level
    assert remedy in finding.remedy


def test_capabilities_are_read_from_the_status(tmp_path):
    status = tmp_path / "status"
    status.write_text(f"Name:\tx\nCapEff:\t{1 << 19:016x}\n")
    assert preflight._may_ptrace(status)
    status.write_text("CapEff:\t0000000000000000\n")
    assert not preflight._may_ptrace(status)
    assert not preflight._may_ptrace(tmp_path / "none")


def test_a_thread_level_that_was_not_granted_is_told():
    assert preflight._thread_level(LAUNCH, "funneled").level == "ok"
    assert preflight._thread_level(LAUNCH, "single").level == "warn"


@pytest.mark.parametrize(
    ("uid", "environ", "mpi", "level"),
    [
        (1000, {}, "Open MPI v5", "ok"),
        (0, {}, "MPICH", "ok"),
        (0, {}, "Open MPI v5", "warn"),
        (0, {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}, "Open MPI v5", "ok"),
    ],
)
def test_root_is_told_what_open_mpi_wants(uid, environ, mpi, level):
    assert preflight._user(uid, environ, mpi).level == level


def test_what_is_no_ok_has_a_remedy_and_the_table_has_a_line_for_each():
    found = preflight.findings(CROWD, 8, "multiple", "MPICH", [os.getpid()])
    assert all(one.remedy for one in found if one.level != "ok")
    assert len(table(found)) == len(found) == len(preflight.told(found))


# ---------------------------------------------------------------------------------------------------------------
# The machine


def test_lists_of_cpus_are_read_as_linux_writes_them():
    assert machine.cpus("0-3,8\n") == [0, 1, 2, 3, 8]
    assert machine.cpus("") == []


LEVELS = [("L1", 32 << 10, 2), ("L2", 1 << 20, 2), ("L3", 32 << 20, 16)]


@pytest.mark.parametrize(
    ("nbytes", "nranks", "cache"),
    [
        (16 << 10, 1, "L1"),
        (16 << 10, 8, "L1"),  # a core each
        (16 << 10, 16, "L1"),  # two ranks a core share it
        (17 << 10, 16, "L2"),
        (4 << 20, 8, "L3"),  # all in one L3
        (4 << 20, 9, "memory"),
        (1 << 30, 1, "memory"),
    ],
)
def test_the_cache_that_holds_what_ranks_touch(nbytes, nranks, cache):
    assert machine.cache_of(nbytes, nranks, LEVELS, 16) == cache


def test_nothing_is_said_of_unknown_caches():
    assert machine.cache_of(1, 1, [], 16) == ""


def test_busy_time_of_the_machine_grows():
    before = machine.busy_seconds()
    assert before is None or machine.busy_seconds() >= before
