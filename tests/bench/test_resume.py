import json
from pathlib import Path

import pytest

from bench.options import parse
from bench.points import Point
from bench.resume import earlier, made_with
from bench.rows import COLUMNS, RowWriter, write_run
from bench.usage import UsageError
from collectives import PRIMITIVES

NAMES = {"allreduce": ("native", "ring"), "broadcast": ("native", "binomial")}


def wanted(line="", nranks=4, contenders=NAMES):
    return made_with(parse(line.split(), nranks, contenders), contenders, nranks=nranks, mpi="MPICH", seed=1)


@pytest.fixture
def folder(tmp_path, row):
    write_run(tmp_path, {"made_with": wanted(), "started": "then"})
    with RowWriter(tmp_path / "rows.csv") as writer:
        writer.write(row(algorithm="native", op="sum"))
        writer.write(row(algorithm="ring", op="sum"))
        writer.write(row(algorithm="native", op="sum", count=8, nbytes=32))
        writer.write(row(primitive="broadcast", algorithm="native", root=0, status="skipped", reason="why"))
    return tmp_path


def refusal(folder, *arguments, **options):
    with pytest.raises(UsageError) as error:
        earlier(folder, wanted(*arguments, **options))
    return str(error.value)


def test_what_is_done_is_known_by_point(folder):
    before = earlier(folder, wanted())
    allreduce, broadcast = PRIMITIVES["allreduce"], PRIMITIVES["broadcast"]
    assert before.done_at(Point(allreduce, 1024, "float32", "sum", 0)) == {"native", "ring"}
    assert before.done_at(Point(allreduce, 8, "float32", "sum", 0)) == {"native"}
    assert before.done_at(Point(allreduce, 8, "float64", "sum", 0)) == ()
    assert before.done_at(Point(allreduce, 1024, "float32", "sum", 0, memory="registered")) == ()
    assert before.done_at(Point(broadcast, 1024, "float32", "max", 0)) == {"native"}
    assert before.statuses == {"ok": 3, "skipped": 1}
    assert before.facts["started"] == "then"


def test_what_was_requested_is_done_whatever_ran(folder, row):
    with RowWriter(folder / "rows.csv") as writer:
        writer.write(row(algorithm="native:ring", requested="native:segmented_ring", op="sum"))
    done = earlier(folder, wanted()).done_at(Point(PRIMITIVES["allreduce"], 1024, "float32", "sum", 0))
    assert done == {"native", "ring", "native:segmented_ring"}


def test_a_torn_row_is_not_done(folder):
    with (folder / "rows.csv").open("a") as file:
        file.write("2,run,allreduce,ring,4")
    assert earlier(folder, wanted()).statuses == {"ok": 3, "skipped": 1}


def test_a_run_killed_before_its_first_row_is_begun_anew(folder):
    (folder / "rows.csv").unlink()
    assert earlier(folder, wanted()).done == {}
    (folder / "rows.csv").write_text("schema,ru")
    assert earlier(folder, wanted()).done == {}


def test_options_that_change_no_row_may_differ(folder):
    earlier(folder, wanted("--no-plots -q --hang-seconds 5 --memory-limit 1G"))
    earlier(folder, wanted(f"--resume {folder}"))


@pytest.mark.parametrize(
    ("line", "nranks", "says"),
    [
        ("-n 7", 4, "was made with iters 50, not 7: give the same, or start anew"),
        ("-e 1M --cadence streaming", 4, "max-bytes 16777216, not 1048576; cadence isolated, not streaming"),
        ("-d int32,float64", 4, "dtypes float32, not int32,float64"),
        ("", 8, "nranks 4, not 8"),
    ],
)
def test_another_way_of_measuring_is_refused_with_the_difference(folder, line, nranks, says):
    assert says in refusal(folder, line, nranks)


def test_other_contenders_are_refused(folder):
    more = {**NAMES, "broadcast": ("native", "binomial", "chain")}
    assert "contenders broadcast native,binomial, not native,binomial,chain" in refusal(folder, contenders=more)


def test_another_schema_is_refused(folder):
    lines = (folder / "rows.csv").read_text().replace(f",{COLUMNS[-1]}\n", ",renamed\n")
    (folder / "rows.csv").write_text(lines)
    assert "another schema" in refusal(folder)


def test_no_run_is_refused(tmp_path):
    assert "has no run.json: name the folder of a run" in refusal(tmp_path)
    assert "has no run.json" in refusal(tmp_path / "none")
    (tmp_path / "run.json").write_text("{")
    assert "is no JSON" in refusal(tmp_path)


def test_a_run_of_an_earlier_version_is_refused(folder):
    write_run(folder, {"started": "then"})
    assert "was made with" in refusal(folder)


def test_how_a_run_was_made_is_what_json_gives_back():
    assert json.loads(json.dumps(wanted())) == wanted()
    assert Path not in {type(value) for value in wanted("-o x")["options"].values()}
