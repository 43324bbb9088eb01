"""Work that a caller has queued is done before a call uses its buffers, and a call is complete when it returns.

In each test the right input is put into the buffers by a kernel that has not begun when the call is made, in a stream
beside the default one; the result is looked at from a stream that is ordered with no other.
"""

import numpy as np
import pytest

from bench.check import Checked, on_gpu
from collectives import PRIMITIVES, allreduce
from collectives.plan import NotApplicable
from tests.collectives.device_calls import plan_of, problem_of, registered
from tests.collectives.test_mpi_calls import poll, skip_if_unmet

pytestmark = pytest.mark.mpi

WAYS = {
    "call": lambda plan: plan(),
    "wait": lambda plan: (plan.start(), plan.wait()),
    "test": lambda plan: (plan.start(), poll(plan)),
}


@pytest.fixture(autouse=True)
def on_a_gpu(gpu):
    return gpu


def contenders():
    """Of each primitive the native forms, two staged algorithms and those on shared memory."""
    for primitive in PRIMITIVES.values():
        if primitive.synchronises:
            continue
        shares = [one.name for one in primitive.algorithms.values() if shares_memory(primitive, one)]
        staged = [name for name in primitive.algorithms if name not in shares][:2]
        for name in ("native", "native_persistent", *staged, *shares):
            yield primitive, name, name in shares


def shares_memory(primitive, algorithm):
    return algorithm.shares_memory(primitive.problem(2, 2))


def delay(gpu):
    """Keep a real GPU busy; the stand-in begins nothing before something waits for it."""
    if not hasattr(gpu, "machine"):
        much = gpu.empty(64 << 20, np.uint8)
        for _ in range(100):
            much.fill(1)


def late(gpu, comm, checked, plan, way):
    """Carry a call out on input that is late; return how many elements are wrong, seen from another stream.

    Where a rank gets no result, or has it as its input already, the call need not wait for what its caller does there.
    """
    checked.reset(comm.Barrier)
    inputs = [one.array for one in (checked.send, checked.recv) if one is not None]
    right = [one.copy() for one in inputs]
    for one in inputs:
        one.view(np.uint8).fill(0x33)  # what a call finds that does not wait
    gpu.cuda.Device().synchronize()
    comm.Barrier()
    with gpu.cuda.Stream(non_blocking=True):
        delay(gpu)
        for one, values in zip(inputs, right, strict=True):
            gpu.copyto(one, values)
        WAYS[way](plan)
    problem, rank = checked.problem, comm.Get_rank()
    gets = problem.primitive.outputs(problem, rank, 1) and not (problem.primitive.one_buffer and rank == problem.root)
    if gets and checked.recv is not None:
        came = checked.recv.array.get(stream=gpu.cuda.Stream(non_blocking=True))
        gpu.cuda.Device().synchronize()
        assert came.tobytes() == checked.recv.array.get().tobytes()  # the call was complete
    gpu.cuda.Device().synchronize()
    wrong = checked.wrong()
    comm.Barrier()
    return wrong


@pytest.mark.parametrize(
    ("primitive", "algorithm", "shares"), list(contenders()), ids=lambda one: getattr(one, "name", one)
)
def test_no_path_reads_stale_data(fresh_comm, gpu, primitive, algorithm, shares):
    n, rank = fresh_comm.Get_size(), fresh_comm.Get_rank()
    skip_if_unmet(primitive, n)
    problem = problem_of(primitive, n, root=n - 1)
    for memory in ("plain", "registered") if shares else ("plain",):
        empty = on_gpu if memory == "plain" else registered(fresh_comm)
        checked = Checked(problem, rank, "float32", "sum", empty, empty)
        try:
            plan = plan_of(fresh_comm, checked, algorithm)
        except NotApplicable as reason:
            pytest.skip(str(reason))
        with plan:
            for way in ("call", "call", "wait", "test"):
                assert late(gpu, fresh_comm, checked, plan, way) == 0, way


@pytest.mark.parametrize("early", [False, True], ids=["late", "early"])
@pytest.mark.parametrize("algorithm", ["ring:piece=300000", "spread", "native", "window_pull"])
def test_long_messages_in_streams_of_their_own_read_nothing_stale(fresh_comm, gpu, algorithm, early):
    """Copies that overlap with messages have streams beside the caller's."""
    if early and not hasattr(gpu, "machine"):
        pytest.skip("a real GPU has a schedule of its own")
    n, rank = fresh_comm.Get_size(), fresh_comm.Get_rank()
    problem = allreduce.problem(n, 700_001)
    checked = Checked(problem, rank, "int32", "sum", on_gpu, on_gpu)
    if early:
        gpu.machine.eager = True
    try:
        with allreduce.plan(fresh_comm, *checked.arrays, algorithm=algorithm) as plan:
            for way in WAYS:
                assert late(gpu, fresh_comm, checked, plan, way) == 0
    finally:
        if early:
            gpu.machine.eager = False


def test_one_shot_calls_read_nothing_stale(fresh_comm, gpu):
    n, rank = fresh_comm.Get_size(), fresh_comm.Get_rank()
    for algorithm in ("native", "ring", "window"):
        send, recv = gpu.zeros(40, np.float32), gpu.zeros(40, np.float32)
        for value in (1, 2):
            gpu.cuda.Device().synchronize()
            fresh_comm.Barrier()
            with gpu.cuda.Stream(non_blocking=True):
                delay(gpu)
                send.fill(value * (rank + 1))
                allreduce(fresh_comm, send, recv, algorithm=algorithm)
            result = recv.get(stream=gpu.cuda.Stream(non_blocking=True))
            assert (result == value * n * (n + 1) / 2).all()


def test_checked_results_are_those_that_are_there(comm, gpu):
    """What checks a call puts its input in and looks at the result in the stream that is current."""
    n, rank = comm.Get_size(), comm.Get_rank()
    with gpu.cuda.Stream(non_blocking=True):
        checked = Checked(allreduce.problem(n, 50), rank, "float32", "sum", on_gpu, on_gpu)
        checked.reset()
        assert checked.wrong() >= 50  # nothing but poison: the call has not been made
        gpu.copyto(checked.recv.array, gpu.asarray(checked._expected))
        assert checked.wrong() == 0
        checked.recv.array.fill(7)
        assert checked.wrong() == 50
        checked.recv._guards[0].fill(0)
        assert checked.wrong() == 51


def test_a_copy_that_the_argument_itself_makes_is_waited_for(fresh_comm, gpu):
    """A slice that is not contiguous is copied by a kernel that comes after those that are queued already."""
    n, rank = fresh_comm.Get_size(), fresh_comm.Get_rank()
    whole, recv = gpu.zeros((6, 8), np.float32), gpu.zeros((6, 5), np.float32)
    for algorithm in ("native", "ring", "window"):
        gpu.cuda.Device().synchronize()
        fresh_comm.Barrier()
        with gpu.cuda.Stream(non_blocking=True):
            delay(gpu)
            whole.fill(rank + 1)
            allreduce(fresh_comm, gpu.ascontiguousarray(whole[:, :5]), recv, algorithm=algorithm)
        assert (recv.get(stream=gpu.cuda.Stream(non_blocking=True)) == n * (n + 1) / 2).all()
        whole.fill(0)


def test_what_needs_no_wait_shows_that_the_stand_in_is_late(comm, standin):
    """The tests above would find a path that does not wait: the same data, read without waiting, is stale."""
    send = standin.zeros(4, np.float32)
    standin.cuda.Device().synchronize()
    with standin.cuda.Stream(non_blocking=True):
        send.fill(3)
    assert send.get(stream=standin.cuda.Stream(non_blocking=True)).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("algorithm", ["native", "ring", "window"])
def test_a_stream_can_be_named_instead(fresh_comm, gpu, algorithm):
    n, rank = fresh_comm.Get_size(), fresh_comm.Get_rank()
    send, recv, side = gpu.zeros(40, np.float32), gpu.zeros(40, np.float32), gpu.cuda.Stream(non_blocking=True)

    def put(value):
        gpu.cuda.Device().synchronize()
        fresh_comm.Barrier()
        with side:
            delay(gpu)
            send.fill(value * (rank + 1))

    def came(value):
        result = recv.get(stream=gpu.cuda.Stream(non_blocking=True))
        return (result == value * n * (n + 1) / 2).all()

    put(1)
    allreduce(fresh_comm, send, recv, algorithm=algorithm, stream=side)
    assert came(1)
    with allreduce.plan(fresh_comm, send, recv, algorithm=algorithm, stream=side) as plan:
        for value, way in enumerate(WAYS, start=2):
            put(value)
            WAYS[way](plan)
            assert came(value)
