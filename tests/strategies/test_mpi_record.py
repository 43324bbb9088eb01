import numpy as np
import pytest

from strategies.audit import ALGORITHMS
from strategies.mesh import Mesh
from strategies.record import Wire
from strategies.traffic import Call

pytestmark = pytest.mark.mpi


@pytest.fixture(params=["hand", "native"])
def wire(request, comm):
    with Mesh({"tp": comm.Get_size()}) as mesh:
        yield Wire(comm, mesh, ALGORITHMS if request.param == "hand" else {})


def own(wire, *shape):
    """Integers that differ by rank and place."""
    return np.arange(np.prod(shape), dtype=float).reshape(shape) + 100 * wire.rank


def all_of(wire, *shape):
    return [np.arange(np.prod(shape), dtype=float).reshape(shape) + 100 * rank for rank in range(wire.mesh.nranks)]


def test_even_calls_do_what_their_names_say(wire):
    n, rank = wire.mesh.nranks, wire.rank
    everyone, blocks = all_of(wire, 2, 3), all_of(wire, n, 2)
    assert np.array_equal(wire.allreduce("tp", own(wire, 2, 3)), sum(everyone))
    assert np.array_equal(wire.allreduce("tp", own(wire, 2, 3), op="max"), everyone[-1])
    assert np.array_equal(wire.allgather("tp", own(wire, 2, 3)), np.stack(everyone))
    assert np.array_equal(wire.reduce_scatter("tp", own(wire, n, 2)), sum(blocks)[rank])
    assert np.array_equal(wire.alltoall("tp", own(wire, n, 2)), np.stack([block[rank] for block in blocks]))
    assert np.array_equal(wire.broadcast("tp", own(wire, 2, 3), root=n - 1), everyone[-1])
    reduced = wire.reduce("tp", own(wire, 2, 3), root=n - 1)
    assert np.array_equal(reduced, sum(everyone)) if rank == n - 1 else reduced is None
    assert np.array_equal(wire.shift("tp", own(wire, 4)), all_of(wire, 4)[rank - 1])
    wire.finish()
    names = ["allreduce", "allreduce", "allgather", "reduce_scatter", "alltoall", "broadcast", "reduce", "sendrecv"]
    assert [call.primitive for call in wire.calls] == (names if n > 1 else [])


def test_uneven_calls_with_empty_blocks(wire):
    n, rank = wire.mesh.nranks, wire.rank
    counts = [place % 3 for place in range(n)]  # some have nothing
    parts = [np.full((counts[place], 2), float(place)) for place in range(n)]
    assert np.array_equal(wire.allgatherv("tp", parts[rank], counts), np.concatenate(parts))
    rows = np.concatenate([own(wire, count, 2) for count in counts])
    summed = sum(all_of(wire, counts[rank], 2))
    assert np.array_equal(wire.reduce_scatterv("tp", rows, counts), summed)
    matrix = np.array([[(2 * source + target) % 3 for target in range(n)] for source in range(n)])
    sent = np.concatenate([np.full((count, 2), 10.0 * rank + to) for to, count in enumerate(matrix[rank])])
    came = [np.full((matrix[source, rank], 2), 10.0 * source + rank) for source in range(n)]
    assert np.array_equal(wire.alltoallv("tp", sent, matrix), np.concatenate(came))
    if n > 1:
        assert wire.calls[-1].sends == tuple(int(count) * 16 for count in matrix[rank])
        assert wire.calls[-1].receives == tuple(int(count) * 16 for count in matrix[:, rank])


def test_long_messages_to_neighbours_wait_for_nobody(wire):
    """All send before any receives: 4 MiB, beyond what any library keeps for a receiver that is not there yet."""
    n, rank = wire.mesh.nranks, wire.rank
    if n == 1:
        return
    long = np.full(1 << 19, float(rank))
    wire.send("tp", long, (rank + 1) % n, tag=1)
    wire.send("tp", long + 0.5, (rank + 1) % n, tag=2)
    long[:] = -1  # what was sent is no longer the caller's concern
    later = wire.receive("tp", (1 << 19,), (rank - 1) % n, tag=2)
    first = wire.receive("tp", (1 << 19,), (rank - 1) % n, tag=1)
    wire.finish()
    assert np.all(first == (rank - 1) % n) and np.all(later == (rank - 1) % n + 0.5)
    assert wire.calls[0] == Call("sendrecv", "tp", 1 << 22, "setup", dtype="float64", send_to=(rank + 1) % n)
    assert wire.records[2].received[(rank - 1) % n] == 1 << 22 and sum(wire.records[2].sent) == 0


def test_bytes_of_a_call_by_hand_are_those_that_its_messages_carry(comm):
    n = comm.Get_size()
    with Mesh({"cp": n}) as mesh:
        wire = Wire(comm, mesh, ALGORITHMS)
        wire.allgather("cp", np.zeros(6))
        wire.alltoall("cp", np.zeros((n, 5)))
        if n > 1:
            gathered, exchanged = wire.records
            right = (wire.rank + 1) % n
            assert gathered.sent[right] == sum(gathered.sent) == 48 * (n - 1)
            assert exchanged.sent == tuple(0 if place == wire.rank else 40 for place in range(n))
            assert exchanged.received == exchanged.sent


def test_no_communicator_is_left_behind(comm):
    for _ in range(30):
        with Mesh({"dp": comm.Get_size()}) as mesh:
            wire = Wire(comm, mesh, ALGORITHMS)
            wire.allreduce("dp", np.ones(3))


def test_axes_that_were_not_foreseen_are_refused(comm):
    if comm.Get_size() != 4:
        return
    with Mesh("tp=2,dp=2") as mesh:
        wire = Wire(comm, mesh)
        with pytest.raises(ValueError, match=r"no communicator was made for tp-dp .*add it to GROUPS"):
            wire.allreduce("tp-dp", np.ones(1))
