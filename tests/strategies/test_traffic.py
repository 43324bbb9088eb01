from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import PRIMITIVES
from strategies.mesh import Mesh
from strategies.models import MODELS
from strategies.traffic import Call, Job, merge, on, repeated, scaled, sent_nbytes, totals, unrolled

MESH = Mesh("tp=4,pp=2")


def sent(primitive, nbytes, rank=0, **options):
    return sent_nbytes(Call(primitive, "tp", nbytes, "forward", **options), MESH, rank)


def test_bytes_sent_by_optimal_algorithms():
    assert sent("allreduce", 1000) == 1500
    assert sent("allgather", 1000) == sent("reduce_scatter", 1000) == sent("alltoall", 1000) == 750
    assert sent("allreduce", 1000) == sent("reduce_scatter", 1000) + sent("allgather", 1000)
    assert sent("allreduce", 1) == Fraction(3, 2)
    assert sent("barrier", 0) == 0


def test_bytes_sent_with_a_root():
    # tp group of ranks 4 to 7: the root is group rank 1, which is rank 5
    assert [sent("scatter", 1000, rank, root=1) for rank in (4, 5)] == [0, 750]
    assert [sent("gather", 1000, rank, root=1) for rank in (4, 5)] == [250, 0]
    assert [sent("reduce", 1000, rank, root=1) for rank in (4, 5)] == [1000, 0]
    assert sent("broadcast", 1000, 5, root=1) == 1000


def test_bytes_sent_to_a_neighbour():
    assert sent("sendrecv", 1000, send_to=1, receive_from=3) == 1000
    assert sent("sendrecv", 1000, receive_from=3) == 0


def test_bytes_sent_in_uneven_exchanges_leave_out_the_own_block():
    assert sent("alltoallv", 10, rank=2, sends=(1, 2, 3, 4), receives=(0, 0, 3, 0)) == 7
    assert sent("alltoallv", 0, sends=(0, 0, 0, 0), receives=(0, 9, 0, 0)) == 0


def test_a_group_of_one_sends_nothing():
    assert sent_nbytes(Call("allreduce", "dp", 1000, "backward"), MESH, 0) == 0
    assert sent_nbytes(Call("allreduce", "pp", 1000, "step", ends=True), Mesh("pp=4"), 1) == 0
    assert sent_nbytes(Call("allreduce", "pp", 1000, "step", ends=True), Mesh("pp=4"), 0) == 1000


def test_equal_calls_merge_in_order_of_first_appearance():
    gather, scatter = Call("allgather", "tp", 8, "forward", why="in"), Call("reduce_scatter", "tp", 8, "forward")
    merged = merge([gather, scatter, replace(gather, times=3, why="out"), replace(gather, nbytes=16)])
    assert [(call.primitive, call.nbytes, call.times) for call in merged] == [
        ("allgather", 8, 4),
        ("reduce_scatter", 8, 1),
        ("allgather", 16, 1),
    ]
    assert merged[0].why == "in"


def test_totals_by_phase_and_primitive():
    calls = [Call("allreduce", "tp", 1000, phase, times=times) for phase, times in (("forward", 2), ("backward", 1))]
    assert totals([*calls, calls[0]], MESH, 0) == {("forward", "allreduce"): 6000, ("backward", "allreduce"): 1500}


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([Call("allreduce", "tp", n, "forward", times=n) for n in (1, 2, 3)]), max_size=9),
)
def test_merging_changes_no_total(calls):
    assert totals(merge(calls), MESH, 0) == totals(calls, MESH, 0)


def test_scaling_keeps_whole_elements_and_both_ends_equal():
    assert scaled(Call("allreduce", "tp", 1001, "forward"), Fraction(1, 10)).nbytes == 100
    assert scaled(Call("allreduce", "tp", 1000, "forward"), Fraction(1, 64)).nbytes == 14
    assert scaled(Call("allreduce", "tp", 4, "forward", dtype="float32"), Fraction(1, 64)).nbytes == 4
    call = scaled(Call("alltoallv", "tp", 600, "forward", sends=(600, 0), receives=(200, 2)), Fraction(1, 64))
    assert (call.nbytes, call.sends, call.receives) == (8, (8, 0), (2, 2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"primitive": "all_reduce"}, "'all_reduce' is no primitive; take one of allreduce"),
        ({"phase": "fwd"}, "'fwd' is no phase; take one of"),
        ({"times": 0}, "times=0"),
        ({"nbytes": -1}, "nbytes=-1"),
        ({"root": 0}, "allreduce, root=0: broadcast, reduce, scatter, gather have a root"),
        ({"primitive": "broadcast"}, "broadcast, root=None"),
        ({"send_to": 1}, "a sendrecv has send_to"),
        ({"sends": (1,)}, "list sends and receives"),
        ({"primitive": "alltoallv", "sends": (1, 2), "receives": (3, 4)}, "nbytes=8 is not the sum"),
    ],
)
def test_calls_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Call(**{"primitive": "allreduce", "axis": "tp", "nbytes": 8, "phase": "forward", **changes})


def test_job_takes_its_sequence_from_the_model():
    job = Job(MODELS["llama3-8b"], batch=2)
    assert job.seq == 8192
    mesh = Mesh("tp=2,cp=4,ulysses=2")
    assert job.tokens(mesh) == 2 * 1024
    assert job.activation_nbytes(mesh) == 2 * 1024 * 4096 * 2
    assert replace(job, dtype="float64").activation_nbytes(mesh) == 2 * 1024 * 4096 * 8


def test_layers_on_pipeline_stages():
    job = Job(MODELS["llama3-405b"])
    mesh = Mesh("pp=16")
    assert [job.layers_of(mesh, rank) for rank in range(16)] == 14 * [8] + 2 * [7]
    tiny = Job(MODELS["tiny"], virtual_stages=2)
    assert tiny.layer_chunks(Mesh("pp=2"), 1) == [range(1, 2), range(3, 4)]
    with pytest.raises(ValueError, match="4·2 = 8 chunks of 4 layers leave some empty"):
        tiny.layers_of(Mesh("pp=4"), 0)


@pytest.mark.parametrize("name", ["tiny", "llama3-8b", "mixtral-8x7b"])
@pytest.mark.parametrize("spec", ["tp=1", "pp=4", "pp=2,ep=4"])
def test_ranks_together_hold_every_parameter_once(name, spec):
    job, mesh = Job(MODELS[name]), Mesh(spec)
    held = [tensor for rank in range(mesh.nranks) for tensor in job.tensors_of(mesh, rank)]
    assert {tensor.name for tensor in held} == {tensor.name for tensor in job.model.tensors()}
    experts = sum(tensor.count for tensor in held if tensor.expert is not None)
    others = sum(tensor.count for tensor in held if tensor.expert is None)
    assert experts + others // mesh.length("ep") == job.model.parameters


def test_parameters_of_one_tensor_parallel_rank():
    job = Job(MODELS["llama3-8b"])
    matrices, norms = 8_030_261_248 - 65 * 4096, 65 * 4096
    assert job.parameters_of(Mesh("tp=8"), 3) == matrices // 8 + norms


def test_tied_embedding_is_on_both_ends_of_the_pipeline():
    job, mesh = Job(MODELS["gpt3-175b"]), Mesh("pp=4")
    with_embedding = [any(t.name == "embedding" for t in job.tensors_of(mesh, rank)) for rank in range(4)]
    assert with_embedding == [True, False, False, True]
    assert [t.name for t in job.tensors_of(Mesh("pp=1"), 0)].count("embedding") == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "batch=0; a job needs at least 1"),
        ({"seq": -1}, "seq=-1"),
        ({"dtype": "half"}, "'half' is no dtype; take one of"),
    ],
)
def test_jobs_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Job(MODELS["tiny"], **changes)


def test_sequence_that_does_not_divide_is_refused_with_the_arithmetic():
    with pytest.raises(ValueError, match=r"1024 tokens do not divide by cp·ulysses = 3·1: 1024 = 3·341 \+ 1"):
        Job(MODELS["tiny"]).tokens(Mesh("cp=3"))
    with pytest.raises(ValueError, match=r"16 experts do not divide by ep=3"):
        Job(MODELS["tiny"]).tensors_of(Mesh("ep=3"), 0)


def test_repeated_layers_keep_their_order():
    gather, scatter = Call("allgather", "tp", 8, "forward"), Call("reduce_scatter", "tp", 8, "forward", times=2)
    layers = repeated([gather, scatter], 3, "layers 0 to 2")
    single = replace(scatter, times=1)
    assert list(unrolled([*layers, scatter])) == [gather, single, single] * 3 + [single] * 2
    assert merge([*layers, scatter]) == [replace(gather, times=3), replace(scatter, times=8)]
    assert repeated([gather], 0, "no layers") == ()


def test_blocks_in_a_row_stay_apart():
    first, second = Call("allgather", "tp", 8, "forward"), Call("reduce_scatter", "tp", 8, "forward")
    calls = repeated([first], 2, "layers 0 to 1") + repeated([second], 2, "layers 2 to 3")
    assert list(unrolled(calls)) == [first, first, second, second]


def test_calls_on_axes_of_one_rank_are_none():
    assert on(MESH, "dp-cp", "allreduce", 8, "forward") == ()
    (call,) = on(MESH, ("pp", "dp", "tp"), "allreduce", 8, "forward", dtype="float32")
    assert (call.axis, call.op, call.dtype) == ("tp-pp", "sum", "float32")
    assert on(MESH, "tp", "allgather", 8, "forward")[0].op == ""


@pytest.mark.parametrize("nranks", [2, 3, 4, 7, 8, 16])
def test_bytes_sent_are_what_the_primitives_call_bus_traffic(nranks):
    mesh = Mesh({"tp": nranks})
    for primitive in ("allreduce", "allgather", "reduce_scatter", "alltoall"):
        sent = sent_nbytes(Call(primitive, "tp", 1000, "forward"), mesh, 0)
        assert float(sent) == pytest.approx(1000 * PRIMITIVES[primitive].busbw_factor(nranks))
    # With a root, the rank that sends most, or receives most, is the busy one.
    for primitive in ("broadcast", "reduce", "scatter"):
        most = max(sent_nbytes(Call(primitive, "tp", 1000, "forward", root=0), mesh, rank) for rank in range(nranks))
        assert float(most) == pytest.approx(1000 * PRIMITIVES[primitive].busbw_factor(nranks))
    others = sum(sent_nbytes(Call("gather", "tp", 1000, "forward", root=0), mesh, rank) for rank in range(nranks))
    assert float(others) == pytest.approx(1000 * PRIMITIVES["gather"].busbw_factor(nranks))
