"""Algorithms on shared memory: which there are, that they keep rank order, and where they apply."""

import pytest

from collectives import PRIMITIVES, allgather
from collectives.needs import SHARED_MEMORY
from collectives.proof import prove, proved_ranks

WINDOWED = [
    algorithm
    for primitive in PRIMITIVES.values()
    for algorithm in primitive.algorithms.values()
    if SHARED_MEMORY in algorithm.needs
]
EIGHT = ("broadcast", "scatter", "gather", "reduce", "allgather", "allreduce", "reduce_scatter", "alltoall")


def name_of(algorithm):
    return f"{algorithm.primitive.name}-{algorithm.name}"


def test_all_eight_primitives_have_one_and_some_both_forms():
    names = {name: [one.name for one in WINDOWED if one.primitive.name == name] for name in EIGHT}
    assert all("window" in one for one in names.values())
    assert {name for name, one in names.items() if "window_pull" in one} >= {"allreduce", "gather", "alltoall"}


@pytest.mark.parametrize("algorithm", WINDOWED, ids=name_of)
def test_rank_order_is_kept(algorithm):
    for nranks, root in proved_ranks(algorithm, 9):
        assert prove(algorithm, nranks, root).in_order


def test_ranks_on_two_nodes_do_not_share_memory():
    problem = allgather.problem(4, 8, nodes=((0, 1), (2, 3)))
    assert allgather.find("window").unmet(problem) == "window needs all ranks on one node, to share memory"
    assert allgather.find("window").unmet(allgather.problem(4, 8)) is None
