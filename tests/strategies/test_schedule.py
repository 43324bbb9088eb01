from fractions import Fraction
from itertools import product

import pytest

from strategies.schedule import SCHEDULES, Action, bubble, ideal_bubble, interleaved, most_under_way, one_stage


def orders(name, stages, micro_batches, chunks=1):
    return [SCHEDULES[name](stage, stages, micro_batches, chunks) for stage in range(stages)]


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micro_batches"), list(product((1, 2, 3, 4, 8), (1, 2, 3, 8, 13))))
def test_bubble_is_that_of_the_formula(name, stages, micro_batches):
    assert bubble(orders(name, stages, micro_batches)) == Fraction(stages - 1, micro_batches)


@pytest.mark.parametrize(("stages", "turns", "chunks"), list(product((1, 2, 3, 4, 8), (1, 2, 3), (2, 3, 4))))
def test_interleaving_divides_the_bubble_by_the_chunks(stages, turns, chunks):
    micro_batches = turns * stages
    waited = bubble(orders("interleaved", stages, micro_batches, chunks))
    assert waited == ideal_bubble(stages, micro_batches, chunks) == Fraction(stages - 1, chunks * micro_batches)


@pytest.mark.parametrize(("name", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 3)])
def test_every_stage_does_everything_once_and_forward_first(name, chunks):
    for order in orders(name, 4, 8, chunks):
        assert len(order) == len(set(order)) == 2 * 8 * chunks
        for action in order:
            if action.phase == "backward":
                assert order.index(action._replace(phase="forward")) < order.index(action)


def test_1f1b_holds_fewer_activations_than_gpipe():
    assert [most_under_way(order) for order in orders("gpipe", 4, 8)] == [8] * 4
    assert [most_under_way(order) for order in orders("1f1b", 4, 8)] == [4, 3, 2, 1]


def test_without_stages_each_micro_batch_goes_there_and_back():
    assert one_stage(2) == SCHEDULES["1f1b"](0, 1, 2, 1)
    assert bubble([one_stage(3)]) == 0


def test_stages_that_wait_in_a_circle_are_found():
    first = [Action("backward", 0), Action("forward", 0)]
    with pytest.raises(ValueError, match=r"wait for each other: stage 0 for .*stage 1 for"):
        bubble([first, [Action("forward", 0), Action("backward", 0)]])


def test_refusals():
    with pytest.raises(ValueError, match=r"6 micro-batches do not divide by pp=4 .*: 6 = 4·1 \+ 2"):
        interleaved(0, 4, 6, 2)
    with pytest.raises(ValueError, match="virtual_stages=2: 1f1b has one chunk a stage"):
        SCHEDULES["1f1b"](0, 4, 8, 2)
