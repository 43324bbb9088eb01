import pickle

import pytest

from collectives import allgather, alltoall
from collectives.problem import nodes_of


@pytest.mark.parametrize(
    ("arguments", "more", "message"),
    [
        ((0, 4), {}, "allgather: 0 ranks; at least 1 is needed"),
        ((4, -1), {}, "count -1 is negative"),
        ((4, 4), {"root": 4}, "root 4 is none of the ranks 0 to 3"),
        ((4, 4), {"root": -1}, "root -1 is none of the ranks 0 to 3"),
        ((4, 4), {"counts": (1, 1, 2)}, "3 counts for 4 ranks; give one for each rank"),
    ],
)
def test_what_is_no_problem_is_refused(arguments, more, message):
    with pytest.raises(ValueError, match=message):
        allgather.problem(*arguments, **more)


def test_problems_travel_between_ranks():
    problem = alltoall.problem(2, 10, counts=((1, 2), (3, 4)), in_place=True)
    assert pickle.loads(pickle.dumps(problem)) == problem


def test_nodes_hold_so_many_ranks_after_one_another_and_the_last_what_is_left():
    assert nodes_of(5, 2) == ((0, 1), (2, 3), (4,))
    with pytest.raises(ValueError, match="0 ranks on a node; at least 1 is needed"):
        nodes_of(4, 0)
