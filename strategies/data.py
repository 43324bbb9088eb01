"""Data parallel: every rank has the whole model and other sequences; gradients are summed in buckets (DDP).

A bucket holds whole gradients in the reverse order of the forward pass and is summed as soon as the last of them is
ready, while the backward pass goes on (Li et al. 2020, arXiv 2006.15704). With gradient accumulation only the last
micro-batch does so. At the start the weights are broadcast from the first rank, in phase "setup".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from strategies.choice import check_axes, find_variant
from strategies.mesh import EXPERT_REPLICA_AXES, REPLICA_AXES, Mesh
from strategies.models import Tensor
from strategies.record import Wire
from strategies.reference import Array, reference
from strategies.schedule import one_stage
from strategies.share import Share, draw_weights
from strategies.traffic import Calls, Job, Traffic, itemsize, on
from strategies.transformer import (
    Attention,
    Linear,
    Result,
    Transformer,
    Weights,
    causal,
    flat,
    is_expert,
    unflat,
)

MIB = 1 << 20


@dataclass(frozen=True)
class Buckets:
    """When a bucket closes: once it holds at least so many bytes, the first one earlier so that summing starts early.

    broadcast_nbytes: the same for the buckets of the broadcast at the start.
    """

    first_nbytes: int
    nbytes: int
    broadcast_nbytes: int = 250 * MIB


VARIANTS = {
    "ddp": Buckets(1 * MIB, 25 * MIB),  # as PyTorch has them
    "small-buckets": Buckets(1 << 10, 8 << 10, 16 << 10),  # so that small models make several
}

# Which weights are summed over which ranks: experts over fewer.
KINDS = ((False, REPLICA_AXES), (True, EXPERT_REPLICA_AXES))


def fill(tensors: Sequence[Tensor], itemsize: int, first_nbytes: int, nbytes: int) -> list[list[Tensor]]:
    """Put whole tensors into buckets in this order; a bucket closes once it has reached its size."""
    buckets: list[list[Tensor]] = [[]]
    for tensor in tensors:
        limit = first_nbytes if len(buckets) == 1 else nbytes
        buckets[-1].append(tensor)
        if sum(one.count for one in buckets[-1]) * itemsize >= limit:
            buckets.append([])
    return buckets if buckets[-1] else buckets[:-1]


def traffic(job: Job, mesh: Mesh, rank: int) -> Traffic:
    """Give the calls of a step: the broadcast at the start, then the buckets of gradients."""
    buckets = find_variant(VARIANTS, job.variant)
    yield from broadcasts(job, mesh, rank, buckets)
    ready = Ready(job, mesh, rank, buckets)
    for event in ready.events:
        yield from ready(event)


def broadcasts(job: Job, mesh: Mesh, rank: int, buckets: Buckets) -> Traffic:
    """Give the broadcasts of the weights from the first rank of each group."""
    width = itemsize(job.param_dtype)
    for expert, axes in KINDS:
        tensors = [tensor for tensor in job.tensors_of(mesh, rank) if (tensor.expert is not None) == expert]
        for bucket in fill(tensors, width, buckets.broadcast_nbytes, buckets.broadcast_nbytes):
            nbytes = sum(tensor.count for tensor in bucket) * width
            yield from on(mesh, axes, "broadcast", nbytes, "setup", dtype=job.param_dtype, root=0, why="weights")


class Ready:
    """The sums that follow each event of the backward pass: "head", each layer, "embedding"."""

    def __init__(self, job: Job, mesh: Mesh, rank: int, buckets: Buckets):
        reverse = job.tensors_of(mesh, rank)[::-1]
        first = mesh.coordinate("pp", rank) == 0
        events = [_event(tensor.name, first) for tensor in reverse]
        self.events = list(dict.fromkeys(events))
        width = itemsize(job.grad_dtype)
        closings: list[tuple[int, Calls]] = []  # after which tensor of the reverse order, and what then
        for expert, axes in KINDS:
            places = [place for place, tensor in enumerate(reverse) if (tensor.expert is not None) == expert]
            kind = [reverse[place] for place in places]
            held = 0
            for number, bucket in enumerate(fill(kind, width, buckets.first_nbytes, buckets.nbytes)):
                nbytes = sum(tensor.count for tensor in bucket) * width
                # What is left when the backward pass ends makes the last bucket, full or not.
                full = nbytes >= (buckets.first_nbytes if number == 0 else buckets.nbytes)
                calls = on(mesh, axes, "allreduce", nbytes, "backward", dtype=job.grad_dtype, why="bucket of gradients")
                held += len(bucket)
                closings.append((places[held - 1] if full else len(reverse), calls))
        self._calls: dict[str, Calls] = dict.fromkeys(self.events, ())
        for place, calls in sorted(closings, key=lambda closing: closing[0]):
            self._calls[events[min(place, len(reverse) - 1)]] += calls

    def __call__(self, event: str) -> Calls:
        """Give the calls that follow `event`."""
        return self._calls.get(event, ())


def _event(name: str, first: bool) -> str:
    if name.startswith("layer"):
        return name.split(".")[0]
    return "embedding" if name == "embedding" and first else "head"


class BucketedWeights(Weights):
    """Weights that come by broadcast and whose gradients leave in buckets."""

    def __init__(self, share: Share, wire: Wire, buckets: Buckets):
        start = draw_weights(share.job.model)
        if wire.mesh.group_rank(REPLICA_AXES, wire.rank) > 0:
            start = {name: np.zeros_like(array) for name, array in start.items()}  # they must come by broadcast
        super().__init__(share, wire, start)
        self._buckets = buckets
        self._open: dict[bool, list[str]] = {kind: [] for kind, _ in KINDS}
        self._closed = dict.fromkeys(self._open, 0)
        self._waiting = set(share.names)
        wire.phase = "setup"
        for expert, axes in KINDS:
            held: dict[str, Array] = {}
            for name in [*(name for name in share.names if is_expert(name) == expert), None]:
                if name is not None:
                    held[name] = self.arrays[name]
                full = sum(array.nbytes for array in held.values()) >= buckets.broadcast_nbytes
                if held and (full or name is None):
                    self.arrays.update(unflat(wire.broadcast(axes, flat(held.values())), held))
                    held = {}

    def ready(self, names: Sequence[str], last: bool) -> None:
        """Put gradients that are complete into buckets, and sum each bucket that is full."""
        if not last:
            return
        for name in reversed(names):
            expert = is_expert(name)
            self._waiting.discard(name)
            self._open[expert].append(name)
            limit = self._buckets.nbytes if self._closed[expert] else self._buckets.first_nbytes
            if sum(self.gradients[one].nbytes for one in self._open[expert]) >= limit:
                self._sum(expert)
        if not self._waiting:
            for expert, names in self._open.items():
                if names:
                    self._sum(expert)

    def _sum(self, expert: bool) -> None:
        bucket = {name: self.gradients[name] for name in self._open[expert]}
        summed = self.wire.allreduce(dict(KINDS)[expert], flat(bucket.values()))
        self.gradients.update(unflat(summed, bucket))
        self._open[expert] = []
        self._closed[expert] += 1

    def synchronise(self) -> None:
        """Nothing is left to sum."""


def step(job: Job, wire: Wire) -> Result:
    """Run a training step on this rank: b sequences of its own in each micro-batch."""
    check_axes("data", wire.mesh, ())
    share = Share(job, wire.mesh, wire.rank)
    weights = BucketedWeights(share, wire, find_variant(VARIANTS, job.variant))
    model = Transformer(share, wire, weights, Linear(), Attention(causal(share.positions)))
    return model.run(one_stage(job.micro_batches))


def expected(job: Job, mesh: Mesh) -> dict[str, Array]:
    """Give what the steps of all ranks must make together."""
    return reference(job, mesh.length(REPLICA_AXES))
