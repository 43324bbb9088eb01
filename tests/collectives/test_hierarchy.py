"""Algorithms composed of flat ones inside nodes and between them, without MPI."""

import pytest

from collectives import PRIMITIVES, allgather, allreduce, alltoall, broadcast, reduce, reduce_scatter
from collectives.count import count
from collectives.cutting import Options
from collectives.names import UnknownNameError
from collectives.problem import nodes_of
from collectives.proof import prove
from tests.collectives.test_interpret import check, has_in_place

ALL = [one for primitive in PRIMITIVES.values() for one in primitive.algorithms.values() if one.takes_nodes]
SIX = ("allreduce", "broadcast", "reduce", "allgather", "reduce_scatter", "alltoall")

NODES = [
    ((0,),),
    ((0, 1, 2),),
    ((0,), (1,), (2,)),
    ((0, 1), (2, 3)),
    ((0, 2), (1, 3)),  # placed round-robin
    ((0, 3), (1, 2)),
    ((0, 1, 2), (3, 4)),  # unequal
    ((0, 2, 3), (1,)),
    ((0, 3), (1, 4), (2, 5)),
    nodes_of(8, 2),
    ((0, 2, 4, 6), (1, 3, 5, 7)),
    nodes_of(9, 4),
]
INNER = ("window", "window_pull", "binomial", "linear", "ring", "spread", "pairwise")


def name_of(algorithm):
    return f"{algorithm.primitive.name}-{algorithm.name}"


every_algorithm = pytest.mark.parametrize("algorithm", ALL, ids=name_of)


def problems(algorithm, nodes, count=None, **more):
    primitive, nranks = algorithm.primitive, sum(map(len, nodes))
    for root in range(nranks) if primitive.rooted else (0,):
        yield primitive.problem(nranks, 3 * nranks + 1 if count is None else count, root=root, nodes=nodes, **more)


def variants(algorithm):
    yield algorithm
    for inner in INNER:
        yield algorithm.with_parameters({"inner": inner})
    if "leaders" in algorithm.parameters:
        yield algorithm.with_parameters({"leaders": 1})
        yield algorithm.with_parameters({"leaders": 3, "inner": "linear"})


def test_six_primitives_have_all_three():
    names = {(one.primitive.name, one.name) for one in ALL}
    assert names >= {(primitive, name) for primitive in SIX for name in ("two_level", "multi_leader", "multi_lane")}


@every_algorithm
def test_every_composition_is_proved_on_all_kinds_of_nodes(algorithm):
    proved = 0
    for nodes in NODES:
        for variant in variants(algorithm):
            for problem in problems(algorithm, nodes):
                if variant.unmet(problem) is None:
                    prove(variant, problem.nranks, problem.root, nodes=nodes)
                    proved += 1
    assert proved > 50


@every_algorithm
@pytest.mark.parametrize("nodes", [nodes_of(64, 8), tuple(tuple(range(first, 64, 8)) for first in range(8))])
def test_every_composition_is_proved_on_8_nodes_of_8(algorithm, nodes):
    for root in (0, 37) if algorithm.primitive.rooted else (0,):
        prove(algorithm, 64, root, nodes=nodes)


@every_algorithm
def test_every_layout_does_what_numpy_does(algorithm):
    turn = 0
    for nodes in NODES:
        for variant in (algorithm, algorithm.with_parameters({"inner": "linear"})):
            for elements in (0, 1, 40):
                in_place = turn % 3 == 0 and has_in_place(algorithm.primitive, 2)
                shared = frozenset(("send", "recv")[: turn % 4])
                for problem in list(problems(algorithm, nodes, elements, in_place=in_place))[turn % 2 :: 3]:
                    if variant.unmet(problem) is None:
                        check(variant, problem, Options(piece=3, shared=shared), turn % 2 == 1)
                turn += 1


@pytest.mark.parametrize("name", SIX)
def test_any_flat_algorithm_goes_between_nodes(name):
    primitive = PRIMITIVES[name]
    tried = 0
    for outer in primitive.algorithms.values():
        if not outer.takes_nodes:
            variant = primitive.find(f"multi_lane:outer={outer.name}")
            (problem, *_) = problems(variant, nodes_of(8, 2))
            reason = variant.unmet(problem)
            if outer.name.startswith("window"):
                assert reason is not None
            if reason is None:
                prove(variant, 8, nodes=problem.nodes)
                tried += 1
    assert tried >= 3


def unmet(algorithm, nodes):
    primitive = algorithm.primitive
    return algorithm.unmet(primitive.problem(sum(map(len, nodes)), 40, nodes=nodes))


def test_what_does_not_apply_says_why():
    unequal = ((0, 1, 2), (3, 4))
    assert unmet(allreduce.find("multi_lane"), unequal) == "multi_lane needs the same number of ranks on every node"
    assert (
        unmet(allreduce.find("multi_leader:leaders=3"), unequal) == "multi_leader needs at least 3 ranks on every node"
    )
    assert unmet(allreduce.find("multi_lane:inner=recursive_doubling"), ((0, 1, 2), (3, 4, 5))) == (
        "multi_lane:inner=recursive_doubling: allgather recursive_doubling needs a number of ranks that is a power of "
        "two, here among 3 ranks"
    )
    assert unmet(allgather.find("two_level:outer=window"), ((0, 1), (2, 3))) == (
        "two_level:outer=window: allgather window needs all ranks on one node, to share memory, here among 2 ranks"
    )
    assert unmet(allreduce.find("two_level"), unequal) is None


def test_parameters_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"two_level:inner=torus is not one of .*window"):
        allreduce.find("two_level:inner=torus")
    with pytest.raises(ValueError, match="two_level:outer=two_level is not one of ring"):
        allreduce.find("two_level:outer=two_level")
    with pytest.raises(ValueError, match="multi_leader:leaders=0 is not a whole number of at least 1"):
        allreduce.find("multi_leader:leaders=0")
    with pytest.raises(UnknownNameError, match="has no parameter 'leaders'"):
        allreduce.find("two_level:leaders=2")
    with pytest.raises(ValueError, match="do not hold each of the ranks 0 to 3 once"):
        allreduce.problem(4, 8, nodes=((0, 1), (1, 2, 3)))


def between(specification, primitive=allreduce, nranks=16, ppn=4, elements=960):
    nodes = nodes_of(nranks, ppn)
    return count(primitive.find(specification), primitive.problem(nranks, elements, nodes=nodes)).between_count_max


def test_as_few_bytes_leave_a_node_as_must():
    """Of an all-reduce 2(N-1)/N of the vector, with N nodes; a flat algorithm sends that only if ranks lie well."""
    least = 2 * 3 * 960 // 4
    for name in ("two_level", "multi_leader", "multi_lane", "multi_lane:inner=ring"):
        assert between(name) == least
    assert between("two_level:outer=recursive_doubling") == 2 * 960
    assert between("recursive_doubling") == 4 * 2 * 960
    assert between("ring") == 2 * 15 * 960 // 16
    scattered = tuple(tuple(range(first, 16, 4)) for first in range(4))
    flat, lanes = (
        count(allreduce.find(name), allreduce.problem(16, 960, nodes=scattered)) for name in ("ring", "multi_lane")
    )
    assert flat.between_count_max == 4 * 2 * 15 * 960 // 16
    assert lanes.between_count_max == least


def test_what_leaves_a_node_in_the_other_primitives():
    block = 960 // 16
    assert between("two_level", broadcast) == 2 * 960  # the root's, to two others down the tree
    assert between("multi_lane", broadcast) == 2 * 960
    assert between("two_level", reduce) == 960
    assert between("two_level", allgather) == between("multi_lane", allgather) == 3 * 4 * block
    assert between("two_level", reduce_scatter) == between("multi_lane", reduce_scatter) == 3 * 4 * block
    nodes = nodes_of(16, 4)
    for name in ("two_level", "multi_leader", "multi_lane", "pairwise"):
        counted = count(alltoall.find(name), alltoall.problem(16, 960, nodes=nodes))
        assert counted.between_count_max == 4 * 12 * block
    assert count(allreduce.find("ring"), allreduce.problem(4, 40)).between_count_max == 0
