"""Device memory handed to MPI, on the stand-in as an MPI sees it that knows of GPUs.

On a real GPU an MPI that takes no such memory ends the process, so these tests are for the stand-in alone; there the
sweep tries it in child processes, and checks every result.
"""

import numpy as np
import pytest

from collectives import allreduce, broadcast
from collectives.names import UnknownNameError
from collectives.operations import Operation
from collectives.plan import NotApplicable
from collectives.staging import synchronisations
from tests.collectives.device_calls import check_contender, check_split, every_contender, wrong_elements

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module")
def comm(pytestconfig, gpu):
    """A communicator of this module's own: what is kept with one is memory of the stand-in, which goes with it."""
    own = pytestconfig.world.Dup()
    yield own
    own.Free()


@pytest.fixture(autouse=True)
def aware(standin):
    """An MPI that may touch the stand-in's memory."""
    standin.get_default_memory_pool().free_all_blocks()  # which are locked
    standin.machine.unlocked = True
    yield standin
    standin.machine.unlocked = False


@every_contender
def test_every_contender_is_right(comm, primitive, algorithm):
    check_contender(comm, primitive, algorithm, transport="direct")


@pytest.mark.parametrize("algorithm", ["native", "ring", "recursive_doubling", "spread", "rabenseifner"])
@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in place"])
def test_long_messages_are_right(comm, algorithm, in_place):
    problem = allreduce.problem(comm.Get_size(), 700_001, in_place=in_place)
    assert wrong_elements(comm, problem, algorithm, "int32", transport="direct") in (0, None)
    other = broadcast.problem(comm.Get_size(), 700_001)
    assert wrong_elements(comm, other, "binomial", "float64", transport="direct") == 0


@pytest.mark.parametrize("algorithm", ["native", "ring", "recursive_doubling"])
def test_a_call_begins_after_the_callers_work_and_ends_complete(comm, aware, algorithm):
    n, rank = comm.Get_size(), comm.Get_rank()
    for count in (5, 400_000):
        send, recv = aware.zeros(count, np.float32), aware.zeros(count, np.float32)
        aware.cuda.get_current_stream().synchronize()
        with aware.cuda.Stream(non_blocking=True):
            send.fill(rank + 1)  # not even begun when the call is made
            allreduce(comm, send, recv, algorithm=algorithm, transport="direct")
        assert (recv.get(stream=aware.cuda.Stream(non_blocking=True)) == n * (n + 1) / 2).all()


def test_without_waiting_mpi_reads_what_the_gpu_has_not_written_yet(comm, aware):
    send, recv = aware.zeros(4, np.float32), aware.zeros(4, np.float32)
    aware.machine.run_all()
    send.fill(1)
    comm.Allreduce(send, recv)  # as no path of ours does
    assert (recv.get() == 0).all()


@pytest.mark.parametrize("algorithm", ["native", "ring", "spread"])
def test_nothing_is_copied_through_the_host_and_waits_are_those_designed(comm, aware, algorithm):
    n, counts = comm.Get_size(), aware.machine.counts
    send, recv = aware.asarray(np.ones(4 * n, np.float32)), aware.zeros(4 * n, np.float32)
    with allreduce.plan(comm, send, recv, algorithm=algorithm, transport="direct") as plan:
        aware.machine.run_all()
        counts.clear()
        plan()
        assert aware.machine.idle
        assert counts["device to host"] == counts["host to device"] == 0
        assert counts["synchronisations"] == (1 if algorithm == "native" else synchronisations(plan.layout))
        if algorithm == "ring":
            assert counts["synchronisations"] == max(1, n)


@pytest.mark.parametrize("algorithm", ["native", "native_persistent", "ring"])
def test_a_call_can_be_split_into_start_test_and_wait(comm, aware, algorithm):
    n = comm.Get_size()
    send, recv = aware.asarray(np.ones(6_000, np.float32)), aware.zeros(6_000, np.float32)
    with allreduce.plan(comm, send, recv, algorithm=algorithm, transport="direct") as plan:
        check_split(plan, recv, n)


def test_half_precision_is_accumulated_in_float32(comm, aware):
    n = comm.Get_size()
    send, recv = aware.asarray(np.full(100, 0.1, np.float16)), aware.zeros(100, np.float16)
    allreduce(comm, send, recv, algorithm="ring:accumulate=float32", transport="direct")
    assert aware.machine.idle
    exact = np.float32(n) * np.float32(np.float16(0.1))
    assert (np.abs(recv.get().astype(np.float32) - exact) <= np.spacing(np.float16(exact))).all()


def test_plans_of_one_shot_calls_are_kept_apart_by_transport(comm, aware):
    counts = aware.machine.counts
    send, recv = aware.asarray(np.ones(9, np.float32)), aware.zeros(9, np.float32)
    for transport in ("staged", "direct", "staged"):
        counts.clear()
        allreduce(comm, send, recv, algorithm="ring", transport=transport)
        crossed = counts["device to host"]  # counted before the result is looked at
        assert (crossed > 0) == (transport == "staged" and comm.Get_size() > 1)
        assert (recv.get() == comm.Get_size()).all()


def test_what_cannot_go_that_way_is_refused(comm, aware):
    send, recv = aware.zeros(4, np.float32), aware.zeros(4, np.float32)
    with pytest.raises(UnknownNameError, match=r"no transport 'nvlink' \(there are: auto, staged, direct\)"):
        allreduce(comm, send, recv, transport="nvlink")
    own = Operation("own sum", lambda left, right, out: aware.add(left, right, out))
    with pytest.raises(NotApplicable, match="MPI combines with own sum on the host: use transport staged"):
        allreduce(comm, send, recv, op=own, transport="direct")
    allreduce(comm, send, recv, op=own, algorithm="recursive_doubling", transport="direct")
