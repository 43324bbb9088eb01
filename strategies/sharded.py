"""Sharded data parallel: ranks keep shards of gradients, optimizer state and weights (ZeRO, arXiv 1910.02054; FSDP).

- ZeRO-1 and ZeRO-2: buckets of gradients are reduce-scattered, each rank updates its shard, the weights are gathered.
  ZeRO-1 keeps whole gradients and reduces them after the last micro-batch, ZeRO-2 after every one.
- DeepSpeed's default is an all-reduce of each bucket, of which a rank keeps its shard; without
  `use_multi_rank_bucket_allreduce` a reduce to the owner of each shard (deepspeed/runtime/zero/stage_1_and_2.py).
- FSDP (ZeRO-3, Zhao et al. 2023, arXiv 2304.11277): a layer's weights are gathered before its forward pass and again
  before its backward pass, its gradients reduce-scattered; what is outside the layers is one more unit, the root.

On a mesh with dp_replicate the shards are spread over the other data-parallel axes only, and their gradients summed
over dp_replicate after the last micro-batch: HSDP, or Megatron's partial distributed optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import numpy as np

from strategies.arrays import module_of
from strategies.choice import check_axes, find_variant
from strategies.data import MIB, fill
from strategies.mesh import EXPERT_REPLICA_AXES, REPLICA_AXES, Mesh
from strategies.models import Tensor
from strategies.record import Wire
from strategies.reference import Array, reference
from strategies.schedule import one_stage
from strategies.share import Share, draw_weights
from strategies.traffic import Calls, Job, Traffic, itemsize, on, repeated
from strategies.transformer import (
    RATE,
    ROOT,
    Attention,
    Linear,
    Piece,
    Result,
    Transformer,
    Weights,
    causal,
    flat,
    unit_of,
)


@dataclass(frozen=True)
class Zero:
    """Stages 1 and 2: how a bucket is reduced, when, and after how many bytes (or elements) it closes."""

    reduction: str = "reduce_scatter"
    every_micro_batch: bool = False
    first_nbytes: int = MIB
    nbytes: int = 25 * MIB
    elements: int = 0


@dataclass(frozen=True)
class Fsdp:
    """Stage 3. keep: whether gathered weights stay from the forward to the backward pass of a micro-batch."""

    keep: bool = False


VARIANTS: dict[str, Zero | Fsdp] = {
    "fsdp": Fsdp(),
    "fsdp-keep": Fsdp(keep=True),
    "zero1": Zero(),
    "zero2": Zero(every_micro_batch=True),
    "zero2-small-buckets": Zero(every_micro_batch=True, first_nbytes=1 << 10, nbytes=8 << 10),
    "deepspeed1": Zero("allreduce", elements=500_000_000),
    "deepspeed2": Zero("allreduce", every_micro_batch=True, elements=500_000_000),
    "deepspeed2-owner": Zero("reduce", every_micro_batch=True, elements=500_000_000),
}

SHARD_AXES = tuple(axis for axis in REPLICA_AXES if axis != "dp_replicate")
EXPERT_SHARD_AXES = tuple(axis for axis in EXPERT_REPLICA_AXES if axis != "dp_replicate")
REPLICATE_AXES = ("dp_replicate",)


def padded(count: int, parts: int) -> int:
    """Return the next multiple of `parts`: shards are equal, so the last one is filled up."""
    return -(-count // parts) * parts


# ---------------------------------------------------------------------------------------------------------------
# Traffic


def traffic(job: Job, mesh: Mesh, rank: int) -> Traffic:
    """Give the calls of a step."""
    variant = find_variant(VARIANTS, job.variant)
    if isinstance(variant, Fsdp):
        yield from _fsdp_traffic(job, mesh, rank, variant)
    else:
        yield from _zero_traffic(job, mesh, rank, variant)


def _kinds(mesh: Mesh, tensors: Sequence[Tensor]) -> list[tuple[tuple[str, ...], list[Tensor]]]:
    """Group weights by the axes that shard them: experts apart from others where those axes differ."""
    if mesh.used(SHARD_AXES) == mesh.used(EXPERT_SHARD_AXES):
        return [(SHARD_AXES, list(tensors))]
    kinds = [(SHARD_AXES, [one for one in tensors if one.expert is None])]
    kinds.append((EXPERT_SHARD_AXES, [one for one in tensors if one.expert is not None]))
    return [(axes, held) for axes, held in kinds if held]


def _zero_traffic(job: Job, mesh: Mesh, rank: int, variant: Zero) -> Traffic:
    width = itemsize(job.grad_dtype)
    first, nbytes = (variant.elements * width,) * 2 if variant.elements else (variant.first_nbytes, variant.nbytes)
    buckets = [
        (axes, padded(sum(one.count for one in bucket), mesh.length(axes)))
        for axes, tensors in _kinds(mesh, job.tensors_of(mesh, rank)[::-1])
        for bucket in fill(tensors, width, first, nbytes)
    ]
    for micro_batch in range(job.micro_batches):
        last = micro_batch == job.micro_batches - 1
        if last or variant.every_micro_batch:
            for axes, count in buckets:
                yield from _reduction(job, mesh, axes, count, variant.reduction)
                if last:
                    yield from _replicas(job, mesh, axes, count)
    for axes, count in buckets:
        nbytes = count * itemsize(job.param_dtype)
        yield from on(mesh, axes, "allgather", nbytes, "step", dtype=job.param_dtype, why="updated weights")


def _reduction(job: Job, mesh: Mesh, axes: tuple[str, ...], count: int, primitive: str) -> Calls:
    nbytes, dtype = count * itemsize(job.grad_dtype), job.grad_dtype
    if primitive != "reduce":
        return on(mesh, axes, primitive, nbytes, "backward", dtype=dtype, why="bucket of gradients")
    nranks = mesh.length(axes)
    return tuple(
        call
        for root in range(nranks)
        for call in on(
            mesh, axes, "reduce", nbytes // nranks, "backward", dtype=dtype, root=root, why="shard to its owner"
        )
    )


def _replicas(job: Job, mesh: Mesh, axes: tuple[str, ...], count: int) -> Calls:
    nbytes = count // mesh.length(axes) * itemsize(job.grad_dtype)
    return on(mesh, REPLICATE_AXES, "allreduce", nbytes, "backward", dtype=job.grad_dtype, why="shard over replicas")


def _fsdp_traffic(job: Job, mesh: Mesh, rank: int, variant: Fsdp) -> Traffic:
    units = _units(job, mesh, rank)

    def each(order: Sequence[tuple[str, tuple[Tensor, ...]]], phase: str, calls: Callable[..., Calls]) -> Traffic:
        for _, same in groupby(order, key=lambda unit: [(one.count, one.expert is None) for one in unit[1]]):
            run = list(same)
            yield from repeated(calls(run[0][1]), len(run), f"{phase}, {run[0][0]} to {run[-1][0]}")

    def gathered(phase: str, tensors: Sequence[Tensor]) -> Calls:
        return tuple(
            call
            for axes, held in _kinds(mesh, tensors)
            for call in on(
                mesh, axes, "allgather", _unit_count(mesh, axes, held) * itemsize(job.param_dtype), phase,
                dtype=job.param_dtype, why="weights of a unit",
            )
        )  # fmt: skip

    def reduced(tensors: Sequence[Tensor], last: bool) -> Calls:
        return tuple(
            call
            for axes, held in _kinds(mesh, tensors)
            for call in (
                *_reduction(job, mesh, axes, _unit_count(mesh, axes, held), "reduce_scatter"),
                *(_replicas(job, mesh, axes, _unit_count(mesh, axes, held)) if last else ()),
            )
        )

    def again(tensors: Sequence[Tensor]) -> Calls:
        return () if variant.keep else gathered("backward", tensors)

    root, layers = units[0], units[1:]
    for micro_batch in range(job.micro_batches):
        last = micro_batch == job.micro_batches - 1
        yield from each(units, "forward", partial(gathered, "forward"))
        yield from again(root[1])
        yield from each(layers[::-1], "backward", lambda unit, last=last: again(unit) + reduced(unit, last))
        yield from reduced(root[1], last)


def _units(job: Job, mesh: Mesh, rank: int) -> list[tuple[str, tuple[Tensor, ...]]]:
    """List the units of weights of a rank: the root, then each layer."""
    units: dict[int, list[Tensor]] = {ROOT: []}
    for tensor in job.tensors_of(mesh, rank):
        units.setdefault(unit_of(tensor.name), []).append(tensor)
    return [("root" if unit == ROOT else f"layer {unit}", tuple(tensors)) for unit, tensors in units.items()]


def _unit_count(mesh: Mesh, axes: tuple[str, ...], tensors: Sequence[Tensor]) -> int:
    return padded(sum(one.count for one in tensors), mesh.length(axes))


# ---------------------------------------------------------------------------------------------------------------
# Step


class ShardedWeights(Weights):
    """Weights of which each rank owns a shard of every vector (a bucket or a unit), padded to equal shards."""

    def __init__(self, share: Share, wire: Wire):
        super().__init__(share, wire)
        self.nranks = wire.mesh.length(SHARD_AXES)
        self.place = wire.mesh.group_rank(SHARD_AXES, wire.rank)

    def vector(self, arrays: Sequence[Array]) -> Array:
        """Lay arrays end to end and fill up to whole shards: (n·shard,)."""
        values = flat(arrays)
        module = module_of(values)
        filled: Array = module.concatenate([values, module.zeros(-len(values) % self.nranks)])
        return filled

    def shard(self, vector: Array) -> Array:
        """Give the own shard of a vector."""
        return vector.reshape(self.nranks, -1)[self.place]

    def shard_pieces(self, kind: str, names: Sequence[str], shard: Array) -> list[Piece]:
        """Give, of each weight in a vector, the part that lies in the own shard."""
        pieces, offset = [], 0
        start = self.place * len(shard)
        for name in names:
            count = self.arrays[name].size
            low, high = max(start - offset, 0), min(start + len(shard) - offset, count)
            if low < high:
                at = offset + low - start
                pieces.append(Piece(f"{kind} {name}", shard[at : at + high - low], partial(_elements, low, high)))
            offset += count
        return pieces

    def sum_over_replicas(self, shard: Array) -> Array:
        """Sum a shard of gradients over the replicas of the sharding."""
        return self.wire.allreduce(REPLICATE_AXES, shard)


def _elements(low: int, high: int, whole: Array) -> Array:
    return whole.reshape(-1)[low:high]


class ZeroWeights(ShardedWeights):
    """Whole weights, shards of gradients: reduced in buckets, updated in shards, gathered at the end."""

    def __init__(self, share: Share, wire: Wire, variant: Zero):
        super().__init__(share, wire)
        self._variant = variant
        self._open: list[str] = []
        self._buckets: list[list[str]] = []
        self._shards: dict[str, Array] = {}  # of gradients, by the first name in the bucket
        self._waiting = set(share.names)

    def ready(self, names: Sequence[str], last: bool) -> None:
        """Put gradients into buckets, in reverse order, and reduce each bucket that is full."""
        variant = self._variant
        if not (last or variant.every_micro_batch):
            return
        for name in reversed(names):
            self._open.append(name)
            self._waiting.discard(name)
            held = [self.gradients[one] for one in self._open]
            if variant.elements:
                full = sum(array.size for array in held) >= variant.elements
            else:
                limit = variant.nbytes if self._buckets else variant.first_nbytes
                full = sum(array.nbytes for array in held) >= limit
            if full or not self._waiting:
                self._reduce(last)
        if not self._waiting:
            self._waiting = set(self.share.names)
            if not last:
                self._buckets = []

    def _reduce(self, last: bool) -> None:
        names, self._open = self._open, []
        vector = self.vector([self.gradients[name] for name in names])
        if self._variant.reduction == "reduce_scatter":
            shard = self.wire.reduce_scatter(SHARD_AXES, vector.reshape(self.nranks, -1))
        elif self._variant.reduction == "allreduce":
            shard = self.shard(self.wire.allreduce(SHARD_AXES, vector))
        else:
            parts = [
                self.wire.reduce(SHARD_AXES, part, root)
                for root, part in enumerate(module_of(vector).split(vector, self.nranks))
            ]
            (shard,) = (part for part in parts if part is not None)
        if self._variant.every_micro_batch:  # each was reduced by itself, so that the next starts from nothing
            shard = shard + self._shards.get(names[0], 0)
            for name in names:
                self.gradients[name][...] = 0
        self._buckets.append(names)
        self._shards[names[0]] = self.sum_over_replicas(shard) if last else shard

    def synchronise(self) -> None:
        """Nothing is left to sum."""

    def update(self) -> None:
        """Update the own shard of each bucket, then gather the weights."""
        for names in self._buckets:
            old = self.shard(self.vector([self.arrays[name] for name in names]))
            new = self.wire.allgather(SHARD_AXES, old - RATE * self._shards[names[0]]).reshape(-1)
            for name in names:
                array = self.arrays[name]
                array[...] = new[: array.size].reshape(array.shape)
                new = new[array.size :]

    def pieces(self) -> list[Piece]:
        """Give the shards of gradients and the whole weights."""
        weights = [piece for piece in super().pieces() if piece.name.startswith("weight ")]
        return weights + [
            piece for names in self._buckets for piece in self.shard_pieces("gradient", names, self._shards[names[0]])
        ]


class FsdpWeights(ShardedWeights):
    """Shards of everything; a unit's weights are whole only between `fetch` and `release`."""

    def __init__(self, share: Share, wire: Wire, variant: Fsdp):
        super().__init__(share, wire)
        self._keep = variant.keep
        self._held: set[int] = set()
        self._ready: set[str] = set()
        self._buffers: dict[int, Array] = {}
        self._shards: dict[int, Array] = {}
        self._gradient_shards: dict[int, Array] = {}
        whole = draw_weights(share.job.model)
        for unit in {unit_of(name): None for name in share.names}:
            names = self.names(unit)
            vector = wire.placed(self.vector([whole[name] for name in names]))
            module = module_of(vector)
            self._shards[unit] = self.shard(vector).copy()
            self._gradient_shards[unit] = module.zeros_like(self._shards[unit])
            self._buffers[unit] = module.full_like(vector, np.nan)
            at = 0
            for name in names:  # views, so that what is gathered again is seen by whoever holds them
                shape = self.arrays[name].shape
                count = self.arrays[name].size
                self.arrays[name] = self._buffers[unit][at : at + count].reshape(shape)
                at += count

    def fetch(self, unit: int) -> dict[str, Array]:
        """Gather a unit's weights unless they are here."""
        if unit not in self._held:
            self._buffers[unit][...] = self.wire.allgather(SHARD_AXES, self._shards[unit]).reshape(-1)
            self._held.add(unit)
        return super().fetch(unit)

    def release(self, unit: int) -> None:
        """Forget a unit's weights; NaN stands where nothing is held, so that a missing gather is seen."""
        if self._keep and self.wire.phase == "forward":
            return
        self._held.discard(unit)
        self._buffers[unit][...] = np.nan

    def ready(self, names: Sequence[str], last: bool) -> None:
        """Reduce-scatter a unit's gradients once all of them are there."""
        self._ready.update(names)
        unit = unit_of(names[0])
        members = self.names(unit)
        if self._ready.issuperset(members):
            self._ready.difference_update(members)
            vector = self.vector([self.gradients[name] for name in members])
            self._gradient_shards[unit] += self.wire.reduce_scatter(SHARD_AXES, vector.reshape(self.nranks, -1))
            for name in members:
                self.gradients[name][...] = 0
            if last:
                self._gradient_shards[unit] = self.sum_over_replicas(self._gradient_shards[unit])

    def synchronise(self) -> None:
        """Nothing is left to sum."""

    def update(self) -> None:
        """Update the own shards."""
        for unit, shard in self._shards.items():
            shard -= RATE * self._gradient_shards[unit]

    def pieces(self) -> list[Piece]:
        """Give the shards of gradients and weights."""
        return [
            piece
            for kind, shards in (("gradient", self._gradient_shards), ("weight", self._shards))
            for unit, shard in shards.items()
            for piece in self.shard_pieces(kind, self.names(unit), shard)
        ]


def step(job: Job, wire: Wire) -> Result:
    """Run a training step on this rank: b sequences of its own in each micro-batch."""
    check_axes("sharded", wire.mesh, ())
    variant = find_variant(VARIANTS, job.variant)
    share = Share(job, wire.mesh, wire.rank)
    weights = FsdpWeights(share, wire, variant) if isinstance(variant, Fsdp) else ZeroWeights(share, wire, variant)
    return Transformer(share, wire, weights, Linear(), Attention(causal(share.positions))).run(
        one_stage(job.micro_batches)
    )


def expected(job: Job, mesh: Mesh) -> dict[str, Array]:
    """Give what the steps of all ranks must make together."""
    return reference(job, mesh.length(REPLICA_AXES))
