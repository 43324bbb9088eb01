"""NCCL's calls as plans: right, on the current stream, and refused with the reason where NCCL has none.

On the stand-in every rank has a GPU of its own; on a machine with GPUs the tests want NCCL and as many GPUs as ranks.
"""

import os

import numpy as np
import pytest

from bench.check import Checked, on_gpu
from collectives import PRIMITIVES, allgather, allreduce, alltoall, gather, reduce_scatter
from collectives.attached import attached_to
from collectives.communicators import unavailable
from collectives.nccl import COLLECTIVES, DTYPES, GROUPED, GROUPS, OPERATIONS, OWN
from collectives.operations import Operation
from collectives.plan import NotApplicable
from tests.collectives.device_calls import check_split

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module")
def ranks(pytestconfig, gpu):
    """A communicator whose ranks have a GPU each."""
    own = pytestconfig.world.Dup()
    n, rank = own.Get_size(), own.Get_rank()
    before = gpu.cuda.runtime.getDevice()
    if hasattr(gpu, "machine"):
        gpu.machine.visible = list(range(n))
    reason = unavailable()
    if not reason and gpu.cuda.runtime.getDeviceCount() < n:
        reason = f"{n} ranks have {gpu.cuda.runtime.getDeviceCount()} GPU(s)"
    reason = max(own.allgather(reason))
    if not reason:
        gpu.cuda.Device(rank).use()
        yield own
        gpu.cuda.Device(before).use()
    own.Free()
    if reason:
        pytest.skip(reason)


def wrong_elements(comm, problem, algorithm="nccl", dtype="float32", op="sum"):
    checked = Checked(problem, comm.Get_rank(), dtype, op, on_gpu, on_gpu)
    how = {"algorithm": algorithm, "op": op, "root": problem.root, "dtype": dtype}
    how |= {"counts": problem.counts} if problem.counts is not None else {"count": problem.count}
    wrong = 0
    with problem.primitive.plan(comm, *checked.arrays, **how) as plan:
        for _ in range(3):
            checked.reset()  # which leaves work in the stream
            plan()
            wrong += checked.wrong()
    return comm.allreduce(wrong)


def problems(primitive, nranks):
    counts = tuple(rank % 3 * 4 + 4 for rank in range(nranks)) if primitive.name in ("gatherv", "scatterv") else None
    if primitive.name == "alltoallv":
        counts = tuple(tuple((3 * one + 5 * other) % 4 for other in range(nranks)) for one in range(nranks))
    count = 12 * nranks if counts is None else int(np.sum(counts))
    refused = primitive.name.startswith(("reduce_scatter", "alltoall"))
    for root in dict.fromkeys([0, nranks - 1]) if primitive.rooted else [0]:
        for in_place in (False,) if refused or primitive.one_buffer else (False, True):
            problem = primitive.problem(nranks, count, root=root, counts=counts, in_place=in_place)
            if not in_place or any(primitive.aliasing(problem, rank) for rank in range(nranks)):
                yield problem


@pytest.mark.parametrize("name", [*COLLECTIVES, *GROUPS])
def test_every_primitive_is_right(ranks, name):
    primitive, nranks = PRIMITIVES[name], ranks.Get_size()
    if primitive.unmet(primitive.problem(nranks, nranks)):
        pytest.skip("needs more ranks")
    for problem in problems(primitive, nranks):
        assert wrong_elements(ranks, problem) == 0, problem
        if not primitive.combines:
            for dtype in ("int16", "bfloat16"):
                assert wrong_elements(ranks, problem, dtype=dtype) == 0  # moved as bytes


def test_every_dtype_and_operation_of_nccl_is_right(ranks):
    problem = allreduce.problem(ranks.Get_size(), 40)
    for dtype in (*DTYPES, "bfloat16"):
        for op in OPERATIONS:
            assert wrong_elements(ranks, problem, dtype=dtype, op=op) == 0


def test_the_row_can_say_whether_it_is_a_collective_of_its_own(ranks, gpu):
    send, recv = gpu.zeros(4, np.float32), gpu.zeros(4 * ranks.Get_size(), np.float32)
    with allgather.plan(ranks, send, recv, algorithm="nccl") as plan:
        assert plan.form == OWN
        assert plan.layout is None
    with gather.plan(ranks, send, recv if ranks.Get_rank() == 0 else None, algorithm="nccl") as plan:
        assert plan.form == GROUPED


def test_calls_are_in_the_current_stream_and_end_complete(ranks, gpu):
    n, rank = ranks.Get_size(), ranks.Get_rank()
    for primitive in (allreduce, alltoall):
        send, recv = gpu.zeros(4 * n, np.float32), gpu.zeros(4 * n, np.float32)
        gpu.cuda.get_current_stream().synchronize()
        with gpu.cuda.Stream(non_blocking=True):
            send.fill(rank + 1)  # not even begun when the call is made
            primitive(ranks, send, recv, algorithm="nccl")
        seen = recv.get(stream=gpu.cuda.Stream(non_blocking=True))
        expected = np.full(4 * n, n * (n + 1) / 2) if primitive is allreduce else np.repeat(np.arange(1, n + 1), 4)
        assert (seen == expected).all()


def test_a_call_can_be_split_into_start_test_and_wait(ranks, gpu):
    n = ranks.Get_size()
    send, recv = gpu.asarray(np.ones(9, np.float32)), gpu.zeros(9, np.float32)
    with allreduce.plan(ranks, send, recv, algorithm="nccl") as plan:
        check_split(plan, recv, n)


def test_one_call_is_one_launch_and_one_wait(ranks, standin):
    n, counts = ranks.Get_size(), standin.machine.counts
    send, recv = standin.zeros(4 * n, np.float32), standin.zeros(4 * n, np.float32)
    for primitive, launches in ((allreduce, 1), (alltoall, 2 * n)):
        with primitive.plan(ranks, send, recv, algorithm="nccl") as plan:
            standin.machine.run_all()
            counts.clear()
            plan()
            assert (counts["nccl"], counts["synchronisations"]) == (launches, 1)
            assert counts["device to host"] == counts["host to device"] == 0
            assert standin.machine.idle


def test_an_algorithm_is_asked_for_while_its_communicator_is_made(ranks, standin, monkeypatch):
    monkeypatch.delenv("NCCL_ALGO", raising=False)
    problem = allreduce.problem(ranks.Get_size(), 40)
    for name in ("nccl", "nccl:ring", "nccl:tree"):
        assert wrong_elements(ranks, problem, name) == 0
        assert "NCCL_ALGO" not in os.environ
        algorithm = name.partition(":")[2]
        assert attached_to(ranks).nccl.of(algorithm).algorithm == algorithm


def test_what_nccl_lacks_is_refused_with_the_reason(ranks, gpu):
    n = ranks.Get_size()
    send, recv = gpu.zeros(4 * n, np.float32), gpu.zeros(4 * n, np.float32)

    def refused(primitive, *arrays, match, **how):
        with pytest.raises(NotApplicable, match=match):
            primitive.plan(ranks, *arrays, **{"algorithm": "nccl", **how})

    refused(allreduce, np.zeros(4), np.zeros(4), match="nccl needs buffers on a GPU: pass CuPy arrays")
    refused(PRIMITIVES["scan"], send, recv, match="NCCL has no scan")
    refused(PRIMITIVES["barrier"], match="NCCL has no barrier")
    refused(allreduce, *(gpu.zeros(4, np.uint8) for _ in "ab"), op="lor", match="NCCL cannot combine with lor")
    for dtype in ("int16", "complex64"):
        refused(allreduce, *(gpu.zeros(4, dtype) for _ in "ab"), match=f"NCCL does not combine {dtype}")
    own = Operation("sum", lambda left, right, out: gpu.add(left, right, out))
    refused(allreduce, send, recv, op=own, match="NCCL cannot combine with sum")
    refused(alltoall, send, recv, algorithm="nccl:ring", match="for alltoall in one way only: use nccl")
    refused(allgather, send[:4], recv, algorithm="nccl:tree", match="NCCL has trees for allreduce only")
    if n > 1:
        counts, rank = (5, *[4] * (n - 1)), ranks.Get_rank()
        both = gpu.zeros(4 * n + 1, np.float32), gpu.zeros(counts[rank], np.float32)
        refused(reduce_scatter, *both, counts=counts, match="NCCL's reduce_scatter wants blocks of one length")


@pytest.mark.parametrize(("code", "told"), [(2804, "2.8.4"), (20908, "2.9.8")])
def test_bfloat16_is_refused_by_an_nccl_before_it_had_the_type(ranks, standin, monkeypatch, code, told):
    from cupy.cuda import nccl

    monkeypatch.setattr(nccl, "get_version", lambda: code)
    n = ranks.Get_size()
    with pytest.raises(NotApplicable, match=f"NCCL combines bfloat16 from 2.10, and this one is {told}"):
        wrong_elements(ranks, allreduce.problem(n, 8), dtype="bfloat16")
    assert wrong_elements(ranks, allgather.problem(n, 8 * n), dtype="bfloat16") == 0  # only moved


def test_ranks_that_share_a_gpu_are_refused_unless_nccl_is_told_to_allow_it(ranks, standin, monkeypatch):
    n = ranks.Get_size()
    if n == 1:
        pytest.skip("one rank shares with nobody")
    monkeypatch.delenv("NCCL_MULTI_RANK_GPU_ENABLE", raising=False)
    machine, before = standin.machine, standin.machine.device
    machine.device = 0
    try:
        send, recv = standin.asarray(np.ones(4, np.float32)), standin.zeros(4, np.float32)
        shared = ranks.Dup()
        with pytest.raises(NotApplicable, match="several ranks use the same GPU"):
            allreduce(shared, send, recv, algorithm="nccl")
        monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
        allreduce(shared, send, recv, algorithm="nccl")
        assert (recv.get() == n).all()
        shared.Free()
    finally:
        machine.device = before


def test_a_cupy_without_nccl_is_told_with_the_remedy(ranks, standin, monkeypatch):
    from cupy.cuda import nccl

    send, recv = standin.zeros(4, np.float32), standin.zeros(4, np.float32)
    monkeypatch.setattr(nccl, "available", False)
    without = ranks.Dup()
    with pytest.raises(NotApplicable, match="this CuPy has no NCCL: install nvidia-nccl-cu12 or -cu13"):
        allreduce(without, send, recv, algorithm="nccl")
    without.Free()


def test_the_stand_in_refuses_what_ranks_do_not_agree_on(ranks, standin):
    from cupy.cuda import nccl

    if ranks.Get_size() == 1:
        pytest.skip("one rank agrees with itself")
    apart = ranks.Dup()
    communicator, stream = attached_to(apart).nccl.of(""), standin.cuda.Stream()
    one, other = standin.zeros(8, np.float32), standin.zeros(8, np.float32)
    standin.machine.run_all()
    count = 4 + (ranks.Get_rank() == 0)
    communicator.allReduce(one.data.ptr, other.data.ptr, count, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr)
    with pytest.raises(nccl.NcclError, match="NCCL_ERROR_INVALID_ARGUMENT: rank"):
        stream.synchronize()
    with pytest.raises(nccl.NcclError, match="overlap"):
        at = one.data.ptr
        communicator.allReduce(at, at + 4, 4, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr)
    with pytest.raises(RuntimeError, match="no device memory at this address"):
        host = np.zeros(8, np.float32).ctypes.data
        communicator.send(host, 4, nccl.NCCL_FLOAT32, 0, stream.ptr)
    apart.Free()


def test_the_stand_in_finds_nobody_by_an_id_that_was_not_given_to_all(ranks, standin, monkeypatch):
    from cupy.cuda import nccl

    if ranks.Get_size() == 1:
        pytest.skip("one rank needs no other")
    monkeypatch.setattr(nccl, "LIMIT_SECONDS", 0.3)
    with pytest.raises(nccl.NcclError, match="waited for rank"):
        nccl.NcclCommunicator(ranks.Get_size(), nccl.get_unique_id(), ranks.Get_rank())


def test_the_stand_in_lets_ranks_wait_for_ever_that_all_send_first(ranks, standin, monkeypatch):
    from cupy.cuda import nccl

    n, rank = ranks.Get_size(), ranks.Get_rank()
    if n == 1:
        pytest.skip("one rank has no other to send to")
    apart = ranks.Dup()
    communicator, stream = attached_to(apart).nccl.of(""), standin.cuda.Stream()
    one, other = standin.zeros(8, np.float32), standin.zeros(8, np.float32)
    right, left = (rank + 1) % n, (rank - 1) % n
    standin.machine.run_all()

    def exchange(communicator):
        communicator.send(one.data.ptr, 8, nccl.NCCL_FLOAT32, right, stream.ptr)
        communicator.recv(other.data.ptr, 8, nccl.NCCL_FLOAT32, left, stream.ptr)

    nccl.groupStart()
    exchange(communicator)
    nccl.groupEnd()
    stream.synchronize()  # as a group it is right
    exchange(communicator)
    monkeypatch.setattr(nccl, "LIMIT_SECONDS", 0.3)
    with pytest.raises(nccl.NcclError, match="waited for a message to be received"):
        stream.synchronize()
    apart.Barrier()
    apart.Free()
