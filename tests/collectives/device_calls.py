"""Calls on buffers of a GPU, for the tests of the ways in which data goes there."""

import numpy as np
import pytest

from bench.check import Checked, on_gpu
from collectives import PRIMITIVES, alloc
from collectives.names import NATIVE_FORMS
from collectives.plan import NotApplicable
from tests.collectives.test_mpi_calls import poll, skip_if_unmet

every_contender = pytest.mark.parametrize(
    ("primitive", "algorithm"),
    [
        (primitive, name)
        for primitive in PRIMITIVES.values()
        if not primitive.synchronises
        for name in (*NATIVE_FORMS, *primitive.algorithms)
    ],
    ids=lambda one: getattr(one, "name", one),
)


def problem_of(primitive, nranks, root=0, in_place=False):
    """A problem of a few elements, with uneven blocks, some of them empty, where a primitive takes them."""
    counts = None
    if primitive.name == "alltoallv":
        counts = tuple(tuple((3 * one + 5 * other) % 4 for other in range(nranks)) for one in range(nranks))
    elif primitive.name.endswith("v"):
        counts = tuple((7 * rank + 3) % 5 for rank in range(nranks))
    count = 12 * nranks if counts is None else int(np.sum(counts))
    root = root if primitive.rooted else 0
    return primitive.problem(nranks, count, root=root, counts=counts, in_place=in_place)


def registered(comm):
    """What takes memory that the ranks of a node may access."""
    return lambda nbytes: alloc(comm, nbytes, np.uint8, device="cuda")


def plan_of(comm, checked, algorithm, **how):
    """The plan of a call on checked buffers."""
    problem = checked.problem
    how |= {"count": problem.count} if problem.counts is None else {"counts": problem.counts}
    return problem.primitive.plan(comm, *checked.arrays, algorithm=algorithm, root=problem.root, **how)


def wrong_elements(comm, problem, algorithm, dtype="float32", op="sum", **how):
    """Carry a call out twice; return over all ranks how many elements are wrong, None where it does not apply."""
    checked = Checked(problem, comm.Get_rank(), dtype, op, on_gpu, on_gpu)
    try:
        plan = plan_of(comm, checked, algorithm, op=op, dtype=dtype, **how)
    except NotApplicable:
        return None
    wrong = 0
    with plan:
        for _ in range(2):
            checked.reset()  # which leaves work in the stream
            plan()
            wrong += checked.wrong()
    return comm.allreduce(wrong)


def check_contender(comm, primitive, algorithm, **how):
    """Carry out a contender's calls, apart and in place where there is such a form; skip if none applies."""
    nranks = comm.Get_size()
    skip_if_unmet(primitive, nranks)
    whole = primitive.problem(nranks, nranks)
    in_place = not primitive.one_buffer and any(primitive.aliasing(whole, rank) for rank in range(nranks))
    problems = [problem_of(primitive, nranks, len(algorithm) % nranks, one) for one in range(1 + in_place)]
    applied = [wrong_elements(comm, problem, algorithm, **how) for problem in problems]
    assert not any(applied)
    if all(one is None for one in applied):
        pytest.skip(f"{algorithm} does not apply to {nranks} ranks on device buffers")


def check_split(plan, recv, wanted):
    """A call is begun and waited for, and begun and tested until it is complete."""
    for finish in (plan.wait, lambda: poll(plan)):
        recv.fill(0)
        plan.start()
        finish()
        assert (recv.get() == wanted).all()
