import pytest

from collectives.folding import fold_halves, fold_in, fold_out, folding
from collectives.rounds import LEFT, RIGHT, Recv, RecvReduce, Send


def test_groups_are_runs_as_even_as_can_be_and_led_by_their_first():
    folded = folding(11, 4)
    assert folded.groups == [range(3), range(3, 6), range(6, 9), range(9, 11)]
    assert folded.leaders == [0, 3, 6, 9]
    assert [folded.leader_of(rank) for rank in (0, 5, 9, 10)] == [0, 3, 9, 9]


def test_the_root_leads_its_group_and_combines_its_neighbours_in_order():
    folded = folding(5, 1, leader=2)
    assert folded.leaders == [2]
    assert list(fold_in(folded, 2, [7])) == [
        (
            RecvReduce(1, 7, side=LEFT),
            RecvReduce(0, 7, side=LEFT),
            RecvReduce(3, 7, side=RIGHT),
            RecvReduce(4, 7, side=RIGHT),
        )
    ]
    assert list(fold_in(folded, 4, [7])) == [Send(2, 7)]


def test_with_two_ranks_at_most_in_a_group_the_first_pairs_are_folded():
    folded = folding(6, 4)
    assert folded.groups == [range(2), range(2, 4), range(4, 5), range(5, 6)]
    assert list(fold_in(folded, 5, [0])) == [()]


def test_halves_are_swapped_combined_and_brought_together():
    folded = folding(3, 2)
    assert list(fold_halves(folded, 0, range(4))) == [
        (Send(1, 2, 3), RecvReduce(1, 0, 1, side=RIGHT)),
        Recv(1, 2, 3),
    ]
    assert list(fold_halves(folded, 1, range(4))) == [
        (Send(0, 0, 1), RecvReduce(0, 2, 3, side=LEFT)),
        Send(0, 2, 3),
    ]
    assert list(fold_halves(folded, 2, range(4))) == [(), ()]


def test_each_member_is_given_its_own():
    folded = folding(3, 2)
    assert list(fold_out(folded, 0, lambda member: [member, 9])) == [(Send(1, 1, 9),)]
    assert list(fold_out(folded, 1, lambda member: [member, 9])) == [Recv(0, 1, 9)]


@pytest.mark.parametrize("fold", [fold_in, fold_halves, lambda folded, rank, chunks: fold_out(folded, rank, id)])
def test_nothing_is_folded_where_everyone_takes_part(fold):
    folded = folding(4, 4)
    assert folded.everyone
    assert all(list(fold(folded, rank, [0])) == [] for rank in range(4))
