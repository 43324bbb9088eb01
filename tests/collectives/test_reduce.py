import pytest

from collectives import reduce
from collectives.needs import COMMUTATIVE
from collectives.proof import prove


@pytest.mark.parametrize("name", ["linear", "in_order_binary", "in_order_binary:segments=1"])
def test_rank_order_is_kept_for_any_root(name):
    algorithm = reduce.find(name)
    assert algorithm.needs == ()
    for nranks in range(1, 14):
        assert all(prove(algorithm, nranks, root).in_order for root in range(nranks))


@pytest.mark.parametrize("name", ["binomial", "knomial", "knomial:radix=3"])
def test_a_tree_keeps_rank_order_for_root_0_alone(name):
    algorithm = reduce.find(name)
    assert algorithm.needs == (COMMUTATIVE,)
    assert [prove(algorithm, 9, root).in_order for root in range(9)] == [True] + [False] * 8


def test_the_root_need_not_lead_an_even_pair():
    rabenseifner = reduce.find("rabenseifner")
    for nranks in (3, 5, 6, 7):
        for root in range(nranks):
            assert prove(rabenseifner, nranks, root).nrounds == 2 * (nranks.bit_length() - 1) + 1
