"""The calls of a training step in the order in which the model makes them, as `transformer` does the work.

A strategy tells what one place communicates: linear layers, attention, the mixture of experts. `Passes` puts the places
in order, layer after layer, and `walk` puts passes and the messages between stages in the order of a schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from strategies.mesh import EXPERT_REPLICA_AXES, REPLICA_AXES, Mesh
from strategies.schedule import Action
from strategies.traffic import Calls, Job, Traffic, itemsize, on, repeated


class LinearCalls:
    """What linear layers, embedding and loss communicate; here nothing."""

    def __init__(self, job: Job, mesh: Mesh):
        self.job, self.mesh = job, mesh

    def embed(self, phase: str) -> Calls:
        """Give the calls of the embedding."""
        return ()

    def column(self, phase: str) -> Calls:
        """Give the calls of a layer cut by outputs."""
        return ()

    def row(self, phase: str) -> Calls:
        """Give the calls of a layer cut by inputs."""
        return ()

    def loss(self) -> Calls:
        """Give the calls of the loss, forward; there are none backward."""
        return ()

    def synchronise(self, rank: int) -> Calls:
        """Give the calls that complete gradients at the end."""
        return ()

    def activation_nbytes(self) -> int:
        """Bytes of the activations that rest on a rank between blocks, and travel between stages."""
        return self.job.activation_nbytes(self.mesh)


def no_calls(phase: str) -> Calls:
    """A place that communicates nothing."""
    return ()


@dataclass
class Passes:
    """Forward and backward through layers. attention, mixture: the calls of one layer by phase."""

    job: Job
    mesh: Mesh
    linear: LinearCalls
    attention: Callable[[str], Calls] = no_calls
    mixture: Callable[[str], Calls] = no_calls
    _known: dict[tuple[int, int, str], Calls] = field(default_factory=dict)

    def layer(self, moe: bool, phase: str) -> Calls:
        """Give the calls of one layer, with experts or without."""
        column, row = self.linear.column(phase), self.linear.row(phase)
        places = [column, self.attention(phase), row]
        if moe:
            places.append(self.mixture(phase))
        if not moe or self.job.model.shared_experts:
            places += [column, row]
        return tuple(call for place in (places if phase == "forward" else reversed(places)) for call in place)

    def layers(self, layers: range, phase: str) -> Calls:
        """Give the calls of several layers, equal ones in a row written once."""
        key = layers.start, layers.stop, phase
        if key not in self._known:
            calls: Calls = ()
            ordered = layers if phase == "forward" else reversed(layers)
            for moe, run in groupby(ordered, key=self.job.model.is_moe):
                numbers = list(run)
                within = f"{phase}, layers {numbers[0]} to {numbers[-1]}"
                calls += repeated(self.layer(moe, phase), len(numbers), within)
            self._known[key] = calls
        return self._known[key]

    def forward(self, layers: range, first: bool, last: bool) -> Traffic:
        """Give the calls of a micro-batch's way through a chunk of layers."""
        if first:
            yield from self.linear.embed("forward")
        yield from self.layers(layers, "forward")
        if last:
            yield from self.linear.column("forward")
            yield from self.linear.loss()

    def backward(self, layers: range, first: bool, last: bool, ready: Callable[[str], Calls] | None = None) -> Traffic:
        """Give the calls of its way back. ready: what follows once "head", a layer's or "embedding" gradients are."""
        if last:
            yield from self.linear.column("backward")
            yield from ready("head") if ready else ()
        if ready:
            for layer in reversed(layers):
                yield from self.layer(self.job.model.is_moe(layer), "backward")
                yield from ready(f"layer{layer}")
        else:
            yield from self.layers(layers, "backward")
        if first:
            yield from self.linear.embed("backward")
            yield from ready("embedding") if ready else ()


def alone(passes: Passes, rank: int) -> Traffic:
    """Give the calls of all micro-batches in turn, without the messages between stages, which `pipeline` tells."""
    chunks = passes.job.layer_chunks(passes.mesh, rank)
    first = passes.mesh.coordinate("pp", rank) == 0
    last = passes.mesh.coordinate("pp", rank) == passes.mesh.length("pp") - 1
    for _ in range(passes.job.micro_batches):
        for number, layers in enumerate(chunks):
            yield from passes.forward(layers, first and number == 0, last and number == len(chunks) - 1)
        for number, layers in reversed(list(enumerate(chunks))):
            yield from passes.backward(layers, first and number == 0, last and number == len(chunks) - 1)


def walk(passes: Passes, rank: int, actions: Sequence[Action], ready: Callable[[str], Calls] | None = None) -> Traffic:
    """Give the calls of one rank's actions, with the messages from and to the stages beside it.

    ready: for the last micro-batch, what follows once gradients are complete.
    """
    job, mesh = passes.job, passes.mesh
    stage, stages = mesh.coordinate("pp", rank), mesh.length("pp")
    chunks = job.layer_chunks(mesh, rank)
    final = stages * len(chunks) - 1
    nbytes = passes.linear.activation_nbytes()

    def message(phase: str, **ends: int) -> Calls:
        return on(mesh, "pp", "sendrecv", nbytes, phase, dtype=job.dtype, why="activations between stages", **ends)

    for phase, micro_batch, chunk in actions:
        number = chunk * stages + stage
        first, last = number == 0, number == final
        if phase == "forward":
            if not first:
                yield from message(phase, receive_from=(number - 1) % stages)
            yield from passes.forward(chunks[chunk], first, last)
            if not last:
                yield from message(phase, send_to=(number + 1) % stages)
        else:
            if not last:
                yield from message(phase, receive_from=(number + 1) % stages)
            completing = ready if micro_batch == job.micro_batches - 1 else None
            yield from passes.backward(chunks[chunk], first, last, completing)
            if not first:
                yield from message(phase, send_to=(number - 1) % stages)


def synchronise(job: Job, mesh: Mesh, rank: int) -> Traffic:
    """Give the sums of gradients over ranks with the same weights and other tokens, in one piece after the backward.

    `data` and `sharded` tell how they are cut into buckets or shards instead.
    """
    counts = {False: 0, True: 0}
    for tensor in job.tensors_of(mesh, rank):
        counts[tensor.expert is not None] += tensor.count
    for axes, count in ((REPLICA_AXES, counts[False]), (EXPERT_REPLICA_AXES, counts[True])):
        if count:
            nbytes = count * itemsize(job.grad_dtype)
            yield from on(mesh, axes, "allreduce", nbytes, "step", dtype=job.grad_dtype, why="gradients")


def tied_embedding(job: Job, mesh: Mesh, rank: int) -> Traffic:
    """Give the sum of a tied embedding's gradients over the first and the last stage."""
    stages = mesh.length("pp")
    if job.model.tied and stages > 1 and mesh.coordinate("pp", rank) in (0, stages - 1):
        count = job.model.embedding_tensors[0].part(mesh.length("tp")).count
        nbytes = count * itemsize(job.grad_dtype)
        yield from on(mesh, "pp", "allreduce", nbytes, "step", ends=True, dtype=job.grad_dtype, why="tied embedding")
