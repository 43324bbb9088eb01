"""The sweep as people run it: a command under mpirun, with its exit status, its streams and its files."""

import os
import signal

import pytest

from bench.rows import ROWS_FILE, read_rows, read_run
from tests.waiting import HANG_S, wait_for

pytestmark = pytest.mark.launch

SMALL = ("allreduce", "barrier", "-b", "8", "-e", "4K", "-f", "512", "-n", "5", "--no-plots")


def sweep(launch, nranks, *words, **environment):
    return launch(nranks, "-m", "bench.sweep", *words, **environment)


def messages(result):
    """What the sweep itself wrote on stderr, without what a launcher adds about the exit status."""
    return [line for line in result.err.splitlines() if line.startswith("bench.sweep:")]


# ---------------------------------------------------------------------------------------------------------------
# Sweeps that end well


@pytest.mark.parametrize("nranks", [1, 2, 3])
def test_a_sweep_writes_a_row_for_each_contender_and_says_where(launch, tmp_path, nranks):
    folder = tmp_path / "run"
    result = sweep(launch, nranks, *SMALL, "-o", folder)
    assert result.status == 0, result.err
    rows, notices = read_rows(folder / ROWS_FILE)
    assert notices == []
    assert {row["primitive"] for row in rows} == {"allreduce", "barrier"}
    assert {row["nbytes"] for row in rows if row["primitive"] == "allreduce"} == {8, 4096}
    assert {row["run"] for row in rows} == {"run"}
    assert {row["nranks"] for row in rows} == {nranks}
    measured = [row for row in rows if row["status"] == "ok"]
    assert {"native", "ring"} <= {row["algorithm"] for row in measured}
    assert all(row["time_us_p50"] > 0 and row["wrong"] == 0 for row in measured)
    assert all(row["reason"] for row in rows if row["status"] != "ok")
    facts = read_run(folder)
    assert facts["nranks"] == nranks
    assert facts["hosts"]
    assert facts["software"]["mpi"]


def test_the_table_on_stdout_is_data_or_begins_with_a_hash(launch, tmp_path):
    result = sweep(launch, 2, *SMALL, "-o", tmp_path / "run")
    lines = result.out.splitlines()
    data = [line for line in lines if not line.startswith("#")]
    rows, _ = read_rows(tmp_path / "run" / ROWS_FILE)
    assert [line.split()[:3] for line in data] == [
        [str(row["nbytes"]), row["primitive"], row["algorithm"]] for row in rows
    ]
    assert lines[-1].startswith("# OK: ")
    assert messages(result) == []


def test_quiet_writes_only_files(launch, tmp_path):
    result = sweep(launch, 2, *SMALL, "-q", "-o", tmp_path / "run")
    assert (result.status, result.out) == (0, "")
    assert (tmp_path / "run" / ROWS_FILE).exists()


def test_an_empty_folder_will_do(launch, tmp_path):
    assert sweep(launch, 1, *SMALL, "-q", "-o", tmp_path).status == 0
    assert (tmp_path / ROWS_FILE).exists()


@pytest.mark.parametrize("words", [("--list",), ("--version",), ("--help",)])
def test_what_measures_nothing_answers_once_and_makes_nothing(launch, tmp_path, words):
    result = sweep(launch, 2, *words, "-o", tmp_path / "run")
    assert result.status == 0, result.err
    assert len(result.out.splitlines()) >= 1
    assert result.out.count("collbench 0.") == (words == ("--version",))
    assert not (tmp_path / "run").exists()


def test_a_point_beyond_the_memory_limit_is_skipped_with_the_reason(launch, tmp_path):
    result = sweep(launch, 2, *SMALL, "--memory-limit", "16K", "-o", tmp_path / "run")
    assert result.status == 0, result.err
    rows, _ = read_rows(tmp_path / "run" / ROWS_FILE)
    large = [row for row in rows if row["nbytes"] == 4096]
    assert large
    assert all(row["status"] == "skipped" and "MiB" in row["reason"] for row in large)
    assert all(row["status"] == "ok" for row in rows if row["nbytes"] == 8)


NODES = ("allreduce", "-b", "16K", "-e", "16K", "-a", "ring,window,two_level", "-n", "5", "--no-plots")


def test_each_memory_has_rows_of_its_own_with_the_library_on_the_same(launch, tmp_path):
    words = (*NODES, "alltoall", "--memory", "plain,registered,shared")
    result = sweep(launch, 2, *words, "-o", tmp_path / "run")
    assert result.status == 0, result.err
    rows, _ = read_rows(tmp_path / "run" / ROWS_FILE)
    assert {row["wrong"] for row in rows if row["status"] == "ok"} == {0}
    named = {(row["primitive"], row["memory"], row["algorithm"]): row for row in rows}
    for memory in ("plain", "registered"):
        for primitive, algorithm in (("allreduce", "ring"), ("allreduce", "window"), ("alltoall", "window")):
            assert named[primitive, memory, "native"]["status"] == "ok"
            assert named[primitive, memory, algorithm]["native_ratio"] > 0
    one_result = named["allreduce", "shared", "window"]
    assert (one_result["status"], one_result["native_ratio"], one_result["baseline"]) == ("ok", None, "")
    for primitive, algorithm, says in (
        ("allreduce", "native", "native writes every rank's result apart"),
        ("allreduce", "ring", "ring writes every rank's result apart"),
        ("alltoall", "window", "alltoall leaves ranks different results"),
    ):
        row = named[primitive, "shared", algorithm]
        assert (row["status"], says in row["reason"]) == ("skipped", True)
    assert "window, shared" in result.out
    ways = {(row["algorithm"], row["transport"]) for row in rows}
    assert ways == {("native", "message"), ("ring", "message"), ("window", "window"), ("two_level", "window")}


def test_rows_count_the_larger_messages_of_accumulation(launch, tmp_path):
    words = ("allreduce", "-b", "16K", "-e", "16K", "-a", "ring", "-d", "float16", "-n", "5", "--no-plots")
    result = sweep(launch, 2, *words, "--accumulate", "float32", "-o", tmp_path / "run")
    assert result.status == 0, result.err
    rows, _ = read_rows(tmp_path / "run" / ROWS_FILE)
    sent = {row["algorithm"]: row["sent_nbytes_max"] for row in rows if row["status"] == "ok"}
    assert sent["ring:accumulate=float32"] == 2 * 4096 * 4  # 8192 elements, half of them in each of two rounds


def test_8_bit_floats_are_summed_by_hand_and_moved_by_both(launch, tmp_path):
    words = ("allreduce", "allgather", "-a", "native,ring", "-d", "float8_e4m3fn,float8_e5m2", "-b", "999", "-e", "999")
    result = sweep(launch, 3, *words, "-n", "3", "--no-plots", "-o", tmp_path / "run")
    assert result.status == 0, result.err
    told = {
        (row["primitive"], row["dtype"], row["algorithm"]): row for row in read_rows(tmp_path / "run" / ROWS_FILE).rows
    }
    assert len(told) == 8
    for (primitive, dtype, algorithm), row in told.items():
        if (primitive, algorithm) == ("allreduce", "native"):
            assert row["reason"] == f"this MPI library has no type for {dtype}"
        else:
            assert (row["status"], row["wrong"], row["nbytes"]) == ("ok", 0, 999)


def test_pretended_nodes_are_in_the_rows(launch, tmp_path):
    result = sweep(launch, 4, *NODES, "--ppn", "2", "-o", tmp_path / "run")
    assert result.status == 0, result.err
    rows, _ = read_rows(tmp_path / "run" / ROWS_FILE)
    assert {(row["nnodes"], row["ppn"]) for row in rows} == {(1, 2)}
    between = {row["algorithm"]: row["between_nbytes_max"] for row in rows if row["status"] == "ok"}
    # Around the ring one rank of each node sends 6 blocks of a quarter; two leaders send each other 2 halves.
    assert between == {"native": None, "ring": 6 * 4096, "two_level": 2 * 8192}
    assert [row["reason"] for row in rows if row["algorithm"] == "window"] == [
        "window needs all ranks on one node, to share memory"
    ]


SHORT = """
import sys
from collectives import shared

shared.free_nbytes = lambda: 3 << 20

from bench.sweep import main
main(sys.argv[1:])
"""


def test_what_does_not_fit_in_shared_memory_is_skipped_with_the_reason(launch, tmp_path):
    words = ("allreduce", "-b", "16K", "-e", "16M", "-f", "1024", "-a", "ring,window", "-n", "5", "--no-plots")
    result = launch(2, "-c", SHORT, *words, "--memory", "plain,registered,shared", "-o", tmp_path / "run")
    assert result.status == 0, result.err
    rows, _ = read_rows(tmp_path / "run" / ROWS_FILE)
    skipped = {(row["nbytes"], row["memory"], row["algorithm"]) for row in rows if "/dev/shm" in row["reason"]}
    large = 16 << 20
    # On plain memory only what wants shared scratch; on the others there is nothing on which to measure.
    assert skipped == {
        (large, "plain", "window"),
        *((large, memory, name) for memory in ("registered", "shared") for name in ("native", "ring", "window")),
    }
    assert all(
        row["status"] == "ok"
        for row in rows
        if row["nbytes"] == large and row["algorithm"] in ("native", "ring") and row["memory"] == "plain"
    )
    others = [row for row in rows if (row["nbytes"], row["memory"], row["algorithm"]) not in skipped]
    assert {row["status"] for row in others if row["memory"] != "shared"} == {"ok"}


# Neither may load before the last sample: importing takes long, and their threads and memory change what is timed.
LATE = """
import sys
import bench.timing

sample = bench.timing.sample

def watched(*arguments, **options):
    result = sample(*arguments, **options)
    loaded = {"pandas", "matplotlib"} & set(sys.modules)
    assert not loaded, f"{loaded} loaded before the last sample"
    return result

bench.timing.sample = watched
from bench.sweep import main
main(sys.argv[1:])
"""


def test_neither_pandas_nor_matplotlib_is_loaded_before_the_last_sample(launch, tmp_path):
    words = [word for word in SMALL if word != "--no-plots"]
    result = launch(2, "-c", LATE, *words, "-o", tmp_path / "run")
    assert result.status == 0, result.err
    assert list((tmp_path / "run" / "plots").glob("*.png"))  # they were loaded in the end


# ---------------------------------------------------------------------------------------------------------------
# Bad input: one message, status 2, no folder


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("-a", "rnig"), "unknown algorithm 'rnig' for --algorithm (did you mean ring?"),
        (("allreduce", "-a", "ring:segments=2"), "'ring:segments=2' for --algorithm"),
        (("-r", "2"), "'2' for --root (the ranks of this run are 0 to 1)"),
        (("--ppn", "3"), "'3' for --ppn (must be 1 to 2 ranks a node)"),
        (("--transport", "staged", "--device", "cpu"), "'staged' for --transport"),
        (("--no-such",), "unknown option '--no-such'"),
    ],
)
def test_bad_input_gets_one_message_status_2_and_no_folder(launch, tmp_path, words, says):
    """What else is refused for the command line alone is in test_options.py."""
    result = sweep(launch, 2, *words, "-o", tmp_path / "run")
    assert result.status == 2
    (message,) = messages(result)
    assert says in message
    assert "Traceback" not in result.err
    assert result.out == ""
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_not_empty_is_refused_before_anything_is_measured(launch, tmp_path):
    (tmp_path / "notes").write_text("mine")
    result = sweep(launch, 2, *SMALL, "-o", tmp_path)
    assert result.status == 2
    (message,) = messages(result)
    assert "exists and is not empty" in message
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured(launch):
    result = sweep(launch, 2, *SMALL, "-o", "/proc/collbench/run")
    assert result.status == 2
    (message,) = messages(result)
    assert "cannot be written" in message


@pytest.mark.parametrize("says_so", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_ranks_that_another_mpi_started_are_refused(alone, tmp_path, says_so):
    # What such a rank sees: the variables of one launcher, and the library of another, so a world of its own.
    result = sweep(
        lambda nranks, *words, **more: alone(*words, **more), 1, *SMALL, "-o", tmp_path / "run", **{says_so: "8"}
    )
    assert result.status == 2
    (message,) = messages(result)
    assert "8 ranks" in message
    assert "different" in message
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------------------------------------------------
# Faults

BROKEN = """
import sys
from collectives import allreduce
from collectives.rounds import Recv, Send

@allreduce.algorithm()
def forgetful(rank, nranks):
    yield tuple(Send(peer, 0) for peer in range(1, nranks)) if rank == 0 else Recv(0, 0)

from bench.sweep import main
main(sys.argv[1:])
"""


def test_a_wrong_result_is_marked_gives_status_1_and_counts_in_no_time(launch, tmp_path):
    result = launch(2, "-c", BROKEN, *SMALL, "-a", "forgetful,ring,dissemination", "-o", tmp_path / "run")
    assert result.status == 1, result.err
    rows, _ = read_rows(tmp_path / "run" / ROWS_FILE)
    wrong = [row for row in rows if row["algorithm"] == "forgetful"]
    assert [row["status"] for row in wrong] == ["wrong"] * 2
    assert all(row["wrong"] > 0 and row["time_us_p50"] is None and "differ" in row["reason"] for row in wrong)
    assert all(row["status"] == "ok" for row in rows if row["algorithm"] != "forgetful")
    assert "# FAILED: " in result.out


RAISES = """
import sys
import bench.sweep
from bench.launch import prepare

def prepare_and_patch():
    launch = prepare()
    from bench.measure import Measuring
    measured = Measuring._measured

    def failing(self, point, *more, **options):
        # All ranks have agreed on the point by then, so rank 0 has written the rows of the one before.
        if self.job.rank == 1 and point.nbytes == 0:
            raise LookupError("injected on rank 1")
        return measured(self, point, *more, **options)

    Measuring._measured = failing
    return launch

bench.sweep.prepare = prepare_and_patch
bench.sweep.main(sys.argv[1:])
"""


def test_an_exception_on_one_rank_ends_the_job_with_its_traceback_and_keeps_the_rows(launch, tmp_path):
    result = launch(3, "-c", RAISES, *SMALL, "-o", tmp_path / "run")
    assert result.status != 0
    assert "rank 1 failed, the job ends" in result.err
    assert "Traceback" in result.err
    assert "LookupError: injected on rank 1" in result.err
    rows, _ = read_rows(tmp_path / "run" / ROWS_FILE)
    assert {row["nbytes"] for row in rows} == {8, 4096}


LONG = ("allreduce", "-b", "8", "-e", "1M", "-f", "1.2", "-a", "ring", "-n", "1000", "--no-plots")


def rows_so_far(folder):
    """Complete rows on disk now; reading must never fail, whenever it happens."""
    return read_rows(folder / ROWS_FILE)[0] if (folder / ROWS_FILE).exists() else []


@pytest.mark.parametrize("victim", ["a rank", "mpirun"])
def test_a_kill_loses_at_most_the_row_being_written(begin, ranks_of, tmp_path, victim):
    folder = tmp_path / "run"
    process = begin(2, "-m", "bench.sweep", *LONG, "-o", folder)
    wait_for(lambda: len(rows_so_far(folder)) >= 6, "the first rows")
    before = rows_so_far(folder)
    os.kill(ranks_of(folder)[-1] if victim == "a rank" else process.pid, signal.SIGKILL)
    process.communicate(timeout=HANG_S)
    assert process.returncode != 0
    wait_for(lambda: not ranks_of(folder), "the ranks to be gone")
    after = rows_so_far(folder)
    assert after[: len(before)] == before
    whole = [row["nbytes"] for row in after]
    assert whole == sorted(whole)


def test_an_interrupt_keeps_the_rows_and_leaves_no_process(begin, ranks_of, tmp_path):
    folder = tmp_path / "run"
    process = begin(2, "-m", "bench.sweep", *LONG, "-o", folder)
    wait_for(lambda: len(rows_so_far(folder)) >= 4, "the first rows")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=HANG_S)
    assert process.returncode != 0
    wait_for(lambda: not ranks_of(folder), "the ranks to be gone")
    assert len(rows_so_far(folder)) >= 4
