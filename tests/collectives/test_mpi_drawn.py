"""Problems drawn at random, carried out under MPI between sentinels and guard bytes."""

import pytest
from hypothesis import given, settings

from tests.collectives.drawn import cases
from tests.collectives.test_mpi_calls import Case

pytestmark = pytest.mark.mpi


def drawn_together(comm, count):
    """Draw on rank 0 and tell the others: how many draws there are can depend on how long one takes."""
    drawn = []

    @settings(max_examples=count)
    @given(cases(comm.Get_size()))
    def draw(case):
        drawn.append(case)

    if comm.Get_rank() == 0:
        draw()
    return comm.bcast(drawn)


@pytest.mark.parametrize("synchronous", [False, True])
def test_any_call_does_what_numpy_does(comm, monkeypatch, synchronous):
    applied = 0
    for case in drawn_together(comm, 60):
        algorithm, problem = case.algorithm, case.problem
        if not algorithm.unmet(problem):
            monkeypatch.setenv("COLLBENCH_MESSAGE_CAP", str(case.cap))
            more = {} if case.ppn is None else {"ppn": case.ppn}
            reason = Case(comm, problem, case.dtype, case.op).run(algorithm, synchronous=synchronous, **more)
            applied += reason is None
    assert applied >= 20
