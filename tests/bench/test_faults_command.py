"""What happens to a sweep that is killed, starved or stuck, and to the run that goes on with what it left."""

import contextlib
import os
import random
import signal
import time

import pytest

from bench.rows import ROWS_FILE, read_rows, read_run
from tests.waiting import HANG_S, wait_for

pytestmark = pytest.mark.launch

WORDS = ("allreduce", "barrier", "-b", "8", "-e", "4K", "-f", "2", "-a", "ring,linear", "-n", "5", "--no-plots", "-q")
WHOLE = 10 * 2 + 2  # rows: native and ring at 10 sizes, native and linear at the barrier


def rows_of(folder):
    return read_rows(folder / ROWS_FILE)[0] if (folder / ROWS_FILE).exists() else []


def names(rows):
    return [(row["primitive"], row["count"], row["algorithm"]) for row in rows]


def complete(launch, folder, before):
    """Resume the run in `folder`; all that it had stays and the rest is there once."""
    result = launch(2, "-m", "bench.sweep", *WORDS, "--resume", folder)
    assert result.status == 0, result.err
    after = rows_of(folder)
    assert after[: len(before)] == before
    assert len(after) == len(set(names(after))) == WHOLE
    assert {row["status"] for row in after} == {"ok"}
    return after


def broken_off(begin, ranks_of, folder, after_rows, victim):
    """Begin a run and kill `victim` (a rank, or mpirun) as soon as so many rows are there; return what is left.

    After the sixth row a rank sleeps, so that the run is not over however late they are seen; less if mpirun is killed,
    since ranks of Open MPI outlive it.
    """
    nap = 3 if victim == "mpirun" else 10
    process = begin(2, "-c", PATCHED.format(what=f"time.sleep({nap})"), *WORDS, "-o", folder)
    wait_for(lambda: len(rows_of(folder)) >= after_rows or process.poll() is not None, "rows")
    ranks = ranks_of(folder)
    for pid in [process.pid] if victim == "mpirun" else ranks[-1:]:
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=HANG_S)
    wait_for(lambda: not ranks_of(folder), "the ranks to be gone")
    return rows_of(folder)


@pytest.mark.parametrize("victim", ["a rank", "mpirun"])
def test_a_run_that_was_killed_is_completed(begin, launch, ranks_of, tmp_path, victim):
    folder = tmp_path / "run"
    before = broken_off(begin, ranks_of, folder, 5, victim)
    # Ranks of Open MPI outlive an mpirun that was killed, long enough to end so short a run.
    assert 5 <= len(before) <= (WHOLE if victim == "mpirun" else WHOLE - 1)
    started = read_run(folder)["started"]
    complete(launch, folder, before)
    facts = read_run(folder)
    assert facts["started"] == started
    assert len(facts["resumed"]) == 1


STARVED = """
import resource, sys
from bench import rows

class Starved(rows.RowWriter):
    def __init__(self, path):
        super().__init__(path)
        resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))  # only now: MPI has files of its own

rows.RowWriter = Starved
from bench.sweep import main
main(sys.argv[1:])
"""
"""A sweep whose file of rows may have so many bytes: a write fails in the middle, as on a full disk."""


@pytest.mark.full
@pytest.mark.parametrize("trial", range(50))
def test_a_fault_at_a_random_moment_loses_no_row(begin, launch, ranks_of, tmp_path, trial):
    chance = random.Random(trial)
    folder = tmp_path / "run"
    victim = ("a rank", "all ranks", "mpirun", "the disk", "the start")[trial % 5]
    # The header alone has over 600 bytes, the file of a whole run some 8000.
    words = ("-c", STARVED.format(chance.randint(0, 8000))) if victim == "the disk" else ("-m", "bench.sweep")
    process = begin(2, *words, *WORDS, "-o", folder)
    if victim == "the start":
        time.sleep(chance.uniform(0, 1.5))
    elif victim != "the disk":
        nrows = chance.randint(0, WHOLE - 3)
        wait_for(lambda: process.poll() is not None or len(rows_of(folder)) >= nrows, "rows")
        time.sleep(chance.uniform(0, 0.02))
    seen, ranks = rows_of(folder), ranks_of(folder)
    if victim != "the disk":
        victims = {"a rank": [chance.choice(ranks)] if ranks else [], "all ranks": ranks}.get(victim, [process.pid])
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):  # the run may have ended meanwhile
                os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=HANG_S)
    wait_for(lambda: not ranks_of(folder), "the ranks to be gone")
    before = rows_of(folder)
    assert before[: len(seen)] == seen
    if (folder / "run.json").exists():
        complete(launch, folder, before)
    else:
        assert before == []


def test_a_full_disk_ends_the_run_and_keeps_the_rows(launch, tmp_path):
    folder = tmp_path / "run"
    result = launch(2, "-c", STARVED.format(5000), *WORDS, "-o", folder)
    assert result.status != 0
    assert "OSError" in result.err
    before = rows_of(folder)
    assert 0 < len(before) < WHOLE
    complete(launch, folder, before)


def test_a_complete_run_is_resumed_to_no_effect(launch, tmp_path):
    folder = tmp_path / "run"
    assert launch(2, "-m", "bench.sweep", *WORDS, "-o", folder).status == 0
    before = rows_of(folder)
    assert complete(launch, folder, before) == before


def test_a_run_with_other_options_is_refused_with_the_difference(launch, tmp_path):
    folder = tmp_path / "run"
    assert launch(2, "-m", "bench.sweep", *WORDS, "-o", folder).status == 0
    content = (folder / ROWS_FILE).read_bytes()
    result = launch(2, "-m", "bench.sweep", *WORDS, "--op", "max", "--resume", folder)
    assert result.status == 2
    assert "was made with ops sum, not max" in result.err
    assert (folder / ROWS_FILE).read_bytes() == content
    result = launch(1, "-m", "bench.sweep", *WORDS, "--resume", folder)
    assert result.status == 2
    assert "nranks 2, not 1" in result.err


# ---------------------------------------------------------------------------------------------------------------
# Ranks that do not do what the others do

PATCHED = """
import sys, time
import bench.sweep
from bench.launch import prepare
from dataclasses import replace

def prepare_and_patch():
    launch = prepare()
    from bench.measure import Measuring
    rows = Measuring.rows

    def otherwise(self, point, names, *more):
        if self.job.rank == 1 and point.nbytes == 64:
            {what}
        return rows(self, point, names, *more)

    Measuring.rows = otherwise
    return launch

bench.sweep.prepare = prepare_and_patch
bench.sweep.main(sys.argv[1:])
"""


def test_a_rank_that_never_calls_is_named_and_every_rank_shows_where_it_stands(launch, tmp_path):
    code = PATCHED.format(what="time.sleep(1000)")
    result = launch(3, "-c", code, *WORDS, "--hang-seconds", "6", "-o", tmp_path / "run")
    assert result.status != 0
    for rank in range(3):
        assert f"rank {rank} has not got on for 6 s with: " in result.err
    assert "allreduce, 64 bytes" in result.err
    assert "(rank 1 has not come to it)" in result.err
    assert "in otherwise" in result.err  # where rank 1 sleeps
    assert [row["nbytes"] for row in rows_of(tmp_path / "run")] == [8, 8, 16, 16, 32, 32]


@pytest.mark.parametrize(
    "what",
    [
        "point = replace(point, count=point.count + 1)",
        "names = names[:1]",
    ],
)
def test_a_rank_that_calls_something_else_is_found_before_the_point_and_named(launch, tmp_path, what):
    result = launch(3, "-c", PATCHED.format(what=what), *WORDS, "-o", tmp_path / "run")
    assert result.status != 0
    assert "ranks [1] are about to measure something else than the others" in result.err
    assert [row["nbytes"] for row in rows_of(tmp_path / "run")] == [8, 8, 16, 16, 32, 32]
