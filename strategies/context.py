"""Context parallel: attention over a sequence that is cut over ranks, each with s/c tokens.

- Ring attention (Liu et al. 2023, arXiv 2310.01889): each rank keeps its queries; keys and values go around the ring as
  one message, c - 1 times, and what each block gives is merged by log-sum-exp. Backward they go around once more, and
  their gradients with them, c times, the last bringing them home.
- All-gather (Llama 3, arXiv 2407.21783, section 3.3.2): K and V are gathered whole, and backward their gradients are
  reduce-scattered. "again" gathers K and V once more backward instead of keeping them.

The sequence is cut contiguously, in zigzag (two chunks a rank, which balances causal attention) or in stripes (every
c-th token). Which keys a query sees goes by their places, so that the cut changes no result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from strategies import tensors
from strategies.arrays import cut, joined, module_of
from strategies.choice import check_axes, find_variant
from strategies.mesh import Mesh, divide
from strategies.passes import LinearCalls, Passes, alone, synchronise
from strategies.record import Wire
from strategies.reference import Array, reference
from strategies.schedule import one_stage
from strategies.share import SEQUENCE_AXES, Share, check_tensor_parallel, positions_of
from strategies.tensors import Back
from strategies.traffic import Calls, Job, Traffic, itemsize, on
from strategies.transformer import Linear, Result, Transformer, Weights, causal, flat


@dataclass(frozen=True)
class Context:
    """How attention is carried out: form ("ring", "allgather"), cut of the sequence, mask; again: see above."""

    form: str = "ring"
    split: str = "contiguous"
    causal: bool = True
    again: bool = False


VARIANTS = {
    "ring": Context(),
    "ring-zigzag": Context(split="zigzag"),
    "ring-striped": Context(split="striped"),
    "ring-full": Context(causal=False),
    "allgather": Context("allgather"),
    "allgather-zigzag": Context("allgather", "zigzag"),
    "allgather-again": Context("allgather", again=True),
}


# ---------------------------------------------------------------------------------------------------------------
# Traffic


class ContextCalls:
    """What attention communicates in one layer."""

    def __init__(self, job: Job, mesh: Mesh, rank: int, variant: Context):
        check_tensor_parallel(job, mesh)
        self.job, self.mesh, self.variant = job, mesh, variant
        self._place = mesh.group_rank("cp", rank)
        model, nranks, ulysses = job.model, mesh.length("cp"), mesh.length("ulysses")
        halves, text = (2, "2·") if variant.split == "zigzag" else (1, "")
        divide(job.seq, halves * nranks * ulysses, "tokens", f"{text}cp·ulysses = {text}{nranks}·{ulysses}")
        # A Ulysses group has the tokens of its ring place together, and each rank of it some of the heads.
        heads = max(model.kv_heads, ulysses) // ulysses // mesh.length("tp")
        tokens = job.batch * job.seq // nranks
        self._key_count, self._value_count = tokens * heads * model.head_dim, tokens * heads * model.value_dim

    def __call__(self, phase: str) -> Calls:
        """Give the calls of `phase`."""
        return self._ring(phase) if self.variant.form == "ring" else self._gather(phase)

    def _ring(self, phase: str) -> Calls:
        count, nranks = self._key_count + self._value_count, self.mesh.length("cp")
        if nranks == 1:
            return ()
        around = {"send_to": (self._place + 1) % nranks, "receive_from": (self._place - 1) % nranks}

        def shift(dtype: str, why: str) -> Calls:
            return on(self.mesh, "cp", "sendrecv", count * itemsize(dtype), phase, dtype=dtype, why=why, **around)

        keys = shift(self.job.dtype, "keys and values")
        if phase == "forward":
            return keys * (nranks - 1)
        gradients = shift(self.job.accumulate_dtype, "their gradients")
        return (keys + gradients) * (nranks - 1) + gradients

    def _gather(self, phase: str) -> Calls:
        nranks, width = self.mesh.length("cp"), itemsize(self.job.accumulate_dtype)
        calls: Calls = ()
        if phase == "forward" or self.variant.again:
            for count, why in ((self._key_count, "keys"), (self._value_count, "values")):
                nbytes = count * nranks * self.job.itemsize
                calls += on(self.mesh, "cp", "allgather", nbytes, phase, dtype=self.job.dtype, why=why)
        if phase == "backward":
            for count, why in ((self._key_count, "gradient of keys"), (self._value_count, "gradient of values")):
                nbytes, dtype = count * nranks * width, self.job.accumulate_dtype
                calls += on(self.mesh, "cp", "reduce_scatter", nbytes, phase, dtype=dtype, why=why)
        return calls


def traffic(job: Job, mesh: Mesh, rank: int) -> Traffic:
    """Give the calls of a step."""
    attention = ContextCalls(job, mesh, rank, find_variant(VARIANTS, job.variant))
    yield from alone(Passes(job, mesh, LinearCalls(job, mesh), attention), rank)
    yield from synchronise(job, mesh, rank)


# ---------------------------------------------------------------------------------------------------------------
# Step


class RingAttention:
    """Attention with keys and values going around cp. positions: of the tokens at each place of the ring, (s/c,)."""

    def __init__(self, wire: Wire, positions: list[Array], is_causal: bool):
        self.wire = wire
        self.nranks, self.place = len(positions), wire.coordinate("cp")
        self._visible = [
            causal(positions[self.place], keys) if is_causal else np.ones((len(keys), len(keys)), bool)
            for keys in positions
        ]

    def __call__(self, q: Array, k: Array, v: Array) -> tuple[Array, Back]:
        """Attend: q (b, s/c, a, d), k (b, s/c, g, d), v (b, s/c, g, dv) to (b, s/c, a, dv)."""
        module = module_of(q)
        output = module.zeros((*q.shape[:3], v.shape[-1]))
        logs = module.full(q.shape[:3], -np.inf)
        for (keys, values), visible in self._around(k, v):
            output, logs = tensors.merge(output, logs, *tensors.attend(q, keys, values, visible))

        def back(dout: Array) -> tuple[Array, Array, Array]:
            dq, travelling = module.zeros_like(q), module.zeros(k.size + v.size)
            for (keys, values), visible in self._around(k, v):
                more, *gradients = tensors.attend_back(dout, q, keys, values, output, logs, visible)
                dq += more
                # They go with the block that they belong to; after c times they are home.
                travelling = self.wire.shift("cp", travelling + pack(*gradients))
            return (dq, *unpack(travelling, k, v))

        return output, back

    def _around(self, k: Array, v: Array) -> Iterator[tuple[tuple[Array, Array], Array]]:
        """Yield each block of keys and values, with what of it is visible, nearest below first."""
        block = pack(k, v)
        for distance in range(self.nranks):
            source = (self.place - distance) % self.nranks
            # The next block is on its way before this one is used, as it would be while computing.
            following = self.wire.shift("cp", block) if distance < self.nranks - 1 else block
            yield unpack(block, k, v), self._visible[source]
            block = following


def pack(k: Array, v: Array) -> Array:
    """Put keys and values into one message."""
    return flat([k, v])


def unpack(message: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """Take them out again, in the shapes of k and v."""
    return message[: k.size].reshape(k.shape), message[k.size :].reshape(v.shape)


class GatheredAttention:
    """Attention to keys and values gathered over cp. positions: as for `RingAttention`."""

    def __init__(self, wire: Wire, positions: list[Array], is_causal: bool, again: bool = False):
        self.wire, self._again = wire, again
        self.nranks, mine, keys = len(positions), positions[wire.coordinate("cp")], np.concatenate(positions)
        self._visible = causal(mine, keys) if is_causal else np.ones((len(mine), len(keys)), bool)

    def __call__(self, q: Array, k: Array, v: Array) -> tuple[Array, Back]:
        """Attend: q (b, s/c, a, d), k (b, s/c, g, d), v (b, s/c, g, dv) to (b, s/c, a, dv)."""
        keys, values = self._gather(k), self._gather(v)
        output, logs = tensors.attend(q, keys, values, self._visible)

        def back(dout: Array) -> tuple[Array, Array, Array]:
            all_keys, all_values = (self._gather(k), self._gather(v)) if self._again else (keys, values)
            dq, dk, dv = tensors.attend_back(dout, q, all_keys, all_values, output, logs, self._visible)
            return dq, self._scatter(dk), self._scatter(dv)

        return output, back

    def _gather(self, x: Array) -> Array:
        return joined(self.wire.allgather("cp", x), axis=1)

    def _scatter(self, x: Array) -> Array:
        return self.wire.reduce_scatter("cp", cut(x, self.nranks, axis=1))


def attention_over(wire: Wire, seq: int, variant: Context) -> RingAttention | GatheredAttention:
    """Make the attention of this rank over the cp of its mesh."""
    members = wire.mesh.group("cp", wire.rank)
    positions = [positions_of(wire.mesh, member, seq, variant.split, "inside") for member in members]
    if variant.form == "ring":
        return RingAttention(wire, positions, variant.causal)
    return GatheredAttention(wire, positions, variant.causal, variant.again)


def step(job: Job, wire: Wire) -> Result:
    """Run a training step on this rank."""
    check_axes("context", wire.mesh, ("cp",))
    variant = find_variant(VARIANTS, job.variant)
    share = Share(job, wire.mesh, wire.rank, variant.split)
    attention = attention_over(wire, job.seq, variant)
    return Transformer(share, wire, Weights(share, wire), Linear(), attention).run(one_stage(job.micro_batches))


def expected(job: Job, mesh: Mesh) -> dict[str, Array]:
    """Give what the steps of all ranks must make together."""
    return reference(job, mesh.length(SEQUENCE_AXES), is_causal=find_variant(VARIANTS, job.variant).causal)
