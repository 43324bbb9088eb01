"""Tensor parallel: each rank has some heads, some of the inner width and some of the vocabulary (Shoeybi et al. 2019).

The first linear layer of a pair is cut by its outputs and needs nothing but, backward, the sum of the gradient of its
input (f); the second is cut by its inputs and its results are summed (g). arXiv 1909.08053, section 3. The embedding
and the loss are cut over the vocabulary; the loss sums three numbers a token instead of gathering logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from strategies import tensors
from strategies.arrays import beside, joined, module_of
from strategies.choice import check_axes, find_variant
from strategies.mesh import Mesh
from strategies.passes import LinearCalls, Passes, alone, synchronise
from strategies.record import Wire
from strategies.reference import Array, reference
from strategies.schedule import one_stage
from strategies.share import SEQUENCE_AXES, Share, check_tensor_parallel
from strategies.tensors import Back
from strategies.traffic import Calls, Job, Traffic, itemsize, on
from strategies.transformer import (
    ROOT,
    Attention,
    Linear,
    Piece,
    Result,
    Transformer,
    Weights,
    causal,
    flat,
    unflat,
)

VARIANTS = {
    "train": "a training step",
    "decode": "one token of each sequence in inference, after s - 1 others; logits are gathered",
}

HEAD_NORMS = ("q_norm", "k_norm")
"""Weights that all ranks have and each uses for its own heads, so that their gradients are to be summed."""


class TensorCalls(LinearCalls):
    """What tensor-parallel linear layers, embedding and loss communicate. ValueError where heads do not divide."""

    def __init__(self, job: Job, mesh: Mesh):
        check_tensor_parallel(job, mesh)
        super().__init__(job, mesh)

    def _sum(self, phase: str, why: str) -> Calls:
        nbytes = self.job.activation_nbytes(self.mesh)
        return on(self.mesh, "tp", "allreduce", nbytes, phase, dtype=self.job.dtype, why=why)

    def embed(self, phase: str) -> Calls:
        """Forward, the rows found by each rank are summed."""
        return self._sum(phase, "embedding") if phase == "forward" else ()

    def column(self, phase: str) -> Calls:
        """Backward, the gradient of the input is summed."""
        return self._sum(phase, "gradient of the input") if phase == "backward" else ()

    def row(self, phase: str) -> Calls:
        """Forward, the results are summed."""
        return self._sum(phase, "partial results") if phase == "forward" else ()

    def loss(self) -> Calls:
        """The highest logit, the logit of the target and the sum of exponentials, one number a token each."""
        dtype = self.job.accumulate_dtype
        nbytes = self.job.tokens(self.mesh) * itemsize(dtype)
        return tuple(
            call
            for op, why in (("max", "highest logit"), ("sum", "logit of the target"), ("sum", "sum of exponentials"))
            for call in on(self.mesh, "tp", "allreduce", nbytes, "forward", dtype=dtype, op=op, why=why)
        )

    def shared_count(self, rank: int) -> int:
        """Count the elements whose gradients hold only part of what the group found."""
        names = (tensor for tensor in self.job.tensors_of(self.mesh, rank) if tensor.name.endswith(HEAD_NORMS))
        return sum(tensor.count for tensor in names)

    def synchronise(self, rank: int) -> Calls:
        """Sum those gradients, in one piece."""
        nbytes = self.shared_count(rank) * itemsize(self.job.grad_dtype)
        dtype = self.job.grad_dtype
        return on(self.mesh, "tp", "allreduce", nbytes, "step", dtype=dtype, why="norms") if nbytes else ()


def traffic(job: Job, mesh: Mesh, rank: int) -> Traffic:
    """Give the calls of a step."""
    if find_variant(VARIANTS, job.variant) == VARIANTS["decode"]:
        yield from decode_traffic(job, mesh, rank)
        return
    linear = TensorCalls(job, mesh)
    yield from alone(Passes(job, mesh, linear), rank)
    yield from synchronise(job, mesh, rank)
    yield from linear.synchronise(rank)


def decode_traffic(job: Job, mesh: Mesh, rank: int) -> Traffic:
    """Give the calls of decoding one token of each of b sequences: b·h elements a time, the logits b·V."""
    token = replace(job, seq=1, micro_batches=1)
    passes = Passes(token, mesh, TensorCalls(token, mesh))
    yield from passes.linear.embed("forward")
    for layers in token.layer_chunks(mesh, rank):
        yield from passes.layers(layers, "forward")
    padded = job.model.embedding_tensors[0].part(mesh.length("tp")).shape[0] * mesh.length("tp")
    nbytes = job.batch * padded * job.itemsize
    yield from on(mesh, "tp", "allgather", nbytes, "forward", dtype=job.dtype, why="logits")


class TensorParallel(Linear):
    """Linear layers cut over tp; tokens and hidden states are whole on every rank. Shapes with V, f, a for V/t, ..."""

    def __init__(self, wire: Wire):
        self.wire = wire

    def embed(self, tokens: Array, table: Array) -> tuple[Array, Back]:
        """Look up tokens (b, s) in the own rows of the table (V, h), and sum what all ranks found: (b, s, h)."""
        part, back = self._embed_own(tokens, table)
        return self.wire.allreduce("tp", part), back

    def _embed_own(self, tokens: Array, table: Array) -> tuple[Array, Back]:
        local, mine = self._own(tokens, table, len(table))
        found, found_back = tensors.embedding(local, table)

        def back(dx: Array) -> Array:
            return found_back(dx * mine[..., None])

        return found * mine[..., None], back

    def _own(self, tokens: Array, tensor: Array, nrows: int) -> tuple[Array, Array]:
        """Give places of tokens in the own rows of the vocabulary, 0 where elsewhere, and whether they are here.

        Both lie beside `tensor`.
        """
        local = tokens - self.wire.coordinate("tp") * nrows
        mine = (local >= 0) & (local < nrows)
        return beside(np.where(mine, local, 0), tensor), beside(mine, tensor)

    def column(self, x: Array, *weights: Array) -> tuple[list[Array], Back]:
        """Multiply x (b, s, h) by the own rows (outputs, h) of each weight."""
        ys, whole_back = super().column(x, *weights)

        def back(*dys: Array) -> tuple[Array, list[Array]]:
            dx, dweights = whole_back(*dys)
            return self.wire.allreduce("tp", dx), dweights

        return ys, back

    def row(self, x: Array, weight: Array) -> tuple[Array, Back]:
        """Multiply the own columns x (b, s, inputs) by weight (h, inputs), and sum over ranks: (b, s, h)."""
        part, back = super().row(x, weight)
        return self.wire.allreduce("tp", part), back

    def loss(self, logits: Array, targets: Array, scale: float) -> tuple[Array, Back]:
        """Give the cross-entropy of logits (b, s, V), of which each rank has its part of V, at targets (b, s)."""
        module = module_of(logits)
        highest = self.wire.allreduce("tp", logits.max(axis=-1), op="max")
        shifted = logits - highest[..., None]
        local, mine = self._own(targets, logits, logits.shape[-1])
        here = module.take_along_axis(shifted, local[..., None], axis=-1)[..., 0]
        at_target = self.wire.allreduce("tp", module.where(mine, here, 0))
        total = self.wire.allreduce("tp", module.exp(shifted).sum(axis=-1))

        def back() -> Array:
            dlogits = module.exp(shifted) / total[..., None]
            own = (module.arange(logits.shape[-1]) == local[..., None]) * mine[..., None]
            return scale * (dlogits - own)

        return scale * (module.log(total) - at_target).sum(), back

    def is_shared(self, name: str) -> bool:
        """Tell whether the gradient of a weight holds only part of what the group found."""
        return name.endswith(HEAD_NORMS)

    def synchronise(self, gradients: dict[str, Array]) -> None:
        """Sum such gradients, in one piece."""
        shared = {name: gradient for name, gradient in gradients.items() if self.is_shared(name)}
        if shared:
            gradients.update(unflat(self.wire.allreduce("tp", flat(shared.values())), shared))


def step(job: Job, wire: Wire) -> Result:
    """Run a training step, or decode a token, on this rank."""
    check_axes("tensor", wire.mesh, ("tp",))
    if find_variant(VARIANTS, job.variant) == VARIANTS["decode"]:
        return decode(job, wire)
    share = Share(job, wire.mesh, wire.rank)
    attention = Attention(causal(share.positions))
    return Transformer(share, wire, Weights(share, wire), TensorParallel(wire), attention).run(
        one_stage(job.micro_batches)
    )


class Cached:
    """Attention of one new token to itself and to the keys and values of s - 1 tokens before it, by layer."""

    def __init__(self, share: Share):
        job, model = share.job, share.job.model
        self._keys: list[tuple[Array, Array]] = []
        tp, place = share.mesh.length("tp"), share.mesh.coordinate("tp", share.rank)
        for layer in range(model.layers):
            generator = np.random.default_rng([3, layer])
            shape = share.replicas * job.batch, job.seq - 1, model.kv_heads
            cached = [generator.normal(size=(*shape, width)) for width in (model.head_dim, model.value_dim)]
            rows = slice(share.sequences.start, share.sequences.stop)
            k, v = (np.split(whole[rows], tp, axis=2)[place] for whole in cached)
            self._keys.append((k, v))

    def __call__(self, q: Array, k: Array, v: Array) -> tuple[Array, Back]:
        """Attend: q (b, 1, a, d), k (b, 1, g, d), v (b, 1, g, dv) to (b, 1, a, dv). There is no way back."""
        past_k, past_v = self._keys.pop(0)
        module = module_of(k)
        keys, values = (
            module.concatenate([beside(past, now), now], axis=1) for past, now in ((past_k, k), (past_v, v))
        )
        output, _ = tensors.attend(q, keys, values, np.ones((1, keys.shape[1]), bool))
        return output, _no_way_back


def _no_way_back(*gradients: Array) -> Mapping[str, Array]:
    raise NotImplementedError("decoding computes no gradients")


def decode(job: Job, wire: Wire) -> Result:
    """Decode one token of each sequence; gives the logits (b, V), gathered."""
    share = Share(replace(job, seq=1, micro_batches=1), wire.mesh, wire.rank)
    cached = Cached(Share(job, wire.mesh, wire.rank))
    model = Transformer(share, wire, Weights(share, wire), TensorParallel(wire), cached)
    wire.phase = "forward"
    root = model.weights.fetch(ROOT)
    x, _ = model.linear.embed(share.batch(0)[0], root["embedding"])
    for number in model.chunks[0]:
        x, _ = model.layer(number, x)
    x, _ = tensors.rms_norm(x, root["final_norm"])
    (logits,), _ = model.linear.column(x, root["embedding" if job.model.tied else "head"])
    gathered = joined(wire.allgather("tp", logits[:, 0]), axis=-1)
    rows = slice(share.sequences.start, share.sequences.stop)
    return Result(0.0, [Piece("logits", gathered, lambda whole: whole[rows])])


def expected(job: Job, mesh: Mesh) -> dict[str, Array]:
    """Give what the steps of all ranks must make together."""
    replicas = mesh.length(SEQUENCE_AXES)
    if find_variant(VARIANTS, job.variant) != VARIANTS["decode"]:
        return reference(job, replicas)
    whole = decode(replace(job, batch=replicas * job.batch), Wire(None, Mesh({})))
    return {piece.name: piece.value for piece in whole.pieces}
