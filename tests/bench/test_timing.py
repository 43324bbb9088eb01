"""The order of events and every decision of the sampling, with a clock that the test moves."""

import gc
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pytest

from bench.timing import BATCH_SAMPLES, MIN_ITERS, MIN_PRECISE, RETAKES, STREAM_CALLS, Limits, sample, seconds_of


class Machine:
    """One rank whose clock moves only when something is called; it keeps a diary."""

    def __init__(self):
        self.time = 0.0
        self.diary = []
        self.collecting = []

    def now(self):
        return self.time

    def call(self, name, *seconds):
        """Make a call that takes these seconds, the last for ever after."""
        left = list(seconds)

        def run():
            self.diary.append(name)
            self.collecting.append(gc.isenabled())
            self.time += left.pop(0) if len(left) > 1 else left[0]

        return run

    def barrier(self):
        self.diary.append("|")
        self.time += 100.0  # of no consequence for what is timed

    def gather(self, values):
        return values[np.newaxis].copy()

    def follow(self, values):
        return values


@pytest.fixture
def machine():
    return Machine()


def taken(machine, *calls, sets=None, start=None, seed=1, firsts=None, **limits):
    chosen = Limits(**{"iters": 5, "warmup": 1, "max_seconds": 0.0, **limits})
    return sample(sets or [list(calls)], start or machine.barrier, machine, chosen, seed, firsts, machine.now)


def test_a_sample_is_the_time_between_before_and_after_the_call(machine):
    (one,) = taken(machine, machine.call("a", 9.0, 1.0, 2.0, 3.0, 4.0, 5.0), firsts=[9.5])
    assert one.slowest.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]  # the first was the warm-up


def test_every_call_has_a_start_before_it_and_warm_up_comes_first(machine):
    taken(machine, machine.call("a", 1.0), machine.call("b", 1.0), warmup=2)
    assert machine.diary[::2] == ["|"] * 14
    calls = machine.diary[1::2]
    assert calls[:4] == ["a", "b", "a", "b"]
    turns = [calls[4:][place : place + 2] for place in range(0, 10, 2)]
    assert all(sorted(turn) == ["a", "b"] for turn in turns)


def test_the_order_within_turns_is_shuffled_and_the_seed_gives_it(machine):
    diaries = []
    for seed in (1, 1, 2):
        machine.diary.clear()
        taken(machine, *(machine.call(name, 1.0) for name in "abcdef"), seed=seed, iters=20)
        diaries.append(tuple(machine.diary))
    assert diaries[0] == diaries[1] != diaries[2]


def test_no_warm_up_where_none_is_asked_for(machine):
    taken(machine, machine.call("a", 1.0), warmup=0)
    assert machine.diary == ["|", "a"] * 5


def test_warm_up_goes_on_while_calls_get_faster(machine):
    taken(machine, machine.call("a", 8.0, 4.0, 2.0, 1.0, 1.0), warmup=1, iters=5)
    assert machine.diary.count("a") == 5 + 5


def test_warm_up_ends_even_where_calls_get_faster_for_ever(machine):
    taken(machine, machine.call("a", *(0.5**n for n in range(60))), warmup=2, iters=5)
    assert machine.diary.count("a") == 20 + 5


def test_the_first_call_counts_as_known(machine):
    taken(machine, machine.call("a", 1.0), warmup=1, firsts=[1.0], iters=5)
    assert machine.diary.count("a") == 1 + 5


def test_warm_up_of_a_long_call_ends_after_its_share_of_time(machine):
    taken(machine, machine.call("a", 3.0), machine.call("b", 0.001), warmup=4, max_seconds=10.0, iters=5)
    assert machine.diary.count("b") == 4 + 5
    assert machine.diary.count("a") == 1 + 5


def test_what_arms_a_contender_lies_outside_of_start_and_sample(machine):
    class Armed(AbstractContextManager):
        def __enter__(self):
            machine.call("(", 1000.0)()

        def __exit__(self, *exception):
            machine.call(")", 1000.0)()

    calls = [machine.call("a", 1.0), machine.call("b", 2.0)]
    limits = Limits(iters=3, warmup=1, max_seconds=0.0)
    a, b = sample([calls], machine.barrier, machine, limits, 1, None, machine.now, [Armed(), nullcontext()])
    diary = "".join(machine.diary)
    assert diary.count("(|a)") == diary.count("a") > 3
    assert diary.count("|b") == diary.count("b") > 3
    assert "(|b" not in diary
    assert a.slowest.tolist() == [1.0] * 3
    assert b.slowest.tolist() == [2.0] * 3


def test_the_garbage_collector_is_off_in_samples_and_on_again_after(machine):
    assert gc.isenabled()
    taken(machine, machine.call("a", 1.0), warmup=0)
    assert machine.collecting == [False] * 5
    assert gc.isenabled()


def test_the_garbage_collector_is_on_again_after_an_exception(machine):
    def fails():
        raise LookupError

    with pytest.raises(LookupError):
        taken(machine, fails, warmup=0)
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off(machine):
    gc.disable()
    try:
        taken(machine, machine.call("a", 1.0))
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_iters_is_how_many_samples_there_are(machine):
    for iters in (1, 4, 5, 6, 23):
        (one,) = taken(machine, machine.call("a", 1.0), iters=iters)
        assert one.slowest.size == iters


def test_time_ends_sampling_but_not_before_the_least(machine):
    (one,) = taken(machine, machine.call("a", 1.0), iters=100, max_seconds=1e-9)
    assert one.slowest.size == MIN_ITERS
    (one,) = taken(machine, machine.call("a", 100.0), iters=100, max_seconds=200.0 * 11)
    assert one.slowest.size == 10


def test_a_narrow_interval_ends_sampling(machine):
    calls = [machine.call(name, 1.0) for name in "abcdefghij"]
    assert {one.slowest.size for one in taken(machine, *calls, iters=100, precision=0.02)} == {MIN_PRECISE}


def test_few_contenders_are_sampled_more_often_between_decisions(machine):
    (one,) = taken(machine, machine.call("a", 1.0), iters=2 * BATCH_SAMPLES, precision=0.02)
    assert one.slowest.size == BATCH_SAMPLES


def test_a_wide_interval_does_not(machine):
    wild = machine.call("a", *(1.0 + n % 17 for n in range(200)))
    (one,) = taken(machine, wild, iters=60, precision=0.02)
    assert one.slowest.size == 60


def test_the_precise_leave_and_the_baseline_stays_for_the_others(machine):
    wild = machine.call("wild", *([1.0, 2.0, 3.0] * 40))
    steady = [machine.call(f"steady {number}", 1.0) for number in range(8)]
    base, *others, other = taken(machine, machine.call("base", 1.0), *steady, wild, iters=30, precision=0.02)
    assert (base.slowest.size, other.slowest.size) == (30, 30)
    assert {one.slowest.size for one in others} == {MIN_PRECISE}


def test_where_time_is_short_the_very_slow_are_sampled_only_so_often_as_is_needed(machine):
    calls = machine.call("fast", 1.0), machine.call("slow", 11.0), machine.call("half", 9.0)
    fast, slow, half = taken(machine, *calls, iters=20, max_seconds=21.0 * 20)
    assert slow.slowest.size == MIN_ITERS
    assert fast.slowest.size == half.slowest.size > MIN_ITERS or fast.slowest.size == MIN_ITERS


def test_where_time_suffices_the_very_slow_are_sampled_as_often_as_the_others(machine):
    fast, slow = taken(machine, machine.call("fast", 1.0), machine.call("slow", 11.0), iters=20, max_seconds=1e6)
    assert fast.slowest.size == slow.slowest.size == 20


def test_turns_walk_through_the_sets_of_buffers(machine):
    sets = [[machine.call(f"a{k}", 1.0), machine.call(f"b{k}", 1.0)] for k in range(3)]
    taken(machine, sets=sets, warmup=0, iters=5)
    used = [name[1] for name in machine.diary if name != "|"]
    assert used == [str(turn % 3) for turn in range(5) for _ in "ab"]


def test_streaming_times_many_calls_and_divides(machine):
    (one,) = taken(machine, machine.call("a", 1e-4), cadence="streaming", warmup=1, firsts=[1e-4])
    assert one.calls == 10
    assert one.slowest == pytest.approx([1e-4] * 5)
    assert machine.diary == ["|", "a"] + (["|"] + ["a"] * 10) * 5


def test_streaming_calls_are_bounded(machine):
    quick, long = taken(machine, machine.call("quick", 1e-9), machine.call("long", 5.0), cadence="streaming", warmup=1)
    assert (quick.calls, long.calls) == (STREAM_CALLS, 1)


def test_streaming_walks_through_the_sets_within_a_sample(machine):
    sets = [[machine.call(f"a{k}", 1e-4)] for k in range(4)]
    (one,) = taken(machine, sets=sets, cadence="streaming", warmup=1, firsts=[1e-4])
    assert one.calls == 12
    first = machine.diary[3:15]
    assert first == ["a0", "a1", "a2", "a3"] * 3


def test_a_sample_for_whose_start_a_rank_was_late_is_taken_again(machine):
    lates = iter([False] * 3 + [True, True] + [False] * 100)

    def start():
        return next(lates)

    (one,) = taken(machine, machine.call("a", *map(float, range(1, 99))), start=start, warmup=0, iters=5)
    assert one.retaken == 2
    assert one.slowest.tolist() == [1.0, 2.0, 3.0, 6.0, 7.0]
    assert one.turns.tolist() == [0, 1, 2, 5, 6]


def test_samples_that_never_count_end_all_the_same(machine):
    (one,) = taken(machine, machine.call("a", 1.0), start=lambda: True, warmup=0, iters=5)
    assert (one.slowest.size, one.retaken) == (0, 5 * RETAKES)


def test_a_sample_of_several_ranks_is_that_of_the_slowest(machine):
    # Two ranks: the other one takes twice as long and begins 3 s later.
    def gather(values):
        other = values * np.array([2.0, 1.0, 1.0])[:, None, None] if values.ndim == 3 else values * 2
        if values.ndim == 3:
            other[1] += 3.0
        return np.stack([values, other])

    machine.gather = gather
    (one,) = taken(machine, machine.call("a", 1.0))
    assert one.seconds.shape == (2, 5)
    assert one.slowest.tolist() == [2.0] * 5
    assert one.skew == 3.0
    assert one.straggler == (1, 1.0)


def test_other_ranks_follow_and_return_nothing(machine):
    leader = Machine()
    told = []
    leader.follow = lambda values: (told.append(values.copy()), values)[1]
    taken(leader, leader.call("a", 1.0), leader.call("b", 1.0), iters=7)
    script = iter(told)
    machine.gather = lambda values: None
    machine.follow = lambda values: next(script)
    assert taken(machine, machine.call("a", 5.0), machine.call("b", 5.0), iters=7) == []
    assert machine.diary == leader.diary


def test_no_contender_no_samples(machine):
    assert taken(machine, sets=[[]]) == []


def test_the_guard_hears_of_every_turn_of_warm_up_and_every_batch(machine):
    heard = []
    limits = Limits(iters=10, warmup=2, max_seconds=0.0)
    sample(
        [[machine.call("a", 1.0)]],
        machine.barrier,
        machine,
        limits,
        1,
        None,
        machine.now,
        alive=lambda: heard.append(1),
    )
    assert len(heard) == 2 + 1


def test_seconds_of_a_call(machine):
    assert seconds_of(machine.call("a", 2.5), machine.now) == (None, 2.5)
