"""Figures of shared GPU memory from rows, without a GPU."""

import pytest

from bench.gpu_figures import over_floor, over_library, share_of_bound, windowed

MIB = 1 << 20


def row(algorithm, time_us, nbytes=256 * MIB, primitive="allreduce", **more):
    native = algorithm == "native"
    told = {
        "status": "ok",
        "nranks": 4,
        "transport": "window" if algorithm.startswith("window") else "staged",
        "native_ratio": None if native else 8000 / time_us,
        "native_ratio_low": None if native else 7000 / time_us,
        "native_ratio_high": None if native else 9000 / time_us,
    }
    return {**told, "algorithm": algorithm, "time_us_p50": time_us, "nbytes": nbytes, "primitive": primitive, **more}


def test_the_fastest_on_shared_memory_counts():
    rows = [row("native", 8000), row("ring", 1), row("window", 900), row("window_pull", 800)]
    rows += [row("window_pull", 1, nbytes=8), row("window", 2, primitive="broadcast"), row("window", 3, status="wrong")]
    assert windowed(rows, "allreduce", 256 * MIB)["time_us_p50"] == 800
    assert windowed(rows, "allgather", 256 * MIB) is None


def test_the_bound_is_every_vector_read_and_every_result_written():
    # 4 ranks read and write 256 MiB each: 2 GiB, at 4 GiB/s half a second.
    figure = share_of_bound(row("window", 1e6), 4 * 2**30 / 1e9)
    assert figure.value == pytest.approx(0.5)
    assert not figure.reached
    assert share_of_bound(row("window", 0.8e6), 4 * 2**30 / 1e9).reached
    assert str(figure).startswith("MISSED      0.50 >= 0.6  allreduce of 256 MiB, 4 ranks, window: share of the bound")


def test_a_small_call_may_take_half_as_long_again_as_the_floor():
    assert over_floor(row("window_one_shot", 30, nbytes=8), 20).reached
    assert not over_floor(row("window_one_shot", 31, nbytes=8), 20).reached


def test_the_library_is_compared_at_each_point():
    rows = [row("native", 8000), row("window", 900), row("window_pull", 1000)]
    rows += [row("native", 8000, primitive="broadcast"), row("window", 400, primitive="broadcast")]
    figures = list(over_library(rows, 4))
    assert [(one.what.split()[0], one.value, one.reached) for one in figures] == [
        ("allreduce", 8000 / 900, False),
        ("broadcast", 20.0, True),
    ]
