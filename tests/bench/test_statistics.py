import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.statistics import (
    CONFIDENCE,
    holm,
    median,
    median_interval,
    paired_ratio,
    precise,
    sign_test,
    summarise,
    verdict,
)

TIMES = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=60)


def test_a_summary_of_known_samples():
    summary = summarise([5.0, 1.0, 2.0, 4.0, 3.0])
    assert summary._asdict() == pytest.approx({"p50": 3, "mean": 3, "min": 1, "p5": 1.2, "p95": 4.8, "max": 5})


def test_one_sample_is_its_own_summary():
    assert set(summarise([7.5])) == {7.5}
    assert median([7.5]) == 7.5


def test_the_median_of_an_even_number_lies_between_the_middle_two():
    assert median([4.0, 1.0, 3.0, 2.0]) == 2.5


@given(TIMES)
def test_a_summary_is_in_order(samples):
    summary = summarise(samples)
    assert summary.min <= summary.p5 <= summary.p50 <= summary.p95 <= summary.max


def test_the_ratio_is_that_of_pairs_and_above_1_when_the_contender_is_faster():
    # The machine slows down tenfold half way: the ratio of medians would be 5.5, that of each pair is 2.
    assert paired_ratio([2, 2, 20, 20], [1, 1, 10, 10]).value == 2
    assert paired_ratio([2, 11, 20], [1, 5.5, 10]) == (2, 2, 2)


def test_one_pair_gives_an_interval_of_no_width():
    assert paired_ratio([3.0], [2.0]) == (1.5, 1.5, 1.5)


@pytest.mark.parametrize("number", [2, 3, 4, 5])
def test_few_pairs_give_an_interval_as_wide_as_they_are(number):
    ratio = paired_ratio(np.arange(1, number + 1), np.ones(number))
    assert (ratio.low, ratio.high) == (1, number)


@given(st.lists(st.tuples(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6)), min_size=1, max_size=60))
def test_the_interval_holds_the_ratio_and_lies_within_the_pairs(pairs):
    baseline, contender = (np.array(times) for times in zip(*pairs, strict=True))
    ratio = paired_ratio(baseline, contender)
    lowest, highest = (baseline / contender).min(), (baseline / contender).max()
    assert lowest <= ratio.low <= ratio.high <= highest
    assert lowest <= ratio.value <= highest


@pytest.mark.parametrize("number", [7, 8, 50, 51])
def test_the_interval_is_that_of_resampling_by_hand(number):
    rng = np.random.default_rng(number)
    baseline, contender = rng.lognormal(size=number), rng.lognormal(size=number)
    ratios = baseline / contender
    medians = np.median(ratios[rng.integers(number, size=(40000, number))], axis=1)
    low, high = np.quantile(medians, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    ratio = paired_ratio(baseline, contender)
    # Both are quantiles of samples of the same distribution; compare them by the ranks they fall on.
    for ours, theirs in ((ratio.low, low), (ratio.high, high)):
        assert abs(np.mean(medians < ours) - np.mean(medians < theirs)) < 0.02


def test_the_same_samples_and_seed_give_the_same_interval():
    rng = np.random.default_rng(1)
    baseline, contender = rng.random(30) + 1, rng.random(30) + 1
    assert paired_ratio(baseline, contender, seed=3) == paired_ratio(baseline, contender, seed=3)


def test_the_interval_narrows_with_more_pairs():
    rng = np.random.default_rng(2)
    widths = []
    for number in (10, 100, 10000):
        ratio = paired_ratio(rng.normal(10, 1, number), rng.normal(10, 1, number))
        widths.append(ratio.high - ratio.low)
    assert widths[0] > 2 * widths[1] > 4 * widths[2]


@pytest.mark.parametrize(
    ("baseline", "contender", "sentence"),
    [
        ([], [], "no summary"),
        ([1.0], [1.0, 2.0], "differ in number: 1 and 2"),
        ([1.0], [0.0], "a time of 0.0 has no ratio"),
        ([1.0], [float("nan")], "sample nan is no number"),
        ([[1.0]], [[1.0]], "shape (1, 1)"),
    ],
)
def test_what_has_no_ratio_is_refused(baseline, contender, sentence):
    with pytest.raises(ValueError) as error:
        paired_ratio(baseline, contender)
    assert sentence in str(error.value)


# ---------------------------------------------------------------------------------------------------------------
# Differences


def test_the_interval_of_the_median_holds_it_and_shrinks_with_samples():
    few, many = (np.random.default_rng(1).lognormal(0, 0.2, n) for n in (10, 1000))
    for samples in (few, many):
        low, high = median_interval(samples)
        assert low <= np.median(samples) <= high
    assert np.subtract(*median_interval(many)[::-1]) < np.subtract(*median_interval(few)[::-1]) / 3


def test_the_interval_of_the_median_holds_the_true_one_in_95_of_100():
    rng = np.random.default_rng(7)
    inside = 0
    for trial in range(400):
        low, high = median_interval(rng.exponential(1.0, 31), trial)
        inside += low <= np.log(2) <= high
    assert 0.92 <= inside / 400 <= 0.98


@pytest.mark.parametrize(
    ("baseline", "contender", "p"),
    [
        ([2] * 5, [1] * 5, 2 / 2**5),
        ([2] * 10, [1] * 10, 2 / 2**10),
        ([1] * 10, [2] * 10, 2 / 2**10),
        ([2, 1], [1, 2], 1.0),
        ([2] * 9 + [1], [1] * 9 + [2], 2 * 11 / 2**10),
        ([1] * 4, [1] * 4, 1.0),  # ties count for none
        ([2] * 6 + [1] * 4, [1] * 6 + [1] * 4, 2 / 2**6),
    ],
)
def test_the_sign_test_counts_how_often_each_was_faster(baseline, contender, p):
    assert sign_test(baseline, contender) == pytest.approx(p)


@pytest.mark.parametrize(
    ("contender", "p"),
    [
        ([1.03] * 8, 2 / 2**8),
        ([1 / 1.03] * 8, 2 / 2**8),
        ([1.01] * 8, 1.0),
        ([1.0] * 4 + [1.01] * 4, 1.0),
        ([1.03] * 8 + [1.0], 2 * (1 + 9) / 2**9),
        ([1.03] * 6 + [1.0] * 2, 2 * (1 + 8 + 28) / 2**8),
        ([1.03] * 4 + [1 / 1.03] * 4, 1.0),
    ],
)
def test_with_a_margin_only_what_lies_beyond_it_counts_for_a_difference(contender, p):
    assert sign_test(contender, [1.0] * len(contender), 0.02) == pytest.approx(p)


def test_the_sign_test_of_many_pairs_is_a_probability():
    assert 0 < sign_test([2.0] * 1000, [1.0] * 1000) < 1e-200
    rng = np.random.default_rng(3)
    assert 0 <= sign_test(rng.random(100000) + 1, rng.random(100000) + 1) <= 1


def test_two_that_do_not_differ_are_called_different_in_at_most_5_of_100():
    rng = np.random.default_rng(11)
    claimed = sum(sign_test(*rng.lognormal(0, 1, (2, 50))) <= 0.05 for _ in range(2000))
    assert claimed / 2000 <= 0.05


def test_holm_is_the_textbook_example():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.7]) == [0.7]
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_a_verdict_needs_both_a_ratio_and_a_small_p():
    assert verdict(1.2, 0.01) == "faster"
    assert verdict(0.8, 0.01) == "slower"
    assert verdict(1.2, 0.06) == "no difference shown"
    assert verdict(1.0, 0.0) == "no difference shown"


def test_precise_is_when_the_interval_of_the_median_is_narrow():
    assert precise([1.0] * 6, 0.01)
    assert not precise([1.0] * 5, 0.01)  # no interval holds the median of 5 with 95%
    # Of 10 samples the second smallest and the second largest hold it.
    assert precise([0.5, *[1.0] * 8, 9.0], 0.01)
    assert not precise([0.5, 0.5, *[1.0] * 7, 9.0], 0.01)
    assert precise([0.99, 0.99, *[1.0] * 7, 9.0], 0.011)


def test_precise_agrees_on_both_sides_of_where_the_normal_approximation_begins():
    rng = np.random.default_rng(5)
    for n in (99, 101, 1000):
        samples = rng.normal(1, 0.05, n)
        half = 1.96 * 1.2533 * 0.05 / np.sqrt(n)  # of the interval of a normal's median
        assert precise(samples, 2 * half)
        assert not precise(samples, half / 2)
