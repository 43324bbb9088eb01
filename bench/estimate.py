"""Estimate a training step on a mesh: time from calls, links and floating-point rate, and memory. No MPI, no clock.

All formulas are per GPU. Letters: b sequences of a micro-batch, s tokens, h hidden, a heads, g key/value heads, d head
width, f inner width, V vocabulary; p stages, m micro-batches. The model-parallel part is that of Megatron (tensor and
sequence parallel, ring attention in zigzag, 1F1B); over data-parallel ranks the weights are replicated ("ddp"), the
optimizer's state sharded ("zero1") or all of it ("fsdp").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import ceil, log2
from typing import NamedTuple

from bench.network import Network
from collectives.registry import find
from strategies import data, sharded
from strategies.context import Context, ContextCalls
from strategies.expert import Expert, ExpertCalls
from strategies.mesh import Mesh
from strategies.models import Model, Tensor
from strategies.passes import Passes, no_calls, tied_embedding, walk
from strategies.pipeline import actions_of
from strategies.schedule import ideal_bubble, most_under_way
from strategies.sequence import SequenceCalls
from strategies.traffic import Call, Job, itemsize
from strategies.ulysses import Ulysses, UlyssesCalls

SHARDINGS = ("ddp", "zero1", "fsdp")
ONCE_A_STEP = ("ddp", "zero1")  # communicate nothing for a single micro-batch
OPTIMIZER_NBYTES = 12  # Adam with weights and two moments in float32, a parameter
PASSES = 3  # backward is twice forward
RECOMPUTE_PASSES = 4  # and forward once more


@dataclass(frozen=True)
class Machine:
    """gpus: in a node. flops: that one GPU reaches in matrix products, a second. memory: bytes of one GPU."""

    network: Network
    gpus: int
    flops: float
    memory: float


@dataclass(frozen=True)
class Estimate:
    """Seconds of a step and bytes on the GPU that has most. time = compute + communication + bubble."""

    mesh: Mesh
    sharding: str
    micro_batches: int
    compute: float
    communication: float
    bubble: float
    weights: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def time(self) -> float:
        """Seconds of a step."""
        return self.compute + self.communication + self.bubble

    @property
    def memory(self) -> float:
        """Bytes on the GPU that has most."""
        return self.weights + self.gradients + self.optimizer + self.activations


def estimates(
    job: Job, mesh: Mesh, shardings: Iterable[str], machine: Machine, recompute: bool = False
) -> Iterator[Estimate]:
    """Estimate a step of `job` for each sharding. ValueError where it does not divide over the mesh.

    Every stage takes as long for a micro-batch as the slowest one, and what it waits is the bubble of the schedule.
    """
    m, stages = job.micro_batches, mesh.length("pp")
    # Stages between the first and the last are all alike.
    ranks = [mesh.rank_at({"pp": stage}) for stage in sorted({0, stages // 2, stages - 1})]
    work = [flops(job, mesh, rank, recompute) / machine.flops for rank in ranks]
    inside = [communication(model_calls, job, mesh, rank, machine) for rank in ranks]
    for sharding in shardings:
        outside = [communication(data_calls, job, mesh, rank, machine, sharding) for rank in ranks]
        each = [a.micro_batch + b.micro_batch for a, b in zip(inside, outside, strict=True)]
        compute, communicated = max(zip(work, each, strict=True), key=sum)
        at_end = max(a.step + b.step for a, b in zip(inside, outside, strict=True))
        held = [memory(job, mesh, rank, sharding, recompute) for rank in ranks]
        yield Estimate(
            mesh,
            sharding,
            m,
            compute=m * compute,
            communication=m * communicated + at_end,
            bubble=float(ideal_bubble(stages, m)) * m * (compute + communicated),
            **max(held, key=lambda parts: sum(parts.values())),
        )


# ---------------------------------------------------------------------------------------------------------------
# Communication


class Seconds(NamedTuple):
    """What a rank communicates for each micro-batch, and once in a step."""

    micro_batch: float
    step: float


def communication(
    calls: Callable[..., Iterable[Call]], job: Job, mesh: Mesh, rank: int, machine: Machine, *more: str
) -> Seconds:
    """Return the seconds of `calls(job, mesh, rank, *more)`.

    Taken from steps of one and of two micro-batches: what the second adds, every further one adds too.
    """
    one = seconds(calls(replace(job, micro_batches=1), mesh, rank, *more), mesh, rank, machine)
    if set(more) & set(ONCE_A_STEP):
        return Seconds(0.0, one)
    two = seconds(calls(replace(job, micro_batches=2), mesh, rank, *more), mesh, rank, machine)
    return Seconds(two - one, 2 * one - two)


def model_calls(job: Job, mesh: Mesh, rank: int) -> Iterator[Call]:
    """Yield the calls of a step on all axes but the data-parallel ones."""
    linear = SequenceCalls(job, mesh)
    attention = UlyssesCalls(job, mesh, Ulysses(fused=True), ContextCalls(job, mesh, rank, Context(split="zigzag")))
    # Equal numbers of tokens for all experts.
    mixture = ExpertCalls(job, mesh, rank, Expert(capacity=1.0, pad=True)) if job.model.experts else no_calls
    yield from walk(Passes(job, mesh, linear, attention, mixture), rank, actions_of(job, mesh, rank, "1f1b"))
    yield from linear.synchronise(rank)
    yield from tied_embedding(job, mesh, rank)


def data_calls(job: Job, mesh: Mesh, rank: int, sharding: str) -> Iterator[Call]:
    """Yield those on the data-parallel ones, without what is done once before the first step."""
    if sharding == "ddp":
        ready = data.Ready(job, mesh, rank, data.VARIANTS["ddp"])
        yield from (call for event in ready.events for call in ready(event))
    else:
        yield from sharded.traffic(replace(job, variant=sharding), mesh, rank)


def seconds(all_calls: Iterable[Call], mesh: Mesh, rank: int, machine: Machine) -> float:
    """Return how long `rank` communicates if it does nothing else meanwhile."""
    places: dict[tuple[str, bool], tuple[int, int]] = {}
    whole = 0.0
    for call in all_calls:
        key = call.axis, call.ends
        if key not in places:
            group = mesh.group(call.axis, rank, call.ends)
            places[key] = len(group), sum(member // machine.gpus == rank // machine.gpus for member in group)
        whole += call.times * call_seconds(call, *places[key], machine.network)
    return whole


def call_seconds(call: Call, nranks: int, here: int, network: Network) -> float:
    """Return the time of a call among `nranks`, `here` of which are on the caller's node, in few rounds.

    No byte is moved twice, and all groups call at the same time. Where k ranks of a group are on a node, k times the
    bandwidth of one GPU leaves the node for it, and carries what one of a ring's ranks would send. Messages to one rank
    count where they are received.
    """
    link = network.inside if here == nranks else network.between
    bandwidth = network.inside.bandwidth
    if here < nranks:
        bandwidth = min(bandwidth, here * network.between.bandwidth)
    if call.primitive == "sendrecv":
        return 0.0 if call.receive_from is None else link.latency + call.nbytes / bandwidth
    if call.primitive in ("alltoall", "alltoallv"):
        near = (here - 1) / nranks * call.nbytes / network.inside.bandwidth
        far = (nranks - here) / nranks * call.nbytes / network.between.bandwidth
        return (nranks - 1) * link.latency + max(near, far)
    rounds = ceil(log2(nranks)) * (2 if call.primitive == "allreduce" else 1)
    # What a rank sends is what counts as bus traffic.
    return rounds * link.latency + find(call.primitive).busbw_factor(nranks) * call.nbytes / bandwidth


# ---------------------------------------------------------------------------------------------------------------
# Computing


def flops(job: Job, mesh: Mesh, rank: int, recompute: bool = False) -> float:
    """Return the floating-point operations of `rank` for a micro-batch: 2 for each weight and token, and attention.

    Forward and twice as much backward. Causal attention, balanced over ranks: s/2 keys a query.
    """
    model = job.model
    stage, stages = mesh.coordinate("pp", rank), mesh.length("pp")
    each = 0.0
    for layers in job.layer_chunks(mesh, rank):
        each += sum(_layer_flops(model, model.is_moe(layer), job.seq) for layer in layers)
    passes = RECOMPUTE_PASSES if recompute else PASSES
    whole = passes * each + (PASSES * 2 * model.vocab * model.hidden if stage == stages - 1 else 0)
    return whole * job.tokens(mesh) / mesh.length("tp")


def _layer_flops(model: Model, moe: bool, seq: int) -> float:
    """Return the operations of a layer's forward pass for one token."""
    tensors = model.layer_tensors(model.layers - 1 if moe else 0)
    weights = sum(one.count for one in tensors if len(one.shape) == 2 and one.expert is None)
    routed = sum(one.count for one in tensors if len(one.shape) == 2 and one.expert is not None)
    active = weights + (routed * model.experts_per_token / model.experts if routed else 0)
    return 2 * active + seq * model.heads * (model.head_dim + model.value_dim)


# ---------------------------------------------------------------------------------------------------------------
# Memory


def memory(job: Job, mesh: Mesh, rank: int, sharding: str, recompute: bool = False) -> dict[str, float]:
    """Return the bytes of weights, gradients, optimizer state and activations of `rank`."""
    tensors = job.tensors_of(mesh, rank)
    dense, experts = _counts(tensors)
    whole = dense + experts
    shard = dense / mesh.length(sharded.SHARD_AXES) + experts / mesh.length(sharded.EXPERT_SHARD_AXES)
    kept = shard if sharding == "fsdp" else whole
    weights, gradients = (kept * itemsize(dtype) for dtype in (job.param_dtype, job.grad_dtype))
    if sharding == "fsdp":  # and one unit gathered, with its gradients
        unit = largest_unit(tensors)
        weights, gradients = weights + unit * itemsize(job.param_dtype), gradients + unit * itemsize(job.grad_dtype)
    return {
        "weights": weights,
        "gradients": gradients,
        "optimizer": OPTIMIZER_NBYTES * (whole if sharding == "ddp" else shard),
        "activations": activations(job, mesh, rank, recompute),
    }


def _counts(tensors: Iterable[Tensor]) -> tuple[int, int]:
    counts = {False: 0, True: 0}
    for tensor in tensors:
        counts[tensor.expert is not None] += tensor.count
    return counts[False], counts[True]


def largest_unit(tensors: Iterable[Tensor]) -> int:
    """Return the elements of the largest layer, or of what is outside the layers, as a rank has it."""
    units: dict[str, int] = {}
    for tensor in tensors:
        unit = tensor.name.partition(".")[0] if tensor.name.startswith("layer") else "root"
        units[unit] = units.get(unit, 0) + tensor.count
    return max(units.values())


def activations(job: Job, mesh: Mesh, rank: int, recompute: bool = False) -> float:
    """Return the bytes that wait for the backward pass on `rank` at its worst moment, with one micro-batch's logits.

    A layer keeps, a token: its input, the two norms' outputs and the input of the second half (4h), Q, K, V and the
    output of attention (ad + g(d + d') + ad'), and of the feed-forward its inner values (3f gated, else 2f); attention
    weights are not kept (FlashAttention, arXiv 2205.14135). With `recompute` only inputs of layers are kept, and one
    layer whole. All of it is cut over tp (Korthikanti et al. 2022, arXiv 2205.05198).
    """
    model, tp = job.model, mesh.length("tp")
    stage, stages = mesh.coordinate("pp", rank), mesh.length("pp")
    layers = [layer for chunk in job.layer_chunks(mesh, rank) for layer in chunk]
    kept = [layer_elements(model, model.is_moe(layer)) for layer in layers]
    # No stage has more micro-batches under way than there are stages, however many follow.
    first = replace(job, micro_batches=min(job.micro_batches, stages))
    held = most_under_way(actions_of(first, mesh, rank, "1f1b"))
    token = held * (model.hidden * len(layers) if recompute else sum(kept)) + (max(kept) if recompute else 0)
    nbytes = job.tokens(mesh) * token * job.itemsize / tp
    if stage == stages - 1:
        nbytes += job.tokens(mesh) * model.vocab / tp * (job.itemsize + itemsize(job.accumulate_dtype))
    return nbytes


def layer_elements(model: Model, moe: bool) -> float:
    """Return the elements that a layer keeps for one token."""
    inner = 3 if model.gated else 2
    feed_forward: float = inner * model.ffn
    if moe:
        feed_forward = inner * model.expert_ffn * (model.experts_per_token + model.shared_experts)
        feed_forward += 2 * model.experts_per_token * model.hidden  # tokens as they arrived, and what came of them
    attention = (model.heads + model.kv_heads) * (model.head_dim + model.value_dim)
    return 4 * model.hidden + attention + feed_forward
