import subprocess
import sys
from pathlib import Path

import pytest

from bench.compare import across, compare, lines, loads, main, named, share
from bench.rows import RowWriter
from bench.usage import UsageError
from tests.waiting import HANG_S

ROOT = Path(__file__).parents[2]


@pytest.fixture
def rows(stored, as_read):
    """Rows of a run, with narrow intervals; times multiplied for those that `slower` picks."""

    def make(slower=lambda row: 1.0, width=0.01, **columns):
        made = as_read(stored(primitives=("allreduce", "barrier"), **columns))
        for row in made:
            row["time_us_p50"] *= slower(row)
            row["time_us_low"] = row["time_us_p50"] * (1 - width)
            row["time_us_high"] = row["time_us_p50"] * (1 + width)
        return made

    return make


def ring_slower(row):
    return 1.2 if row["algorithm"] == "ring" and row["nbytes"] == 64 else 1.0


def test_two_runs_alike_show_no_difference(rows):
    changes = compare({"a": rows(), "b": rows()})
    assert len(changes) == len(rows())
    assert {one.verdict for one in changes} == {"no difference shown"}
    assert {one.ratio for one in changes} == {1.0}


def test_what_got_slower_is_named(rows):
    changes = compare({"a": rows(), "b": rows(ring_slower)})
    (worse,) = [one for one in changes if one.verdict != "no difference shown"]
    assert (worse.verdict, worse.algorithm, worse.nbytes, worse.run) == ("slower", "ring", 64, "b")
    assert worse.ratio == pytest.approx(1.2)
    assert "1.200" in lines(changes, False)[1]


def test_what_got_faster_is_no_failure(rows):
    changes = compare({"a": rows(ring_slower), "b": rows()})
    assert [one.verdict for one in changes if one.algorithm == "ring" and one.nbytes == 64] == ["faster"]


def test_wide_intervals_show_nothing(rows):
    changes = compare({"a": rows(width=0.3), "b": rows(ring_slower, width=0.3)})
    assert {one.verdict for one in changes} == {"no difference shown"}


def test_many_cells_need_more_evidence_than_one(rows):
    # Each change by itself would pass at 5%, among so many it may be chance.
    def barely(row):
        return 1.04 if row["algorithm"] == "ring" and row["nbytes"] == 64 else 1.0

    def alone(made):
        return [row for row in made if row["algorithm"] == "ring" and row["nbytes"] == 64]

    before, now = rows(width=0.02), rows(barely, width=0.02)
    assert {one.verdict for one in compare({"a": alone(before), "b": alone(now)})} == {"slower"}
    assert {one.verdict for one in compare({"a": before, "b": now})} == {"no difference shown"}


def test_each_of_several_runs_is_compared_with_the_first(rows):
    changes = compare({"a": rows(), "b": rows(), "c": rows(ring_slower)})
    assert [one.run for one in changes if one.verdict == "slower"] == ["c"]
    assert sum(line.startswith("# b: ") for line in lines(changes, False)) == 1


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ({"cadence": "streaming"}, "cadence"),
        ({"sync": "deadline"}, "sync"),
        ({"memory": "shared"}, "memory"),
        ({"nranks": 4}, "nranks"),
    ],
)
def test_runs_that_measured_something_else_are_refused_unless_told(rows, columns, name):
    with pytest.raises(UsageError) as error:
        compare({"a": rows(), "b": rows(**columns)})
    assert f"--across {name} allows it" in str(error.value)
    assert compare({"a": rows(), "b": rows(**columns)}, (name,))


def test_rows_of_the_first_schema_are_lined_up_and_show_nothing(rows):
    later = ("time_us_low", "time_us_high", "sync", "cadence", "ppn")
    old = [{key: value for key, value in row.items() if key not in later} for row in rows()]
    assert {one.verdict for one in compare({"a": old, "b": rows(ring_slower)})} == {"no difference shown"}


def test_runs_without_a_point_in_common_are_refused(rows):
    with pytest.raises(UsageError, match="share no point"):
        compare({"a": rows(sizes=(8,))[:3], "b": rows(sizes=(64,))[:3]})


def test_other_programs_are_named_as_a_reason(rows):
    busy = rows(other_load=1.5)
    assert loads({"a": rows(other_load=0.1), "b": busy})[0].startswith(
        "# other programs kept CPUs busy meanwhile: 0.1 in a"
    )
    assert loads({"a": busy, "b": busy}) == []
    assert loads({"a": rows(), "b": busy}) == []


@pytest.mark.parametrize(("text", "value"), [("10%", 0.1), ("0.1", 0.1), ("0", 0.0), ("150%", 1.5)])
def test_shares(text, value):
    assert share(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "ten", "-5%", "nan", "%"])
def test_what_is_no_share_is_refused(text):
    with pytest.raises(UsageError, match="--fail-above"):
        share(text)


def test_what_runs_may_differ_in_is_known():
    assert across("") == ()
    assert across("nranks,sync") == ("nranks", "sync")
    with pytest.raises(UsageError, match="unknown column 'dtype' for --across"):
        across("dtype")


def test_runs_of_the_same_name_are_told_apart():
    assert list(named(["a/run", "b/run", "c/other"])) == ["a/run", "b/run", "other"]


@pytest.fixture
def folders(tmp_path, stored):
    """Two runs on disk, of which the second has a slower ring."""
    for name, factor in (("before", 1.0), ("now", 1.5)):
        (tmp_path / name).mkdir()
        with RowWriter(tmp_path / name / "rows.csv") as writer:
            for row in stored(primitives=("allreduce",), sizes=(8, 64)):
                time = row.time_us_p50 * (factor if row.algorithm == "ring" else 1)
                values = {column: getattr(row, column) for column in row.__slots__}
                values |= {"time_us_p50": time, "time_us_low": time * 0.99, "time_us_high": time * 1.01}
                writer.write(type(row)(**values))
    return tmp_path / "before", tmp_path / "now"


def test_the_gate_fails_where_a_point_got_slower_than_allowed(folders, capsys):
    before, now = map(str, folders)
    assert main([before, now, "--no-plots"]) == 0
    assert main([before, now, "--no-plots", "--fail-above", "60%"]) == 0
    capsys.readouterr()
    assert main([before, now, "--no-plots", "--fail-above", "10%"]) == 1
    assert "# FAILED: 2 points slower by more than 10%" in capsys.readouterr().out
    assert main([now, before, "--no-plots", "--fail-above", "10%"]) == 0


def test_bad_input_gets_a_sentence_and_status_2(folders, tmp_path, capsys):
    before, now = map(str, folders)
    for words, says in (
        ([before], "needs two runs"),
        ([before, str(tmp_path)], "has no rows.csv"),
        ([before, now, "--fail-above", "much"], "'much' for --fail-above"),
        ([before, now, "--across", "colour"], "'colour' for --across"),
    ):
        assert main([*words, "--no-plots"]) == 2
        assert says in capsys.readouterr().err


def test_the_picture_is_drawn(folders):
    before, now = folders
    assert main([str(before), str(now)]) == 0
    assert {path.name for path in now.iterdir()} == {"rows.csv", "compare.png", "compare.svg"}


def test_comparing_loads_no_mpi(folders):
    code = "import sys; from bench.compare import main; main(sys.argv[1:]); assert 'mpi4py' not in sys.modules"
    subprocess.run(
        [sys.executable, "-c", code, *map(str, folders)], check=True, cwd=ROOT, capture_output=True, timeout=HANG_S
    )


def test_what_ran_instead_of_another_is_compared_with_itself(row, as_read):
    def made(time):
        both = {"native:ring": time, "native:segmented_ring": 3 * time}
        return as_read([row(algorithm="native:ring", requested=name, time_us_p50=us) for name, us in both.items()])

    assert [one.ratio for one in compare({"before": made(5.0), "now": made(10.0)})] == [2.0, 2.0]
