import csv
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bench.rows import (
    COLUMNS,
    SCHEMA,
    RowsError,
    RowWriter,
    algbw_GBps,
    busbw_GBps,
    is_handwritten,
    read_rows,
    read_run,
    write_run,
)
from tests.waiting import HANG_S

ROOT = Path(__file__).parents[2]
MIB = 1 << 20

CONTRACT = """
    schema run primitive algorithm nranks ngroups stride nnodes device transport memory dtype op root in_place count
    nbytes block_nbytes rounds messages_max sent_nbytes_max scratch_nbytes plan_us iters time_us_p50 time_us_mean
    time_us_min time_us_p5 time_us_p95 time_us_max algbw_GBps busbw_GBps baseline native_ratio native_ratio_low
    native_ratio_high thread_level oversubscribed wrong status reason
    cadence sync calls rotate footprint_nbytes cache first_call_us time_us_low time_us_high skew_us slowest_rank
    slowest_share retaken other_load native_p verdict cautions between_nbytes_max ppn ranks_per_gpu
    requested proved evidence forced_with counterpart native_guess form
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rows.csv"


def write(path, *rows):
    with RowWriter(path) as writer:
        for row in rows:
            writer.write(row)


def test_columns_are_in_the_order_of_the_contract():
    assert list(COLUMNS) == CONTRACT.split()


def test_names_of_quantities_have_their_unit():
    for column in COLUMNS:
        assert not column.startswith("time") or "_us_" in column
        assert "bw" not in column or column.endswith("_GBps")


# Golden numbers: n = 4, 1 ms a call; nbytes is the whole vector of 4 MiB.
@pytest.mark.parametrize(
    ("primitive", "factor", "algbw", "busbw"),
    [("allgather", 3 / 4, 4.194, 3.146), ("allreduce", 6 / 4, 4.194, 6.291), ("broadcast", 1, 4.194, 4.194)],
)
def test_bandwidths_are_those_of_nccl_tests(primitive, factor, algbw, busbw):
    assert algbw_GBps(4 * MIB, 1000.0) == pytest.approx(algbw, abs=5e-4)
    assert busbw_GBps(4 * MIB, 1000.0, factor, 4) == pytest.approx(busbw, abs=5e-4)


def test_a_gigabyte_is_decimal():
    assert algbw_GBps(10**9, 1e6) == pytest.approx(1.0, rel=1e-12)


def test_bandwidth_is_blank_where_it_has_no_meaning():
    assert busbw_GBps(4 * MIB, 1000.0, 0.0, 1) is None
    assert algbw_GBps(0, 5.0) is None
    assert busbw_GBps(0, 5.0, 1.0, 4) is None


@pytest.mark.parametrize(
    ("algorithm", "ours"), [("native", False), ("native_persistent", False), ("nccl", False), ("ring", True)]
)
def test_library_contenders_are_not_handwritten(algorithm, ours):
    assert is_handwritten(algorithm) is ours


def test_a_row_reads_back_as_it_was_written(path, row, as_read):
    rows = [
        row(time_us_p50=12.5, native_ratio=1.25, in_place=True, oversubscribed=True, root=0, wrong=0),
        row(status="skipped", reason='needs a "power of two", not 3'),
        row(algorithm="chain:segments=16", op=""),
    ]
    write(path, *rows)
    assert read_rows(path) == (as_read(rows), [])


def test_blank_is_neither_zero_nor_false(path, row):
    write(path, row(root=None, wrong=None, busbw_GBps=None, oversubscribed=False))
    cells = dict(zip(*csv.reader(path.read_text().splitlines()), strict=True))
    assert [cells[column] for column in ("root", "wrong", "busbw_GBps", "oversubscribed")] == ["", "", "", "0"]


@given(reason=st.text(), time=st.floats(1e-3, 1e9))
@example(reason='two\nlines\r\nand \x00 \ud800 \u2028 "quotes", commas', time=1.0)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_reason_and_time_stay_on_one_line(path, row, reason, time):
    path.unlink(missing_ok=True)
    write(path, row(reason=reason, time_us_p50=time))
    assert path.read_bytes().count(b"\n") == 2
    (read,) = read_rows(path).rows
    assert read["reason"].split() == [word for word in read["reason"].split() if word.isprintable()]
    assert read["time_us_p50"] == pytest.approx(time, rel=1e-8)


def test_each_row_is_one_write_call_and_on_the_disk(path, row, monkeypatch):
    calls = []
    write_call, sync_call = os.write, os.fsync
    monkeypatch.setattr(os, "write", lambda file, line: calls.append(line) or write_call(file, line))
    monkeypatch.setattr(os, "fsync", lambda file: calls.append("sync") or sync_call(file))
    with RowWriter(path) as writer:
        assert path.read_text() == ",".join(COLUMNS) + "\n"  # the header is there before the first row
        calls.clear()
        writer.write(row())
        assert [len(calls), calls[0][-1:], calls[1]] == [2, b"\n", "sync"]
        assert len(read_rows(path).rows) == 1


def test_a_full_disk_is_said_and_leaves_whole_rows(path, row, monkeypatch):
    with RowWriter(path) as writer:
        writer.write(row())
        write_call = os.write
        monkeypatch.setattr(os, "write", lambda file, line: write_call(file, line[:10]))
        with pytest.raises(OSError, match="is the disk full"):
            writer.write(row())
    assert len(read_rows(path).rows) == 1


def test_kill_9_loses_at_most_the_row_being_written(path):
    program = """if True:
        import sys
        from pathlib import Path
        from bench.rows import Row, RowWriter
        with RowWriter(Path(sys.argv[1])) as writer:
            for number in range(10**9):
                writer.write(Row(run="x", primitive="reduce", algorithm="ring", nranks=2, dtype="int32", count=number,
                                 nbytes=4 * number))
                print(number, flush=True)
    """
    child = subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    for line in child.stdout:
        if int(line) == 50:
            break
    child.send_signal(signal.SIGKILL)
    child.stdout.close()
    child.wait(timeout=HANG_S)
    rows = read_rows(path).rows
    assert len(rows) > 50
    assert [row["count"] for row in rows] == list(range(len(rows)))


@pytest.mark.parametrize("torn", ["1,run,allred", '1,run,allreduce,"a\n'[:-1], "1"])
def test_a_torn_last_line_is_dropped_with_a_notice(path, row, torn):
    write(path, row())
    with path.open("a") as file:
        file.write(torn)
    rows, (notice,) = read_rows(path)
    assert len(rows) == 1
    assert f"dropped a torn last line of {len(torn)} bytes" in notice


def test_a_writer_continues_after_a_torn_line(path, row):
    write(path, row(nbytes=4))
    path.write_bytes(path.read_bytes() + b"1,run,allred")
    write(path, row(nbytes=8))
    assert [one["nbytes"] for one in read_rows(path).rows] == [4, 8]
    assert read_rows(path).notices == []


@pytest.mark.parametrize("content", [b"", b"schema,ru", (",".join(COLUMNS) + "\n").encode()])
def test_a_writer_continues_a_run_that_ended_before_its_first_row(path, row, content):
    path.write_bytes(content)
    write(path, row())
    assert len(read_rows(path).rows) == 1


def test_a_writer_refuses_a_file_with_other_columns(path):
    path.write_text("nbytes,time\n8,1.0\n")
    with pytest.raises(RowsError, match="other columns"):
        RowWriter(path)
    assert path.read_text() == "nbytes,time\n8,1.0\n"


def test_files_without_rows_are_skipped_with_a_notice_and_the_others_read(tmp_path, row):
    empty, header, good = (tmp_path / name for name in ("a.csv", "b.csv", "c.csv"))
    empty.touch()
    write(header)
    write(good, row())
    rows, notices = read_rows(empty, header, good)
    assert len(rows) == 1
    assert [notice.split(": ", 1)[1].split(";")[0] for notice in notices] == [
        "skipped, it is empty",
        "skipped, it has a header and no rows",
    ]


def test_columns_are_found_by_their_header_and_unknown_ones_kept(path, row):
    write(path, row(nbytes=64, time_us_p50=2.5))
    header, cells = (line.split(",") for line in path.read_text().splitlines())
    header, cells = ["colour", *reversed(header)], ["mauve", *reversed(cells)]
    path.write_text(",".join(header) + "\n" + ",".join(cells) + "\n")
    (read,) = read_rows(path).rows
    assert (read["colour"], read["nbytes"], read["time_us_p50"]) == ("mauve", 64, 2.5)


def test_a_missing_column_is_named(path, row):
    write(path, row())
    rows = [
        [cell for place, cell in enumerate(line) if place != 16] for line in csv.reader(path.read_text().splitlines())
    ]
    path.write_text("".join(",".join(line) + "\n" for line in rows))
    with pytest.raises(RowsError, match="lacks the column nbytes"):
        read_rows(path)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (",4096,", ",many,", "line 2: 'many' is no value for nbytes"),
        (",4096,", ",,", "line 2: '' is no value for nbytes"),
        (",4096,", ",4096,7,", f"line 2 has {len(COLUMNS) + 1} cells for {len(COLUMNS)} columns"),
    ],
)
def test_a_cell_that_cannot_be_is_named_with_its_line(path, row, old, new, sentence):
    write(path, row(), row())
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(RowsError) as error:
        read_rows(path)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"status": "fine"}, "status 'fine' is none of ok, wrong, skipped, failed"),
        ({"status": "skipped"}, "needs its reason"),
        ({"time_us_p50": float("nan")}, "time_us_p50=nan is no number"),
        ({"native_ratio": float("inf")}, "native_ratio=inf is no number"),
    ],
)
def test_a_row_that_cannot_be_is_not_made(row, columns, sentence):
    with pytest.raises(ValueError) as error:
        row(**columns)
    assert sentence in str(error.value)


def test_rows_state_their_schema(row):
    assert asdict(row())["schema"] == SCHEMA


def test_run_facts_read_back_and_are_replaced_whole(tmp_path, monkeypatch):
    write_run(tmp_path, {"host": "atlas", "cpus": [0, 1], "output": Path("results/x")})
    assert read_run(tmp_path) == {"host": "atlas", "cpus": [0, 1], "output": "results/x"}
    monkeypatch.setattr(json, "dump", lambda facts, file, **_: file.write('{"half') and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_run(tmp_path, {"host": "other"})
    assert read_run(tmp_path)["host"] == "atlas"


@pytest.mark.parametrize(("content", "sentence"), [("{", "is no JSON"), ("[]", "holds a list")])
def test_run_facts_that_are_none_are_refused(tmp_path, content, sentence):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(RowsError, match=sentence):
        read_run(tmp_path)


def test_what_runs_beside_the_clock_loads_neither_pandas_nor_matplotlib_nor_mpi():
    program = """if True:
        import sys, bench.rows, bench.options, bench.sizes, bench.statistics
        print([name for name in ("pandas", "matplotlib", "mpi4py", "rich") if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=HANG_S)
    assert done.stdout == "[]\n", done.stderr
