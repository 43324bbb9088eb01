from fractions import Fraction

import pytest

from collectives import allgather, broadcast
from collectives.negabinary import digits, of_digits, partner, steps
from collectives.rounds import Message, Send, as_rounds
from collectives.vector import consecutive

POWERS = [1, 2, 4, 8, 16, 64, 128]


@pytest.mark.parametrize("nranks", POWERS)
def test_partners_are_mutual_and_alternate_between_the_two_sides(nranks):
    for number in steps(nranks):
        for rank in range(nranks):
            assert partner(partner(rank, number, nranks), number, nranks) == rank
    assert [partner(0, number, 128) for number in range(6)] == [1, 127, 3, 123, 11, 107]


@pytest.mark.parametrize("nranks", POWERS)
def test_digits_to_the_base_of_minus_two_and_back(nranks):
    for number in range(nranks):
        written = digits(number, nranks)
        assert sum((-2) ** place for place in range(10) if written >> place & 1) % nranks == number
        assert of_digits(written, nranks) == number


def hops(algorithm, nranks):
    """The distances, around the ring of ranks, over which the messages of a broadcast go."""
    problem = broadcast.problem(nranks, 1)
    return [
        min((rank - one.peer) % nranks, (one.peer - rank) % nranks)
        for rank in range(nranks)
        for operations in as_rounds(broadcast.find(algorithm).rounds(problem, rank))
        for one in operations
        if isinstance(one, Send)
    ]


def test_a_bine_tree_sends_less_far_than_a_binomial_tree():
    ratios = [Fraction(sum(hops("bine_tree", n)), sum(hops("binomial", n))) for n in (8, 16, 32, 64, 128)]
    assert float(ratios[0]) == 0.75
    assert ratios == sorted(ratios, reverse=True)
    assert 2 / 3 < ratios[-1] < 0.7


@pytest.mark.parametrize("nranks", POWERS)
def test_near_first_all_blocks_held_are_a_run_around_the_ring(nranks):
    problem = allgather.problem(nranks, nranks)
    for rank in range(nranks):
        for operations in as_rounds(allgather.find("bine").rounds(problem, rank)):
            for one in operations:
                assert isinstance(one, Message)
                assert len(list(consecutive(one.chunks))) <= 2
