import pytest

from collectives import broadcast
from collectives.needs import POWER_OF_TWO
from collectives.proof import prove
from collectives.rounds import Recv, Send, as_rounds


def test_segments_follow_one_another_down_the_chain():
    problem = broadcast.problem(3, 3, root=1)
    chain = broadcast.find("chain:segments=2")
    assert as_rounds(chain.rounds(problem, 1)) == [(Send(2, 0),), (Send(2, 1),), ()]
    assert as_rounds(chain.rounds(problem, 2)) == [(Recv(1, 0),), (Recv(1, 1), Send(0, 0)), (Send(0, 1),)]
    assert as_rounds(chain.rounds(problem, 0)) == [(), (Recv(2, 0),), (Recv(2, 1),)]


def test_halves_are_swapped_between_the_sides_of_a_split_tree():
    problem = broadcast.problem(4, 4)
    last = [as_rounds(broadcast.find("split_binary_tree:segments=1").rounds(problem, rank))[-1] for rank in range(4)]
    assert last[1] == (Send(3, 0), Recv(3, 1))
    assert last[3] == (Send(1, 1), Recv(1, 0))
    assert (last[0], last[2]) == ((Send(2, 1),), (Recv(0, 1),))  # the left side has one rank more


@pytest.mark.parametrize("nranks", range(2, 12))
def test_no_rank_but_the_root_sends_both_halves_in_a_double_tree(nranks):
    problem = broadcast.problem(nranks, 2, root=nranks - 1)
    for rank in range(nranks - 1):
        rounds = as_rounds(broadcast.find("double_binary_tree:segments=1").rounds(problem, rank))
        assert len({one.chunks for operations in rounds for one in operations if isinstance(one, Send)}) <= 1


def test_which_all_gather_follows_decides_what_is_needed():
    assert broadcast.find("scatter_allgather").needs == ()
    assert broadcast.find("scatter_allgather:allgather=bruck").needs == ()
    doubling = broadcast.find("scatter_allgather:allgather=recursive_doubling")
    assert doubling.needs == (POWER_OF_TWO,)
    assert doubling.unmet(broadcast.problem(6, 6)) == (
        "scatter_allgather needs a number of ranks that is a power of two"
    )
    with pytest.raises(ValueError, match="allgather=sparbit is not one of ring, recursive_doubling, bruck"):
        broadcast.find("scatter_allgather:allgather=sparbit")


def test_a_k_nomial_tree_of_radix_2_is_the_binomial_one():
    problem = broadcast.problem(11, 1, root=4)
    for rank in range(11):
        two, binomial = (
            as_rounds(broadcast.find(name).rounds(problem, rank)) for name in ("knomial:radix=2", "binomial")
        )
        assert two == binomial


def test_any_radix_and_any_number_of_segments_will_do():
    for specification in ("knomial:radix=100", "chain:segments=40", "double_binary_tree:segments=33"):
        for root in range(5):
            prove(broadcast.find(specification), 5, root)
