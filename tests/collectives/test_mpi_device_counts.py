"""How often each call on a GPU copies to and from the host and waits for the GPU, on the stand-in, which counts it."""

import numpy as np
import pytest

from bench.check import Checked, on_gpu
from collectives import PRIMITIVES, alloc
from collectives.plan import NotApplicable
from collectives.program import Sync
from collectives.staging import copies, synchronisations

pytestmark = pytest.mark.mpi

CONTENDERS = [
    (primitive, name)
    for primitive in PRIMITIVES.values()
    if not primitive.synchronises
    for name in ("native", "native_persistent", *primitive.algorithms)
]


def counts_of(primitive, nranks):
    if primitive.name == "alltoallv":
        return tuple(tuple((3 * one + 5 * other) % 4 for other in range(nranks)) for one in range(nranks))
    return tuple((7 * rank + 3) % 5 for rank in range(nranks)) if primitive.name.endswith("v") else None


def of_native(problem, checked, rank):
    """One copy out of each buffer with input, one in of each with a result, and a wait for each of the two."""
    primitive = problem.primitive
    out = sum(one is not None and one.array.nbytes > 0 for one in (checked.send,))
    one_buffer = primitive.one_buffer and checked.recv is not None and checked.recv.array.nbytes > 0
    out += one_buffer
    back = checked.recv is not None and checked.recv.array.nbytes > 0 and bool(primitive.outputs(problem, rank, 1))
    return out, int(back), bool(out) + bool(back)


@pytest.mark.parametrize(("primitive", "algorithm"), CONTENDERS, ids=lambda one: getattr(one, "name", one))
def test_copies_and_waits_are_those_designed(fresh_comm, standin, primitive, algorithm):
    n, rank, counts = fresh_comm.Get_size(), fresh_comm.Get_rank(), standin.machine.counts
    if primitive.unmet(primitive.problem(n, n)):
        pytest.skip("does not apply to this number of ranks")
    blocks = counts_of(primitive, n)
    problem = primitive.problem(n, 12 * n if blocks is None else int(np.sum(blocks)), counts=blocks)
    more = {"counts": blocks} if blocks is not None else {"count": problem.count}
    shares = algorithm in primitive.algorithms and primitive.find(algorithm).shares_memory(problem)
    empty = on_gpu
    if shares:
        empty = lambda nbytes: alloc(fresh_comm, nbytes, np.uint8, device="cuda")  # noqa: E731
    checked = Checked(problem, rank, "float32", "sum", empty, empty)
    try:
        plan = primitive.plan(fresh_comm, *checked.arrays, algorithm=algorithm, **more)
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
