import pytest

from bench.check import on_gpu, ordinary
from bench.messages import DIRECT, CheckedMessage, message_contenders

pytestmark = pytest.mark.mpi


@pytest.fixture(params=["host", "device"])
def memory(request):
    """What gives memory: of the host, or of a GPU or the stand-in for one."""
    if request.param == "host":
        return ordinary
    request.getfixturevalue("gpu")
    return on_gpu


def ring(comm, memory, nsends=3, count=100):
    rank, nranks = comm.Get_rank(), comm.Get_size()
    left, right = (rank - 1) % nranks, (rank + 1) % nranks
    checked = CheckedMessage(count, "float32", rank, True, left, memory, memory)
    return checked, message_contenders(comm, 7, right, left, nsends, [checked])


def test_a_ring_moves_what_the_neighbour_sent_in_either_form(comm, memory):
    checked, contenders = ring(comm, memory)
    for contender in contenders:
        (plan,) = contender.plans
        for _ in range(2):
            checked.reset(comm.Barrier)
            plan()
            assert checked.wrong() == 0
        contender.free()


def test_a_message_that_did_not_come_is_seen(comm, memory):
    checked, contenders = ring(comm, memory)
    checked.reset(comm.Barrier)
    assert checked.wrong() == 100
    for contender in contenders:
        contender.free()


def test_sends_of_a_step_wait_for_nobody_until_its_end(comm, memory):
    checked, contenders = ring(comm, memory, nsends=2, count=1 << 18)
    for contender in contenders:
        (plan,) = contender.plans
        checked.reset(comm.Barrier)
        for _ in range(2):
            plan.send()  # all ranks send before any receives
        for _ in range(2):
            plan.receive()
        plan.finish()
        assert checked.wrong() == 0
        plan.shift()
        plan.finish()
        contender.free()


def test_started_messages_are_complete_after_tests_or_a_wait(comm, memory):
    checked, contenders = ring(comm, memory)
    for contender in contenders:
        (plan,) = contender.plans
        checked.reset(comm.Barrier)
        plan.start()
        while not plan.test():
            pass
        plan.wait()
        assert checked.wrong() == 0
        contender.free()
    assert [contender.label for contender in contenders] == ["native", DIRECT]


def test_a_message_begins_after_what_is_queued_and_is_there_when_the_call_ends(comm, gpu):
    rank, n = comm.Get_rank(), comm.Get_size()
    checked, contenders = ring(comm, on_gpu)
    for contender in contenders:
        (plan,) = contender.plans
        gpu.cuda.get_current_stream().synchronize()
        with gpu.cuda.Stream(non_blocking=True):
            checked.recv.array.fill(-1)
            checked.send.array.fill(rank + 1)  # not even begun when the call is made
            plan()
        came = checked.recv.array.get(stream=gpu.cuda.Stream(non_blocking=True))
        assert (came == (rank - 1) % n + 1).all()
        contender.free()
