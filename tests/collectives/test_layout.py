"""What a layout starts, waits for and combines, and when."""

import pytest

from collectives import PRIMITIVES, allgather, allreduce, broadcast, reduce
from collectives.cutting import PACK_FROM_NBYTES, Options
from collectives.layout import LOOKAHEAD, lay_out
from collectives.program import Move, Start, Wait
from collectives.regions import RECV, SCRATCH, SEND, Region
from collectives.rounds import Send

ALL = [algorithm for primitive in PRIMITIVES.values() for algorithm in primitive.algorithms.values()]


def laid_out(primitive, name, nranks, count, options=None, **more):
    problem = primitive.problem(nranks, count, **more)
    return [lay_out(problem, primitive.find(name), rank, options) for rank in range(nranks)]


def of_kind(layout, kind):
    return [one for one in layout.program if isinstance(one, kind)]


def length(regions):
    return sum(one.stop - one.start for one in regions)


def test_what_is_final_from_the_start_is_copied_while_the_first_messages_are_under_way():
    for rank, layout in enumerate(laid_out(allgather, "ring", 4, 40)):
        assert isinstance(layout.program[0], Start)
        assert layout.program[1] == Move(Region(SEND, 0, 10), Region(RECV, 10 * rank, 10 * rank + 10))
        assert len(of_kind(layout, Move)) == 1


def test_one_rank_copies_its_input_and_no_more():
    (layout,) = laid_out(allreduce, "ring", 1, 5)
    assert layout.program == [Move(Region(SEND, 0, 5), Region(RECV, 0, 5))]
    assert laid_out(allreduce, "ring", 1, 5, in_place=True)[0].program == []


def test_what_is_reduced_lands_in_two_pieces_a_peer():
    count, piece = 8000, 64
    for layout in laid_out(allreduce, "spread", 4, count, Options(piece=piece, align=16)):
        assert layout.scratch_count <= 3 * 2 * piece
        received = [one for one in layout.transfers if not one.outgoing and one.regions[0].buffer == SCRATCH]
        assert sum(length(one.regions) for one in received) == 3 * 2000
        assert max(length(one.regions) for one in received) == piece


def test_a_round_that_waits_only_for_data_lets_few_transfers_stay_under_way():
    most = 0
    for layout in laid_out(broadcast, "chain:segments=64", 3, 6400, Options(waits="data"), root=0):
        under_way = set()
        for one in layout.program:
            if isinstance(one, Start):
                under_way.update(one.transfers)
            elif isinstance(one, Wait):
                under_way.difference_update(one.transfers)
            most = max(most, len(under_way))
    assert 2 < most <= LOOKAHEAD + 2


def test_a_round_that_is_waited_for_ends_before_the_next():
    for layout in laid_out(broadcast, "chain", 3, 6400, Options(waits="round"), root=0):
        started = 0
        for one in layout.program:
            if isinstance(one, Start):
                assert started == 0
                started = len(one.transfers)
            elif isinstance(one, Wait):
                started -= len(one.transfers)


def test_a_chunk_that_is_not_there_cannot_be_sent():
    copy = allgather.like("allgather")

    @copy.algorithm()
    def gives_away_what_it_has_not(rank, nranks):
        yield Send(1 - rank, 1 - rank)

    with pytest.raises(ValueError, match=r"rank 0, round 0: Send\(1, 1\) of 1, which the rank does not have"):
        laid_out(copy, "gives_away_what_it_has_not", 2, 4)


def test_one_rank_of_a_large_ring_is_laid_out_alone():
    layout = lay_out(allreduce.problem(1024, 1 << 20), allreduce.find("ring"), 17)
    assert layout.nrounds == 2046
    assert layout.nmessages == 2046
    assert layout.sent_count == 2 * 1023 * 1024
    assert layout.scratch_count <= 1024 * (LOOKAHEAD + 2)


def test_pieces_that_are_reduced_wait_for_a_place_where_all_would_not_fit_in_a_vector():
    count = PACK_FROM_NBYTES  # elements: a vector of 256 KiB, one piece
    root = laid_out(reduce, "linear", 5, count, Options())[0]
    assert root.scratch_count == count
    assert [len(one.transfers) for one in of_kind(root, Start)] == [1, 1, 1, 1]
    small = laid_out(reduce, "linear", 5, 100, Options())[0]
    assert [len(one.transfers) for one in of_kind(small, Start)] == [4]
