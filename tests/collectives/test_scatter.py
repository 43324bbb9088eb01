import pytest

from collectives import gather, gatherv, scatter, scatterv
from collectives.rounds import Recv, Send, as_rounds


@pytest.mark.parametrize("window", [1, 3, 7, 20])
def test_no_more_than_the_window_is_under_way(window):
    problem = scatter.problem(8, 8, root=5)
    rounds = as_rounds(scatter.find(f"linear_throttled:window={window}").rounds(problem, 5))
    assert max(map(len, rounds)) == min(window, 7)
    assert [one for operations in rounds for one in operations] == [Send(rank, rank) for rank in (6, 7, 0, 1, 2, 3, 4)]
    collected = as_rounds(gather.find(f"linear_throttled:window={window}").rounds(problem, 5))
    assert max(map(len, collected)) == min(window, 7)
    assert {one for operations in collected for one in operations} == {
        Recv(rank, rank) for rank in range(8) if rank != 5
    }


@pytest.mark.parametrize(("plain", "with_counts"), [(scatter, scatterv), (gather, gatherv)])
def test_the_form_with_counts_has_the_same_algorithms(plain, with_counts):
    assert list(with_counts.algorithms)[:4] == ["linear", "linear_throttled", "binomial", "knomial"]
    for name, algorithm in with_counts.algorithms.items():
        assert algorithm.generate is plain.algorithms[name].generate
        assert algorithm.primitive is with_counts
    problem = with_counts.problem(3, 6, counts=(1, 2, 3), root=1)
    assert with_counts.find("binomial").unmet(problem) is None


def test_blocks_of_a_binomial_scatter_go_with_the_subtree():
    problem = scatter.problem(6, 6, root=4)
    assert as_rounds(scatter.find("binomial").rounds(problem, 4)) == [(Send(2, 2, 3),), (Send(0, 0, 1),), (Send(5, 5),)]
    assert as_rounds(scatter.find("binomial").rounds(problem, 2)) == [(Recv(4, 2, 3),), (), (Send(3, 3),)]
