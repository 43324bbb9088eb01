import pytest

from collectives import exscan, scan
from collectives.proof import prove
from collectives.rounds import Combine, Recv, Send, as_rounds


def rounds_of(primitive, name, nranks, rank):
    return as_rounds(primitive.find(name).rounds(primitive.problem(nranks, 1), rank))


def test_rank_0_of_an_exclusive_scan_has_no_result():
    problem = exscan.problem(3, 7)
    assert [exscan.recv_count(problem, rank) for rank in range(3)] == [0, 7, 7]
    assert [scan.recv_count(scan.problem(3, 7), rank) for rank in range(3)] == [7, 7, 7]


@pytest.mark.parametrize("name", ["linear", "recursive_doubling"])
@pytest.mark.parametrize("nranks", range(1, 20))
def test_each_rank_ends_with_those_up_to_it_in_order(name, nranks):
    inclusive, exclusive = (prove(primitive.find(name), nranks).values for primitive in (scan, exscan))
    for rank in range(nranks):
        assert inclusive[rank][0, rank + 1] == tuple(range(rank + 1))
        if rank:
            assert exclusive[rank][0, rank] == tuple(range(rank))


def test_the_last_rank_of_an_exclusive_linear_scan_combines_nothing():
    assert rounds_of(exscan, "linear", 3, 2) == [(), (Recv(1, (0, 2)),)]
    before, own, after = (0, 2), (2, 3), (0, 3)
    (recv, combine), sent = rounds_of(scan, "linear", 4, 2)[1:]
    assert recv == Recv(1, before)
    assert (combine.left, combine.right, combine.into) == (before, own, after)
    assert sent == (Send(3, after),)


@pytest.mark.parametrize("primitive", [scan, exscan])
def test_recursive_doubling_combines_no_group_that_nobody_above_needs(primitive):
    for nranks in range(1, 34):
        combined = [
            one.into
            for rank in range(nranks)
            for operations in rounds_of(primitive, "recursive_doubling", nranks, rank)
            for one in operations
            if isinstance(one, Combine)
        ]
        assert all(stop <= nranks for _, stop in combined)
        results = {(0, rank + (primitive is scan)) for rank in range(nranks)}
        used = [into for into in combined if into not in results and into[1] == nranks and into[0] == 0]
        assert used == []


def test_an_exclusive_scan_receives_what_it_needs_and_no_more():
    assert rounds_of(exscan, "recursive_doubling", 2, 1) == [(Recv(0, (0, 1)),)]
    assert rounds_of(exscan, "recursive_doubling", 2, 0) == [(Send(1, (0, 1)),)]
