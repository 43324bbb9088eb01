import pytest

from collectives import allgather, broadcast, gather, reduce, scatter
from collectives.backwards import backwards
from collectives.rounds import Copy, Recv, RecvReduce, Send, as_rounds


def test_the_last_round_comes_first_and_what_was_sent_is_received():
    rounds = [Send(1, "a", "b"), (), (Send(2, "c"), Recv(3, "d"))]
    assert list(backwards(rounds)) == [(Recv(2, "c"), Send(3, "d")), (), (Recv(1, "a", "b"),)]
    assert list(backwards(rounds, combining=True))[2] == (RecvReduce(1, "a", "b"),)


MESSAGES_ALONE = [
    one.name
    for one in allgather.algorithms.values()
    if not one.shares_memory(allgather.problem(8, 8)) and not one.takes_nodes
]


@pytest.mark.parametrize("name", MESSAGES_ALONE)
def test_twice_backwards_is_forwards(name):
    rounds = as_rounds(allgather.find(name).rounds(allgather.problem(8, 8), 3))
    assert list(backwards(backwards(rounds))) == rounds


@pytest.mark.parametrize("operation", [RecvReduce(1, 0), Copy(0, 1)])
def test_what_has_no_inverse_is_refused(operation):
    with pytest.raises(ValueError, match="cannot be run backwards; only Send and Recv can"):
        list(backwards([operation]))


@pytest.mark.parametrize(("spreads", "collects"), [(scatter, gather), (broadcast, reduce)])
@pytest.mark.parametrize("name", ["binomial", "knomial"])
def test_collecting_is_spreading_backwards(spreads, collects, name):
    sent, received = (
        [
            (rank, one.peer, one.chunks)
            for rank in range(7)
            for operations in as_rounds(primitive.find(name).rounds(primitive.problem(7, 7, root=2), rank))
            for one in operations
            if isinstance(one, Send)
        ]
        for primitive in (spreads, collects)
    )
    assert sorted((rank, peer) for rank, peer, _ in sent) == sorted((peer, rank) for rank, peer, _ in received)
    assert sorted(chunks for _, _, chunks in sent) == sorted(chunks for _, _, chunks in received)
