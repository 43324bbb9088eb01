"""The library's own algorithms in a sweep, as people ask for them: a command under mpirun."""

import pytest

from bench.rows import ROWS_FILE, read_rows, read_run

pytestmark = pytest.mark.launch

SMALL = ("-b", "8", "-e", "4K", "-f", "512", "-n", "5", "--max-seconds", "0.05", "--no-plots")


def sweep(launch, folder, nranks, *words):
    """Run a sweep into `folder`; return its rows."""
    result = launch(nranks, "-m", "bench.sweep", *words, *SMALL, "-o", folder)
    assert result.status == 0, result.err
    return read_rows(folder / ROWS_FILE)[0]


def is_open_mpi(folder):
    return "Open MPI" in read_run(folder)["software"]["mpi"]


def test_they_are_measured_beside_ours_and_the_default(launch, tmp_path):
    rows = sweep(launch, tmp_path, 2, "allreduce", "-a", "native:ring,native:recursive_doubling")
    point = [row for row in rows if row["nbytes"] == 4096]
    names = ["native", "native:ring", "ring", "native:recursive_doubling", "recursive_doubling"]
    assert [row["algorithm"] for row in point] == names
    assert {row["status"] for row in point} == {"ok"}
    forced = {row["requested"]: row for row in point if row["requested"]}
    assert set(forced) == {"native:ring", "native:recursive_doubling"}
    for row in forced.values():
        assert row["counterpart"] == row["requested"].removeprefix("native:")
        assert row["proved"] in (True, False)
        assert row["evidence"]
        assert "unproven" in row["cautions"] or row["proved"]
        assert ("coll_han_priority=0" if is_open_mpi(tmp_path) else "DEVICE_COLLECTIVES=none") in row["forced_with"]
        assert row["native_ratio"] > 0
    native = point[0]
    assert native["evidence"].startswith("in a call of 4KB it leaves the trace of ")
    assert native["native_guess"] in ("", *forced)
    assert not any(row[column] for row in point if not row["requested"] for column in ("forced_with", "counterpart"))


def test_all_that_the_library_lists_are_measured_or_left_out_with_the_reason(launch, tmp_path):
    rows = sweep(launch, tmp_path, 2, "reduce_scatter", "-a", "native:all")  # which has few
    listed = launch(0, "-m", "bench.native", "reduce_scatter").out
    names = [line.split()[0] for line in listed.splitlines() if line.startswith("  native:")]
    assert len(names) > 3
    for nbytes in (8, 4096):
        asked = [row for row in rows if row["requested"] and row["nbytes"] == nbytes]
        assert [row["requested"] for row in asked] == names
        assert all(row["status"] == "ok" or row["reason"] for row in asked)


def test_what_ran_instead_is_what_the_row_is_called(launch, tmp_path):
    """Open MPI replaces silently what does not apply; MPICH is told to fail instead, and the row says so."""
    rows = sweep(launch, tmp_path / "one", 3, "allgather", "-a", "native:recursive_doubling")
    forced = [row for row in rows if row["requested"]]
    assert len(forced) == 2
    for row in forced:
        assert row["status"] == "skipped"  # 2 or 1024 elements are no whole number for each of 3 ranks
        assert ("for allgatherv (it has: " if is_open_mpi(tmp_path / "one") else "power of two") in row["reason"]
    if is_open_mpi(tmp_path / "one"):
        rows = sweep(launch, tmp_path / "other", 3, "allreduce", "-a", "native:segmented_ring")
        forced = {row["nbytes"]: row for row in rows if row["requested"]}
        assert [row["algorithm"] for row in forced.values()] == ["native:recursive_doubling", "native:ring"]
        assert all("segmented_ring becomes ring" in row["evidence"] for row in forced.values())


def test_a_name_that_the_library_does_not_have_lists_those_it_has(launch, tmp_path):
    result = launch(2, "-m", "bench.sweep", "allreduce", "-a", "native:rnig", *SMALL, "-o", tmp_path / "run")
    assert (result.status, result.out) == (2, "")
    (message,) = [line for line in result.err.splitlines() if line.startswith("bench.sweep:")]
    assert "unknown algorithm 'native:rnig' for --algorithm (did you mean native:ring? known: native:" in message
    assert "native:recursive_doubling" in message
    assert not (tmp_path / "run").exists()


def test_a_parameter_that_the_library_does_not_have_is_refused(launch, tmp_path):
    result = launch(2, "-m", "bench.sweep", "allreduce", "-a", "native:ring:colour=3", *SMALL, "-o", tmp_path / "run")
    assert result.status == 2
    assert "native:ring of Allreduce has no parameter 'colour'" in result.err
    assert not (tmp_path / "run").exists()


NEITHER = """
import sys
import collectives.mpit
collectives.mpit.flavour = lambda path: None
from bench.sweep import main
main(sys.argv[1:])
"""


def test_a_library_that_is_neither_gives_its_default_and_says_why(launch, tmp_path):
    result = launch(2, "-c", NEITHER, "allreduce", "-a", "native:all,ring", *SMALL, "-o", tmp_path)
    assert result.status == 0, result.err
    assert "note: only the library's default, native, is measured: " in result.err
    assert "is neither MPICH nor Open MPI" in result.err
    assert {row["algorithm"] for row in read_rows(tmp_path / ROWS_FILE)[0]} == {"native", "ring"}


def test_a_run_that_was_cut_is_completed(launch, tmp_path):
    words = ("allreduce", "-a", "native:ring,native:recursive_doubling", *SMALL)
    whole = sweep(launch, tmp_path, 2, *words[:3])
    path = tmp_path / ROWS_FILE
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-3]))
    result = launch(2, "-m", "bench.sweep", *words, "--resume", tmp_path)
    assert result.status == 0, result.err
    again = read_rows(path)[0]
    key = [(row["nbytes"], row["requested"], row["algorithm"]) for row in whole]
    assert [(row["nbytes"], row["requested"], row["algorithm"]) for row in again] == key


def test_streaming_calls_through_several_sets_of_buffers_are_forced_too(launch, tmp_path):
    words = ("allreduce", "-a", "native:ring", "--cadence", "streaming", "--rotate", "2")
    rows = sweep(launch, tmp_path, 2, *words)
    forced = [row for row in rows if row["requested"]]
    assert len(forced) == 2
    assert all(row["status"] == "ok" and row["calls"] > 1 and row["wrong"] == 0 for row in forced)
