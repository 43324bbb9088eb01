import pytest

from collectives import allgather, allgatherv
from collectives.rounds import Recv, Send, as_rounds


def rounds_of(name, nranks, rank):
    return as_rounds(allgather.find(name).rounds(allgather.problem(nranks, nranks), rank))


@pytest.mark.parametrize("nranks", [2, 4, 6, 16])
def test_neighbours_alone_talk_in_a_neighbor_exchange(nranks):
    for rank in range(nranks):
        rounds = rounds_of("neighbor_exchange", nranks, rank)
        for number, (send, recv) in enumerate(rounds):
            assert send.peer == recv.peer
            assert (send.peer - rank) % nranks in {1, nranks - 1}
            assert len(send.chunks) == len(recv.chunks) == (2 if number else 1)


@pytest.mark.parametrize("nranks", range(2, 34))
def test_sparbit_sends_most_the_shortest_way(nranks):
    sent = [(send.peer, len(send.chunks)) for send, _ in rounds_of("sparbit", nranks, 0)]
    distances, counts = zip(*sent, strict=True)
    assert list(distances) == sorted(distances, reverse=True)
    assert list(counts) == sorted(counts)
    assert distances[-1] == 1


def test_sparbit_at_five_ranks_as_published():
    assert rounds_of("sparbit", 5, 0) == [
        (Send(4, 0), Recv(1, 1)),
        (Send(2, 0), Recv(3, 3)),
        (Send(1, 0, 3), Recv(4, 4, 2)),
    ]


def test_a_k_bruck_of_radix_2_is_brucks():
    for nranks in range(1, 18):
        assert rounds_of("k_bruck:radix=2", nranks, nranks // 2) == rounds_of("bruck", nranks, nranks // 2)


def test_a_recursive_multiplying_of_radix_2_is_the_recursive_doubling():
    for rank in range(8):
        assert rounds_of("recursive_multiplying:radix=2", 8, rank) == rounds_of("recursive_doubling", 8, rank)


def test_those_folded_give_their_block_and_get_all_others():
    assert rounds_of("recursive_multiplying:radix=4", 6, 1) == [(Send(0, 1),), (), (Recv(0, 2, 3, 4, 5, 0),)]
    assert rounds_of("recursive_multiplying:radix=4", 6, 0)[0] == (Recv(1, 1),)


def test_the_form_with_counts_has_the_same_algorithms():
    for name, algorithm in allgatherv.algorithms.items():
        assert algorithm.generate is allgather.algorithms[name].generate
