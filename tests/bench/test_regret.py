import pandas as pd
import pytest

from bench.regret import Best, cells, guesses, own_rows, same_algorithm
from bench.tables import measured, sweeps


@pytest.fixture
def table(row, as_read):
    """Rows by name, nbytes and time; the default takes 10 at each size."""

    def make(times, guess=None, **more):
        made = []
        for (name, nbytes), time in times.items():
            forced = name.startswith("native:")
            columns = {"requested": name, "proved": True, "counterpart": name[7:]} if forced else {}
            if name == "native" and guess:
                columns["native_guess"] = guess[nbytes]
            ratio = 10.0 / time
            interval = {"native_ratio": ratio, "native_ratio_low": 0.9 * ratio, "native_ratio_high": 1.1 * ratio}
            made.append(
                row(**{**columns, **more.get(name, {})}, algorithm=name, nbytes=nbytes, time_us_p50=time, **interval)
            )
        return measured(as_read(made))

    return make


def test_the_default_is_compared_with_the_librarys_best_and_with_ours(table):
    rows = table({("native", 8): 10.0, ("native:ring", 8): 8.0, ("native:bruck", 8): 20.0, ("ring", 8): 5.0})
    (one,) = cells(rows)
    assert (one.nbytes, one.native_us, one.guess) == (8, 10.0, "")
    assert one.own == pytest.approx(Best("native:ring", 1.25, 1.125, 1.375))
    assert one.ours.contender == "ring"
    assert one.ours.ratio == 2.0


def test_a_size_without_the_default_or_without_others_is_left_out(table):
    assert cells(table({("native", 8): 10.0, ("ring", 8): 5.0, ("native:ring", 64): 5.0})) == []


def test_without_ours_the_librarys_best_is_told_all_the_same(table):
    (one,) = cells(table({("native", 8): 10.0, ("native:ring", 8): 8.0}))
    assert one.ours is None


@pytest.mark.parametrize(
    ("low", "high", "shown"), [(1.1, 1.3, True), (0.8, 0.9, True), (0.9, 1.1, False), (float("nan"),) * 2 + (False,)]
)
def test_a_difference_is_shown_where_the_interval_excludes_1(low, high, shown):
    assert Best("ring", 1.0, low, high).shown == shown


def test_switches_are_told_in_words(table):
    sizes = {8: "native:binomial", 64: "native:binomial", 512: "", 4096: "native:ring"}
    rows = table({(name, nbytes): 10.0 for name in ("native", "native:ring") for nbytes in sizes}, sizes)
    assert guesses(cells(rows)) == "binomial at 8 to 64, something not recognised at 512, ring at 4K"


def test_the_same_algorithm_is_lined_up(table):
    times = {("native:ring", 8): 8.0, ("ring", 8): 4.0, ("native:ring", 64): 9.0, ("native:bruck", 8): 7.0}
    assert same_algorithm(table(times)) == {("native:ring", "ring"): {8: 2.0}}


def test_what_ran_instead_of_another_is_called_by_both_and_is_no_algorithm_of_its_own(table):
    rows = table(
        {("native", 8): 10.0, ("native:ring", 8): 8.0, ("ring", 8): 4.0},
        **{"native:ring": {"requested": "native:segmented_ring"}},
    )
    assert "native:segmented_ring (ran ring)" in set(rows["contender"])
    assert own_rows(rows).empty
    assert cells(rows) == []
    assert same_algorithm(rows) == {}


def test_rows_of_earlier_schemas_have_none(stored, as_read):
    rows = as_read(stored(["allreduce"], sizes=(8,)))
    for one in rows:
        for column in ("requested", "proved", "evidence", "forced_with", "counterpart", "native_guess"):
            del one[column]
    assert cells(measured(rows)) == []


def test_as_many_ranks_on_other_nodes_are_another_sweep(table):
    """Twice 32 ranks and 32 times 2 want different choices, so neither's default is judged by the other's rows."""

    def on(nnodes, time):
        times = {("native", 8): 10.0, ("native:ring", 8): time}
        return table(times, **{name: {"nnodes": nnodes} for name, _ in times})

    both = pd.concat([on(2, 8.0), on(4, 5.0)], ignore_index=True)
    found = {name: cells(part)[0].own.ratio for name, part in sweeps(both)}
    assert found == {"allreduce, nnodes 2": 1.25, "allreduce, nnodes 4": 2.0}
