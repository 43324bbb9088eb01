import gzip

import numpy as np
import pandas as pd
import pytest

from bench.points import Point
from bench.samples import Samples, joined, paired
from bench.table import COLUMNS, SamplesTable, whole_members
from collectives import PRIMITIVES

ONE = Samples(
    seconds=np.array([[1.0, 2.0, 3.0], [2.0, 1.0, 5.0]]),
    begins=np.array([[10.0, 20.0, 30.0], [10.5, 19.9, 30.1]]),
    turns=np.array([0, 1, 4]),
)


def test_a_sample_is_that_of_the_slowest_rank():
    assert ONE.slowest.tolist() == [2.0, 2.0, 5.0]
    assert ONE.straggler == (1, pytest.approx(2 / 3))


def test_skew_is_the_median_time_between_the_first_and_the_last_to_begin():
    assert ONE.skew == pytest.approx(0.1)


def test_scaled_changes_durations_alone():
    half = ONE.scaled(0.5)
    assert half.slowest.tolist() == [1.0, 1.0, 2.5]
    assert half.skew == ONE.skew


def test_samples_of_the_same_turns_are_paired():
    other = Samples(np.array([[7.0, 8.0]]), np.array([[0.0, 0.0]]), np.array([1, 4]))
    here, there = paired(ONE, other)
    assert (here.tolist(), there.tolist()) == ([2.0, 5.0], [7.0, 8.0])


def test_batches_are_joined_in_order():
    batch = (ONE.seconds, ONE.begins, ONE.turns)
    both = joined([batch, batch], 3, 2)
    assert both.seconds.shape == (2, 6)
    assert (both.calls, both.retaken) == (3, 2)


POINT = Point(PRIMITIVES["broadcast"], 16, "float32", "sum", 1)


def table(path):
    return pd.read_csv(path)


def test_the_table_has_a_row_for_each_sample_of_each_rank(tmp_path):
    path = tmp_path / "samples.csv.gz"
    writer = SamplesTable(path)
    writer.write(POINT, {"ring": ONE})
    writer.write(POINT, {"native": ONE, "chain:segments=2": ONE})
    writer.close()
    rows = table(path)
    assert list(rows.columns) == list(COLUMNS)
    assert len(rows) == 3 * 6
    first = rows.iloc[0]
    assert (first["primitive"], first["algorithm"], first["count"], first["root"]) == ("broadcast", "ring", 16, 1)
    assert rows["time_us"].iloc[:6].tolist() == [1e6, 2e6, 3e6, 2e6, 1e6, 5e6]
    assert rows["begin_us"].min() == 0
    assert rows["op"].isna().all()


def test_a_torn_last_point_is_cut_off_and_the_rest_goes_on(tmp_path):
    path = tmp_path / "samples.csv.gz"
    writer = SamplesTable(path)
    writer.write(POINT, {"ring": ONE})
    whole = path.read_bytes()
    writer.write(POINT, {"native": ONE})
    writer.close()
    everything = path.read_bytes()
    for cut in (len(whole) + 1, len(whole) + 12, len(everything) - 1):
        path.write_bytes(everything[:cut])
        writer = SamplesTable(path)
        writer.write(POINT, {"chain": ONE})
        writer.close()
        assert table(path)["algorithm"].unique().tolist() == ["ring", "chain"]


def test_whole_members_of_anything_else_are_none():
    assert whole_members(b"") == 0
    assert whole_members(b"no gzip at all") == 0
    member = gzip.compress(b"one")
    assert whole_members(member + b"\x1f\x8b") == len(member)
    assert gzip.decompress(member * 2) == b"oneone"
