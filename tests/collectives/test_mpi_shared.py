"""Memory that the ranks of a node share: arrays in it, where they lie, and that it goes back."""

import gc
from pathlib import Path

import numpy as np
import pytest

from collectives import allgather, alloc, alloc_common, allreduce, shared
from collectives.attached import attached_to
from collectives.shared import LEAST_NBYTES, SharedMemoryError

pytestmark = pytest.mark.mpi


def test_an_array_is_an_ordinary_one(fresh_comm):
    array = alloc(fresh_comm, 1000, "float32")
    assert type(array) is np.ndarray
    assert (array.shape, array.dtype) == ((1000,), np.dtype("float32"))
    assert array.flags.writeable
    assert array.ctypes.data % 64 == 0
    array[:] = fresh_comm.Get_rank()
    fresh_comm.Barrier()
    assert (array == fresh_comm.Get_rank()).all()


def test_each_rank_may_want_another_size_and_none(fresh_comm):
    arrays = [alloc(fresh_comm, count * fresh_comm.Get_rank(), "int32") for count in (0, 1, 17, 100_000)]
    for number, array in enumerate(arrays):
        array[:] = number
    fresh_comm.Barrier()
    for number, array in enumerate(arrays):
        assert (array == number).all()


def test_an_array_and_its_views_are_found_and_others_are_not(fresh_comm):
    memory = attached_to(fresh_comm).shared
    first, second = alloc(fresh_comm, 100, "float64"), alloc(fresh_comm, 100, "float64")
    place = memory.find(first)
    assert place is not None
    assert place.owner == memory.rank
    assert memory.find(first[10:20]) == place._replace(start=place.start + 80)
    assert memory.find(second).start - place.start >= 800
    assert memory.find(np.ones(100)) is None
    seen = np.frombuffer(memory.view(place, 800), "float64")
    first[:] = 5
    assert (seen == 5).all()


def test_a_common_array_is_the_same_memory_on_all_ranks(fresh_comm):
    if len(attached_to(fresh_comm).shared.nodes) > 1:
        pytest.skip("the ranks are on several nodes and share no memory")
    array = alloc_common(fresh_comm, 10 * fresh_comm.Get_size(), "int64")
    array[10 * fresh_comm.Get_rank() :][:10] = fresh_comm.Get_rank()
    fresh_comm.Barrier()
    np.testing.assert_array_equal(array, np.repeat(np.arange(fresh_comm.Get_size()), 10))


def test_what_one_node_lacks_is_refused_to_the_ranks_of_all(fresh_comm, monkeypatch):
    memory = attached_to(fresh_comm).shared
    if fresh_comm.Get_rank() in memory.nodes[-1]:
        monkeypatch.setattr(shared, "free_nbytes", lambda: 0)
    with pytest.raises(SharedMemoryError, match="/dev/shm has 0 MiB free"):
        alloc(fresh_comm, LEAST_NBYTES, "uint8")
    assert memory.nwindows == 0


def test_what_all_ranks_share_goes_back_when_none_has_it_any_more(fresh_comm):
    memory = attached_to(fresh_comm).shared
    kept = alloc_common(fresh_comm, 100, "int64")
    if memory.rank == 0:
        kept[:] = 5
    for turn in range(20):
        array = alloc_common(fresh_comm, LEAST_NBYTES, "uint8")
        assert memory.in_common(array[5:10])
        if memory.rank == 0:
            array[:] = turn
        del array
        assert memory.nwindows <= 3
    mine = alloc_common(fresh_comm, LEAST_NBYTES, "uint8")
    if memory.rank > 0:
        del mine
    other = alloc_common(fresh_comm, LEAST_NBYTES, "uint8")
    fresh_comm.Barrier()
    if memory.rank == 0:
        assert not np.shares_memory(mine, other)  # one rank still has it
    fresh_comm.Barrier()
    assert (kept == 5).all()
    assert not memory.in_common(alloc(fresh_comm, 100, "int64"))


def test_what_was_taken_elsewhere_goes_back_where_one_rank_cannot_have_its_own(fresh_comm, monkeypatch):
    memory = attached_to(fresh_comm).shared
    kept = alloc(fresh_comm, 100, "uint8")
    monkeypatch.setattr(shared, "free_nbytes", lambda: 0)
    for _ in range(100):  # 100 times what the others want would not fit into the window that there is
        with pytest.raises(SharedMemoryError):
            alloc(fresh_comm, LEAST_NBYTES // 50 if fresh_comm.Get_rank() else 10 * LEAST_NBYTES, "uint8")
    assert memory.nwindows == 1
    assert len(alloc(fresh_comm, LEAST_NBYTES // 50, "uint8")) == LEAST_NBYTES // 50
    assert len(kept) == 100


def test_what_cannot_be_is_refused(fresh_comm):
    with pytest.raises(ValueError, match="alloc_common: count -1 is negative"):
        alloc_common(fresh_comm, -1, "float32")
    with pytest.raises(ValueError, match="alloc: count -1 is negative"):
        alloc(fresh_comm, -1, "float32")


def mapped():
    """How many pieces of shared memory this process has."""
    maps = Path("/proc/self/maps")
    return maps.read_text().count(shared.DIRECTORY) if maps.exists() else 0


def test_too_little_shared_memory_is_an_error_before_anything_is_allocated(fresh_comm, monkeypatch):
    monkeypatch.setattr(shared, "free_nbytes", lambda: LEAST_NBYTES // 2)
    memory = attached_to(fresh_comm).shared
    before = mapped()
    with pytest.raises(SharedMemoryError, match=r"MiB of shared memory are needed on a node and /dev/shm has 0 MiB"):
        alloc(fresh_comm, 100_000_000, "float64")
    assert memory.nwindows == 0
    fresh_comm.Barrier()
    assert mapped() <= before
    monkeypatch.undo()
    assert len(alloc(fresh_comm, 1000, "float64")) == 1000


def many(comm):
    """5,000 on a few ranks; fewer where many must agree each time, over a network or on CPUs that they share."""
    return 5000 if comm.Get_size() <= 3 and len(attached_to(comm).shared.nodes) == 1 else 500


def test_thousands_of_allocations_leak_nothing(fresh_comm):
    memory = attached_to(fresh_comm).shared
    for turn in range(many(fresh_comm)):
        array = alloc(fresh_comm, 1 + 37 * (turn % 100), "float64")
        array[-1] = turn
    assert memory.nwindows == 1
    del array
    gc.collect()
    big = alloc(fresh_comm, LEAST_NBYTES, "float64")
    big[:] = 1
    assert memory.nwindows == 1  # the small one, of which nothing was used any more, is gone


def test_thousands_of_arrays_at_once_need_few_windows(fresh_comm):
    kept = [alloc(fresh_comm, 100, "float64") for _ in range(many(fresh_comm))]
    for number, array in enumerate(kept):
        array[:] = number
    assert all((array == number).all() for number, array in enumerate(kept))
    assert attached_to(fresh_comm).shared.nwindows <= 8


def test_memory_goes_with_its_communicator(fresh_comm):
    before = mapped()
    for turn in range(40):
        short = fresh_comm.Dup()
        send, recv = alloc(short, 100, "int32"), alloc(short, 100 * fresh_comm.Get_size(), "int32")
        send[:] = turn
        with allgather.plan(short, send, recv, algorithm="ring") as plan:
            plan()
        assert (recv == turn).all()
        del send, recv, plan
        short.Free()
    fresh_comm.Barrier()
    assert mapped() <= before + 2


@pytest.mark.parametrize("count", [1, 100_000])
def test_what_is_under_way_from_shared_memory_is_received_before_that_goes(fresh_comm, count):
    nranks, rank = fresh_comm.Get_size(), fresh_comm.Get_rank()
    for algorithm, ppn in (("spread", None), ("two_level", 2), ("multi_leader:leaders=1", 2), ("ring", None)):
        short = fresh_comm.Dup()
        send, recv = alloc(short, count, "f8"), alloc(short, count, "f8")
        send[:] = 1
        interrupted = allreduce.plan(short, send, recv, algorithm=algorithm, ppn=ppn)
        if rank == 0 or ppn:
            interrupted.start()
            for _ in range(3):
                interrupted.test()
        interrupted.free()
        del interrupted, send, recv
        again = alloc(short, count, "f8")  # perhaps where the others lay
        again[:] = -1
        total = np.zeros(1)
        allreduce(short, np.ones(1), total, algorithm="ring")
        assert total[0] == nranks
        short.Free()
