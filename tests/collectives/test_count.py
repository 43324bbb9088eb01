from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from collectives import PRIMITIVES, allgather, allreduce, alltoall, barrier, broadcast, gather, reduce_scatter, scatter
from collectives.count import Bound, count, lower_bound
from collectives.cutting import Options
from collectives.layout import lay_out
from collectives.rounds import largest_power_of_two

ALL = [algorithm for primitive in PRIMITIVES.values() for algorithm in primitive.algorithms.values()]


def by_messages(algorithm):
    return not algorithm.shares_memory(algorithm.primitive.problem(2, 2))


def name_of(algorithm):
    return f"{algorithm.primitive.name}-{algorithm.name}"


def log(n):
    return (n - 1).bit_length()


def share(n):
    return Fraction(n - 1, n)


def fold(n):
    """Whether some ranks must be folded into others: 0 or 1."""
    return int(n != largest_power_of_two(n))


def members(n):
    return largest_power_of_two(n)


# Rounds, what the busiest rank sends and what it combines, in units of the vector, for n ranks; and steps, where a rank
# has several messages in a round. As in Chan et al. 2007, Thakur et al. 2005, Rabenseifner 2004 and Bruck et al. 1997.
CLOSED_FORMS = {
    "broadcast linear": (lambda n: 1, lambda n: n - 1, None),
    "broadcast binomial": (log, log, None),
    "broadcast chain": (lambda n: n + 16 - 2, lambda n: 1, None),
    "broadcast scatter_allgather": (lambda n: log(n) + n - 1, lambda n: 2 * share(n), None),
    "scatter linear": (lambda n: 1, share, None),
    "scatter binomial": (log, share, None),
    "gather linear": (lambda n: 1, lambda n: Fraction(1, n), None),
    "reduce linear": (lambda n: 1, lambda n: 1, lambda n: n - 1),
    "reduce binomial": (log, lambda n: 1, log),
    "allgather ring": (lambda n: n - 1, share, None),
    "allgather recursive_doubling": (log, share, None),
    "allgather bruck": (log, share, None),
    "allgather spread": (lambda n: 1, share, None),
    "reduce_scatter ring": (lambda n: n - 1, share, share),
    "reduce_scatter pairwise": (lambda n: n - 1, share, share),
    "reduce_scatter recursive_halving": (log, share, share),
    "reduce_scatter spread": (lambda n: 1, share, share),
    "allreduce ring": (lambda n: 2 * (n - 1), lambda n: 2 * share(n), share),
    "allreduce recursive_doubling": (
        lambda n: log(members(n)) + 2 * fold(n),
        lambda n: log(members(n)) + fold(n),
        lambda n: log(members(n)) + fold(n),
    ),
    "allreduce rabenseifner": (
        lambda n: 2 * log(members(n)) + 2 * fold(n),
        lambda n: 2 * share(members(n)) + fold(n),
        lambda n: share(members(n)) + fold(n),
    ),
    "allreduce spread": (lambda n: 2, lambda n: 2 * share(n), share),
    "alltoall pairwise": (lambda n: n - 1, share, None),
    "alltoall spread": (lambda n: 1, share, None),
    "barrier dissemination": (log, lambda n: 0, None),
    "barrier linear": (lambda n: 2, lambda n: 0, None),
    "sendrecv_pingpong direct": (lambda n: 2, lambda n: 1, None),
    "sendrecv_stream direct": (lambda n: 1, lambda n: 1, None),
    "sendrecv_exchange direct": (lambda n: 1, lambda n: 1, None),
    "sendrecv_ring direct": (lambda n: 1, lambda n: 1, None),
}
POWERS_OF_TWO = {"reduce_scatter recursive_halving"}  # otherwise two rounds more and at most one vector
STEPS = {
    "broadcast linear": lambda n: n - 1,
    "broadcast binomial": log,
    "allgather spread": lambda n: n - 1,
    "allreduce spread": lambda n: 2 * (n - 1),
    "allreduce ring": lambda n: 2 * (n - 1),
    "barrier linear": lambda n: 2 * (n - 1),
}


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_counts_equal_the_closed_forms(name):
    rounds, sent, combined = CLOSED_FORMS[name]
    primitive, algorithm = name.split()
    algorithm = PRIMITIVES[primitive].find(algorithm)
    for nranks in range(2, 65):
        whole = nranks * algorithm.nchunks(nranks)
        problem = algorithm.primitive.problem(nranks, whole)
        if algorithm.unmet(problem) or (name in POWERS_OF_TWO and fold(nranks)):
            continue
        counted = count(algorithm, problem)
        assert counted.rounds == rounds(nranks)
        assert Fraction(counted.sent_count_max, whole) == sent(nranks)
        assert Fraction(counted.combined_count_max, whole) == (combined(nranks) if combined else 0)
        if name in STEPS:
            assert counted.steps == STEPS[name](nranks)


@pytest.mark.parametrize(
    ("nranks", "blocks"),
    [
        (2, 1),
        (4, 4),
        (5, 5),
        (6, 7),
        (7, 9),
        (8, 12),
        (9, 13),
        (10, 15),
        (11, 17),
        (12, 20),
        (13, 22),
        (16, 32),
        (17, 33),
    ],
)
def test_brucks_alltoall_sends_as_many_blocks_as_the_paper_says(nranks, blocks):
    counted = count(alltoall.find("bruck"), alltoall.problem(nranks, nranks))
    assert counted.sent_count_max == blocks
    assert counted.rounds == log(nranks)


def test_every_rank_is_counted():
    counted = count(gather.find("binomial"), gather.problem(4, 40))
    assert [one.sent_messages for one in counted.ranks] == [0, 1, 1, 1]
    assert [one.received_messages for one in counted.ranks] == [2, 0, 1, 0]
    assert [one.sent_count for one in counted.ranks] == [0, 10, 20, 10]
    assert [one.received_count for one in counted.ranks] == [30, 0, 10, 0]
    assert (counted.messages_max, counted.sent_count_max, counted.received_count_max) == (1, 20, 30)
    assert count(scatter.find("binomial"), scatter.problem(4, 40, root=3)).ranks[3].sent_count == 30


def test_empty_blocks_are_not_sent_and_not_counted():
    counted = count(allgather.find("ring"), allgather.problem(5, 2))
    assert sum(one.sent_messages for one in counted.ranks) == 2 * 4
    nothing = count(allreduce.find("ring"), allreduce.problem(4, 0))
    assert (nothing.rounds, nothing.steps, nothing.messages_max) == (0, 0, 0)
    assert count(barrier.find("dissemination"), barrier.problem(4, 0)).rounds == 2  # signals are sent


def test_uneven_blocks_are_counted_as_they_are():
    counted = count(allgather.find("spread"), allgather.problem(3, 10, counts=(7, 0, 3)))
    assert [one.sent_count for one in counted.ranks] == [14, 0, 6]
    assert [one.received_count for one in counted.ranks] == [3, 10, 7]


def test_real_messages_are_counted_after_cutting():
    problem = allgather.problem(4, 40)
    algorithm = allgather.find("bruck")
    assert [one.sent_messages for one in count(algorithm, problem).ranks] == [2, 2, 2, 2]
    assert [one.sent_messages for one in count(algorithm, problem, Options()).ranks] == [2, 2, 2, 3]
    assert count(algorithm, problem, Options(cap=5)).messages_max == 6
    whole = allreduce.problem(2, 1000)
    assert count(allreduce.find("recursive_doubling"), whole, Options(piece=100)).messages_max == 10


@settings(max_examples=100)
@given(st.sampled_from(list(filter(by_messages, ALL))), st.integers(1, 17), st.integers(0, 100), st.integers(1, 40))
def test_rounds_and_layouts_agree_on_every_rank(algorithm, nranks, elements, cap):
    problem = algorithm.primitive.problem(nranks, elements)
    assume(not algorithm.unmet(problem))
    options = Options(piece=cap, cap=cap)
    said, really = count(algorithm, problem), count(algorithm, problem, options)
    assert (said.rounds, said.steps) == (really.rounds, really.steps)
    for rank, (one, other) in enumerate(zip(said.ranks, really.ranks, strict=True)):
        assert one.sent_messages <= other.sent_messages
        assert (one.sent_count, one.received_count) == (other.sent_count, other.received_count)
        assert one.combined_count == other.combined_count
        layout = lay_out(problem, algorithm, rank, options)
        assert (layout.nmessages, layout.sent_count) == (other.sent_messages, other.sent_count)
    assert sum(one.sent_count for one in said.ranks) == sum(one.received_count for one in said.ranks)


# Steps, elements moved and combined, of n elements in all; the formulas of Chan et al. 2007.
BOUNDS = {
    "broadcast": (log, lambda n: 1, lambda n: 0),
    "reduce": (log, lambda n: 1, share),
    "scatter": (log, share, lambda n: 0),
    "gather": (log, share, lambda n: 0),
    "allgather": (log, share, lambda n: 0),
    "reduce_scatter": (log, share, share),
    "allreduce": (log, lambda n: 2 * share(n), share),
    "alltoall": (log, share, lambda n: 0),
    "barrier": (log, lambda n: 0, lambda n: 0),
    "sendrecv_stream": (lambda n: 1, lambda n: 1, lambda n: 0),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_lower_bounds_equal_the_formulas(name):
    steps, moved, combined = BOUNDS[name]
    primitive = PRIMITIVES[name]
    for nranks in (2, 3, 4, 5, 8, 13, 16, 33):
        whole = 7 * nranks
        roots = (0, nranks - 1) if primitive.rooted else (0,)
        for root in roots:
            bound = lower_bound(primitive.problem(nranks, whole, root=root))
            assert bound == Bound(steps(nranks), moved(nranks) * whole, combined(nranks) * whole)


def test_lower_bounds_are_those_of_the_blocks_at_hand():
    assert lower_bound(allgather.problem(4, 73)).moved_count == 73 - 18
    assert lower_bound(gather.problem(4, 73, root=0)).moved_count == 73 - 19
    assert lower_bound(allreduce.problem(3, 10)).moved_count == 14  # of 40 transfers
    assert lower_bound(reduce_scatter.problem(2, 5)).combined_count == 3  # of 5 combinations
    assert lower_bound(alltoall.problem(2, 10, counts=((1, 2), (6, 1)))).moved_count == 6
    assert lower_bound(broadcast.problem(1, 5)) == Bound(0, 0, 0)


@pytest.mark.parametrize("algorithm", list(filter(by_messages, ALL)), ids=name_of)
def test_no_algorithm_does_with_less_than_the_lower_bound(algorithm):
    for nranks in (2, 3, 4, 5, 8, 9, 16):
        for elements in (1, nranks, 7 * nranks + 3):
            problem = algorithm.primitive.problem(nranks, elements)
            if algorithm.unmet(problem):
                continue
            counted, bound = count(algorithm, problem), lower_bound(problem)
            assert max(counted.sent_count_max, counted.received_count_max) >= bound.moved_count
            assert counted.combined_count_max >= bound.combined_count
            if elements >= nranks:  # what is empty is not sent
                assert counted.steps >= bound.steps
