import pytest

from collectives import alltoall, alltoallv
from collectives.cutting import Options
from collectives.layout import lay_out
from collectives.rounds import Send, as_rounds


def rounds_of(name, nranks, rank, primitive=alltoall):
    return as_rounds(primitive.find(name).rounds(primitive.problem(nranks, nranks * nranks), rank))


@pytest.mark.parametrize("window", [1, 3, 20])
def test_no_more_than_the_window_is_under_way_in_either_direction(window):
    rounds = rounds_of(f"throttled:window={window}", 9, 4)
    assert max(sum(isinstance(one, Send) for one in operations) for operations in rounds) == min(window, 8)
    assert len(rounds) == -(-8 // window)


def test_partners_are_mutual_in_pairwise_if_the_ranks_are_a_power_of_two():
    assert all(send.peer == recv.peer for send, recv in rounds_of("pairwise", 8, 3))
    assert not all(send.peer == recv.peer for send, recv in rounds_of("pairwise", 6, 3))


def test_a_k_bruck_of_radix_2_is_brucks_and_one_of_many_is_spread():
    for nranks in range(1, 12):
        assert rounds_of("k_bruck:radix=2", nranks, 0) == rounds_of("bruck", nranks, 0)
    (single,) = rounds_of("k_bruck:radix=9", 9, 4)
    assert set(single) == set(rounds_of("spread", 9, 4)[0])


MATRIX = ((0, 3, 1), (2, 5, 0), (4, 0, 1))


def test_padded_blocks_are_all_as_long_as_the_longest():
    problem = alltoallv.problem(3, 16, counts=MATRIX)
    assert problem.longest_block == 5
    assert alltoallv.chunk_count(problem, ("padded", 1, 2), 1) == 5
    assert alltoallv.chunk_count(problem, (1, 2), 1) == 0
    for rank in range(3):
        layout = lay_out(problem, alltoallv.find("padded_bruck"), rank, Options())
        moved = [sum(stop - start for _, start, stop in one.regions) for one in layout.transfers]
        assert moved == [5, 5, 5, 5]  # distance 1, then distance 2: one block each, to and from


def test_without_padding_empty_blocks_are_not_sent():
    problem = alltoallv.problem(3, 16, counts=MATRIX)
    layout = lay_out(problem, alltoallv.find("spread"), 0, Options())
    assert [(one.outgoing, one.peer) for one in layout.transfers] == [(True, 1), (True, 2), (False, 2), (False, 1)]
    assert len(lay_out(problem, alltoallv.find("spread"), 1, Options()).transfers) == 2


def test_the_form_with_counts_has_the_same_algorithms_and_padding():
    assert set(alltoallv.algorithms) - set(alltoall.algorithms) == {"padded_bruck"}
    for name in set(alltoall.algorithms) & set(alltoallv.algorithms):
        assert alltoallv.algorithms[name].generate is alltoall.algorithms[name].generate


def test_in_place_there_is_a_form_only_with_as_much_back_as_there():
    def in_place(primitive, count, **more):
        return primitive.aliasing(primitive.problem(3, count, in_place=True, **more), 0) is not None

    assert not in_place(alltoallv, 16, counts=MATRIX)
    assert in_place(alltoallv, 9, counts=((0, 3, 1), (3, 0, 0), (1, 0, 1)))
    assert in_place(alltoall, 9)
    assert not in_place(alltoall, 10)
