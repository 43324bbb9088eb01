"""Algorithms on shared memory under MPI: on registered arrays too, call after call, whichever rank is slow."""

import time

import numpy as np
import pytest

from collectives import PRIMITIVES, allgather, alloc, alloc_common, allreduce, broadcast, reduce_scatter
from collectives.attached import attached_to
from collectives.needs import SHARED_MEMORY
from collectives.plan import NotApplicable
from collectives.transports.window import Missing
from tests.collectives.test_mpi_calls import GUARD, GUARD_NBYTES, Case, Guarded, cases_of, check_two_at_once

pytestmark = pytest.mark.mpi

WINDOWED = [
    (primitive, one.name)
    for primitive in PRIMITIVES.values()
    for one in primitive.algorithms.values()
    if SHARED_MEMORY in one.needs and not primitive.synchronises
]
every_windowed = pytest.mark.parametrize(
    ("primitive", "algorithm"), WINDOWED, ids=lambda one: getattr(one, "name", one)
)


@pytest.fixture(autouse=True)
def one_node(comm):
    if len(attached_to(comm).shared.nodes) > 1:
        pytest.skip("the ranks are on several nodes and share no memory")


class RegisteredGuarded(Guarded):
    """Arrays in shared memory between guard bytes. All ranks make the same number of them."""

    def __init__(self, comm):
        super().__init__()
        self.comm = comm

    def array(self, values):
        block = alloc(self.comm, values.nbytes + 2 * GUARD_NBYTES, np.uint8)
        block[:] = GUARD
        self.blocks.append(block)
        array = block[GUARD_NBYTES : GUARD_NBYTES + values.nbytes].view(values.dtype)
        array[:] = values
        return array


class Registered(Case):
    """A call whose buffers lie in shared memory."""

    def __init__(self, comm, problem, dtype="float32", op="sum"):
        super().__init__(comm, problem, dtype, op)
        self.guards = RegisteredGuarded(comm)
        recv = self.guards.array(self.recv)
        send = self.guards.array(self.input)  # on all ranks, as allocation wants it
        self.recv, self.send = recv, None if self.send is None else send
        self.fill()


@every_windowed
def test_every_algorithm_on_registered_memory_does_what_numpy_does(comm, primitive, algorithm):
    for problem, dtype, op in cases_of(primitive, comm.Get_size(), len(algorithm) + len(primitive.name)):
        assert Registered(comm, problem, dtype, op).run(algorithm) is None


@every_windowed
def test_call_after_call_with_a_slow_rank(comm, primitive, algorithm):
    """No rank disturbs a slow one, which sleeps at a different place each time, and data changes between calls."""
    nranks, rank = comm.Get_size(), comm.Get_rank()
    for kind in (Case, Registered):
        case = kind(comm, primitive.problem(nranks, 50 * nranks), "int64")
        with case.plan(algorithm) as plan:
            steps = plan.layout.program
            for turn in range(6):
                slow = turn % nranks == rank
                plan.start() if slow and turn % 2 else None
                if slow:
                    time.sleep(0.02)
                plan.wait() if slow and turn % 2 else plan()
                case.check()
                case.fill()
                if case.send is not None:  # at once, where a slow peer might still read it
                    case.send[:] = 99
                    case.send[:] = case.input
            assert len(steps) > 0 or nranks == 1


def test_the_second_call_does_not_overtake_a_slow_reader_of_the_first(comm):
    nranks, rank = comm.Get_size(), comm.Get_rank()
    send, recv = alloc(comm, 1000, "int64"), alloc(comm, 1000 * nranks, "int64")
    for name in ("window", "window_pull"):
        with allgather.plan(comm, send, recv, algorithm=name) as plan:
            for turn in range(4):
                send[:] = 10 * turn + rank
                if rank == nranks - 1:
                    time.sleep(0.05)
                plan()
                seen = recv.copy()
                expected = np.repeat(10 * turn + np.arange(nranks), 1000)
                np.testing.assert_array_equal(seen, expected)


@pytest.mark.parametrize("kind", [Case, Registered])
def test_a_call_can_be_begun_tested_and_waited_for(comm, kind):
    for name in ("window", "window_one_shot"):
        case = kind(comm, allreduce.problem(comm.Get_size(), 1000))
        with case.plan(name) as plan:
            for _ in range(3):
                case.check_split(plan)


def test_two_plans_under_way_at_once_do_not_meet_each_other(comm):
    check_two_at_once(comm, "window")


def test_one_result_for_all_ranks_of_a_node(comm):
    nranks, rank = comm.Get_size(), comm.Get_rank()
    send = alloc(comm, 1001, "int64")
    send[:] = np.arange(1001) + rank
    total, blocks = alloc_common(comm, 1001, "int64"), alloc_common(comm, 1001 * nranks, "int64")
    for _ in range(3):
        comm.Barrier()
        if rank == 0:
            total[:], blocks[:] = -1, -1
        comm.Barrier()
        allreduce(comm, send, total, algorithm="window")
        np.testing.assert_array_equal(total, np.arange(1001) * nranks + sum(range(nranks)))
        allgather(comm, send, blocks, algorithm="window")
        np.testing.assert_array_equal(blocks.reshape(nranks, 1001), np.arange(1001) + np.arange(nranks)[:, None])
    comm.Barrier()
    if rank == 0:
        total[:] = 7
    broadcast(comm, total, algorithm="window", root=0)
    assert (total == 7).all()


def test_one_result_for_all_is_refused_where_it_would_be_written_twice(comm):
    if comm.Get_size() == 1:
        pytest.skip("one rank has its result to itself")
    send, total = alloc(comm, 10, "f8"), alloc_common(comm, 10, "f8")
    with pytest.raises(NotApplicable, match="ranks 0 and 1 would both write to the receive buffer that they share"):
        allreduce.plan(comm, send, total, algorithm="window_one_shot")


@pytest.mark.parametrize("algorithm", ["native", "native_persistent", "ring"])
def test_one_result_for_all_is_refused_to_what_writes_every_ranks_apart(comm, algorithm):
    send, total = alloc(comm, 10, "f8"), alloc_common(comm, 10, "f8")
    with pytest.raises(NotApplicable, match=f"{algorithm} writes every rank's result apart"):
        allreduce.plan(comm, send, total, algorithm=algorithm)


def test_one_result_for_all_ranks_of_a_node_is_refused_where_nodes_are_pretended(comm):
    if comm.Get_size() == 1:
        pytest.skip("one rank is one node however it is seen")
    send, total = alloc(comm, 10, "f8"), alloc_common(comm, 10, "f8")
    with pytest.raises(NotApplicable, match="not by pretended ones"):
        allreduce.plan(comm, send, total, algorithm="two_level", ppn=1)


def test_views_of_registered_arrays_are_registered_and_mixed_memory_works(comm):
    nranks, rank = comm.Get_size(), comm.Get_rank()
    whole = alloc(comm, 100 * nranks + 7, "int32")
    part = whole[5 : 5 + 3 * nranks].reshape(3, nranks)
    part[:] = rank
    plain = np.empty(3, "int32")
    with reduce_scatter.plan(comm, part, plain, algorithm="window") as plan:
        assert plan.layout.shared_count == 0
        plan()
    assert (plain == sum(range(nranks))).all()
    mine = part if rank % 2 else part.copy()  # on some ranks only: then it is plain memory for all
    with reduce_scatter.plan(comm, mine, plain, algorithm="window") as plan:
        assert nranks == 1 or plan.layout.shared_count > 0
        plan()
    assert (plain == sum(range(nranks))).all()


def test_calls_once_over_with_buffers_that_change_on_some_ranks_only(comm):
    rank, nranks = comm.Get_rank(), comm.Get_size()
    kept = []
    for turn in range(24):
        if not kept or (rank % 2 == turn % 3):
            kept.append((np.empty(50, "int64"), np.empty(50, "int64")))
        send, recv = kept[-1] if turn % 5 else kept[0]
        send[:] = rank + turn
        allreduce(comm, send, recv, algorithm="window")
        np.testing.assert_array_equal(recv, sum(range(nranks)) + turn * nranks)


def test_a_plan_is_freed_after_an_interrupted_call_and_the_communicator_goes_on(fresh_comm):
    for name in ("window", "window_pull", "window_one_shot"):
        interrupted = Case(fresh_comm, allreduce.problem(fresh_comm.Get_size(), 1000)).plan(name)
        if fresh_comm.Get_rank() % 2 == 0:
            interrupted.start()
        fresh_comm.Barrier()
        interrupted.free()
        assert Case(fresh_comm, allreduce.problem(fresh_comm.Get_size(), 1000)).run(name) is None


def test_a_rank_that_never_comes_is_named(fresh_comm, monkeypatch):
    if fresh_comm.Get_size() == 1:
        pytest.skip("one rank waits for nobody")
    monkeypatch.setenv("COLLBENCH_FENCE_SECONDS", "0.2")
    case = Case(fresh_comm, allreduce.problem(fresh_comm.Get_size(), 10))
    plan = case.plan("window")
    if fresh_comm.Get_rank() == 1:
        with pytest.raises(Missing, match="rank 1 waited for rank 0 at a fence for too long"):
            plan()
    fresh_comm.Barrier()
    plan.free()


def test_debug_mode_finds_no_fault(comm, monkeypatch):
    monkeypatch.setenv("COLLBENCH_DEBUG", "1")
    for primitive, name in WINDOWED:
        assert Case(comm, primitive.problem(comm.Get_size(), 7 * comm.Get_size() + 1)).run(name) is None


def test_many_plans_use_few_windows(fresh_comm):
    case = Registered(fresh_comm, allreduce.problem(fresh_comm.Get_size(), 1000))
    for _ in range(100):
        with case.plan("window_one_shot") as plan:
            plan()
    case.check()
    assert attached_to(fresh_comm).shared.nwindows == 1
