import pytest

from bench.twins import FEWEST, flags

SIZES = tuple(8**place for place in range(1, FEWEST + 1))


@pytest.fixture
def rows(row, as_read):
    """Rows of the library's own algorithms; times by name, one number for all sizes or one for each."""

    def make(times, sizes=SIZES, proved=True, **columns):
        made = []
        for name, each in times.items():
            for place, nbytes in enumerate(sizes):
                time = each[place] if isinstance(each, tuple) else each
                made.append(
                    row(
                        **{"requested": name, **columns},
                        algorithm=name,
                        nbytes=nbytes,
                        proved=proved,
                        time_us_p50=time,
                        time_us_low=0.99 * time,
                        time_us_high=1.01 * time,
                    )
                )
        return as_read(made)

    return make


def test_the_same_time_at_all_sizes_raises_a_flag(rows):
    (flag,) = flags(rows({"native:ring": 10.0, "native:bruck": 10.1, "native:linear": 12.0}, proved=False))
    assert flag.startswith("allreduce: native:ring and native:bruck took the same time at all sizes")
    assert "may have run one for both" in flag


def test_what_is_proved_is_flagged_in_other_words(rows):
    (flag,) = flags(rows({"native:ring": 10.0, "native:bruck": 10.1}))
    assert "tells them apart all the same" in flag


@pytest.mark.parametrize(
    "times",
    [
        {"native:ring": 10.0, "native:bruck": (10.0, 10.0, 10.8)},  # one size tells them apart
        {"native:ring": 10.0, "native:bruck": 10.4},  # close, but their intervals do not overlap
        {"native:ring": 10.0},
    ],
)
def test_a_difference_raises_none(rows, times):
    assert flags(rows(times)) == []


def test_few_sizes_raise_none(rows):
    assert flags(rows({"native:ring": 10.0, "native:bruck": 10.0}, sizes=SIZES[:-1])) == []


def test_what_ran_instead_is_no_second_algorithm(rows):
    instead = rows({"native:ring": 10.0}, requested="native:segmented_ring")
    assert flags(rows({"native:ring": 10.0}) + instead) == []


def test_other_contenders_and_other_sweeps_are_not_compared(rows):
    assert flags(rows({"ring": 10.0, "native": 10.0}, requested="")) == []
    assert flags(rows({"native:ring": 10.0}, dtype="int32") + rows({"native:bruck": 10.0})) == []


def test_rows_without_an_interval_raise_none(rows):
    made = rows({"native:ring": 10.0, "native:bruck": 10.0})
    for one in made:
        one["time_us_low"] = None
    assert flags(made) == []
    for one in made:
        del one["requested"]  # as in earlier schemas
    assert flags(made) == []
