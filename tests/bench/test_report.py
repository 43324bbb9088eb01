import os

import pytest

from bench.report import main, newest, warnings, write
from bench.rows import COLUMNS, RowsError, RowWriter, write_run
from bench.usage import UsageError


@pytest.fixture(scope="module")
def made(stored, row):
    """Make the folder of a run, if no rows are given with a bit of everything."""

    def make(folder, rows=None):
        folder.mkdir(parents=True)
        needs = "recursive_halving needs a number of ranks that is a power of two"
        with RowWriter(folder / "rows.csv") as writer:
            for one in rows or [
                *stored(["allreduce", "barrier"], sizes=(8, 4096)),
                *(
                    row(algorithm="recursive_halving", nbytes=nbytes, status="skipped", reason=needs)
                    for nbytes in (8, 4096)
                ),
                row(algorithm="bruck", status="wrong", reason="3 elements | <differ>", wrong=3),
            ]:
                writer.write(one)
        write_run(
            folder, {"host": "atlas", "mpi": {"library": "MPICH", "version": "5.0.2"}, "command": ["mpirun", "-n", "8"]}
        )
        return folder

    return make


@pytest.fixture
def run(made, tmp_path):
    """Make a run in this test's folder of results."""
    return lambda name="20250102T030405Z-atlas-n8", rows=None: made(tmp_path / "results" / name, rows)


@pytest.fixture(scope="module")
def text(made, tmp_path_factory):
    return write(made(tmp_path_factory.mktemp("results") / "run")).read_text()


def test_the_report_has_the_machine(text):
    machine = text[text.index("## Machine") :]
    assert "| host | atlas |\n| mpi.library | MPICH |\n| mpi.version | 5.0.2 |\n| command | mpirun -n 8 |" in machine


def test_the_summary_has_the_best_with_its_interval(text):
    summary = text[text.index("## Best") : text.index("## allreduce")]
    assert "| primitive | 0 | 8 | 4K |" in summary
    assert "| allreduce |  | **1.07** (1.04 to 1.09)<br>spread | **1.03** (1.01 to 1.05)<br>spread |" in summary
    assert "| barrier | **0.81** (0.76 to 0.86)<br>dissemination |  |  |" in summary


def test_each_primitive_has_its_tables_with_the_best_in_bold(text):
    part = text[text.index("## allreduce") : text.index("## barrier")]
    assert "| size | native | native_persistent | ring | recursive_doubling | rabenseifner | spread |" in part
    assert "| 8 | 6.90 | 6.53 | 31.7 | 8.18 | 14.9 | **6.47** | 14.5 |" in part
    assert "| 4K | 0.886 | **0.939** | 0.210 | 0.713 | 0.444 | 0.915 | 0.363 |" in part
    barrier = text[text.index("## barrier") : text.index("## Left out")]
    assert "Median time in µs" in barrier and "Bus bandwidth" not in barrier


def test_every_picture_it_shows_is_there(run):
    folder = run()
    links = [line.split("](")[1][:-1] for line in write(folder).read_text().splitlines() if line.startswith("![")]
    assert links == [
        "plots/native_ratio.png",
        "plots/allreduce_time.png",
        "plots/allreduce_busbw.png",
        "plots/barrier_time.png",
    ]
    assert all((folder / link).exists() for link in links)


def test_what_was_left_out_is_listed_once_with_its_reason_and_sizes(text):
    left_out = text[text.index("## Left out") : text.index("## Machine")]
    needs = "recursive_halving needs a number of ranks that is a power of two"
    assert f"| allreduce | recursive_halving | float32 |  | plain | skipped | {needs} | 8, 4K |" in left_out
    assert r"| wrong | 3 elements \| &lt;differ&gt; | 4K |" in left_out
    assert "bruck" not in text[: text.index("## Left out")]


def test_warnings_say_what_would_help(run, row):
    good = {"time_us_p50": 2.0, "time_us_p5": 1.9, "time_us_p95": 2.1, "iters": 50, "wrong": 0}
    report = write(
        run(
            rows=[
                row(**good),
                row(**good, oversubscribed=True, cautions="oversubscribed"),
                row(**{**good, "time_us_p95": 9.0}, cautions="spread"),
                row(**{**good, "iters": 3}, cautions="few"),
                row(**{**good, "wrong": None}),
                row(status="failed", reason="no memory"),
            ]
        )
    ).read_text()
    lines = [line for line in report.splitlines() if line.startswith("- ")]
    assert [line.split(": ", 1)[1].split(",")[0].split(";")[0] for line in lines] == [
        "more ranks than CPUs",
        "fewer than 6 samples",
        "95th percentile of time over 2 times the 5th",
        "results not checked",
        "failed",
    ]
    assert all(line.startswith("- 1 of 6 rows: ") for line in lines)


def test_rows_of_the_first_schema_bear_no_cautions_so_they_are_looked_for(row, as_read):
    good = {"time_us_p50": 2.0, "time_us_p5": 1.9, "time_us_p95": 2.1, "iters": 50, "wrong": 0}
    rows = as_read([row(**good), row(**{**good, "iters": 3}), row(**{**good, "time_us_p95": 9.0})])
    for one in rows:
        del one["cautions"]
    assert [line.split(",")[0].split(";")[0] for line in warnings(rows)] == [
        "1 of 3 rows: 95th percentile of time over 2 times the 5th",
        "1 of 3 rows: fewer than 6 samples",
    ]


def test_no_warning_advises_what_was_done_already(row, as_read):
    rows = as_read([row(time_us_p50=2.0, cautions="skew", wrong=0)])
    assert "try --sync deadline" in warnings(rows)[0]
    facts = {"made_with": {"options": {"sync": "deadline"}}}
    assert "try --cadence streaming" in warnings(rows, facts)[0]


def test_a_clean_run_has_no_warnings(run, row):
    good = {"time_us_p50": 2.0, "time_us_p5": 1.9, "time_us_p95": 2.1, "iters": 50, "wrong": 0}
    report = write(run(rows=[row(**good)])).read_text()
    assert "Warnings" not in report and "Left out" not in report


def test_empty_and_header_only_files_are_skipped_with_a_notice(run):
    folder = run()
    (folder / "rows-dead.csv").touch()
    (folder / "rows-killed.csv").write_text(",".join(COLUMNS) + "\n")
    text = write(folder).read_text()
    assert "rows-dead.csv: skipped, it is empty" in text
    assert "rows-killed.csv: skipped, it has a header and no rows" in text
    assert "![allreduce: time](plots/allreduce_time.png)" in text


def test_a_run_without_run_json_is_reported_all_the_same(run):
    folder = run()
    (folder / "run.json").unlink()
    text = write(folder).read_text()
    assert "run.json: missing" in text and "## Machine" not in text


def test_a_run_of_skipped_rows_is_reported(run, row):
    text = write(run(rows=[row(status="skipped", reason="no")])).read_text()
    assert "| allreduce | ring | float32 |  | plain | skipped | no | 4K |" in text


def test_the_newest_run_is_the_one_written_last(run, tmp_path):
    older, newer = run("b"), run("a")
    os.utime(older / "rows.csv", (1, 1))
    assert newest(tmp_path / "results") == newer


@pytest.mark.parametrize("words", [[], ["newest"]])
def test_the_command_reports_the_newest_run(run, tmp_path, monkeypatch, capsys, words):
    folder = run()
    monkeypatch.chdir(tmp_path)
    assert main(words) == 0
    assert capsys.readouterr() == (f"results/{folder.name}/report.md\n", "")


def test_the_command_says_what_it_cannot_report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dead").mkdir()
    (tmp_path / "dead" / "rows.csv").touch()
    for words, sentence in (
        ([], "invalid value 'newest' for DIR (no run in results/ has rows"),
        (["nowhere"], "invalid value 'nowhere' for DIR (has no rows.csv"),
        (["dead"], "invalid value 'dead' for DIR (dead/rows.csv: skipped, it is empty"),
    ):
        assert main(words) == 2
        out, err = capsys.readouterr()
        assert out == "" and sentence in err


def test_a_file_that_is_none_of_rows_is_named(run):
    folder = run()
    (folder / "rows.csv").write_text("a,b\n1,2\n")
    with pytest.raises(RowsError, match=r"rows\.csv lacks the column schema"):
        write(folder)
    with pytest.raises(UsageError):
        write(folder.parent)


# ---------------------------------------------------------------------------------------------------------------
# The library's own algorithms


@pytest.fixture(scope="module")
def own_text(made, tmp_path_factory, with_own):
    rows = with_own(sizes=(8, 4096, 1 << 20))
    return write(made(tmp_path_factory.mktemp("results") / "run", rows)).read_text()


def test_what_the_default_cost_stands_beside_what_it_most_likely_ran(own_text):
    part = own_text[own_text.index("### allreduce: the library's own algorithms") : own_text.index("## Machine")]
    assert "![allreduce: library](plots/allreduce_library.png)" in part
    assert "most likely ran recursive_doubling at 8 to 4K, rabenseifner at 1M." in part
    assert "| size | native in µs | most likely | the library's best | ours |" in part
    assert "| 8 | 6.90 | recursive_doubling | **0.84** (0.81 to 0.88)<br>native:recursive_doubling | **1.07**" in part


def test_each_algorithm_stands_beside_its_twin(own_text):
    part = own_text[own_text.index("The same algorithm") :]
    assert "| the library's | ours | 8 | 4K | 1M |" in part
    assert "| native:ring | ring | **1." in part


def test_the_librarys_own_are_in_no_table_of_the_others(own_text):
    part = own_text[own_text.index("## allreduce") : own_text.index("### allreduce")]
    assert "native:" not in part
    assert "allreduce_library" not in part


def test_what_shows_that_they_ran_is_told(own_text):
    part = own_text[own_text.index("What shows that they ran.") :]
    assert "Set for all of them, not for native: `coll_han_priority=0`." in part
    evidence = "it leaves the trace of our own ring, and linear leaves another"
    assert f"| native:ring | 8, 4K, 1M | proved | {evidence} | coll_tuned_allreduce_algorithm=0 |" in part


def test_what_is_not_proved_is_called_so(run, with_own):
    text = write(run(rows=with_own(sizes=(8,), proved=False))).read_text()
    assert "| native:ring | 8 | **unproven** |" in text


def test_two_names_with_the_same_time_everywhere_are_a_warning(run, row):
    rows = [
        row(
            algorithm=name, requested=name, proved=False, nbytes=nbytes, wrong=0,
            time_us_p50=9.0, time_us_low=8.9, time_us_high=9.1,
        )
        for name in ("native:ring", "native:bruck")
        for nbytes in (8, 64, 512)
    ]  # fmt: skip
    flag = "- allreduce: native:ring and native:bruck took the same time at all sizes"
    assert flag in write(run(rows=rows)).read_text()
