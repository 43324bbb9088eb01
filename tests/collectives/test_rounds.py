import pytest

from collectives.rounds import (
    LEFT,
    RIGHT,
    Combine,
    Copy,
    Fence,
    Pull,
    PullReduce,
    Push,
    Recv,
    RecvReduce,
    Send,
    among,
    as_round,
    as_rounds,
    largest_power_of_two,
    powers_of_two_below,
    relabel,
    together,
    with_chunks,
)


def test_a_lone_operation_is_a_round_of_one():
    assert as_round(Send(1, 0)) == (Send(1, 0),)
    assert as_rounds([Send(1, 0), (), (Send(2, 0), Recv(3, 1))]) == [(Send(1, 0),), (), (Send(2, 0), Recv(3, 1))]


def test_messages_are_equal_by_kind_peer_chunks_and_side():
    assert Send(1, 2, 3) == Send(1, 2, 3)
    assert hash(Send(1, 2, 3)) == hash(Send(1, 2, 3))
    assert Send(1, 2) != Recv(1, 2)
    assert Send(1, 2) != Send(2, 2)
    assert Send(1, 2, 3) != Send(1, 3, 2)
    assert Recv(1, 2) != RecvReduce(1, 2)
    assert RecvReduce(1, 2, side=LEFT) != RecvReduce(1, 2, side=RIGHT)
    assert RecvReduce(1, 2, side=LEFT) != RecvReduce(1, 2)


def test_operations_read_as_they_are_written():
    assert repr(Send(1, (0, 2))) == "Send(1, (0, 2))"
    assert repr(Recv(1)) == "Recv(1)"
    assert repr(RecvReduce(1, 0, side=LEFT)) == "RecvReduce(1, 0, side='left')"
    assert repr(Copy(0, "kept")) == "Copy(0, 'kept')"
    assert repr(Combine(0, 1, 2)) == "Combine(0, 1, 2)"


def test_together_merges_round_by_round_and_the_shorter_ends_first():
    one = [Send(1, 0), (), Send(2, 0)]
    other = [(Recv(1, 1), Recv(2, 1))]
    assert list(together(one, other)) == [(Send(1, 0), Recv(1, 1), Recv(2, 1)), (), (Send(2, 0),)]


@pytest.mark.parametrize("ranks", [[4, 7, 9], lambda rank: [4, 7, 9][rank]])
def test_relabel_maps_ranks_and_chunks_and_keeps_sides(ranks):
    rounds = [(Send(0, 0), RecvReduce(2, 1, side=LEFT)), (Copy(0, 1), Combine(0, 1, 2)), Recv(1, 2)]
    told = list(relabel(rounds, ranks, lambda chunk: chunk * 10))
    assert told[0] == (Send(4, 0), RecvReduce(9, 10, side=LEFT))
    assert [repr(one) for one in told[1]] == ["Copy(0, 10)", "Combine(0, 10, 20)"]
    assert told[2] == (Recv(7, 20),)


def test_relabel_of_nothing_changes_nothing():
    assert list(relabel([Send(3, "a")])) == [(Send(3, "a"),)]


def test_among_runs_with_the_members_numbers_and_lets_others_wait_as_long():
    def shift(rank, nranks):
        for distance in (1, 2):
            yield Send((rank + distance) % nranks, 0), Recv((rank - distance) % nranks, 0)

    members = [5, 2, 8]
    assert list(among(members, 2, shift)) == [(Send(8, 0), Recv(5, 0)), (Send(5, 0), Recv(8, 0))]
    assert list(among(members, 3, shift)) == [(), ()]


def test_with_chunks_replaces_what_messages_carry():
    rounds = [(Send(1, 0), RecvReduce(2, 0, side=RIGHT)), Recv(1, 0)]
    assert list(with_chunks(rounds, [7, 8])) == [
        (Send(1, 7, 8), RecvReduce(2, 7, 8, side=RIGHT)),
        (Recv(1, 7, 8),),
    ]


def test_with_chunks_refuses_local_operations():
    with pytest.raises(ValueError, match=r"Copy\(0, 1\) is no message"):
        list(with_chunks([Copy(0, 1)], [7]))


@pytest.mark.parametrize(
    ("limit", "powers", "largest"),
    [(1, [], 1), (2, [1], 2), (3, [1, 2], 2), (4, [1, 2], 4), (8, [1, 2, 4], 8), (9, [1, 2, 4, 8], 8)],
)
def test_powers_of_two(limit, powers, largest):
    assert powers_of_two_below(limit) == powers
    assert largest_power_of_two(limit) == largest


def one_of_each():
    yield Pull(1, "a", "b"), PullReduce([0, 1], "a"), Push([1], "b"), Copy("a", "c"), Combine("a", "b", "c")
    yield Send(1, "a"), Recv(1, "b"), RecvReduce(1, "c", side="left"), Fence([0, 1])


def test_relabelling_gives_other_ranks_and_other_chunks():
    renamed = list(relabel(one_of_each(), [5, 7], str.upper))
    assert repr(renamed) == (
        "[(Pull(7, 'A', 'B'), PullReduce([5, 7], 'A'), Push([7], 'B'), Copy('A', 'C'), Combine('A', 'B', 'C')), "
        "(Send(7, 'A'), Recv(7, 'B'), RecvReduce(7, 'C', side='left'), Fence([5, 7]))]"
    )


def test_a_chunk_can_stand_for_several():
    renamed = list(relabel(one_of_each(), parts=lambda chunk: [(chunk, 0), (chunk, 1)]))
    assert repr(renamed[0][1]) == "PullReduce([0, 1], ('a', 0), ('a', 1))"
    assert repr(renamed[0][3:]) == (
        "(Copy(('a', 0), ('c', 0)), Copy(('a', 1), ('c', 1)), "
        "Combine(('a', 0), ('b', 0), ('c', 0)), Combine(('a', 1), ('b', 1), ('c', 1)))"
    )
    assert repr(renamed[1][2]) == "RecvReduce(1, ('c', 0), ('c', 1), side='left')"


def test_merged_rounds_meet_once_and_at_the_end():
    merged = list(together([(Push([1], 0), Fence([0, 1]))], [(Push([1], 1), Fence([0, 1]))]))
    assert repr(merged) == "[(Push([1], 0), Push([1], 1), Fence([0, 1]))]"


def test_a_rank_outside_stays_idle():
    fenced = lambda rank, nranks: iter([Fence(range(nranks)), Fence(range(nranks))])  # noqa: E731
    assert list(among([2, 3], 0, fenced)) == [(), ()]
    assert repr(list(among([2, 3], 3, fenced))) == "[(Fence([2, 3]),), (Fence([2, 3]),)]"


@pytest.mark.parametrize("yielded", [[Send(1, "a")], None, (Send(1, "a"), None), Send, ((Send(1, "a"),),)])
def test_what_is_no_round_is_refused_rather_than_ignored(yielded):
    with pytest.raises(TypeError, match="is no operation of a round; yield an operation, or a tuple of them"):
        as_round(yielded)
