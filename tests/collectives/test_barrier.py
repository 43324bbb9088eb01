import pytest

from collectives import barrier
from collectives.contracts import nothing, rank_block
from collectives.proof import Refuted, prove
from collectives.registry import Primitive
from collectives.rounds import Message, as_rounds

FLAT = [
    one for one in barrier.algorithms.values() if not one.shares_memory(barrier.problem(4, 0)) and not one.takes_nodes
]


@pytest.mark.parametrize("algorithm", FLAT, ids=lambda one: one.name)
def test_messages_carry_nothing(algorithm):
    for nranks in range(1, 12):
        for rank in range(nranks):
            for operations in as_rounds(algorithm.rounds(barrier.problem(nranks, 0), rank)):
                assert all(isinstance(one, Message) and not one.chunks for one in operations)


@pytest.mark.parametrize("algorithm", FLAT, ids=lambda one: one.name)
def test_the_last_round_cannot_be_left_out(algorithm):
    shortened = Primitive(
        "barrier", inputs=nothing, outputs=nothing, chunk_count=rank_block, native=None, synchronises=True
    )

    @shortened.algorithm(name=algorithm.name)
    def all_but_the_last(rank, nranks):
        """Leave the last round out."""
        yield from as_rounds(algorithm.rounds(barrier.problem(nranks, 0), rank))[:-1]

    for nranks in (2, 3, 5, 8):
        with pytest.raises(Refuted, match="leaves before it can know that rank"):
            prove(shortened.find(algorithm.name), nranks)
