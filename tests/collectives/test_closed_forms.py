"""The costs that the literature gives as formulas, counted from the rounds.

Rounds, what the busiest rank sends, and what it combines, the last two in units of the whole vector. L is the rounded
up binary logarithm of the number of ranks n, F the rounded down one, Q = 2^F. `steps` are counted instead of rounds
where one round holds several messages in the same direction: a single port sends them one after another.
"""

from fractions import Fraction

import pytest

from collectives import PRIMITIVES, alltoall, alltoallv
from collectives.count import count
from collectives.trees import double, in_order, pre_order

RANKS = range(2, 34)


def L(n):
    return (n - 1).bit_length()


def F(n):
    return n.bit_length() - 1


def Q(n):
    return 1 << F(n)


def power_of_two(n):
    return n == Q(n)


def no_power_of_two(n):
    return n != Q(n)


def power_of_four(n):
    return power_of_two(n) and F(n) % 2 == 0


def any_number(n):
    return True


def share(n):
    """All blocks but one."""
    return Fraction(n - 1, n)


def levels(n, k):
    """The rounded up logarithm to the base k."""
    return next(level for level in range(n) if k**level >= n)


def digits(number, k):
    """The digits of a number, the lowest first."""
    return [number // k**place % k for place in range(number.bit_length())]


def children_at_the_root(n, k):
    """How many ranks the root of a k-nomial tree serves."""
    return sum(1 for number in range(1, n) if sum(digit > 0 for digit in digits(number, k)) == 1)


def largest_subtree(n):
    """The ranks in the largest subtree below the root of a binomial tree."""
    return max(min(1 << bit, n - (1 << bit)) for bit in range(L(n)))


def bruck_blocks(n, k=2):
    """The blocks that a rank sends in Bruck's all-to-all: one for each non-zero digit of each distance."""
    return sum(sum(digit > 0 for digit in digits(way, k)) for way in range(n))


S = 5  # segments

# (primitive, algorithm, which numbers of ranks, rounds, sent, combined); None: not given here
ROUNDS = [
    ("broadcast", "binomial", any_number, L, L, 0),
    ("broadcast", "knomial:radix=3", any_number, lambda n: levels(n, 3), lambda n: children_at_the_root(n, 3), 0),
    ("broadcast", f"chain:segments={S}", any_number, lambda n: n + S - 2, 1, 0),
    (
        "broadcast",
        f"binary_tree:segments={S}",
        lambda n: n > 2,
        lambda n: F(n) + S - 1,
        2,
        0,
    ),
    (
        "broadcast",
        f"double_binary_tree:segments={S}",
        any_number,
        lambda n: double(n)[0].height + S - 1,
        1,
        0,
    ),
    (
        "broadcast",
        f"split_binary_tree:segments={S}",
        lambda n: n > 5,
        lambda n: F(n) + S,
        Fraction(3, 2),
        0,
    ),
    ("broadcast", "scatter_allgather", any_number, lambda n: L(n) + n - 1, lambda n: 2 * share(n), 0),
    (
        "broadcast",
        "scatter_allgather:allgather=recursive_doubling",
        power_of_two,
        lambda n: 2 * F(n),
        lambda n: 2 * share(n),
        0,
    ),
    ("broadcast", "scatter_allgather:allgather=bruck", any_number, lambda n: 2 * L(n), lambda n: 2 * share(n), 0),
    ("broadcast", "bine_tree", power_of_two, F, F, 0),
    ("scatter", "binomial", any_number, L, share, 0),
    ("scatter", "knomial:radix=3", any_number, lambda n: levels(n, 3), share, 0),
    ("scatter", "linear_throttled:window=3", any_number, lambda n: -(-(n - 1) // 3), share, 0),
    ("gather", "binomial", any_number, L, lambda n: Fraction(largest_subtree(n), n), 0),
    ("gather", "knomial:radix=3", any_number, lambda n: levels(n, 3), None, 0),
    ("gather", "linear_throttled:window=3", any_number, lambda n: -(-(n - 1) // 3), lambda n: Fraction(1, n), 0),
    ("reduce", "binomial", any_number, L, 1, L),
    ("reduce", "knomial:radix=3", any_number, lambda n: levels(n, 3), 1, lambda n: children_at_the_root(n, 3)),
    ("reduce", f"chain:segments={S}", any_number, lambda n: n + S - 2, 1, 1),
    ("reduce", f"binary_tree:segments={S}", lambda n: n > 2, lambda n: F(n) + S - 1, 1, 2),
    (
        "reduce",
        f"in_order_binary:segments={S}",
        lambda n: n > 3,
        lambda n: in_order(n).height + S - 1,
        1,
        2,
    ),
    (
        "reduce",
        "rabenseifner",
        power_of_two,
        lambda n: 2 * F(n),
        lambda n: share(n) + Fraction(1, 2),
        share,
    ),
    (
        "reduce",
        "reverse_bruck_gather",
        any_number,
        lambda n: 2 * L(n),
        lambda n: share(n) + Fraction(largest_subtree(n), n),
        share,
    ),
    ("allgather", "ring", any_number, lambda n: n - 1, share, 0),
    ("allgather", "recursive_doubling", power_of_two, F, share, 0),
    ("allgather", "recursive_multiplying", power_of_four, lambda n: F(n) // 2, share, 0),
    ("allgather", "bruck", any_number, L, share, 0),
    ("allgather", "k_bruck:radix=3", any_number, lambda n: levels(n, 3), share, 0),
    ("allgather", "neighbor_exchange", lambda n: n % 2 == 0, lambda n: n // 2, share, 0),
    ("allgather", "sparbit", any_number, L, share, 0),
    ("allgather", "bine", power_of_two, F, share, 0),
    ("allgather", "bine:order=far_first", power_of_two, F, share, 0),
    ("allgather", "spread", any_number, 1, share, 0),
    ("allgather", "gather_broadcast", any_number, lambda n: 2 * L(n), L, 0),
    ("reduce_scatter", "pairwise", any_number, lambda n: n - 1, share, share),
    ("reduce_scatter", "ring", any_number, lambda n: n - 1, share, share),
    ("reduce_scatter", "recursive_halving", power_of_two, F, share, share),
    ("reduce_scatter", "recursive_halving", no_power_of_two, lambda n: F(n) + 2, 1, None),
    ("reduce_scatter", "recursive_doubling", power_of_two, F, lambda n: F(n) - share(n), lambda n: F(n) - share(n)),
    ("reduce_scatter", "butterfly", lambda n: power_of_two(n) and n > 2, lambda n: F(n) + 1, 1, share),
    ("reduce_scatter", "butterfly", no_power_of_two, lambda n: F(n) + 2, None, None),
    ("reduce_scatter", "reverse_bruck", any_number, L, share, share),
    ("reduce_scatter", "bine", power_of_two, F, share, share),
    ("reduce_scatter", "bine:order=near_first", power_of_two, F, share, share),
    ("reduce_scatter", "spread", any_number, 1, share, share),
    (
        "reduce_scatter",
        "reduce_then_scatter",
        any_number,
        lambda n: 2 * L(n),
        lambda n: 1 + Fraction(largest_subtree(n) - 1, n),
        L,
    ),
    ("allreduce", "recursive_doubling", power_of_two, F, F, F),
    (
        "allreduce",
        "recursive_doubling",
        no_power_of_two,
        lambda n: F(n) + 2,
        lambda n: F(n) + 1,
        lambda n: F(n) + 1,
    ),
    (
        "allreduce",
        "recursive_multiplying",
        power_of_four,
        lambda n: F(n) // 2,
        lambda n: 3 * F(n) // 2,
        lambda n: 3 * F(n) // 2,
    ),
    ("allreduce", "ring", any_number, lambda n: 2 * (n - 1), lambda n: 2 * share(n), share),
    (
        "allreduce",
        "segmented_ring:segments=3",
        any_number,
        lambda n: 6 * (n - 1),
        lambda n: 2 * share(n),
        share,
    ),
    *(
        ("allreduce", f"rabenseifner:order={order}", power_of_two, lambda n: 2 * F(n), lambda n: 2 * share(n), share)
        for order in ("far_first", "near_first")
    ),
    (
        "allreduce",
        "rabenseifner:fold=whole",
        no_power_of_two,
        lambda n: 2 * F(n) + 2,
        lambda n: 2 * share(Q(n)) + 1,
        lambda n: share(Q(n)) + 1,
    ),
    (
        "allreduce",
        "rabenseifner:fold=half",
        no_power_of_two,
        lambda n: 2 * F(n) + 3,
        lambda n: 2 * share(Q(n)) + Fraction(3, 2),
        lambda n: share(Q(n)) + Fraction(1, 2),
    ),
    ("allreduce", "reverse_bruck", any_number, lambda n: 2 * L(n), lambda n: 2 * share(n), share),
    ("allreduce", "swing", power_of_two, lambda n: 2 * F(n), lambda n: 2 * share(n), share),
    ("allreduce", "swing:optimal=latency", power_of_two, F, F, F),
    ("allreduce", "bine", power_of_two, lambda n: 2 * F(n), lambda n: 2 * share(n), share),
    (
        "allreduce",
        f"double_binary_tree:segments={S}",
        lambda n: n > 4,
        lambda n: 2 * double(n)[0].height + S - 1,
        2,
        1,
    ),
    ("allreduce", f"tree:segments={S}", lambda n: n > 5, lambda n: 2 * F(n) + S - 1, 3, 2),
    (
        "allreduce",
        f"tree:radix=3:segments={S}",
        lambda n: n > 10,
        lambda n: 2 * pre_order(n, 3).height + S - 1,
        4,
        3,
    ),
    ("allreduce", "allgather_reduce", any_number, lambda n: L(n) + 2, lambda n: n - 1, lambda n: n - 1),
    ("allreduce", "allgather_reduce:allgather=spread", any_number, 3, lambda n: n - 1, lambda n: n - 1),
    ("allreduce", "spread", any_number, 2, lambda n: 2 * share(n), share),
    ("allreduce", "reduce_broadcast", any_number, lambda n: 2 * L(n), L, L),
    ("alltoall", "pairwise", any_number, lambda n: n - 1, share, 0),
    ("alltoall", "spread", any_number, 1, share, 0),
    ("alltoall", "throttled:window=3", any_number, lambda n: -(-(n - 1) // 3), share, 0),
    ("alltoall", "bruck", any_number, L, lambda n: Fraction(bruck_blocks(n), n), 0),
    ("alltoall", "k_bruck:radix=3", any_number, lambda n: levels(n, 3), lambda n: Fraction(bruck_blocks(n, 3), n), 0),
    ("barrier", "linear", any_number, 2, 0, 0),
    ("barrier", "double_ring", any_number, lambda n: 2 * n - 2, 0, 0),
    ("barrier", "dissemination", any_number, L, 0, 0),
    ("barrier", "k_dissemination:radix=3", any_number, lambda n: levels(n, 3), 0, 0),
    ("barrier", "recursive_doubling", power_of_two, F, 0, 0),
    ("barrier", "recursive_doubling", no_power_of_two, lambda n: F(n) + 2, 0, 0),
    ("barrier", "tree", any_number, lambda n: 2 * L(n), 0, 0),
    ("scan", "linear", any_number, lambda n: n - 1, 1, 1),
    ("scan", "recursive_doubling", any_number, L, L, None),
    ("exscan", "linear", any_number, lambda n: n - 1, 1, lambda n: min(1, n - 2)),
    ("exscan", "recursive_doubling", any_number, L, L, None),
]

# (primitive, algorithm, steps, messages sent by the busiest rank)
STEPS = [
    ("broadcast", "linear", lambda n: n - 1, lambda n: n - 1),
    ("scatter", "linear", lambda n: n - 1, lambda n: n - 1),
    ("gather", "linear", lambda n: n - 1, lambda n: 1),
    ("reduce", "linear", lambda n: n - 1, lambda n: 1),
    ("allgather", "spread", lambda n: n - 1, lambda n: n - 1),
    ("reduce_scatter", "spread", lambda n: n - 1, lambda n: n - 1),
    ("allreduce", "spread", lambda n: 2 * (n - 1), lambda n: 2 * (n - 1)),
    ("alltoall", "spread", lambda n: n - 1, lambda n: n - 1),
    ("alltoall", "throttled", lambda n: n - 1, lambda n: n - 1),
    ("barrier", "linear", lambda n: 2 * (n - 1), lambda n: n - 1),
    ("barrier", "double_ring", lambda n: 2 * n - 2, lambda n: 2 if n > 2 else 1),
]


def counted(name, algorithm, n):
    """Return the count and the elements of the vector, which are such that no chunk is rounded."""
    primitive = PRIMITIVES[name]
    found = primitive.find(algorithm)
    problem = primitive.problem(n, n * found.nchunks(n))
    return count(found, problem), problem.count


def at(formula, n):
    return formula(n) if callable(formula) else formula


@pytest.mark.parametrize(
    ("name", "algorithm", "ranks", "rounds", "sent", "combined"),
    ROUNDS,
    ids=lambda one: one if type(one) is str else "",
)
def test_rounds_and_elements_are_those_of_the_formula(name, algorithm, ranks, rounds, sent, combined):
    tried = [n for n in RANKS if ranks(n)]
    assert len(tried) > 1
    for n in tried:
        cost, whole = counted(name, algorithm, n)
        assert cost.rounds == at(rounds, n), f"rounds at {n} ranks"
        for what, formula, got in (
            ("sent", sent, cost.sent_count_max),
            ("combined", combined, cost.combined_count_max),
        ):
            if formula is not None:
                assert Fraction(got, whole) == at(formula, n), f"{what} at {n} ranks"


@pytest.mark.parametrize(("name", "algorithm", "steps", "messages"), STEPS)
def test_a_burst_takes_a_step_for_each_message(name, algorithm, steps, messages):
    for n in RANKS:
        cost, _ = counted(name, algorithm, n)
        assert (cost.steps, cost.messages_max) == (steps(n), messages(n)), f"at {n} ranks"


def test_the_formulas_are_for_the_whole_catalogue():
    given = {(name, algorithm.split(":")[0]) for name, algorithm, *_ in (*ROUNDS, *STEPS)}
    flat = {name for name, _ in given}
    asked = {
        (name, algorithm.name)
        for name in flat
        for algorithm in PRIMITIVES[name].algorithms.values()
        if not algorithm.shares_memory(PRIMITIVES[name].problem(4, 4)) and not algorithm.takes_nodes
    }
    assert asked == given


def test_what_a_scan_combines_is_at_most_twice_the_rounds():
    for name in ("scan", "exscan"):
        for n in RANKS:
            cost, whole = counted(name, "recursive_doubling", n)
            assert cost.combined_count_max <= 2 * L(n) * whole


def test_brucks_all_to_all_sends_as_many_blocks_as_published():
    blocks = {
        2: 1,
        4: 4,
        5: 5,
        6: 7,
        7: 9,
        8: 12,
        9: 13,
        10: 15,
        11: 17,
        12: 20,
        13: 22,
        14: 25,
        15: 28,
        16: 32,
        17: 33,
    }
    for n, expected in blocks.items():
        cost = count(alltoall.find("bruck"), alltoall.problem(n, n))
        assert {one.sent_count for one in cost.ranks} == {expected}


def test_padded_bruck_sends_every_block_as_long_as_the_longest():
    counts = tuple(tuple((3 * source + target) % 7 for target in range(6)) for source in range(6))
    problem = alltoallv.problem(6, sum(map(sum, counts)), counts=counts)
    padded = count(alltoallv.find("padded_bruck"), problem)
    assert {one.sent_count for one in padded.ranks} == {bruck_blocks(6) * 6}
    exact = count(alltoallv.find("bruck"), problem)
    assert exact.sent_count_max < padded.sent_count_max


def test_a_folded_allreduce_costs_more_than_one_that_needs_no_folding():
    """Rabenseifner at 5 ranks sends 2.5 or 3 vectors, the ring and reverse Bruck 1.6."""
    sent = {
        name: Fraction(cost.sent_count_max, whole)
        for name in ("rabenseifner", "rabenseifner:fold=half", "ring", "reverse_bruck")
        for cost, whole in [counted("allreduce", name, 5)]
    }
    assert list(map(float, sent.values())) == [2.5, 3.0, 1.6, 1.6]
