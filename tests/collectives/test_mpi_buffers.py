"""Kinds of buffers and operations under MPI: dtypes, own operations, half precision, debug mode, refusals."""

import ml_dtypes
import numpy as np
import pytest

from collectives import PRIMITIVES, allgather, allreduce, alltoall
from collectives.attached import attached_to
from collectives.operations import DTYPES, OPERATIONS, SMALL, Operation, dtype_of

pytestmark = pytest.mark.mpi


@pytest.fixture
def comm():
    from mpi4py import MPI

    return MPI.COMM_WORLD


def matmul(left, right, out):
    out[...] = np.matmul(left.reshape(-1, 2, 2), right.reshape(-1, 2, 2)).reshape(-1, 4)


PRODUCT = Operation("matrix product", matmul, commutative=False, width=4)


def order_keeping():
    return [one.name for one in PRIMITIVES["allreduce"].algorithms.values() if one.keeps_order]


@pytest.mark.parametrize("algorithm", ["native", *order_keeping()])
def test_a_product_of_matrices_keeps_rank_order(comm, algorithm):
    n, rank = comm.Get_size(), comm.Get_rank()
    matrices = np.random.default_rng(1).integers(-2, 3, (n, 5, 2, 2))
    expected = matrices[0]
    for one in matrices[1:]:
        expected = expected @ one
    result = np.zeros((5, 2, 2), np.int64)
    chosen = PRIMITIVES["allreduce"].algorithms.get(algorithm)
    nodes = attached_to(comm).shared.nodes
    problem = allreduce.problem(n, 5, nodes=nodes if len(nodes) > 1 else None)
    if chosen is not None and chosen.unmet(problem, commutative=False):
        pytest.skip(chosen.unmet(problem, commutative=False))
    allreduce(comm, matrices[rank].copy(), result, algorithm=algorithm, op=PRODUCT)
    np.testing.assert_array_equal(result, expected)


def test_an_algorithm_that_mixes_the_order_refuses_a_non_commutative_operation(comm):
    with pytest.raises(ValueError, match="ring needs a commutative operation"):
        allreduce(comm, np.ones(4), np.ones(4), algorithm="ring", op=PRODUCT)


def test_a_buffer_that_would_split_a_matrix_is_refused(comm):
    with pytest.raises(ValueError, match="7 elements is no multiple of the operation's width 4"):
        allreduce(comm, np.ones(7), np.ones(7), algorithm="recursive_doubling", op=PRODUCT)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("algorithm", ["native", "ring", "recursive_doubling"])
def test_every_dtype_is_summed_or_refused_with_the_reason(comm, name, algorithm):
    n, dtype = comm.Get_size(), dtype_of(name)
    send, recv = np.ones(11, dtype), np.zeros(11, dtype)
    refused = OPERATIONS["sum"].undefined_for(dtype)
    lacking = algorithm == "native" and name in SMALL
    try:
        allreduce(comm, send, recv, algorithm=algorithm)
    except ValueError as reason:
        assert str(reason) == refused or (lacking and "this MPI library" in str(reason))
    else:
        assert refused is None
        assert (recv == np.array(n).astype(dtype)).all()


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("algorithm", ["native", "bruck"])
def test_every_dtype_can_be_moved(comm, name, algorithm):
    n, rank, dtype = comm.Get_size(), comm.Get_rank(), dtype_of(name)
    send, recv = np.full(3, rank).astype(dtype), np.zeros(3 * n, dtype)
    allgather(comm, send, recv, algorithm=algorithm)
    np.testing.assert_array_equal(recv, np.repeat(np.arange(n), 3).astype(dtype))


@pytest.mark.parametrize("dtype", [dtype_of(name) for name in SMALL], ids=str)
def test_small_floats_are_accumulated_in_float32_on_request(comm, dtype):
    n, rank = comm.Get_size(), comm.Get_rank()
    values = np.random.default_rng(2).uniform(-1, 1, (n, 100)).astype(dtype)
    recv = np.zeros(100, dtype)
    with allreduce.plan(comm, values[rank].copy(), recv, algorithm="spread:accumulate=float32") as plan:
        plan()
        assert plan.layout is not None
        # Sums of float32 numbers in another order differ by less than the rounding to half precision.
        exact = values.astype(np.float64).sum(0)
        spacing = float(ml_dtypes.finfo(dtype).eps) * np.maximum(np.abs(exact), 2.0**-10)
        assert (np.abs(recv.astype(np.float64) - exact) <= spacing).all()
        assert plan.scratch_nbytes >= 2 * 100 * 4


def test_accumulation_elsewhere_is_refused(comm):
    with pytest.raises(ValueError, match="accumulate=float32 with sum of float64: only sums and products of float16"):
        allreduce(comm, np.ones(3), np.ones(3), algorithm="ring:accumulate=float32")


@pytest.mark.parametrize("algorithm", ["native", "ring"])
def test_arrays_that_are_not_contiguous_are_refused_alike_for_any_number_of_ranks(comm, algorithm):
    table = np.ones((4, 6))
    for array in (table[:, ::2], table.T, (table + 1j * table).real):
        with pytest.raises(ValueError, match=r"is not C-contiguous; pass numpy\.ascontiguousarray"):
            allreduce(comm, array, np.zeros(array.size), algorithm=algorithm)


@pytest.mark.parametrize("algorithm", ["native", "spread"])
def test_overlapping_buffers_are_refused_alike(comm, algorithm):
    n, rank = comm.Get_size(), comm.Get_rank()
    recv = np.zeros(2 * n)
    with pytest.raises(ValueError, match=r"send and receive buffer overlap; pass MPI\.IN_PLACE"):
        allgather(comm, recv[2 * rank : 2 * rank + 2], recv, algorithm=algorithm)


@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling", "rabenseifner"])
def test_debug_mode_shows_messages_and_keeps_results_right(comm, algorithm, monkeypatch, capfd):
    monkeypatch.setenv("COLLBENCH_DEBUG", "1")
    n, rank = comm.Get_size(), comm.Get_rank()
    recv = np.zeros(5)
    with allreduce.plan(comm, np.arange(5.0) + rank, recv, algorithm=algorithm) as plan:
        plan()
        plan()
    np.testing.assert_array_equal(recv, n * np.arange(5.0) + n * (n - 1) / 2)
    lines = capfd.readouterr().err.splitlines()
    assert all(line.startswith(f"r{rank} allreduce {algorithm} #") for line in lines)
    assert (len(lines) > 0) == (n > 1)


def test_debug_mode_sees_an_operation_that_writes_too_far(comm, monkeypatch):
    from collectives.debug import Overwritten

    if comm.Get_size() == 1:
        pytest.skip("one rank combines nothing")
    monkeypatch.setenv("COLLBENCH_DEBUG", "1")

    def add_and_spill(left, right, out):
        longer = np.lib.stride_tricks.as_strided(out, (len(out) + 1,), out.strides)
        longer[:-1] = left + right
        longer[-1] = 0

    spilling = Operation("spilling sum", add_and_spill)
    with (
        allreduce.plan(comm, np.ones(4), np.ones(4), algorithm="allgather_reduce", op=spilling) as plan,
        pytest.raises(Overwritten, match="bytes behind a buffer of 32 bytes were overwritten"),
    ):
        plan()


def test_zero_counts_in_an_all_to_all_of_unequal_blocks(comm):
    n, rank = comm.Get_size(), comm.Get_rank()
    counts = [[1 if source == 0 else 0 for _ in range(n)] for source in range(n)]
    send = np.arange(n, dtype=float) if rank == 0 else np.empty(0)
    recv = np.full(1, -1.0)
    for algorithm in ("native", "pairwise", "spread"):
        recv[:] = -1
        alltoall(comm, send, recv, counts=counts, algorithm=algorithm)
        assert recv.tolist() == [float(rank)]
