"""Every primitive, native and by hand, through the same assertions under MPI.

Inputs are small whole numbers that depend on rank and position with periods that are no powers of two, so that results
are exact in any order and any dtype. Bytes around every buffer and every input must be as they were.
"""

import time
from itertools import product

import numpy as np
import pytest
from mpi4py import MPI

from collectives import PRIMITIVES, allgather, allreduce, alltoall, broadcast, gather, reduce, reduce_scatter, scatter
from collectives.attached import attached_to, drain
from collectives.calls import CALLS_KEPT
from collectives.names import UnknownNameError
from collectives.operations import OPERATIONS
from collectives.plan import NotApplicable
from collectives.reference import expected

pytestmark = pytest.mark.mpi

NATIVE = ("native", "native_persistent")
DTYPES = ("float32", "float64", "int32", "int64", "uint8")
OPS = ("sum", "prod", "max", "min")
GUARD, GUARD_NBYTES = 0xA5, 64
SENTINEL = 77


ALGORITHMS = [(one, name) for one in PRIMITIVES.values() for name in one.algorithms]


def name_of(one):
    return getattr(one, "name", one)


every_native = pytest.mark.parametrize(
    ("primitive", "algorithm"), list(product(PRIMITIVES.values(), NATIVE)), ids=name_of
)
every_algorithm = pytest.mark.parametrize(("primitive", "algorithm"), ALGORITHMS, ids=name_of)


class Guarded:
    """Arrays between guard bytes."""

    def __init__(self):
        self.blocks = []

    def array(self, values):
        block = np.full(values.nbytes + 2 * GUARD_NBYTES, GUARD, np.uint8)
        self.blocks.append(block)
        array = block[GUARD_NBYTES : GUARD_NBYTES + values.nbytes].view(values.dtype)
        array[:] = values
        return array

    def check(self):
        for block in self.blocks:
            assert (block[:GUARD_NBYTES] == GUARD).all(), "something was written before a buffer"
            assert (block[-GUARD_NBYTES:] == GUARD).all(), "something was written behind a buffer"


def values_of(problem, rank, dtype, op):
    """What a rank sends: 1 to 5, or 1 and 2 where they are multiplied."""
    position = np.arange(problem.primitive.send_count(problem, rank))
    return ((position * 3 + rank * 7 + 1) % (2 if op == "prod" else 5) + 1).astype(dtype)


class Case:
    """One call of a problem: its buffers, and what they must hold afterwards."""

    def __init__(self, comm, problem, dtype="float32", op="sum"):
        self.comm, self.problem, self.op, self.rank = comm, problem, op, comm.Get_rank()
        primitive = problem.primitive
        self.guards = Guarded()
        self.input = values_of(problem, self.rank, dtype, op)
        combine = OPERATIONS[op].combine
        wanted = expected(problem, self.rank, lambda rank: values_of(problem, rank, dtype, op), combine)
        self.wanted = np.empty(0, dtype) if wanted is None else wanted.astype(dtype)
        aliasing = primitive.aliasing(problem, self.rank) if problem.in_place or primitive.one_buffer else None
        self.in_place = aliasing is not None
        self.input_at, self.output_at = aliasing or (0, 0)
        length = len(self.wanted)
        if self.in_place:
            length = max(self.input_at + len(self.input), self.output_at + length)
        self.recv = self.guards.array(np.full(length, SENTINEL, dtype))
        self.send = None if self.in_place else self.guards.array(self.input)
        self.fill()

    def fill(self):
        """Set the buffers as they are before a call."""
        self.recv[:] = SENTINEL
        if self.in_place:
            self.recv[self.input_at : self.input_at + len(self.input)] = self.input
        self.before = self.recv.copy()

    @property
    def arguments(self):
        primitive = self.problem.primitive
        if primitive.synchronises:
            return ()
        if primitive.one_buffer:
            return (self.recv,)
        if not self.in_place:
            return tuple(one if self._takes(one) else None for one in (self.send, self.recv))
        return (self.recv, MPI.IN_PLACE) if primitive.name.startswith("scatter") else (MPI.IN_PLACE, self.recv)

    def _takes(self, buffer):
        primitive = self.problem.primitive
        chunks = primitive.inputs if buffer is self.send else primitive.outputs
        return bool(chunks(self.problem, self.rank, 1))

    def plan(self, algorithm, **more):
        more = {"root": self.problem.root, "op": self.op, **more}
        if self.problem.counts is not None:
            more["counts"] = self.problem.counts
        elif not self.problem.primitive.synchronises:
            more["count"] = self.problem.count
        return self.problem.primitive.plan(self.comm, *self.arguments, algorithm=algorithm, **more)

    def check(self):
        stop = self.output_at + len(self.wanted)
        np.testing.assert_array_equal(self.recv[self.output_at : stop], self.wanted)
        rest = np.s_[self.output_at : stop]
        np.testing.assert_array_equal(np.delete(self.recv, rest), np.delete(self.before, rest))
        if self.send is not None:
            np.testing.assert_array_equal(self.send, self.input)
        self.guards.check()

    def run(self, algorithm, **more):
        """Make the plan, call it twice and check both; return the reason if it does not apply.

        What is wrong on one rank is told on all, so that none goes on alone.
        """
        wrong = reason = None
        try:
            with self.plan(algorithm, **more) as plan:
                for _ in range(2):
                    self.fill()
                    plan()
                    self.check()
        except NotApplicable as unmet:
            reason = str(unmet)
        except Exception as error:
            wrong = f"{algorithm}, {self.problem}, {self.input.dtype}, {self.op}, {more}: rank {self.rank}: {error!r}"
        ends = self.comm.allgather((wrong, reason is None))
        assert not any(wrong for wrong, _ in ends), "\n".join(wrong for wrong, _ in ends if wrong)
        assert len({applies for _, applies in ends}) == 1, f"{algorithm}, {self.problem} applies on some ranks only"
        return reason

    def check_split(self, plan):
        """Carry a call out begun and tested until it is complete, begun and waited for, and in one; check each."""
        for carry_out in (lambda: (plan.start(), poll(plan)), lambda: (plan.start(), plan.wait()), plan):
            self.fill()
            carry_out()
            self.check()
            assert plan.test()


def poll(plan):
    while not plan.test():
        time.sleep(0)


def check_two_at_once(comm, algorithm):
    """Two plans under way, not begun in the same order everywhere, disturb each other in nothing."""
    problem = allreduce.problem(comm.Get_size(), 1000)
    cases = [Case(comm, problem, "int32", op) for op in ("sum", "max")]
    plans = [case.plan(algorithm) for case in cases]
    for turn in range(5):
        for case in cases:
            case.fill()
        for plan in reversed(plans) if (comm.Get_rank() + turn) % 2 else plans:
            plan.start()
        while [plan.test() for plan in plans] != [True, True]:
            time.sleep(0)
        for case in cases:
            case.check()
    for plan in plans:
        plan.free()


def uneven(primitive, nranks):
    """Counts of blocks, some of them empty; None where the primitive has none."""
    if not primitive.name.endswith("v"):
        return None
    if primitive.name == "alltoallv":
        return tuple(tuple((one * 3 + other * 3 + one * other) % 5 for other in range(nranks)) for one in range(nranks))
    return tuple((7 * rank + 3) % 5 for rank in range(nranks))


def skip_if_unmet(primitive, nranks):
    unmet = primitive.unmet(primitive.problem(nranks, nranks))
    if unmet:
        pytest.skip(unmet)


def has_in_place(primitive, nranks):
    problem = primitive.problem(nranks, nranks)
    return any(primitive.aliasing(problem, rank) is not None for rank in range(nranks))


def cases_of(primitive, nranks, turn):
    """Problems with every count, with dtypes, operations, roots and in place dealt out, from another start each.

    Of many ranks every third one, so that each is tried with some algorithms.
    """
    counts = uneven(primitive, nranks)
    kinds = list(product(DTYPES, OPS if primitive.combines else OPS[:1]))
    roots = [0, nranks - 1, *range(1, nranks - 1)] if primitive.rooted else [0]
    sizes = [0, 1, nranks - 1, nranks, nranks + 1, 1000] if counts is None else [int(np.sum(counts))]
    cases = []
    for place, count in enumerate(dict.fromkeys(sizes)):
        at = turn + place
        problem = primitive.problem(nranks, count, root=roots[at % len(roots)], counts=counts)
        cases.append((problem, *kinds[7 * at % len(kinds)]))
    if has_in_place(primitive, nranks):
        problem = primitive.problem(nranks, 12 * nranks, root=roots[turn % len(roots)], in_place=True)
        cases.append((problem, *kinds[turn % len(kinds)]))
    return cases if nranks <= 4 or len(cases) <= 2 else cases[turn % 3 :: 3]


def check_all(comm, primitive, algorithm, synchronous):
    skip_if_unmet(primitive, comm.Get_size())
    cases = cases_of(primitive, comm.Get_size(), len(algorithm) + len(primitive.name))
    reasons = [
        Case(comm, problem, dtype, op).run(
            algorithm, **({"synchronous": True} if synchronous and place % 2 == 0 else {})
        )
        for place, (problem, dtype, op) in enumerate(cases)
    ]
    if all(reasons):
        pytest.skip(reasons[0])


@every_native
def test_the_librarys_calls_do_what_numpy_does(comm, primitive, algorithm):
    check_all(comm, primitive, algorithm, synchronous=False)


@every_algorithm
def test_every_algorithm_does_what_numpy_does(comm, primitive, algorithm):
    """Every other call with synchronous sends, which shows that no algorithm relies on the library's buffers."""
    check_all(comm, primitive, algorithm, synchronous=True)


@every_algorithm
def test_every_algorithm_moves_large_messages(comm, primitive, algorithm):
    """Large enough to be cut, packed, made to wait for a landing, and sent only when the peer is ready for them."""
    nranks = comm.Get_size()
    skip_if_unmet(primitive, nranks)
    counts = uneven(primitive, nranks)
    if counts is not None:
        counts = tuple((np.array(counts) * (8192 // nranks)).tolist())
        counts = tuple(map(tuple, counts)) if primitive.name == "alltoallv" else counts
    count = 32771 if counts is None else int(np.sum(counts))
    reason = Case(comm, primitive.problem(nranks, count, counts=counts), "float32").run(algorithm, synchronous=True)
    if reason:
        pytest.skip(reason)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_operation(comm, dtype, op):
    for primitive, algorithm in (
        (allreduce, "native"),
        (allreduce, "ring"),
        (reduce, "binomial"),
        (reduce_scatter, "ring"),
    ):
        assert Case(comm, primitive.problem(comm.Get_size(), 37), dtype, op).run(algorithm) is None


@pytest.mark.parametrize("primitive", [one for one in PRIMITIVES.values() if one.rooted], ids=name_of)
def test_every_root(comm, primitive):
    nranks = comm.Get_size()
    for algorithm in ("native", *primitive.algorithms):
        for root in range(nranks) if nranks <= 4 else (1, nranks - 2):
            problem = primitive.problem(nranks, 3 * nranks + 1, root=root, counts=uneven(primitive, nranks))
            reason = Case(comm, problem).run(algorithm)
            assert reason is None or "needs" in reason


CUT = [
    (gather, "binomial"),
    (scatter, "binomial"),
    (broadcast, "scatter_allgather"),
    (allgather, "bruck"),
    (allgather, "spread"),
    (allreduce, "ring"),
    (allreduce, "rabenseifner"),
    (reduce_scatter, "pairwise"),
    (alltoall, "bruck"),
]


@pytest.mark.parametrize(("primitive", "algorithm"), CUT, ids=name_of)
@pytest.mark.parametrize("how", ["", ":cuts=1:pack_from=1", ":cuts=1", ":waits=data:piece=24", ":waits=round"])
def test_messages_are_cut_at_the_cap_inside_too(comm, monkeypatch, primitive, algorithm, how):
    monkeypatch.setenv("COLLBENCH_MESSAGE_CAP", "64")
    nranks = comm.Get_size()
    case = Case(comm, primitive.problem(nranks, 75 * nranks + 1), "int32")
    with case.plan(algorithm + how) as plan:
        sizes = [sum(one.stop - one.start for one in transfer.regions) * 4 for transfer in plan.layout.transfers]
        assert max(sizes, default=0) <= 64
        plan()
    case.check()
    total = comm.allreduce(len(sizes))
    assert total >= 2 * (nranks - 1) * 75 * 4 // 64


@pytest.mark.parametrize("algorithm", ["native", "native_persistent", "ring", "recursive_doubling"])
def test_a_call_can_be_begun_tested_and_waited_for(comm, algorithm):
    case = Case(comm, allreduce.problem(comm.Get_size(), 1000))
    try:
        plan = case.plan(algorithm)
    except NotApplicable as reason:
        pytest.skip(str(reason))
    with plan:
        case.check_split(plan)


def test_a_plan_under_way_is_neither_called_nor_begun_again(comm):
    if comm.Get_size() == 1:
        pytest.skip("nothing is ever under way on one rank")
    case = Case(comm, allreduce.problem(comm.Get_size(), 1000))
    with case.plan("ring") as plan:
        if comm.Get_rank() == 0:
            plan.start()  # the others have not begun, so it cannot be complete
            assert not plan.test()
            with pytest.raises(RuntimeError, match="under way"):
                plan()
            with pytest.raises(RuntimeError, match="under way"):
                plan.start()
        comm.Barrier()
        if comm.Get_rank() > 0:
            plan.start()
        plan.wait()
    case.check()


@pytest.mark.parametrize("algorithm", ["ring", "spread", "recursive_doubling"])
def test_two_plans_under_way_at_once_never_mix_their_messages(comm, algorithm):
    check_two_at_once(comm, algorithm)


@pytest.mark.parametrize("count", [1, 100_000])
def test_a_plan_is_freed_after_an_interrupted_call_and_the_communicator_goes_on(fresh_comm, count):
    nranks = fresh_comm.Get_size()
    for algorithm in ("ring", "recursive_doubling", "spread"):
        interrupted = Case(fresh_comm, allreduce.problem(nranks, count)).plan(algorithm)
        if fresh_comm.Get_rank() % 2 == 0:
            interrupted.start()
        fresh_comm.Barrier()
        interrupted.free()
        interrupted.free()
        assert Case(fresh_comm, allreduce.problem(nranks, 1000)).run(algorithm) is None
    assert Case(fresh_comm, allgather.problem(nranks, 10 * nranks)).run("ring") is None


@pytest.mark.parametrize("count", [1, 100_000])
def test_what_an_interrupted_call_has_sent_is_received_before_the_communicator_goes(fresh_comm, count):
    interrupted = Case(fresh_comm, allreduce.problem(fresh_comm.Get_size(), count)).plan("spread")
    if fresh_comm.Get_rank() == 0:
        interrupted.start()
    interrupted.free()
    private = attached_to(fresh_comm).comm
    drain(private)
    assert not private.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)


def test_a_plan_is_freed_at_the_end_of_its_context(comm):
    case = Case(comm, allreduce.problem(comm.Get_size(), 10))
    with pytest.raises(ZeroDivisionError), case.plan("ring") as plan:
        plan()
        raise ZeroDivisionError
    case.check()
    with pytest.raises(RuntimeError, match="freed"):
        plan()
    with pytest.raises(RuntimeError, match="freed"):
        plan.start()


@pytest.mark.parametrize("algorithm", ["native", "ring", "rabenseifner", "spread"])
def test_calls_once_over_with_buffers_that_change_on_some_ranks_only(fresh_comm, algorithm):
    """A rank that finds its plan kept and one that has to make a new one must still meet."""
    rank, nranks = fresh_comm.Get_rank(), fresh_comm.Get_size()
    kept = []
    for turn in range(2 * CALLS_KEPT):
        if not kept or (rank % 2 == turn % 3):
            kept.append((np.empty(50, "int64"), np.empty(50, "int64")))
        send, recv = kept[-1] if turn % 5 else kept[0]
        send[:] = rank + turn
        allreduce(fresh_comm, send, recv, algorithm=algorithm)
        np.testing.assert_array_equal(recv, sum(range(nranks)) + turn * nranks)
    if algorithm != "native":
        assert len(attached_to(fresh_comm).calls) <= CALLS_KEPT


def test_calls_once_over_of_all_kinds(comm):
    rank, nranks = comm.Get_rank(), comm.Get_size()
    data = np.full(6, rank, "int32")
    broadcast(comm, data, algorithm="binomial", root=nranks - 1)
    assert set(data) == {nranks - 1}
    whole = np.zeros((nranks, 2), "int32")
    allgather(comm, np.full(2, rank, "int32"), whole, algorithm="bruck")
    np.testing.assert_array_equal(whole, np.repeat(np.arange(nranks), 2).reshape(nranks, 2))
    whole[:] = rank
    allreduce(comm, MPI.IN_PLACE, whole, algorithm="recursive_doubling", op="max")
    assert (whole == nranks - 1).all()
    PRIMITIVES["barrier"](comm, algorithm="dissemination")


def test_freeing_a_communicator_frees_all_that_is_kept_with_it(comm):
    send, recv = np.ones(8), np.empty(8)
    for turn in range(300 // comm.Get_size()):
        short = comm.Dup()
        allreduce(short, send, recv, algorithm="ring")
        plan = allreduce.plan(short, send, recv, algorithm="recursive_doubling")
        plan()
        plan.free()
        attached = attached_to(short)
        assert len(attached.calls) == 1
        short.Free()
        assert attached.comm == MPI.COMM_NULL
        assert not attached.calls
        assert recv[0] == comm.Get_size(), turn


def test_many_plans_use_one_private_communicator(fresh_comm):
    case = Case(fresh_comm, allreduce.problem(fresh_comm.Get_size(), 10))
    with case.plan("ring"):
        private = attached_to(fresh_comm).comm
    for _ in range(100):
        with case.plan("recursive_doubling") as plan:
            plan()
    case.check()
    assert attached_to(fresh_comm).comm is private


# What is refused, alike on all ranks, natively and by hand.


def refused(comm, primitive, *arrays, message, kind=ValueError, algorithms=("native", "ring"), **more):
    for algorithm in algorithms:
        with pytest.raises(kind, match=message):
            primitive.plan(comm, *arrays, algorithm=algorithm, **more)
        with pytest.raises(kind, match=message):
            primitive(comm, *arrays, algorithm=algorithm, **more)


def test_buffers_that_do_not_fit_are_refused(comm):
    n = comm.Get_size()
    refused(comm, allreduce, np.ones(4), np.ones(5), message="buffer of rank . has . elements; . are needed")
    refused(comm, reduce_scatter, np.ones(4 * n), np.ones(5), message="has 5 elements; 4 are needed")
    refused(
        comm, allreduce, np.ones(4), np.ones(4, "f4"), message="send buffer of float64 and receive buffer of float32"
    )
    both = np.ones(8)
    refused(comm, allreduce, both[:4], both[2:6], message="overlap; pass MPI.IN_PLACE for an in-place call")
    refused(comm, allreduce, both[:4], both[:4], message="overlap; pass MPI.IN_PLACE")
    refused(
        comm, allreduce, np.ones((4, 4))[:, ::2], np.ones(8), message="is not C-contiguous; pass numpy.ascontiguous"
    )
    refused(comm, allreduce, [1, 2], np.ones(2), message="is a list; pass a NumPy or CuPy array", kind=TypeError)
    refused(comm, allreduce, np.ones(2), np.ones(2), np.ones(2), message="at most two buffers, not 3", kind=TypeError)
    refused(comm, allreduce, np.ones(2), message="needs a receive buffer of 2 elements and passed none")
    refused(comm, allreduce, message=r"passed no buffer; it has a part in this call")


def test_a_root_outside_the_ranks_is_refused(comm):
    n = comm.Get_size()
    for root in (n, -1):
        message = f"root {root} is none of the ranks 0 to {n - 1}"
        refused(comm, broadcast, np.ones(2), message=message, root=root, algorithms=("native", "binomial"))


def test_names_that_do_not_exist_are_refused(comm):
    for act in (allreduce.plan, allreduce):
        with pytest.raises(UnknownNameError, match=r"allreduce has no algorithm 'rink' \(it has: .*ring"):
            act(comm, np.ones(2), np.ones(2), algorithm="rink")
        with pytest.raises(UnknownNameError, match=r"there is no operation 'mean' \(there are: sum, prod"):
            act(comm, np.ones(2), np.ones(2), algorithm="ring", op="mean")
        with pytest.raises(UnknownNameError, match="has no parameter 'lanes'"):
            act(comm, np.ones(2), np.ones(2), algorithm="ring:lanes=2")


def test_needs_that_are_not_met_are_named(comm):
    n = comm.Get_size()
    how = {"kind": NotApplicable, "algorithms": ("recursive_doubling",)}
    if n & (n - 1):
        message = "recursive_doubling needs a number of ranks that is a power of two"
        refused(comm, allgather, np.ones(1), np.ones(n), message=message, **how)
    if n == 1:
        how["algorithms"] = ("native", "direct")
        refused(comm, PRIMITIVES["sendrecv_stream"], np.ones(1), np.ones(1), message="needs at least two ranks", **how)


def test_in_place_where_there_is_no_such_form_is_refused(comm):
    n = comm.Get_size()
    if n > 1:  # blocks of which one is longer: there is not as much to come as to go
        message = "no in-place form on rank .; pass both buffers|has .* elements; .* are needed"
        how = {"count": n + 1, "message": message, "algorithms": ("native", "pairwise")}
        refused(comm, alltoall, MPI.IN_PLACE, np.ones(n + 1), **how)
