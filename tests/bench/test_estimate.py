"""Estimates against arithmetic done by hand, on a model small enough for it."""

from dataclasses import replace

import pytest

from bench.estimate import (
    Machine,
    activations,
    call_seconds,
    estimates,
    flops,
    largest_unit,
    layer_elements,
    memory,
    seconds,
)
from bench.network import Link, Network
from strategies.mesh import Mesh
from strategies.models import MODELS, Model
from strategies.traffic import Call, Job

LATENCY, FAR_LATENCY = 1.0, 10.0
NETWORK = Network(Link(LATENCY, 100.0), Link(FAR_LATENCY, 10.0))
MACHINE = Machine(NETWORK, gpus=4, flops=1000.0, memory=1e6)

MODEL = Model(
    name="by-hand", layers=2, hidden=8, heads=2, kv_heads=2, head_dim=4, ffn=16, vocab=32, seq=16, source="made up here"
)
JOB = Job(MODEL)
LAYER = 4 * 8 * 8 + 3 * 16 * 8  # q, k, v, o; gate, up, down
ROOT = 2 * 32 * 8 + 8  # embedding, head, final norm
PARAMETERS = 2 * (LAYER + 2 * 8) + ROOT
LAYER_ELEMENTS = 4 * 8 + (2 + 2) * (4 + 4) + 3 * 16


def call(primitive, nbytes, **more):
    return Call(primitive, "tp", nbytes, "forward", **more)


@pytest.mark.parametrize(
    ("primitive", "nranks", "here", "expected"),
    [
        # Inside a node: rounds, and the bytes that a rank sends at 100 bytes a second.
        ("allreduce", 4, 4, 2 * 2 * LATENCY + 2 * 3 / 4 * 800 / 100),
        ("allgather", 4, 4, 2 * LATENCY + 3 / 4 * 800 / 100),
        ("reduce_scatter", 3, 3, 2 * LATENCY + 2 / 3 * 800 / 100),
        ("alltoall", 4, 4, 3 * LATENCY + 3 / 4 * 800 / 100),
        # Two ranks on each of two nodes: two GPUs' links leave the node.
        ("allreduce", 4, 2, 2 * 2 * FAR_LATENCY + 2 * 3 / 4 * 800 / 20),
        # One on each of four.
        ("allgather", 4, 1, 2 * FAR_LATENCY + 3 / 4 * 800 / 10),
        # Half of what a rank has goes to ranks on the other node, through its own link.
        ("alltoall", 4, 2, 3 * FAR_LATENCY + 2 / 4 * 800 / 10),
    ],
)
def test_time_of_a_call(primitive, nranks, here, expected):
    assert call_seconds(call(primitive, 800), nranks, here, NETWORK) == pytest.approx(expected)


def test_leaving_a_node_is_never_faster_than_staying():
    wide = Network(NETWORK.inside, Link(LATENCY, 90.0))
    assert call_seconds(call("allgather", 800), 8, 4, wide) == pytest.approx(3 * LATENCY + 7 / 8 * 800 / 100)


def test_messages_count_where_they_are_received():
    assert call_seconds(call("sendrecv", 800, receive_from=0), 2, 2, NETWORK) == LATENCY + 8
    assert call_seconds(call("sendrecv", 800, receive_from=0), 2, 1, NETWORK) == FAR_LATENCY + 80
    assert call_seconds(call("sendrecv", 800, send_to=1), 2, 1, NETWORK) == 0


def test_groups_cross_nodes_where_their_ranks_lie_so():
    mesh = Mesh("tp=2,dp=4")  # 4 GPUs a node: tp stays inside, dp has two ranks on each node
    inside, across = call("allgather", 800), replace(call("allgather", 800, times=3), axis="dp")
    assert seconds([inside], mesh, 5, MACHINE) == pytest.approx(LATENCY + 4)
    assert seconds([inside, across], mesh, 5, MACHINE) == pytest.approx(
        LATENCY + 4 + 3 * (2 * FAR_LATENCY + 3 / 4 * 800 / 20)
    )


def test_operations_of_a_step():
    forward = 2 * LAYER + 16 * 2 * (4 + 4)  # and half of 16 keys a query, twice, for two heads of 4
    head = 2 * 32 * 8
    assert flops(JOB, Mesh({}), 0) == 16 * 3 * (2 * forward + head)
    assert flops(JOB, Mesh("tp=2"), 0) == 16 * 3 * (2 * forward + head) / 2
    assert flops(JOB, Mesh("cp=2"), 1) == 16 * 3 * (2 * forward + head) / 2
    assert flops(JOB, Mesh({}), 0, recompute=True) == 16 * (4 * 2 * forward + 3 * head)
    assert [flops(JOB, Mesh("pp=2"), rank) for rank in (0, 1)] == [16 * 3 * forward, 16 * 3 * (forward + head)]


def test_operations_of_a_large_model_are_about_six_a_parameter_and_token():
    job = Job(MODELS["llama3-405b"])
    whole = flops(job, Mesh({}), 0) / job.seq
    attention = 3 * job.model.layers * job.seq * job.model.heads * 2 * job.model.head_dim
    parameters = job.model.parameters - job.model.embedding_tensors[0].count
    assert whole - attention == pytest.approx(6 * parameters, rel=1e-4)


def test_memory_of_a_rank():
    whole = memory(JOB, Mesh({}), 0, "ddp")
    assert whole["weights"] == whole["gradients"] == 2 * PARAMETERS
    assert whole["optimizer"] == 12 * PARAMETERS
    mesh = Mesh("dp=2,cp=2")
    sharded = memory(JOB, mesh, 0, "zero1")
    assert (sharded["weights"], sharded["optimizer"]) == (2 * PARAMETERS, 12 * PARAMETERS / 4)
    unit = LAYER + 2 * 8
    assert largest_unit(JOB.tensors_of(mesh, 0)) == max(unit, ROOT) == unit
    assert memory(JOB, mesh, 0, "fsdp")["weights"] == 2 * PARAMETERS / 4 + 2 * unit


def test_activations_of_a_rank():
    assert layer_elements(MODEL, moe=False) == LAYER_ELEMENTS
    logits = 16 * 32 * (2 + 4)
    assert activations(JOB, Mesh({}), 0) == 16 * 2 * LAYER_ELEMENTS * 2 + logits
    assert activations(JOB, Mesh("tp=2"), 0) == (16 * 2 * LAYER_ELEMENTS * 2 + logits) / 2
    assert activations(JOB, Mesh({}), 0, recompute=True) == 16 * (2 * 8 + LAYER_ELEMENTS) * 2 + logits
    # The first of two stages has two micro-batches under way, the last one.
    many = replace(JOB, micro_batches=100)
    assert activations(many, Mesh("pp=2"), 0) == 2 * 16 * LAYER_ELEMENTS * 2
    assert activations(many, Mesh("pp=2"), 1) == 16 * LAYER_ELEMENTS * 2 + logits


def test_a_step_of_data_parallel_ranks():
    (one,) = estimates(replace(JOB, micro_batches=3), Mesh("dp=2"), ["ddp"], MACHINE)
    assert one.compute == pytest.approx(3 * flops(JOB, Mesh("dp=2"), 0) / 1000)
    assert one.communication == pytest.approx(2 * LATENCY + 2 * PARAMETERS / 100)  # one bucket
    assert one.bubble == 0
    assert one.time == one.compute + one.communication
    assert one.memory == 16 * PARAMETERS + activations(JOB, Mesh("dp=2"), 0)


def test_fully_sharded_weights_are_gathered_in_every_micro_batch():
    found = {
        m: next(estimates(replace(JOB, micro_batches=m), Mesh("dp=2"), ["fsdp"], MACHINE)).communication for m in (1, 5)
    }
    assert found[5] == pytest.approx(5 * found[1])
    # Twice gathered and once reduced: three units of the model, half of each moved; nine calls of one round.
    assert found[1] == pytest.approx(9 * LATENCY + 3 * 2 * PARAMETERS / 2 / 100)


def test_a_pipeline_waits_as_its_schedule_says():
    (one,) = estimates(replace(JOB, micro_batches=4), Mesh("pp=2"), ["ddp"], MACHINE)
    last = flops(JOB, Mesh("pp=2"), 1) / 1000
    message = LATENCY + 16 * 8 * 2 / 100  # activations forward; each stage receives one way only
    assert one.compute == pytest.approx(4 * last)
    assert one.communication == pytest.approx(4 * message)
    assert one.bubble == pytest.approx(last + message)


def test_tensor_parallel_ranks_gather_and_scatter():
    (one,) = estimates(JOB, Mesh("tp=2"), ["ddp"], MACHINE)
    activation = 16 * 8 * 2
    # A layer: two gathers and two scatters forward, four gathers and two scatters backward; embedding: one of each;
    # head: a gather forward, a gather and a scatter backward.
    large = 2 * 10 + 2 + 3
    loss = 3 * (2 * LATENCY + 16 * 4 / 100)
    norms = 2 * LATENCY + (2 * 2 * 8 + 8) * 2 / 100
    assert one.communication == pytest.approx(large * (LATENCY + activation / 2 / 100) + loss + norms)


def test_what_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="heads"):
        list(estimates(JOB, Mesh("tp=4"), ["ddp"], MACHINE))
