import numpy as np
import pytest

from collectives import allreduce
from collectives.interpret import interpret
from collectives.layout import lay_out
from collectives.needs import COMMUTATIVE
from collectives.proof import prove, proved_ranks
from collectives.rounds import Message, as_rounds
from collectives.vector import consecutive

FLAT = [
    one
    for one in allreduce.algorithms.values()
    if not one.shares_memory(allreduce.problem(4, 4)) and not one.takes_nodes
]
ROUNDED_DIFFERENTLY = {"recursive_multiplying", "swing:optimal=latency"}


def bracketed(left, right, out):
    """Combine words as a commutative operation that rounds: brackets count, the side does not."""
    out[:] = [f"({min(one, other)}+{max(one, other)})" for one, other in zip(left, right, strict=True)]


def results(algorithm, nranks):
    """What each rank ends with, in words that tell how it came together."""
    count = nranks * algorithm.nchunks(nranks)
    problem = allreduce.problem(nranks, count)
    send = [np.array([chr(ord("a") + rank)] * count, object) for rank in range(nranks)]
    recv = [np.empty(count, object) for _ in range(nranks)]
    interpret([lay_out(problem, algorithm, rank) for rank in range(nranks)], send, recv, bracketed)
    return [tuple(one) for one in recv]


@pytest.mark.parametrize("algorithm", FLAT, ids=lambda one: one.name)
def test_all_ranks_get_the_same_bits_but_where_it_is_said(algorithm):
    same = {
        nranks: len(set(results(algorithm, nranks))) == 1
        for nranks in range(1, 18)
        if not algorithm.unmet(allreduce.problem(nranks, nranks))
    }
    assert len(same) > 4
    assert all(same.values()) == (algorithm.label not in ROUNDED_DIFFERENTLY), same


def test_swing_for_latency_rounds_differently_from_rank_to_rank():
    swing = allreduce.find("swing:optimal=latency")
    assert len(set(results(swing, 4))) == 1
    assert len(set(results(swing, 8))) > 1


@pytest.mark.parametrize("fold", ["whole", "half"])
def test_rabenseifner_keeps_order_with_the_nearest_partner_first(fold):
    far = allreduce.find(f"rabenseifner:fold={fold}:order=far_first")
    near = allreduce.find(f"rabenseifner:fold={fold}:order=near_first")
    assert far.needs == (COMMUTATIVE,)
    assert near.needs == ()
    assert all(prove(near, nranks).in_order for nranks, _ in proved_ranks(near, 17))
    assert not all(prove(far, nranks).in_order for nranks, _ in proved_ranks(far, 17))


def pieces(algorithm, nranks):
    """Into how many runs of the vector the chunks of the most scattered message fall."""
    problem = allreduce.problem(nranks, nranks)
    return max(
        len(list(consecutive(operation.chunks)))
        for rank in range(nranks)
        for operations in as_rounds(algorithm.rounds(problem, rank))
        for operation in operations
        if isinstance(operation, Message)
    )


@pytest.mark.parametrize("nranks", [2, 4, 8, 16, 32, 64])
def test_every_message_of_bine_is_one_run_of_the_vector(nranks):
    assert pieces(allreduce.find("bine"), nranks) == 1
    assert pieces(allreduce.find("swing"), nranks) > 1 or nranks < 4


def test_a_segmented_ring_of_one_segment_is_the_ring():
    problem = allreduce.problem(6, 12)
    one, ring = allreduce.find("segmented_ring:segments=1"), allreduce.find("ring")
    assert [as_rounds(one.rounds(problem, rank)) for rank in range(6)] == [
        as_rounds(ring.rounds(problem, rank)) for rank in range(6)
    ]


@pytest.mark.parametrize(
    ("specification", "words"),
    [
        ("rabenseifner:fold=double", "rabenseifner:fold=double is not one of whole, half"),
        ("rabenseifner:order=3", "rabenseifner:order=3 is not one of far_first, near_first"),
        ("swing:optimal=both", "swing:optimal=both is not one of bandwidth, latency"),
        ("recursive_multiplying:radix=1", "recursive_multiplying:radix=1 is not a whole number of at least 2"),
        ("tree:radix=0", "tree:radix=0 is not a whole number of at least 1"),
        ("tree:segments=many", "tree:segments=many is not a whole number of at least 1"),
    ],
)
def test_a_parameter_that_does_not_fit_is_refused_with_those_that_do(specification, words):
    with pytest.raises(ValueError, match=words):
        allreduce.find(specification)
