"""How often each call on a GPU copies to and from the host and waits for the GPU, on the stand-in, which counts it."""

import pytest

from bench.check import Checked, on_gpu
from collectives.plan import NotApplicable
from collectives.program import Sync
from collectives.staging import copies, synchronisations
from tests.collectives.device_calls import every_contender, plan_of, problem_of, registered
from tests.collectives.test_mpi_calls import skip_if_unmet

pytestmark = pytest.mark.mpi


def of_native(problem, checked, rank):
    """One copy out of each buffer with input, one in of each with a result, and a wait for each of the two."""
    primitive = problem.primitive
    out = sum(one is not None and one.array.nbytes > 0 for one in (checked.send,))
    one_buffer = primitive.one_buffer and checked.recv is not None and checked.recv.array.nbytes > 0
    out += one_buffer
    back = checked.recv is not None and checked.recv.array.nbytes > 0 and bool(primitive.outputs(problem, rank, 1))
    return out, int(back), bool(out) + bool(back)


@every_contender
def test_copies_and_waits_are_those_designed(fresh_comm, standin, primitive, algorithm):
    n, rank, counts = fresh_comm.Get_size(), fresh_comm.Get_rank(), standin.machine.counts
    skip_if_unmet(primitive, n)
    problem = problem_of(primitive, n)
    shares = algorithm in primitive.algorithms and primitive.find(algorithm).shares_memory(problem)
    empty = registered(fresh_comm) if shares else on_gpu
    checked = Checked(problem, rank, "float32", "sum", empty, empty)
    try:
        plan = plan_of(fresh_comm, checked, algorithm)
    except NotApplicable as reason:
        pytest.skip(str(reason))
    with plan:
        for _ in range(2):
            checked.reset(fresh_comm.Barrier)
            standin.machine.run_all()
            counts.clear()
            plan()
            seen = counts["device to host"], counts["host to device"], counts["synchronisations"]
            assert standin.machine.idle  # the call ends complete
            if shares:
                fences = sum(isinstance(one, Sync) for one in plan.layout.program)
                designed = 0, 0, fences + 1
            elif plan.layout is None:
                designed = of_native(problem, checked, rank)
            else:
                designed = *copies(plan.layout), synchronisations(plan.layout)
            assert seen == designed
            fresh_comm.Barrier()
