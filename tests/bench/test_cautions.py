import numpy as np
import pytest

from bench.cautions import CAUTIONS, found, sentences

STEADY = np.array([1.0, 1.01, 0.99] * 10)


def test_a_steady_row_bears_no_caution():
    assert found(STEADY) == ()


@pytest.mark.parametrize(
    ("name", "times", "circumstances"),
    [
        ("few", STEADY[:5], {}),
        ("spread", np.array([1.0] * 10 + [3.0] * 10 + [1.0] * 10), {}),
        ("first", np.array([9.0, *STEADY]), {}),
        ("drift", np.concatenate([STEADY, STEADY * 1.3]), {}),
        ("drift", np.concatenate([STEADY, STEADY / 1.3]), {}),
        ("load", STEADY, {"load": 0.6}),
        ("oversubscribed", STEADY, {"oversubscribed": True}),
        ("frequency", STEADY, {"governed": True}),
        ("skew", STEADY, {"skew": 0.11}),
        ("overhead", STEADY, {"empty": 0.21}),
        ("late", STEADY, {"retaken": 4}),
        ("shared_gpu", STEADY, {"shared_gpu": True}),
        ("suspect", STEADY, {"floor": 1.1}),
    ],
)
def test_each_fault_is_found_and_nothing_else(name, times, circumstances):
    assert found(times, **circumstances) == (name,)


@pytest.mark.parametrize(
    ("times", "circumstances"),
    [
        (STEADY[:6], {}),
        (np.concatenate([STEADY, STEADY * 1.05]), {}),  # drift of a few percent
        (STEADY, {"load": None}),
        (STEADY, {"load": 0.1}),
        (STEADY, {"skew": 0.09}),
        (STEADY, {"skew": 5.0, "calls": 100}),  # shared by many calls
        (STEADY, {"empty": 0.19}),
        (STEADY, {"empty": 0.5, "calls": 100}),
        (STEADY, {"retaken": 3}),
        (STEADY, {"floor": 0.9}),
    ],
)
def test_what_is_harmless_is_left_alone(times, circumstances):
    assert found(times, **circumstances) == ()


def test_a_sentence_has_how_many_rows_what_and_what_helps():
    assert sentences([("few",), ("few", "skew"), ()], {}) == [
        "2 of 3 rows: fewer than 6 samples; raise --max-seconds, or --iters.",
        "1 of 3 rows: ranks began a sample up to 10% of its time or more apart; try --sync deadline.",
    ]


@pytest.mark.parametrize(
    ("name", "settings", "remedy"),
    [
        ("few", {"max_seconds": 0}, "raise --iters."),
        ("skew", {"sync": "deadline"}, "try --cadence streaming, whose start and clock many calls share."),
        ("skew", {"sync": "deadline", "cadence": "streaming"}, "take these times as upper bounds."),
        ("skew", {"oversubscribed": True}, "use as many ranks as there are CPUs."),
        ("overhead", {"cadence": "streaming"}, "take these times as upper bounds."),
        ("first", {"warmup": 20}, "raise --warmup above 20."),
        ("spread", {"oversubscribed": True}, "use as many ranks as there are CPUs."),
    ],
)
def test_no_remedy_is_one_that_is_applied_already(name, settings, remedy):
    (sentence,) = sentences([(name,)], settings)
    assert sentence.endswith(remedy)


def test_every_caution_has_words_and_a_remedy():
    for name in CAUTIONS:
        (sentence,) = sentences([(name,)], {})
        assert sentence.startswith("1 of 1 rows: ")
        assert "; " in sentence
