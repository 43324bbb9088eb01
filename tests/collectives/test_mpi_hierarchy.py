"""Algorithms composed of flat ones under MPI, on pretended nodes and on those that there are."""

import pytest

from collectives import PRIMITIVES, allreduce
from collectives.attached import attached_to
from collectives.plan import NotApplicable
from tests.collectives.test_mpi_calls import Case, cases_of

pytestmark = pytest.mark.mpi

ALL = [
    (primitive, one.name)
    for primitive in PRIMITIVES.values()
    for one in primitive.algorithms.values()
    if one.takes_nodes
]
every_algorithm = pytest.mark.parametrize(("primitive", "algorithm"), ALL, ids=lambda one: getattr(one, "name", one))


@every_algorithm
def test_a_composition_does_on_pretended_nodes_what_numpy_does(comm, primitive, algorithm):
    nranks = comm.Get_size()
    placements = [{"ppn": 2}, {"ppn": 3}, {"nodes": (tuple(range(0, nranks, 2)), tuple(range(1, nranks, 2)))[:nranks]}]
    for turn, (problem, dtype, op) in enumerate(cases_of(primitive, nranks, len(algorithm))):
        inner = ("", ":inner=linear", ":inner=window_pull")[turn % 3]
        case = Case(comm, problem, dtype, op)
        reason = case.run(algorithm + inner, **placements[turn % len(placements)])
        assert reason is None or "on every node" in reason or "are not on one" in reason


@pytest.mark.parametrize("synchronous", [False, True])
def test_a_composition_without_windows_relies_on_no_buffering(comm, synchronous):
    problem = allreduce.problem(comm.Get_size(), 1000)
    for name in ("two_level", "multi_leader:leaders=1", "multi_lane:inner=ring"):
        reason = Case(comm, problem).run(name, synchronous=synchronous, ppn=2)
        assert reason is None or "on every node" in reason


def test_nodes_are_those_that_mpi_reports(comm):
    nodes = attached_to(comm).shared.nodes
    assert sorted(rank for node in nodes for rank in node) == list(range(comm.Get_size()))
    names = comm.allgather(tuple(attached_to(comm).shared.local))
    assert set(names) == set(nodes)
    assert Case(comm, allreduce.problem(comm.Get_size(), 100)).run("two_level") is None


def test_pretended_nodes_do_not_share_memory(comm):
    if comm.Get_size() < 3:
        pytest.skip("two nodes of two ranks need more than two")
    with pytest.raises(NotApplicable, match="window needs all ranks on one node, to share memory"):
        Case(comm, allreduce.problem(comm.Get_size(), 100)).plan("window", ppn=2)
