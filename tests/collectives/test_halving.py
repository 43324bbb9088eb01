import pytest

from collectives.halving import doubling, halving, mirrored
from collectives.rounds import Recv, RecvReduce, Send, as_rounds


def left_over(rank, nranks, order):
    """The chunks that a rank never gives away."""
    given = {chunk for operations in halving(rank, nranks, order) for chunk in operations[0].chunks}
    return set(range(nranks)) - given


@pytest.mark.parametrize("nranks", [1, 2, 4, 8, 32])
def test_far_first_ends_with_the_own_chunk_and_near_first_with_the_mirrored_one(nranks):
    for rank in range(nranks):
        assert left_over(rank, nranks, "far_first") == {rank}
        assert left_over(rank, nranks, "near_first") == {mirrored(rank, nranks)}


def test_partners_come_in_the_order_asked_for():
    assert [operations[0].peer for operations in halving(0, 8, "far_first")] == [4, 2, 1]
    assert [operations[0].peer for operations in halving(0, 8, "near_first")] == [1, 2, 4]
    assert [operations[0].peer for operations in doubling(0, 8, "near_first")] == [4, 2, 1]


def test_doubling_exchanges_the_halves_again():
    assert as_rounds(halving(1, 4)) == [
        (Send(3, 2, 3), RecvReduce(3, 0, 1, side="right")),
        (Send(0, 0), RecvReduce(0, 1, side="left")),
    ]
    assert as_rounds(doubling(1, 4)) == [(Send(0, 1), Recv(0, 0)), (Send(3, 0, 1), Recv(3, 2, 3))]


def test_mirrored_turns_the_binary_digits_around():
    assert [mirrored(number, 8) for number in range(8)] == [0, 4, 2, 6, 1, 5, 3, 7]
    assert mirrored(0, 1) == 0
