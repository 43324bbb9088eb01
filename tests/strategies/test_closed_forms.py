"""What each strategy's traffic adds up to, against formulas written here anew for models as they are published.

Letters: b = 1, s = 8192 and bfloat16 unless said otherwise; w = 2 bytes, n ranks on the axis.
"""

from dataclasses import replace

import pytest

from strategies import context, data, expert, hybrid, pipeline, sequence, sharded, tensor, ulysses
from strategies.mesh import Mesh
from strategies.models import MODELS
from strategies.traffic import Job, merge, totals, unrolled

MIB = 2**20
W = 2
NAMES = ["llama3-8b", "llama3-70b", "llama3-405b"]


def job(name="llama3-8b", **changes):
    return Job(MODELS[name], seq=8192, **changes)


def sums(calls, **wanted):
    """Total nbytes of the calls that have these fields."""
    return sum(
        call.nbytes * call.times for call in calls if all(getattr(call, key) == value for key, value in wanted.items())
    )


def number(calls, **wanted):
    return sum(call.times for call in calls if all(getattr(call, key) == value for key, value in wanted.items()))


# data and sharded


@pytest.mark.parametrize(("dtype", "nbuckets", "width"), [("bfloat16", 162, 2), ("float32", 194, 4)])
def test_ddp_sums_whole_parameters_in_buckets(dtype, nbuckets, width):
    model = MODELS["llama3-8b"]
    calls = list(data.traffic(job(grad_dtype=dtype), Mesh("dp=8"), 3))
    buckets = [call for call in calls if call.phase == "backward"]
    assert len(buckets) == nbuckets
    assert sums(buckets) == model.parameters * width
    assert all(call.nbytes >= 25 * MIB for call in buckets[1:-1])
    assert sums(calls, primitive="broadcast", phase="setup") == model.parameters * W


def test_gradient_accumulation_sums_once():
    once, often = (merge(data.traffic(job(micro_batches=m), Mesh("dp=4"), 0)) for m in (1, 8))
    assert once == often


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_fsdp_gathers_twice_and_scatters_once_a_micro_batch(name, micro_batches):
    psi = MODELS[name].parameters
    calls = list(sharded.traffic(job(name, micro_batches=micro_batches, variant="fsdp"), Mesh("dp=8"), 0))
    assert sums(calls, primitive="allgather", phase="forward") == psi * W * micro_batches
    assert sums(calls, primitive="allgather", phase="backward") == psi * W * micro_batches
    assert sums(calls, primitive="reduce_scatter") == psi * W * micro_batches
    layers = [call for call in calls if call.primitive == "allgather" and call.phase == "forward"]
    assert max(call.nbytes for call in layers) == MODELS[name].root_parameters * W
    assert sums(layers) - micro_batches * MODELS[name].root_parameters * W == W * micro_batches * (
        MODELS[name].layers * MODELS[name].layer_parameters(0)
    )


def test_fsdp_that_keeps_weights_gathers_once():
    calls = list(sharded.traffic(job(variant="fsdp-keep"), Mesh("dp=8"), 0))
    assert sums(calls, primitive="allgather") == sums(calls, primitive="reduce_scatter")
    assert number(calls, primitive="allgather", phase="backward") == 0


@pytest.mark.parametrize(("variant", "times"), [("zero1", 1), ("zero2", 4)])
def test_zero_scatters_gradients_and_gathers_weights(variant, times):
    psi = MODELS["llama3-8b"].parameters
    calls = list(sharded.traffic(job(variant=variant, micro_batches=4, grad_dtype="float32"), Mesh("dp=8"), 0))
    assert sums(calls, primitive="reduce_scatter") == psi * 4 * times
    assert sums(calls, primitive="allgather", phase="step") == psi * W


def test_deepspeed_sends_what_data_parallel_sends_and_gathers_besides():
    mesh = Mesh("dp=8")
    shipped = totals(sharded.traffic(job(variant="deepspeed1"), mesh, 0), mesh, 0)
    ddp = totals(data.traffic(job(), mesh, 0), mesh, 0)
    assert shipped["backward", "allreduce"] == ddp["backward", "allreduce"]
    assert shipped["step", "allgather"] * 2 == ddp["backward", "allreduce"]
    calls = list(sharded.traffic(job(variant="deepspeed1"), mesh, 0))
    assert max(call.nbytes for call in calls if call.primitive == "allreduce") >= 1_000_000_000
    owner = list(sharded.traffic(job(variant="deepspeed2-owner"), mesh, 0))
    assert {call.root for call in owner if call.primitive == "reduce"} == set(range(8))
    assert sums(owner, primitive="reduce") == sums(calls, primitive="allreduce")


def test_hybrid_sharding_sums_shards_over_replicas_once():
    mesh = Mesh("dp_shard=4,dp_replicate=2", "torch")
    calls = list(sharded.traffic(job(variant="fsdp", micro_batches=2), mesh, 0))
    psi = MODELS["llama3-8b"].parameters
    assert sums(calls, primitive="allreduce", axis="dp_replicate") == psi // 4 * W
    assert sums(calls, primitive="reduce_scatter", axis="dp_shard") == 2 * psi * W


def test_shards_are_filled_up_to_equal_ones():
    calls = list(sharded.traffic(job(variant="zero1"), Mesh("dp=7"), 0))
    assert all(call.nbytes % (7 * W) == 0 for call in calls)
    psi = MODELS["llama3-8b"].parameters * W
    assert 0 <= sums(calls, primitive="reduce_scatter") - psi < len(calls) * 7 * W


# tensor and sequence


@pytest.mark.parametrize("name", NAMES)
def test_tensor_parallel_sums_twice_a_layer_each_way(name):
    model, mesh = MODELS[name], Mesh("tp=8")
    calls = list(tensor.traffic(job(name), mesh, 0))
    activation = 8192 * model.hidden * W
    assert number(calls, nbytes=activation, phase="forward") == 2 * model.layers + 1
    assert number(calls, nbytes=activation, phase="backward") == 2 * model.layers + 1
    loss = [(call.op, call.nbytes, call.dtype) for call in unrolled(calls) if call.nbytes == 4 * 8192]
    assert loss == [("max", 4 * 8192, "float32"), ("sum", 4 * 8192, "float32"), ("sum", 4 * 8192, "float32")]
    assert {call.primitive for call in calls} == {"allreduce"}


@pytest.mark.parametrize(("batch", "nbytes"), [(1, 8 * 1024), (64, 512 * 1024)])
def test_decoding_sums_small_messages(batch, nbytes):
    calls = list(tensor.traffic(job(batch=batch, variant="decode"), Mesh("tp=8"), 0))
    assert number(calls, primitive="allreduce", nbytes=nbytes) == 2 * 32 + 1
    assert sums(calls, primitive="allgather") == batch * 128256 * W


@pytest.mark.parametrize("name", NAMES)
def test_sequence_parallel_gathers_and_scatters(name):
    model = MODELS[name]
    calls = list(sequence.traffic(job(name), Mesh("tp=8"), 5))
    activation = 8192 * model.hidden * W

    def often(primitive, phase):
        return number(calls, primitive=primitive, phase=phase, nbytes=activation)

    layers = model.layers
    assert often("allgather", "forward") == 2 * layers + 1  # and before the head
    assert often("reduce_scatter", "forward") == 2 * layers + 1  # and after the embedding
    assert often("allgather", "backward") == 4 * layers + 2
    assert often("reduce_scatter", "backward") == 2 * layers + 1
    assert sums(calls, phase="step") == (2 * layers + 1) * model.hidden * W


def test_sequence_parallel_sends_as_much_forward_as_tensor_parallel():
    mesh = Mesh("tp=8")
    whole, cut = (totals(one.traffic(job(), mesh, 0), mesh, 0) for one in (tensor, sequence))
    assert (
        cut["forward", "allgather"] + cut["forward", "reduce_scatter"] + cut["forward", "allreduce"]
        == (whole["forward", "allreduce"])
    )
    # Backward each pair gathers once more, which is half as much again, and the embedding gathers its gradient.
    again = cut["backward", "allgather"] + cut["backward", "reduce_scatter"] - whole["backward", "allreduce"]
    assert again == (2 * 32 + 1) * 8192 * 4096 * W * 7 // 8


# context and Ulysses


@pytest.mark.parametrize("nranks", [2, 4, 8])
@pytest.mark.parametrize("variant", ["ring", "ring-zigzag", "ring-striped"])
def test_ring_sends_keys_and_values_around(nranks, variant):
    calls = list(context.traffic(job(variant=variant), Mesh({"cp": nranks}), 1))
    message = 2 * 8192 // nranks * 8 * 128 * W
    assert number(calls, primitive="sendrecv", phase="forward", nbytes=message) == 32 * (nranks - 1)
    assert number(calls, phase="backward", nbytes=message) == 32 * (nranks - 1)
    assert number(calls, phase="backward", nbytes=2 * message, dtype="float32") == 32 * nranks


def test_ring_sends_as_much_forward_as_gathering():
    for nranks in (2, 4, 8):
        mesh = Mesh({"cp": nranks})
        ring, gather = (
            totals(context.traffic(job(variant=variant), mesh, 0), mesh, 0) for variant in ("ring", "allgather")
        )
        assert ring["forward", "sendrecv"] == gather["forward", "allgather"]


def test_gathering_keys_and_values():
    calls = list(context.traffic(job(variant="allgather"), Mesh("cp=4"), 0))
    assert number(calls, primitive="allgather", phase="forward", nbytes=16 * MIB) == 2 * 32
    assert number(calls, primitive="reduce_scatter", phase="backward", nbytes=32 * MIB, dtype="float32") == 2 * 32
    again = list(context.traffic(job(variant="allgather-again"), Mesh("cp=4"), 0))
    assert number(again, primitive="allgather") == 2 * number(calls, primitive="allgather")


def test_ulysses_exchanges_shrink_with_its_ranks():
    volumes = {}
    for nranks in (2, 4, 8):
        calls = list(ulysses.traffic(job(), Mesh({"ulysses": nranks}), 0))
        sizes = [call.nbytes for call in calls if call.phase == "forward"]
        each = 8192 // nranks * 128 * W
        assert sizes == [32 * each, 8 * each, 8 * each, 32 * each]
        volumes[nranks] = nranks * sums(calls, primitive="alltoall")
        fused = list(ulysses.traffic(job(variant="fused"), Mesh({"ulysses": nranks}), 0))
        assert sums(fused) == sums(calls)
        assert number(fused, primitive="alltoall") * 2 == number(calls, primitive="alltoall")
    assert len(set(volumes.values())) == 1


def test_ulysses_repeats_heads_that_are_too_few():
    calls = list(ulysses.traffic(job(), Mesh("ulysses=16"), 0))
    each = 8192 // 16 * 128 * W
    assert [call.nbytes for call in calls if call.phase == "forward"] == [32 * each, 16 * each, 16 * each, 32 * each]


def test_ring_and_ulysses_on_eight_gpus():
    """b = 1, s = 16000, 16 heads of 64, cp=4, ulysses=2, as strategies of the kind are usually explained."""
    model = replace(MODELS["llama3-8b"], heads=16, kv_heads=16, head_dim=64, hidden=1024, layers=1)
    for placement in ("ring-inner", "ulysses-inner"):
        mesh = Mesh("cp=4,ulysses=2", placement=placement)
        calls = list(unrolled(hybrid.traffic(Job(model, seq=16000, variant="contiguous"), mesh, 0)))
        forward = [call.nbytes for call in calls if call.phase == "forward"]
        assert forward == [4_096_000] * 3 + [8_192_000] * 3 + [4_096_000]
        ring = [call.nbytes for call in calls if call.phase == "backward" and call.primitive == "sendrecv"]
        assert sorted(ring) == [8_192_000] * 3 + [16_384_000] * 4


# pipeline


@pytest.mark.parametrize(("variant", "v"), [("1f1b", 1), ("gpipe", 1), ("interleaved", 4)])
def test_messages_between_stages(variant, v):
    mesh, m = Mesh("pp=8"), 16
    work = job(variant=variant, micro_batches=m, virtual_stages=v)
    sent = {"forward": 0, "backward": 0}
    for rank in range(8):
        calls = list(pipeline.traffic(work, mesh, rank))
        for phase in sent:
            leaving = [call for call in calls if call.phase == phase and call.send_to is not None]
            assert {call.nbytes for call in leaving} <= {8192 * 4096 * W}
            sent[phase] += len(leaving)
    assert sent == {"forward": m * (8 * v - 1), "backward": m * (8 * v - 1)}


def test_messages_between_stages_shrink_with_sequence_and_context_parallel():
    calls = list(hybrid.traffic(job("llama3-70b"), Mesh("tp=8,pp=2"), 0))
    assert {call.nbytes for call in calls if call.axis == "pp"} == {16 * MIB}
    calls = list(hybrid.traffic(job("llama3-70b"), Mesh("tp=8,cp=2,pp=2"), 0))
    assert {call.nbytes for call in calls if call.axis == "pp"} == {8 * MIB}


def test_a_tied_embedding_is_summed_by_first_and_last_stage():
    model, mesh = replace(MODELS["llama3-8b"], tied=True), Mesh("pp=4")
    calls = [list(pipeline.traffic(Job(model, seq=8192), mesh, rank)) for rank in range(4)]
    assert [number(one, primitive="allreduce", ends=True) for one in calls] == [1, 0, 0, 1]
    assert sums(calls[0], ends=True) == 128256 * 4096 * W


# experts


def test_dispatch_of_mixtral():
    mesh = Mesh("ep=8")
    calls = [list(expert.traffic(job("mixtral-8x7b"), mesh, rank)) for rank in range(8)]
    for own in calls:
        sent = [call for call in own if call.why == "dispatch"]
        assert {call.nbytes for call in sent} == {128 * MIB} and number(sent) == 32
        # Uniform routing leaves about 16 MiB to each expert's rank.
        assert all(14 * MIB < nbytes < 18 * MIB for call in sent for nbytes in call.sends)
        assert sums(own, why="weights of tokens") == 32 * 8192 * 2 * 4
        assert {call.nbytes for call in own if call.primitive == "allgather"} == {8 * 8 * 8}
        # Four large exchanges a layer.
        large = [call for call in own if call.primitive == "alltoallv" and call.dtype == "bfloat16"]
        assert number(large) == 4 * 32


@pytest.mark.parametrize("routing", ["uniform", "zipf:1.5", "all-to-one"])
def test_combine_counts_are_those_of_dispatch_transposed(routing):
    mesh = Mesh("ep=4")
    calls = [list(expert.traffic(job("mixtral-8x7b", routing=routing), mesh, rank)) for rank in range(4)]
    dispatch, combine = (
        [next(call.sends for call in own if call.why == why) for own in calls] for why in ("dispatch", "combine")
    )
    assert dispatch == [tuple(line) for line in zip(*combine, strict=True)]
    received = [next(call.receives for call in own if call.why == "dispatch") for own in calls]
    assert received == combine


def test_all_to_one_leaves_ranks_without_tokens_in_every_exchange():
    mesh = Mesh("ep=8")
    calls = list(expert.traffic(job("mixtral-8x7b", routing="all-to-one"), mesh, 7))
    received = [sum(call.receives) for call in calls if call.why == "dispatch"]
    assert received == [0]
    assert number(calls, primitive="alltoallv") == 6 * 32


def test_padded_blocks_are_equal():
    calls = list(expert.traffic(job("mixtral-8x7b", variant="pad"), Mesh("ep=8"), 0))
    capacity = -(-8192 * 2 * 5 // (4 * 8))  # 1.25·T·k/E
    assert {call.nbytes for call in calls if call.primitive == "alltoall" and call.dtype == "bfloat16"} == {
        8 * capacity * 4096 * W
    }
    assert not [call for call in calls if call.primitive == "alltoallv"]


def test_expert_tensor_parallel_gathers_received_rows():
    mesh = Mesh("etp=2,ep=4", "megatron-expert")
    calls = [list(expert.traffic(job("mixtral-8x7b"), mesh, rank)) for rank in range(2)]
    for own, place in zip(calls, range(2), strict=True):
        received = sum(next(call.receives for call in own if call.why == "dispatch"))
        gathers = [call for call in own if call.primitive == "allgatherv"]
        assert all(call.receives[place] == received for call in gathers)
        assert all(call.nbytes == sum(call.receives) for call in gathers)
        assert number(gathers) == number(own, primitive="reduce_scatterv") == 2 * 32


def test_gathering_all_tokens():
    calls = list(expert.traffic(job("mixtral-8x7b", variant="allgather"), Mesh("ep=8"), 0))
    rows = 8192 * 8 * 4096 * W
    assert number(calls, primitive="allgather", nbytes=rows) == number(calls, primitive="reduce_scatter", nbytes=rows)
    assert number(calls, primitive="allgather", nbytes=rows) == 2 * 32


# all


@pytest.mark.parametrize("nranks", [1, 2, 8])
def test_an_axis_of_one_rank_makes_no_call(nranks):
    for module in (data, sharded, tensor, sequence, context, ulysses, pipeline, hybrid, expert):
        for variant in module.VARIANTS:
            stages = 2 if variant == "interleaved" else 1
            name = "mixtral-8x7b" if module is expert else "llama3-8b"
            work = job(name, variant=variant, virtual_stages=stages)
            assert list(module.traffic(work, Mesh("tp=1", nranks=nranks), nranks - 1)) == []


def test_a_large_model_on_many_ranks_is_told_quickly_enough_to_compare_meshes():
    mesh = Mesh("tp=8,cp=2,pp=16,dp=16")
    calls = list(hybrid.traffic(job("llama3-405b", micro_batches=16), mesh, 4095))
    assert number(calls, axis="pp") == 2 * 16  # the last stage receives and sends for each micro-batch
    assert len(calls) < 16 * 60 + 200  # layers are written once
