"""What algorithms claim of themselves is exact: no precondition too many, rank order kept if and only if it is said."""

from dataclasses import replace
from itertools import product
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from collectives import PRIMITIVES
from collectives.needs import COMMUTATIVE
from collectives.proof import Refuted, prove, proved_ranks


def is_flat(algorithm):
    problem = algorithm.primitive.problem(4, 4)
    return not algorithm.takes_nodes and not algorithm.shares_memory(problem)


def with_all_names(algorithm):
    """The algorithm with all combinations of names that its parameters can have; numbers stay as they are."""
    kinds = get_type_hints(algorithm.generate, include_extras=True)
    names = {key: get_args(kinds[key]) for key in algorithm.parameters if get_origin(kinds[key]) is Literal}
    for chosen in product(*names.values()):
        yield algorithm.with_parameters(dict(zip(names, chosen, strict=True)))


FLAT = [
    variant
    for primitive in PRIMITIVES.values()
    for algorithm in primitive.algorithms.values()
    if is_flat(algorithm)
    for variant in with_all_names(algorithm)
]


def label(algorithm):
    return f"{algorithm.primitive.name}-{algorithm.label}"


def refused(algorithm, up_to):
    """The numbers of ranks, with every root, that the algorithm's own preconditions rule out."""
    for nranks in range(1, up_to + 1):
        problem = algorithm.primitive.problem(nranks, nranks)
        if algorithm.primitive.unmet(problem) is None and algorithm.unmet(problem):
            yield from ((nranks, root) for root in (range(nranks) if algorithm.primitive.rooted else (0,)))


def assert_needed(algorithm, up_to):
    without = replace(algorithm, declared_needs=())
    for nranks, root in refused(algorithm, up_to):
        with pytest.raises((Refuted, ValueError, IndexError)):
            prove(without, nranks, root)


LIMITED = [algorithm for algorithm in FLAT if list(refused(algorithm, 9))]


def test_some_algorithms_are_limited():
    assert {algorithm.name for algorithm in LIMITED} >= {
        "recursive_doubling",
        "neighbor_exchange",
        "swing",
        "bine_tree",
    }


@pytest.mark.parametrize("algorithm", LIMITED, ids=label)
def test_where_a_precondition_is_not_met_the_algorithm_is_wrong_for_every_root(algorithm):
    assert_needed(algorithm, 17)


@pytest.mark.full
@pytest.mark.parametrize("algorithm", LIMITED, ids=label)
def test_where_a_precondition_is_not_met_the_algorithm_is_wrong_up_to_64_ranks(algorithm):
    assert_needed(algorithm, 64)


@pytest.mark.parametrize("algorithm", [one for one in FLAT if one.primitive.combines], ids=label)
def test_rank_order_is_kept_if_and_only_if_it_is_said(algorithm):
    kept = [prove(algorithm, nranks, root).in_order for nranks, root in proved_ranks(algorithm, 9)]
    assert all(kept) == algorithm.keeps_order
    assert (COMMUTATIVE in algorithm.needs) == (not algorithm.keeps_order)


@pytest.mark.parametrize("algorithm", FLAT, ids=label)
def test_only_pipelines_and_rings_wait_for_data_alone(algorithm):
    all_at_once = algorithm.primitive.name == "sendrecv_stream"
    pipelined = "segments" in algorithm.parameters and not all_at_once
    assert algorithm.waits == ("data" if pipelined or algorithm.name == "ring" else "round")
