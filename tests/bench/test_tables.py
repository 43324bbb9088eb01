import pytest

from bench.tables import best_handwritten, measured, shared_settings, sweeps


def test_only_rows_that_are_ok_count(stored, row, as_read):
    rows = as_read([*stored(["allreduce"], sizes=(8,)), row(status="wrong", reason="x", native_ratio=99.0)])
    assert len(measured(rows)) == 7
    assert set(best_handwritten(measured(rows))["contender"]) == {"spread"}


@pytest.mark.parametrize("rows", [[], [{"status": "skipped"}]])
def test_nothing_measured_is_no_sweep(rows, row, as_read):
    rows = as_read([row(status="skipped", reason="x") for _ in rows])
    table = measured(rows)
    assert list(sweeps(table)) == []
    assert best_handwritten(table).empty


def test_one_setting_is_one_sweep_by_the_primitives_name(stored, as_read):
    table = measured(as_read(stored(["allreduce", "broadcast", "barrier"])))
    assert [name for name, _ in sweeps(table)] == ["allreduce", "broadcast", "barrier"]


def test_settings_that_vary_are_in_the_name(stored, as_read):
    rows = stored(["allreduce"]) + stored(["allreduce"], dtype="float64", nranks=2)
    names = [name for name, _ in sweeps(measured(as_read(rows)))]
    assert names == ["allreduce, 8 ranks, float32", "allreduce, 2 ranks, float64"]


def test_a_blank_setting_is_a_setting(row, as_read):
    rows = [row(primitive="scan", op=op, root=root) for op, root in (("sum", None), ("", 0))]
    assert [name for name, _ in sweeps(measured(as_read(rows)))] == ["scan, sum, no root", "scan, no op, root 0"]


def test_memories_and_pretended_nodes_are_sweeps_of_their_own(row, as_read):
    plain = [row(ppn=8), row(ppn=8, memory="registered"), row(ppn=8, memory="shared")]
    names = [name for name, _ in sweeps(measured(as_read([*plain, row(ppn=2)])))]
    assert names == [
        "allreduce, 8 a node, plain",
        "allreduce, 8 a node, registered",
        "allreduce, 8 a node, shared",
        "allreduce, 2 a node, plain",
    ]


def test_rows_of_older_schemas_know_nothing_of_later_settings(row, as_read):
    rows = [{key: value for key, value in one.items() if key != "ppn"} for one in as_read([row(), row(dtype="int32")])]
    assert [name for name, _ in sweeps(measured(rows))] == ["allreduce, float32", "allreduce, int32"]


def test_one_algorithm_over_two_transports_is_two_contenders(row, as_read):
    rows = [row(transport="message"), row(transport="window"), row(algorithm="native", transport="native")]
    contenders = set(measured(as_read(rows))["contender"])
    assert contenders == {"ring (message)", "ring (window)", "native"}


def test_the_best_is_the_highest_ratio_of_what_is_handwritten(row, as_read):
    rows = [
        row(algorithm=name, native_ratio=ratio, nbytes=nbytes)
        for nbytes in (8, 64)
        for name, ratio in (("native", 1.0), ("native_persistent", 3.0), ("ring", 0.5 + nbytes / 64), ("bruck", 0.8))
    ]
    best = best_handwritten(measured(as_read(rows)))
    assert list(zip(best["nbytes"], best["contender"], best["native_ratio"], strict=True)) == [
        (8, "bruck", 0.8),
        (64, "ring", 1.5),
    ]


def test_what_was_measured_again_counts_once_with_its_last_row(row, as_read):
    table = measured(as_read([row(time_us_p50=5.0), row(time_us_p50=3.0)]))
    assert list(table["time_us_p50"]) == [3.0]


def test_without_a_native_ratio_there_is_no_best(stored, as_read):
    assert best_handwritten(measured(as_read(stored(["allreduce"], native=False)))).empty


def test_shared_settings_leave_out_what_differs(stored, as_read):
    rows = stored(["broadcast"], nranks=1) + stored(["broadcast"], nranks=1, dtype="int32")
    assert (
        shared_settings(measured(as_read(rows)))
        == "1 rank · root 0 · cpu · more ranks than CPUs · 20250102T030405Z-atlas-n8"
    )
