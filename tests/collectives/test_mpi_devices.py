"""Every primitive, native and by hand, on buffers of a GPU, or of the stand-in where there is none."""

import numpy as np
import pytest
from mpi4py import MPI

from bench.gpus import allocator
from collectives import allgather, alloc, allreduce, broadcast, reduce
from collectives.operations import OPERATIONS, SMALL, Operation, dtype_of, stored
from tests.collectives.device_calls import check_contender, check_split, every_contender, wrong_elements

pytestmark = pytest.mark.mpi


@pytest.fixture(autouse=True)
def on_a_gpu(kernels):
    return kernels


@pytest.fixture(params=["late", "early"])
def schedule(request, gpu):
    """Queued work runs as late as it may, or, in streams that plans make, as early as it may."""
    if request.param == "early":
        if not hasattr(gpu, "machine"):
            pytest.skip("a real GPU has a schedule of its own")
        gpu.machine.eager = True
    yield
    if hasattr(gpu, "machine"):
        gpu.machine.eager = False


@every_contender
def test_every_contender_is_right_on_device_buffers(comm, primitive, algorithm):
    check_contender(comm, primitive, algorithm)


@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling", "spread", "reduce_broadcast", "rabenseifner"])
@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in place"])
def test_long_messages_overlap_and_are_right(comm, algorithm, in_place, schedule):
    problem = allreduce.problem(comm.Get_size(), 700_001, in_place=in_place)
    assert wrong_elements(comm, problem, f"{algorithm}:piece=300000", "int32") in (0, None)


def test_long_messages_that_are_moved_overlap_and_are_right(comm, schedule):
    broadcast_problem = broadcast.problem(comm.Get_size(), 700_001)
    assert wrong_elements(comm, broadcast_problem, "binomial", "float64") == 0


@pytest.mark.parametrize("op", OPERATIONS)
def test_every_operation_is_carried_out_on_the_device(comm, op):
    problem = allreduce.problem(comm.Get_size(), 40)
    for dtype in ("int32", "uint8", "bool", "float64"):
        if OPERATIONS[op].undefined_for(np.dtype(dtype)) is None:
            assert wrong_elements(comm, problem, "ring", dtype, op) == 0


@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in place"])
def test_small_floats_are_combined_and_moved_on_the_device(comm, dtype, in_place):
    n = comm.Get_size()
    for primitive, op in ((allreduce, "sum"), (allreduce, "max"), (allreduce, "prod"), (allgather, "sum")):
        problem = primitive.problem(n, 13 * n, in_place=in_place)
        for algorithm in ("ring", "spread", "recursive_doubling", "bruck", "window", "native"):
            if algorithm in (*primitive.algorithms, "native"):
                assert wrong_elements(comm, problem, algorithm, dtype, op) in (0, None)
        assert wrong_elements(comm, problem, "ring", dtype, op) == 0
    assert wrong_elements(comm, allgather.problem(n, 13 * n), "native", dtype) == 0


@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling", "window"])
def test_small_floats_are_accumulated_in_float32_on_the_device_as_on_the_host(comm, gpu, dtype, algorithm):
    n, rank, meant = comm.Get_size(), comm.Get_rank(), dtype_of(dtype)
    values = np.random.default_rng(rank).uniform(-1, 1, 100).astype(meant)
    on_host = np.zeros(100, meant)
    label = f"{algorithm}:accumulate=float32"
    allreduce(comm, values, on_host, algorithm=label)
    send, recv = gpu.asarray(values.view(stored(meant))), gpu.zeros(100, stored(meant))
    allreduce(comm, send, recv, algorithm=label, dtype=dtype)
    assert not hasattr(gpu, "machine") or gpu.machine.idle  # complete on return
    assert recv.get().tobytes() == on_host.tobytes()
    if n > 2:
        allreduce(comm, send, recv, algorithm=algorithm, dtype=dtype)
        assert recv.get().tobytes() != on_host.tobytes()


def test_a_dtype_that_arrays_do_not_hold_is_refused(comm, gpu):
    send, recv = gpu.zeros(4, np.uint8), gpu.zeros(4, np.uint8)
    with pytest.raises(ValueError, match="an array of uint8 holds no bfloat16; pass one of uint16"):
        allreduce(comm, send, recv, algorithm="ring", dtype="bfloat16")
    with pytest.raises(ValueError, match="mine of float8_e5m2 on a GPU: CuPy has no such arrays"):
        allreduce(comm, send, recv, algorithm="ring", dtype="float8_e5m2", op=Operation("mine", gpu.add))


def test_debug_mode_keeps_what_arrays_mean(comm, gpu, monkeypatch):
    monkeypatch.setenv("COLLBENCH_DEBUG", "1")
    one = np.ones(9, dtype_of("bfloat16")).view(np.uint16)
    send, recv = gpu.asarray(one), gpu.zeros(9, np.uint16)
    allreduce(comm, send, recv, algorithm="ring", dtype="bfloat16")
    assert (recv.get().view(dtype_of("bfloat16")) == comm.Get_size()).all()


def test_a_call_begins_after_the_callers_work_in_its_stream_and_ends_complete(comm, gpu, schedule):
    n, rank = comm.Get_size(), comm.Get_rank()
    for count in (5, 400_000):
        for algorithm in ("native", "ring", "spread"):
            send, recv = gpu.zeros(count, np.float32), gpu.zeros(count, np.float32)
            gpu.cuda.get_current_stream().synchronize()
            with gpu.cuda.Stream(non_blocking=True):
                send.fill(rank + 1)  # not even begun when the call is made
                allreduce(comm, send, recv, algorithm=algorithm)
            assert (recv.get(stream=gpu.cuda.Stream(non_blocking=True)) == n * (n + 1) / 2).all()


@pytest.mark.parametrize("algorithm", ["native", "ring"])
def test_a_call_can_be_split_into_start_test_and_wait(comm, gpu, algorithm):
    n = comm.Get_size()
    send, recv = gpu.asarray(np.ones(600_000, np.float32)), gpu.zeros(600_000, np.float32)
    with allreduce.plan(comm, send, recv, algorithm=algorithm) as plan:
        check_split(plan, recv, n)


@pytest.mark.parametrize("algorithm", ["native", "ring", "recursive_doubling", "spread"])
def test_copies_and_waits_of_a_call_are_those_designed(comm, standin, algorithm):
    from collectives.staging import copies, synchronisations

    n, counts = comm.Get_size(), standin.machine.counts
    send, recv = standin.asarray(np.ones(4 * n, np.float32)), standin.zeros(4 * n, np.float32)
    with allreduce.plan(comm, send, recv, algorithm=algorithm) as plan:
        standin.machine.run_all()
        counts.clear()
        plan()
        seen = counts["device to host"], counts["host to device"], counts["synchronisations"]
        assert standin.machine.idle  # the call ends complete
        designed = (1, 1, 2) if algorithm == "native" else (*copies(plan.layout), synchronisations(plan.layout))
        assert seen == designed
        if algorithm == "ring":
            assert seen == ((n, 2 * (n - 1), n + 1) if n > 1 else (0, 0, 1))
            assert counts["kernels"] == n - 1


def test_the_receive_buffer_of_a_rank_without_result_stays_as_it_is(comm, gpu):
    rank = comm.Get_rank()
    for algorithm in ("native", "binomial"):
        send, recv = gpu.asarray(np.ones(9, np.float32)), gpu.zeros(9, np.float32)
        recv.fill(5)
        reduce(comm, send, recv, root=0, algorithm=algorithm)
        assert (recv.get() == (comm.Get_size() if rank == 0 else 5)).all()


def test_one_shot_calls_keep_their_plan(comm, gpu):
    n = comm.Get_size()
    send, recv = gpu.asarray(np.ones(9, np.float32)), gpu.zeros(9, np.float32)
    for value in (1, 2, 3):
        send.fill(value)
        allreduce(comm, send, recv, algorithm="ring")
        assert (recv.get() == n * value).all()


def test_what_cannot_be_done_is_refused_with_the_reason(comm, gpu):
    n = comm.Get_size()
    device, host = gpu.zeros(4, np.float32), np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="one of send and receive buffer lies on the GPU"):
        allreduce(comm, device, host, algorithm="ring")
    with pytest.raises(ValueError, match=r"is not C-contiguous; pass cupy\.ascontiguousarray"):
        allreduce(comm, gpu.zeros(8, np.float32)[::2], device, algorithm="ring")
    both = gpu.zeros(4 * n, np.float32)
    with pytest.raises(ValueError, match="send and receive buffer overlap"):
        allgather(comm, both[:4], both, algorithm="ring")


def test_debug_mode_guards_buffers_on_the_device(comm, gpu, monkeypatch, capfd):
    monkeypatch.setenv("COLLBENCH_DEBUG", "1")
    n = comm.Get_size()
    send, recv = gpu.asarray(np.ones(9, np.float32)), gpu.zeros(9, np.float32)
    with allreduce.plan(comm, send, recv, algorithm="ring") as plan:
        plan()
    assert (recv.get() == n).all()
    assert ("host[" in capfd.readouterr().err) == (n > 1)


def test_an_operation_of_your_own_gets_device_arrays(comm, gpu):
    n = comm.Get_size()

    def add(left, right, out):
        assert isinstance(out, gpu.ndarray)
        gpu.add(left, right, out)

    own = Operation("own sum", add)
    send, recv = gpu.asarray(np.ones(9, np.float32)), gpu.zeros(9, np.float32)
    allreduce(comm, send, recv, algorithm="recursive_doubling", op=own)
    assert (recv.get() == n).all()


def test_mpi_can_be_named_in_place(comm, gpu):
    recv = gpu.asarray(np.ones(9, np.float32))
    allreduce(comm, MPI.IN_PLACE, recv, algorithm="ring")
    assert (recv.get() == comm.Get_size()).all()


@pytest.mark.parametrize("algorithm", ["native", "ring"])
def test_calls_in_place_can_be_made_again_and_again(comm, gpu, algorithm):
    n = comm.Get_size()
    values = gpu.asarray(np.ones(128, np.int64))
    for turn in range(1, 5):
        allreduce(comm, MPI.IN_PLACE, values, algorithm=algorithm)
        assert (values.get() == n**turn).all()


def test_arrays_of_a_stream_ordered_pool_go_every_way(fresh_comm, gpu):
    """No other process can open such memory, so shared memory is another: what is registered is never of a pool."""
    n, rank, before = fresh_comm.Get_size(), fresh_comm.Get_rank(), gpu.cuda.get_allocator()
    gpu.cuda.set_allocator(gpu.cuda.MemoryAsyncPool().malloc)
    try:
        send, recv = gpu.zeros(40, np.float32), gpu.zeros(40, np.float32)
        send.fill(rank + 1)
        for algorithm in ("native", "ring", "window"):
            recv.fill(0)
            allreduce(fresh_comm, send, recv, algorithm=algorithm)
            assert (recv.get() == n * (n + 1) / 2).all()
        assert allocator() == "MemoryAsyncPool"
        if hasattr(gpu, "machine"):
            with pytest.raises(RuntimeError, match="no handle"):
                gpu.cuda.runtime.ipcGetMemHandle(send.data.ptr)
        shared = alloc(fresh_comm, 40, np.float32, device="cuda")
        assert gpu.cuda.runtime.ipcGetMemHandle(shared.data.ptr)
        allreduce(fresh_comm, send, shared, algorithm="window")
        assert (shared.get() == n * (n + 1) / 2).all()
    finally:
        gpu.cuda.set_allocator(before)


def test_other_libraries_get_the_address_on_the_device(comm, gpu):
    for one in (gpu.zeros(4, np.float32), gpu.zeros((3, 2))[1:]):
        assert MPI.Get_address(one) == one.data.ptr
