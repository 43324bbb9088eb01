import pytest

from strategies.claims import CLAIMS, LAYOUT_CLAIMS, Claim, judge, judge_experts, judge_layout, matches

CLAIM = Claim("x", ("one", "two"), ("allgather", "alltoall"))


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        ({"one": [("forward", "allgather")], "two": [("backward", "alltoallv")]}, "right"),
        ({"one": [("forward", "allgather"), ("forward", "alltoall"), ("backward", "reduce_scatter")]}, "incomplete"),
        ({"one": [("forward", "allgather")]}, "wrong"),
        ({"one": [("forward", "allgather"), ("backward", "reduce_scatter")]}, "wrong"),
        ({"one": [("forward", "allgatherv"), ("forward", "alltoall"), ("step", "allreduce")]}, "right"),
        ({"other": [("forward", "allgather")]}, "not seen: one rank makes no call"),
        ({"one": [("step", "allreduce")]}, "not seen: one rank makes no call"),
    ],
)
def test_verdicts_follow_the_rule(seen, verdict):
    assert judge(CLAIM, seen)[0] == verdict


def test_gradient_synchronisation_counts_for_data_parallel_only():
    assert [claim.name for claim in CLAIMS if "step" in claim.phases] == ["Data Parallel"]


def test_the_table_of_ring_and_ulysses_holds_in_one_of_eight_ways():
    alone, both = (matches(claim) for claim in LAYOUT_CLAIMS)
    assert [one[:3] for one in both if one[3]] == [("ring-inner", "inside", False)]
    assert judge_layout(both) == "right only for ring-inner, inside attention, contiguous (1 of 8)"
    assert [one[2] for one in alone if one[3]] == [False] * 4  # nothing but the cut matters to a ring alone


def test_layout_verdicts():
    assert judge_layout([("a", "inside", False, True)]) == "right"
    assert judge_layout([("a", "inside", False, False)]).startswith("wrong")
    assert judge_experts().startswith("right with conditions: ep=4 of 16 experts holds 4 whole ones")
