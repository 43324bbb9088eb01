import pytest

from collectives import allgather, reduce_scatter, reduce_scatterv
from collectives.needs import COMMUTATIVE
from collectives.proof import prove
from collectives.rounds import RecvReduce, Send, as_rounds


def rounds_of(name, nranks, rank, primitive=reduce_scatter):
    return as_rounds(primitive.find(name).rounds(primitive.problem(nranks, nranks), rank))


@pytest.mark.parametrize("name", ["butterfly", "recursive_doubling", "spread", "reduce_then_scatter"])
def test_rank_order_is_kept_at_any_number_of_ranks(name):
    algorithm = reduce_scatter.find(name)
    assert algorithm.needs == ()
    assert all(prove(algorithm, nranks).in_order for nranks in range(1, 20))


def test_pairwise_sends_no_partial_result_and_so_mixes_the_order():
    for rank in range(5):
        for send, _ in rounds_of("pairwise", 5, rank):
            assert send == Send(send.peer, send.peer)
    assert reduce_scatter.find("pairwise").needs == (COMMUTATIVE,)
    assert prove(reduce_scatter.find("pairwise"), 4).values[0][0] == (0, 3, 2, 1)


@pytest.mark.parametrize("nranks", range(1, 18))
def test_reverse_bruck_is_brucks_all_gather_backwards(nranks):
    for rank in range(nranks):
        forwards = rounds_of("bruck", nranks, rank, allgather)
        for (send, recv), (sent, received) in zip(
            reversed(forwards), map(reversed, rounds_of("reverse_bruck", nranks, rank)), strict=True
        ):
            assert sent == Send(recv.peer, *recv.chunks)
            assert received == RecvReduce(send.peer, *send.chunks)


def test_the_last_round_of_a_butterfly_brings_each_block_to_its_owner():
    last = [rounds_of("butterfly", 8, rank)[-1] for rank in range(8)]
    assert last[0] == last[2] == last[5] == last[7] == ()  # these numbers are the same from the other end
    assert last[1][0] == Send(4, 4)
    assert last[4][0] == Send(1, 1)


def test_the_form_with_counts_has_the_same_algorithms():
    for name, algorithm in reduce_scatterv.algorithms.items():
        assert algorithm.generate is reduce_scatter.algorithms[name].generate
