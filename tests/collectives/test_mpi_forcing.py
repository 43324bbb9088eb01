import dataclasses
import os
import subprocess
import sys
from contextlib import ExitStack

import numpy as np
import pytest
from mpi4py import MPI

from collectives import PRIMITIVES, allgather, allreduce, alltoall, barrier, broadcast, mpit, reduce_scatter
from collectives.choices import FUNCTIONS, described_items, find, is_forced, library, names
from collectives.evidence import sample, trace
from collectives.fallbacks import Case, outcome
from collectives.forced import Forced
from collectives.forcing import ForcedPlan, forcing_of
from collectives.mpit import Setting, ToolInterface
from collectives.names import UnknownNameError
from collectives.operations import Operation
from collectives.plan import NotApplicable
from collectives.reference import expected
from tests.waiting import HANG_S

pytestmark = pytest.mark.mpi

OPEN_MPI = MPI.get_vendor()[0] == "Open MPI"
COUNT = 840  # elements; divisible by 1 to 8
RABENSEIFNER = "native:rabenseifner" if OPEN_MPI else "native:reduce_scatter_allgather"


def buffers(primitive, comm, count=COUNT):
    problem = primitive.problem(comm.size, count)
    send = np.arange(primitive.send_count(problem, comm.rank), dtype="f4") % 13 + comm.rank
    recv = np.full(primitive.recv_count(problem, comm.rank), -1, "f4")
    if primitive.synchronises:
        return []
    if primitive.one_buffer:
        return [send if len(send) else recv]
    return [one if len(one) else None for one in (send, recv)]


def result_of(primitive, comm, count=COUNT):
    problem = primitive.problem(comm.size, count)

    def input_of(rank):
        return np.arange(primitive.send_count(problem, rank), dtype="f4") % 13 + rank

    return expected(problem, comm.rank, input_of)


def plans_that_apply(primitive, comm, count=COUNT, in_place=False, op="sum"):
    """Yield each name that the library does not refuse with a reason, its plan, and the buffers of that."""
    for label in names(primitive):
        arrays = buffers(primitive, comm, count)
        if in_place:
            arrays[-1][:] = arrays[0]
            arrays[0] = MPI.IN_PLACE
        try:
            plan = primitive.plan(comm, *arrays, algorithm=label, count=count, op=op)
        except NotApplicable as reason:
            assert str(reason)
            continue
        with plan:
            yield label, plan, arrays


def several_ranks(comm):
    if comm.size == 1:
        pytest.skip("with one rank the library has nothing to choose")


def few_ranks(comm):
    several_ranks(comm)
    if comm.size not in (2, 4):
        pytest.skip("a look at all algorithms takes seconds, and is taken with 2 and 4 ranks")


@pytest.mark.parametrize("primitive", [one for name, one in PRIMITIVES.items() if name in FUNCTIONS], ids=str)
def test_every_name_of_the_library_gives_the_right_result_or_a_reason(comm, primitive):
    assert names(primitive) or (OPEN_MPI and primitive.name in ("scatterv", "gatherv"))
    for label, plan, arrays in plans_that_apply(primitive, comm):
        plan()
        with plan.armed():
            plan()
        wanted = result_of(primitive, comm)
        if wanted is not None and not primitive.synchronises:
            np.testing.assert_array_equal(arrays[-1], wanted, err_msg=label)


def test_no_plan_claims_what_the_fallbacks_exclude(comm):
    several_ranks(comm)
    for count in (1, comm.size - 1, comm.size, COUNT):
        for _, plan, _ in plans_that_apply(allreduce, comm, count):
            claimed = plan.effective.removeprefix("native:")
            flavour = forcing_of(comm).tool.flavour
            case = Case(comm.size, count, 4)
            assert outcome(flavour, "Allreduce", claimed, case).effective == claimed
            assert plan.effective == plan.requested or plan.why


def test_what_runs_instead_is_named(comm):
    several_ranks(comm)
    if not OPEN_MPI:
        if comm.size & (comm.size - 1):
            with pytest.raises(NotApplicable, match="no power of two"):
                allgather.plan(comm, *buffers(allgather, comm), algorithm="native:recursive_doubling")
        return
    arrays = buffers(allreduce, comm, comm.size - 1)
    with allreduce.plan(comm, *arrays, algorithm="native:ring") as plan:
        assert (plan.requested, plan.effective) == ("native:ring", "native:recursive_doubling")
        assert "fewer elements than ranks" in plan.why
        plan()
    np.testing.assert_array_equal(arrays[-1], result_of(allreduce, comm, comm.size - 1))


def test_an_operation_whose_order_counts_is_not_combined_in_another(comm):
    several_ranks(comm)
    left = Operation("left", lambda left, right, out: np.copyto(out, left), commutative=False)
    arrays = buffers(allreduce, comm)
    with pytest.raises(NotApplicable):
        allreduce.plan(comm, *arrays, algorithm="native:ring", op=left)
    with allreduce.plan(comm, *arrays, algorithm="native:recursive_doubling", op=left) as plan:
        plan()
    np.testing.assert_array_equal(arrays[-1], np.arange(COUNT, dtype="f4") % 13)


def test_variables_are_as_before(comm):
    several_ranks(comm)
    tool = forcing_of(comm).tool
    watched = [
        one
        for one in tool.variables.values()
        if one.name.startswith(("coll_", "MPIR_CVAR_")) and "vader" not in one.name
    ]
    before = {one.name: tool.read(one) for one in watched}
    with broadcast.plan(comm, *buffers(broadcast, comm), algorithm="native:binomial") as plan:
        plan()
        with plan.armed():
            plan()
            changed = {one.name for one in watched if tool.read(one) != before[one.name]}
            assert bool(changed) != OPEN_MPI
    assert {one.name: tool.read(one) for one in watched} == before


def test_variables_are_as_before_after_an_exception(comm):
    several_ranks(comm)
    forcing = forcing_of(comm)
    request = find(forcing.library, allreduce, "native:ring")
    before = forcing.tool.read(request.choice.variable)
    with pytest.raises(KeyError), forcing.forced(request).armed():
        raise KeyError("of the caller")
    assert forcing.tool.read(request.choice.variable) == before


def test_a_communicator_made_earlier_keeps_its_algorithm(comm):
    """A variable set later does not reach it (Open MPI), which is why each algorithm gets a communicator of its own."""
    several_ranks(comm)
    if not OPEN_MPI or comm.size < 3:
        pytest.skip("MPICH reads its variables at each call; two ranks leave one trace")
    forcing = forcing_of(comm)
    ring, doubling = (find(forcing.library, allreduce, f"native:{name}") for name in ("ring", "recursive_doubling"))
    looks = {name: forcing.proofs.trace(one) for name, one in (("ring", ring), ("doubling", doubling))}
    assert looks["ring"] != looks["doubling"]
    forced = forcing.forced(ring)
    bound = sample(allreduce, comm.size, comm.rank)
    now = forcing.tool.read(ring.choice.variable)
    forcing.tool.write(ring.choice.variable, doubling.choice.value)
    try:
        seen = trace(comm, bound, lambda: forced.comm.Allreduce(bound.send, bound.recv))
    finally:
        forcing.tool.write(ring.choice.variable, now)
    assert seen.results == looks["ring"].results


@pytest.mark.parametrize("name", ["ring", "recursive_doubling"])
def test_proof_of_an_allreduce(comm, name):
    few_ranks(comm)
    arrays = buffers(allreduce, comm)
    with allreduce.plan(comm, *arrays, algorithm=f"native:{name}") as plan:
        assert (plan.proved, plan.why) == (False, "not looked at")
        proved = plan.prove()
        assert plan.proved == proved
        if comm.size >= 4:
            assert proved or "may be busy" in plan.why, plan.why
        assert plan.why


def test_a_trace_is_looked_at_once(comm):
    several_ranks(comm)
    forcing = forcing_of(comm)
    request = find(forcing.library, allreduce, "native:ring")
    assert forcing.proofs.trace(request) is forcing.proofs.trace(request)


def test_a_barrier_is_not_proved_where_nothing_can_be_seen(comm):
    if comm.size != 2:
        pytest.skip("with 2 ranks all algorithms are looked at soonest")
    if OPEN_MPI:
        pytest.skip("Open MPI tells for whom each rank waits")
    with barrier.plan(comm, algorithm="native:recexch") as plan:
        assert not plan.prove()
        assert "would leave the same trace" in plan.why


def test_what_was_seen_of_a_replacement(comm):
    if not OPEN_MPI or comm.size < 4:
        pytest.skip("Open MPI alone replaces silently; fewer than four ranks leave too few traces")
    arrays = buffers(allreduce, comm)
    with allreduce.plan(comm, *arrays, algorithm="native:segmented_ring") as plan:
        plan.prove()
        assert plan.effective == "native:ring"
        assert plan.proved, plan.why


def test_the_default_is_recognised(comm):
    few_ranks(comm)
    if comm.size < 4:
        pytest.skip("fewer than four ranks leave too few traces")
    guesses = forcing_of(comm).proofs.guess(broadcast)
    listed = [one.name for one in forcing_of(comm).library.choices(broadcast)]
    assert set(guesses) <= set(listed)
    assert len(guesses) < len(listed)


def test_uneven_blocks_use_the_function_with_counts(comm):
    several_ranks(comm)
    name = "native:ring" if OPEN_MPI else "native:pairwise"
    arrays = buffers(reduce_scatter, comm, COUNT + 1)
    with reduce_scatter.plan(comm, *arrays, algorithm=name, count=COUNT + 1) as plan:
        assert isinstance(plan, ForcedPlan)
        plan()
    np.testing.assert_array_equal(arrays[-1], result_of(reduce_scatter, comm, COUNT + 1))


def test_parameters_act_and_are_checked(comm):
    several_ranks(comm)
    label = "native:knomial:radix=2" if OPEN_MPI else "native:tree:radix=3"
    arrays = buffers(broadcast, comm)
    with broadcast.plan(comm, *arrays, algorithm=label) as plan:
        assert plan.requested == label
        plan()
    np.testing.assert_array_equal(arrays[-1], result_of(broadcast, comm))
    with pytest.raises(UnknownNameError, match="has no parameter 'colour'"):
        broadcast.plan(comm, *arrays, algorithm=f"{label}:colour=3")
    with pytest.raises(UnknownNameError, match="write it as name=value"):
        broadcast.plan(comm, *arrays, algorithm=f"{label}:3")
    with pytest.raises(ValueError, match="at least 1"):
        broadcast.plan(comm, *arrays, algorithm=label[:-1] + "0")


def test_a_parameter_is_what_the_library_sees_not_its_default(comm, monkeypatch):
    """What a file of rules of Open MPI 4.1 cannot carry becomes 0 there, and with it another algorithm."""
    several_ranks(comm)
    primitive, label = (alltoall, "native:linear_sync:requests=8" if OPEN_MPI else "native:scattered:requests=8")
    forcing = forcing_of(comm)
    request = find(forcing.library, primitive, label)
    (variable,) = (request.choice.parameters["requests"],)
    assert forcing.library.settings(request)[variable] == 8
    written = []
    write = ToolInterface.write
    monkeypatch.setattr(
        ToolInterface, "write", lambda tool, one, value: (written.append((one.name, value)), write(tool, one, value))
    )
    forced = Forced(comm, request, forcing.library)
    with forced.armed():
        pass
    forced.free()
    assert (variable, 8) in written


def test_what_makes_open_mpi_heed_its_variables_is_set_with_them(comm):
    """It ignores an algorithm, and a file of rules, unless it is told to use dynamic rules too."""
    several_ranks(comm)
    library = forcing_of(comm).library
    settings = library.settings(find(library, allreduce, "native:ring"))
    if OPEN_MPI:
        assert settings["coll_tuned_use_dynamic_rules"] is True
        assert settings["coll_han_priority"] == 0
    else:
        assert library.word("MPIR_CVAR_COLLECTIVE_FALLBACK", settings["MPIR_CVAR_COLLECTIVE_FALLBACK"]) == "error"
        assert library.word("MPIR_CVAR_DEVICE_COLLECTIVES", settings["MPIR_CVAR_DEVICE_COLLECTIVES"]) == "none"


@pytest.mark.parametrize("name", ["allreduce", "broadcast", "alltoall"])
def test_every_other_collective_works_while_one_is_forced(comm, name):
    """A tuning file with one collective only left the others without an algorithm."""
    several_ranks(comm)
    primitive = PRIMITIVES[name]
    label = next(label for label in names(primitive) if "ring" in label or "pairwise" in label or "binomial" in label)
    with primitive.plan(comm, *buffers(primitive, comm), algorithm=label) as plan, plan.armed():
        for other in PRIMITIVES.values():
            if other.name in FUNCTIONS:
                arrays = buffers(other, comm)
                with other.plan(plan._comm, *arrays, count=COUNT) as native:
                    native()
                wanted = result_of(other, comm)
                if wanted is not None and not other.synchronises:
                    np.testing.assert_array_equal(arrays[-1], wanted, err_msg=f"{other.name} while {label} is forced")


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("commutative", [False, True])
def test_what_is_forced_beyond_its_conditions_is_refused_or_named(comm, in_place, commutative):
    """Rules that were good for one number of ranks, or out of place, crashed or went wrong in other cases."""
    several_ranks(comm)
    op = "sum" if commutative else Operation("left", lambda left, right, out: np.copyto(out, left), commutative=False)
    wanted = result_of(allreduce, comm) if commutative else np.arange(COUNT, dtype="f4") % 13
    for label, plan, arrays in plans_that_apply(allreduce, comm, in_place=in_place, op=op):
        plan()
        assert plan.effective == plan.requested or plan.why
        np.testing.assert_array_equal(arrays[-1], wanted, err_msg=label)


def test_nothing_is_set_in_a_call_that_is_timed(comm, monkeypatch):
    several_ranks(comm)
    touched = []
    for name in ("put", "back"):
        plain = getattr(Setting, name)
        monkeypatch.setattr(Setting, name, lambda one, plain=plain: (touched.append(one), plain(one))[1])
    arrays = buffers(allreduce, comm)
    with allreduce.plan(comm, *arrays, algorithm="native:ring") as plan:
        with plan.armed():
            touched.clear()
            plan()
            assert touched == []
        assert bool(touched) != OPEN_MPI
        touched.clear()
        plan()
        assert bool(touched) != OPEN_MPI  # without that it arms itself


def test_two_plans_of_one_algorithm_may_be_armed_at_once(comm):
    """As they are where samples walk through several sets of buffers."""
    several_ranks(comm)
    variable = find(forcing_of(comm).library, allreduce, "native:ring").choice.variable
    tool = forcing_of(comm).tool
    before = tool.read(variable)
    with ExitStack() as stack:
        plans = [allreduce.plan(comm, *buffers(allreduce, comm), algorithm="native:ring") for _ in range(2)]
        for plan in plans:
            stack.enter_context(plan)
            stack.enter_context(plan.armed())
        assert (tool.read(variable) != before) != OPEN_MPI
        for plan in plans:
            plan()
    assert tool.read(variable) == before


def test_what_runs_has_a_counterpart_of_ours_if_we_can_do_the_same(comm):
    several_ranks(comm)
    with allreduce.plan(comm, *buffers(allreduce, comm), algorithm="native:ring") as plan:
        assert plan.counterpart == "ring"
        assert "ALGORITHM=ring" in plan.settings or "coll_tuned_allreduce_algorithm=4" in plan.settings
    label = "native:knomial:radix=2" if OPEN_MPI else "native:tree:tree=kary"
    with broadcast.plan(comm, *buffers(broadcast, comm), algorithm=label) as plan:
        assert plan.counterpart == ("knomial:radix=2" if OPEN_MPI else None)


def test_the_default_is_looked_for_among_few(comm):
    few_ranks(comm)
    if comm.size < 4:
        pytest.skip("fewer than four ranks leave too few traces")
    forcing = forcing_of(comm)
    everyone = forcing.proofs.guess(broadcast)
    requests = [find(forcing.library, broadcast, "native:binomial")]
    assert forcing.proofs.guess(broadcast, among=requests) == [one for one in everyone if one == "binomial"]
    assert forcing.proofs.guess(broadcast, among=[]) == []


def test_sizes_have_prefixes(comm):
    several_ranks(comm)
    library = forcing_of(comm).library
    label = "native:segmented_ring:segsize=64K" if OPEN_MPI else "native:tree:segsize=64K"
    assert find(library, allreduce, label).label == label.replace("64K", "65536")


def test_a_name_the_library_does_not_have(comm):
    with pytest.raises(UnknownNameError, match=r"no native:nonsense for allreduce \(it has: .*native:ring"):
        allreduce.plan(comm, *buffers(allreduce, comm), algorithm="native:nonsense")


def test_one_rank_alone(comm):
    if comm.size > 1:
        pytest.skip("for one rank")
    with pytest.raises(NotApplicable, match="one rank alone"):
        allreduce.plan(comm, *buffers(allreduce, comm), algorithm="native:ring")


def test_non_blocking_calls_are_refused(comm):
    several_ranks(comm)
    plan = allreduce.plan(comm, *buffers(allreduce, comm), algorithm="native:ring")
    with plan, pytest.raises(NotApplicable, match="non-blocking"):
        plan.start()


def test_a_call_without_a_plan(comm):
    several_ranks(comm)
    arrays = buffers(allreduce, comm)
    allreduce(comm, *arrays, algorithm=RABENSEIFNER)
    np.testing.assert_array_equal(arrays[-1], result_of(allreduce, comm))


def test_many_plans_share_one_communicator(comm):
    several_ranks(comm)
    forced = set()
    for _ in range(50):
        with allreduce.plan(comm, *buffers(allreduce, comm), algorithm="native:ring") as plan:
            forced.add(plan._forced)
    assert len(forced) == 1


def test_a_library_that_is_neither_gives_its_default_only(fresh_comm, monkeypatch):
    monkeypatch.setattr(mpit, "flavour", lambda path: None)
    with pytest.raises(NotApplicable, match="only the library's default"):
        allreduce.plan(fresh_comm, *buffers(allreduce, fresh_comm), algorithm="native:ring")
    assert names(allreduce) == []


def test_a_variable_that_is_locked_is_a_reason(comm):
    several_ranks(comm)
    forcing = forcing_of(comm)
    request = find(forcing.library, allreduce, "native:ring")
    locked = dataclasses.replace(request, choice=dataclasses.replace(request.choice, locked="it is constant here"))
    with pytest.raises(NotApplicable, match="constant"):
        type(forcing.forced(request))(comm, locked, forcing.library)


def test_what_is_named_in_a_specification():
    assert is_forced("native:ring")
    assert not is_forced("native")
    assert not is_forced("ring")


def test_mpich_numbers_its_names_in_the_order_of_its_description():
    """Asked of the library itself: a process that gets the names from its environment reads the numbers."""
    if OPEN_MPI or MPI.COMM_WORLD.rank > 0:
        return
    program = (
        "from collectives.mpit import ToolInterface\n"
        "with ToolInterface() as tool:\n"
        "    print(*(tool.read(name) for name in {names!r}))\n"
    )
    with ToolInterface() as tool:
        variables = [f"MPIR_CVAR_{function.upper()}_INTRA_ALGORITHM" for function in FUNCTIONS.values()]
        items = {name: described_items(tool.variable(name).description) for name in variables}
    for last in (False, True):
        chosen = {name: list(one)[-1 if last else len(one) // 2] for name, one in items.items()}
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PMI", "HYDRA", "MPI"))}
        words = [sys.executable, "-c", program.format(names=variables)]
        told = subprocess.run(words, env=clean | chosen, capture_output=True, text=True, timeout=HANG_S, check=True)
        assert list(map(int, told.stdout.split())) == [items[name][chosen[name]] for name in variables]


def test_layers_are_told():
    with ToolInterface() as tool:
        layers = library(tool).layers()
    assert ("coll_tuned_priority" if OPEN_MPI else "MPIR_CVAR_DEVICE_COLLECTIVES") in layers
