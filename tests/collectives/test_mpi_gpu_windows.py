"""Algorithms on GPU memory that ranks share, on the stand-in where there is no GPU."""

import numpy as np
import pytest

from bench.check import Checked, on_gpu
from collectives import PRIMITIVES, allgather, alloc, alloc_common, allreduce, broadcast, release
from collectives.attached import attached_to
from collectives.ipc import BLOCK_NBYTES
from collectives.operations import HALF, OPERATIONS, SMALL, Operation, dtype_of
from collectives.plan import NotApplicable
from tests.collectives.device_calls import plan_of, problem_of, registered
from tests.collectives.test_mpi_calls import skip_if_unmet

pytestmark = pytest.mark.mpi

WINDOWED = [
    (primitive, algorithm)
    for primitive in PRIMITIVES.values()
    for algorithm in primitive.algorithms.values()
    if algorithm.shares_memory(primitive.problem(2, 2)) and not primitive.synchronises
]


@pytest.fixture(autouse=True)
def on_a_gpu(kernels, comm):
    """A GPU whose driver lets processes share memory."""
    gpu = kernels
    reason, array = "", gpu.empty(4)
    try:
        gpu.cuda.runtime.ipcGetMemHandle(array.data.ptr)
    except RuntimeError as error:
        reason = str(error)
    if any(comm.allgather(bool(reason))):
        pytest.skip(f"no CUDA IPC here: {reason}")


def common(comm):
    return lambda nbytes: alloc_common(comm, nbytes, np.uint8, device="cuda")


def complete():
    """Whether nothing that a call began is still to be done, as far as that can be seen."""
    import cupy

    return not hasattr(cupy, "machine") or cupy.machine.idle


def wrong_elements(comm, problem, algorithm, memory):
    """Carry a call out; `memory` is that of the buffers, or "staged": what ranks share is on the host."""
    empty = on_gpu if memory in ("plain", "staged") else registered(comm)
    checked = Checked(problem, comm.Get_rank(), "float32", "sum", empty, common(comm) if memory == "shared" else empty)
    try:
        plan = plan_of(comm, checked, algorithm, transport="staged" if memory == "staged" else "auto")
    except NotApplicable:
        return None
    wrong = 0
    with plan:
        for _ in range(3):
            checked.reset(comm.Barrier)
            plan()
            assert complete()
            wrong += checked.wrong()
            comm.Barrier()  # before a fast rank sets its buffers anew
    return comm.allreduce(wrong)


@pytest.mark.parametrize("memory", ["plain", "registered", "staged"])
@pytest.mark.parametrize(("primitive", "algorithm"), WINDOWED, ids=lambda one: one.name)
def test_every_windowed_algorithm_is_right_on_gpu_memory(fresh_comm, primitive, algorithm, memory):
    nranks = fresh_comm.Get_size()
    skip_if_unmet(primitive, nranks)
    problem = problem_of(primitive, nranks, root=nranks - 1)
    wrong = wrong_elements(fresh_comm, problem, algorithm, memory)
    if wrong is None:
        pytest.skip("does not apply")
    assert wrong == 0


@pytest.mark.parametrize("algorithm", ["window_one_shot", "window_pull"])
def test_long_vectors_and_in_place_calls_are_right(fresh_comm, algorithm):
    for memory in ("plain", "registered", "staged"):
        for in_place in (False, True):
            problem = allreduce.problem(fresh_comm.Get_size(), 200_003, in_place=in_place)
            if algorithm in allreduce.algorithms:
                assert wrong_elements(fresh_comm, problem, algorithm, memory) in (0, None)


@pytest.mark.parametrize(("name", "pulled"), [("window", 0), ("window_pull", 1)])
def test_registered_memory_crosses_no_host_and_is_combined_by_one_kernel(fresh_comm, standin, name, pulled):
    n, counts = fresh_comm.Get_size(), standin.machine.counts
    send, recv = (alloc(fresh_comm, 64 * n, np.float32, device="cuda") for _ in range(2))
    send.fill(1)
    with allreduce.plan(fresh_comm, send, recv, algorithm=name) as plan:
        plan()
        counts.clear()
        plan()
        fences = 2 + pulled if n > 1 else 0
        seen = {kind: number for kind, number in counts.items() if number}
        copies = {"device to device": pulled * (n - 1) if n > 1 else 1}  # of one rank alone, to its result
        kernels = {"kernels": 1} if n > 1 else {}
        assert seen == {kind: number for kind, number in copies.items() if number} | kernels | {
            "synchronisations": fences + 1
        }
        assert standin.machine.idle
    assert (recv.get() == n).all()


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        *(("sum", one) for one in ("float64", *SMALL, "int8", "uint32", "complex64")),
        *(("max", one) for one in ("float64", *SMALL, "int8", "uint32")),
        *((op, one) for op in ("lxor", "bxor") for one in ("int8", "uint32", "bool")),
    ],
)
def test_every_dtype_and_operation_is_combined_in_the_order_of_ranks(fresh_comm, gpu, op, dtype):
    n, rank, operation, meant = fresh_comm.Get_size(), fresh_comm.Get_rank(), OPERATIONS[op], dtype_of(dtype)
    inputs = [np.random.default_rng(one).standard_normal(101) * 50 for one in range(n)]
    inputs = [(one > 0 if dtype == "bool" else one).astype(meant) for one in inputs]
    total = inputs[0].copy()
    for one in inputs[1:]:
        operation.combine(total, one, out=total)
    for algorithm in ("window", "window_pull", "window_one_shot"):
        send, recv = (alloc(fresh_comm, 101, meant, device="cuda") for _ in range(2))
        send.set(inputs[rank].view(send.dtype))
        allreduce(fresh_comm, send, recv, algorithm=algorithm, op=op, dtype=dtype)
        assert recv.get().tobytes() == total.tobytes()


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_is_accumulated_inside_the_kernel_and_rounded_once(fresh_comm, standin, dtype):
    n, rank, meant, counts = fresh_comm.Get_size(), fresh_comm.Get_rank(), dtype_of(dtype), standin.machine.counts
    inputs = [np.random.default_rng(one).uniform(-1, 1, 101).astype(meant) for one in range(n)]
    total = np.zeros(101, np.float32)
    for one in inputs:
        total += one.astype(np.float32)
    for algorithm in ("window", "window_pull", "window_one_shot", "window_pipelined:segments=2", "in common"):
        send, recv = (alloc(fresh_comm, 101, meant, device="cuda") for _ in range(2))
        if algorithm == "in common":
            algorithm, recv = "window", alloc_common(fresh_comm, 101, meant, device="cuda")
        send.set(inputs[rank].view(send.dtype))
        with allreduce.plan(fresh_comm, send, recv, algorithm=f"{algorithm}:accumulate=float32", dtype=dtype) as plan:
            plan()
            counts.clear()
            plan()
            assert counts["kernels"] == (0 if n == 1 else 2 if "segments" in algorithm else 1)
            assert plan.scratch_nbytes == 0  # nothing is kept in float32
            fresh_comm.Barrier()
            assert recv.get().tobytes() == total.astype(meant).tobytes()
            fresh_comm.Barrier()


def test_an_operation_of_your_own_is_combined_piece_by_piece(fresh_comm, gpu):
    n = fresh_comm.Get_size()
    own = Operation("sum", lambda left, right, out: gpu.add(left, right, out))
    send, recv = (alloc(fresh_comm, 70_001, np.int32, device="cuda") for _ in range(2))
    send.fill(3)
    allreduce(fresh_comm, send, recv, algorithm="window", op=own)
    assert (recv.get() == 3 * n).all()


def test_two_arrays_in_one_allocation_are_told_apart(fresh_comm):
    n, rank = fresh_comm.Get_size(), fresh_comm.Get_rank()
    both = alloc(fresh_comm, 8 + 8 * n, np.float32, device="cuda")
    send, recv = both[:8], both[8:]
    send.fill(rank + 1)
    recv.fill(0)
    fresh_comm.Barrier()
    problem = allgather.problem(n, 8 * n)
    for name in [one.name for other, one in WINDOWED if other is allgather and not one.unmet(problem)]:
        allgather(fresh_comm, send, recv, algorithm=name)
        np.testing.assert_array_equal(recv.get(), np.repeat(np.arange(n) + 1, 8).astype(np.float32))


def test_memory_is_used_again_and_a_handle_opened_once(fresh_comm, standin):
    memory = attached_to(fresh_comm).gpu
    for _ in range(5):
        one = alloc(fresh_comm, 100, np.float32, device="cuda")
        place = memory.find(one)
        memory.reach(fresh_comm.allgather(place))
        del one
    assert len(memory._blocks) == 1
    assert len(memory._opened) == fresh_comm.Get_size() - 1
    assert memory._blocks[0].nbytes == BLOCK_NBYTES


def test_a_gpu_without_room_is_told_on_all_ranks_and_nothing_is_lost(fresh_comm, standin):
    kept = alloc(fresh_comm, 4, np.float32, device="cuda")
    used = standin.machine.used_nbytes
    wanted = 1 << 31 if fresh_comm.Get_rank() == 0 else 4
    with pytest.raises(MemoryError, match="the GPU has no"):
        alloc(fresh_comm, wanted, np.uint8, device="cuda")
    assert standin.machine.used_nbytes <= used
    kept.fill(3)
    assert kept.get().tolist() == [3, 3, 3, 3]


def test_an_unknown_device_is_refused(comm):
    with pytest.raises(ValueError, match="there is no device 'tpu'"):
        alloc(comm, 4, np.float32, device="tpu")


@pytest.mark.parametrize(("primitive", "algorithm"), WINDOWED, ids=lambda one: one.name)
def test_one_result_for_all_ranks_is_right_wherever_it_is_on_the_host(fresh_comm, primitive, algorithm):
    nranks = fresh_comm.Get_size()
    if primitive.name not in ("allreduce", "allgather", "broadcast"):
        return  # the others have no result that is the same for all
    problem = primitive.problem(nranks, 12 * nranks)
    on_host = [alloc(fresh_comm, 12, "f4"), alloc_common(fresh_comm, 12 * nranks, "f4")]
    if primitive is allreduce:
        on_host[0] = alloc(fresh_comm, 12 * nranks, "f4")
    try:
        primitive.plan(fresh_comm, *on_host[primitive is broadcast :], algorithm=algorithm).free()
        wanted = 0
    except NotApplicable:
        wanted = None
    assert wrong_elements(fresh_comm, problem, algorithm, "shared") == wanted
    assert wanted == 0 or algorithm.name != "window"


def test_one_result_is_the_same_memory_on_all_ranks(fresh_comm):
    n, rank = fresh_comm.Get_size(), fresh_comm.Get_rank()
    array = alloc_common(fresh_comm, 10 * n, np.float32, device="cuda")
    array[10 * rank :][:10].fill(rank)
    array.get()
    fresh_comm.Barrier()
    np.testing.assert_array_equal(array.get(), np.repeat(np.arange(n), 10).astype(np.float32))
    assert attached_to(fresh_comm).gpu.in_common(array[3:5])
    assert not attached_to(fresh_comm).gpu.in_common(alloc(fresh_comm, 10, np.float32, device="cuda"))


def test_one_result_crosses_no_host_and_is_copied_by_nobody(fresh_comm, standin):
    n, counts = fresh_comm.Get_size(), standin.machine.counts
    send = alloc(fresh_comm, 64 * n, np.float32, device="cuda")
    total = alloc_common(fresh_comm, 64 * n, np.float32, device="cuda")
    send.fill(1)
    with allreduce.plan(fresh_comm, send, total, algorithm="window") as plan:
        plan()
        counts.clear()
        plan()
        assert counts["device to host"] == counts["host to device"] == 0
        assert counts["device to device"] == (n == 1)  # each rank combines its slice into the one result
    assert (total.get() == n).all()


@pytest.mark.parametrize("algorithm", ["native", "native_persistent", "ring", "window_one_shot"])
def test_one_result_is_refused_to_what_would_write_it_twice(fresh_comm, algorithm):
    if fresh_comm.Get_size() == 1:
        pytest.skip("one rank has its result to itself")
    send = alloc(fresh_comm, 10, np.float32, device="cuda")
    total = alloc_common(fresh_comm, 10, np.float32, device="cuda")
    says = "would both write to the receive buffer" if "window" in algorithm else "writes every rank's result apart"
    with pytest.raises(NotApplicable, match=says):
        allreduce.plan(fresh_comm, send, total, algorithm=algorithm)


def test_one_result_goes_back_when_no_rank_has_it_any_more(fresh_comm, standin):
    release(fresh_comm)
    standin.get_default_memory_pool().free_all_blocks()
    before, nbytes = standin.machine.used_nbytes, 3 * BLOCK_NBYTES
    for _ in range(4):
        array = alloc_common(fresh_comm, nbytes, np.uint8, device="cuda")
        del array
    leads = attached_to(fresh_comm).gpu.rank == 0
    assert standin.machine.used_nbytes - before <= (nbytes if leads else BLOCK_NBYTES)  # the same block, not four
    mine = alloc_common(fresh_comm, nbytes, np.uint8, device="cuda")
    if not leads:
        del mine
    fresh_comm.Barrier()
    other = alloc_common(fresh_comm, nbytes, np.uint8, device="cuda")
    if leads:
        assert not gpu_overlap(mine, other)  # one rank still has it
        del mine
    del other
    release(fresh_comm)
    assert standin.machine.used_nbytes == before


def gpu_overlap(one, other):
    return one.data.ptr < other.data.ptr + other.nbytes and other.data.ptr < one.data.ptr + one.nbytes


def test_arrays_of_the_pool_in_one_block_are_told_apart(fresh_comm, gpu):
    """Two ordinary arrays are pieces of one allocation, whose handle opens at its beginning."""
    n, rank = fresh_comm.Get_size(), fresh_comm.Get_rank()
    send, between, recv = gpu.empty(8, np.float32), gpu.empty(8, np.float32), gpu.empty(8 * n, np.float32)
    if hasattr(gpu, "machine"):
        handles = {gpu.cuda.runtime.ipcGetMemHandle(one.data.ptr) for one in (send, between, recv)}
        assert len(handles) == 1
    send.fill(rank + 1)
    between.fill(-5)
    recv.fill(0)
    problem = allgather.problem(n, 8 * n)
    for name in [one.name for other, one in WINDOWED if other is allgather and not one.unmet(problem)]:
        allgather(fresh_comm, send, recv, algorithm=name)
        np.testing.assert_array_equal(recv.get(), np.repeat(np.arange(n) + 1, 8).astype(np.float32))
        assert (between.get() == -5).all()


def test_an_unknown_device_for_one_result_is_refused(comm):
    with pytest.raises(ValueError, match="alloc_common: there is no device 'tpu'"):
        alloc_common(comm, 4, np.float32, device="tpu")


# What ranks share on the host


@pytest.fixture
def lacking(standin):
    """What the stand-in shall lack: "ipc", "register"."""
    before, standin.machine.lacks = standin.machine.lacks, []
    yield standin.machine.lacks.append
    standin.machine.lacks = before


def test_through_the_host_each_vector_crosses_once_without_a_message(fresh_comm, standin):
    n, rank, counts = fresh_comm.Get_size(), fresh_comm.Get_rank(), standin.machine.counts
    send, recv = standin.zeros(64 * n, np.float32), standin.zeros(64 * n, np.float32)
    send.fill(rank + 1)
    with allreduce.plan(fresh_comm, send, recv, algorithm="window_pull", transport="staged") as plan:
        assert plan.layout.nmessages == 0
        plan()
        counts.clear()
        plan()
        if n > 1:
            # Out goes what others combine: all but the own slice, around which it lies. In come their results.
            out = 1 if rank in (0, n - 1) else 2
            assert (counts["device to host"], counts["host to device"]) == (out, n - 1)
            assert (counts["kernels"], counts["synchronisations"]) == (1, 4)
            assert counts["device to device"] == counts["registered"] == 0
        assert standin.machine.idle
    assert (recv.get() == n * (n + 1) / 2).all()


def test_windows_are_registered_once_and_no_longer_than_they_are_there(fresh_comm, standin):
    machine, own = standin.machine, fresh_comm.Dup()
    before = set(machine.registered)
    send, recv = standin.zeros(64, np.float32), standin.zeros(64, np.float32)
    how = {"algorithm": "window_pull", "transport": "staged"}
    with allreduce.plan(own, send, recv, **how):
        mine = set(machine.registered) - before
        assert mine
        parts = [(one.ptr, one.size) for address, one in machine.registered.items() if address in mine]
        for number in range(attached_to(own).shared.nwindows):
            for start, stop in attached_to(own).shared.pages(number):
                assert (start, stop - start) in parts
        with allreduce.plan(own, send, recv, **how):
            assert set(machine.registered) - before == mine
    release(own)
    assert set(machine.registered) == before
    allreduce(own, send, recv, **how)
    assert set(machine.registered) != before
    own.Free()
    assert set(machine.registered) == before


def test_what_gpus_cannot_open_goes_through_the_host(fresh_comm, standin, lacking):
    n, rank = fresh_comm.Get_size(), fresh_comm.Get_rank()
    lacking("ipc")
    before = len(standin.machine.registered)
    send, recv = (alloc(fresh_comm, 40, np.float32, device="cuda") for _ in range(2))
    send.fill(rank + 1)
    allreduce(fresh_comm, send, recv, algorithm="window")
    assert (recv.get() == n * (n + 1) / 2).all()
    assert (len(standin.machine.registered) > before) == (n > 1)


@pytest.mark.parametrize("anywhere", [False, True], ids=["one rank", "all ranks"])
def test_memory_that_cannot_be_registered_is_told_on_all_ranks(fresh_comm, standin, lacking, anywhere):
    before = set(standin.machine.registered)
    if anywhere or fresh_comm.Get_rank() == 0:
        lacking("register")
    send, recv = standin.zeros(40, np.float32), standin.zeros(40, np.float32)
    with pytest.raises(NotApplicable, match="rank 0 of the node cannot register shared memory with CUDA: cudaError"):
        allreduce(fresh_comm, send, recv, algorithm="window", transport="staged")
    allreduce(fresh_comm, send, recv, algorithm="ring")  # messages need none
    release(fresh_comm)
    assert set(standin.machine.registered) == before


def test_one_result_on_a_gpu_is_not_staged(fresh_comm):
    if fresh_comm.Get_size() == 1:
        pytest.skip("one rank has its result to itself")
    send = alloc(fresh_comm, 10, np.float32, device="cuda")
    total = alloc_common(fresh_comm, 10, np.float32, device="cuda")
    with pytest.raises(NotApplicable, match="is written there: not with staged"):
        allreduce.plan(fresh_comm, send, total, algorithm="window", transport="staged")
