"""Ulysses: before attention the ranks exchange tokens for heads, after it heads for tokens (arXiv 2309.14509).

Each of u ranks holds s/u tokens with all heads. All-to-alls of Q, K and V give it all s tokens with a/u heads; after
attention one more takes the output back; backward the same four the other way round. K and V have g heads: where g < u,
each is repeated until there are u, and the gradients of the copies are summed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

from strategies.arrays import cut, joined, module_of
from strategies.choice import check_axes, find_variant
from strategies.mesh import Mesh, divide
from strategies.passes import LinearCalls, Passes, alone, no_calls, synchronise
from strategies.record import Wire
from strategies.reference import Array, reference
from strategies.schedule import one_stage
from strategies.share import SEQUENCE_AXES, Share, check_tensor_parallel, positions_of
from strategies.tensors import Back
from strategies.traffic import Calls, Job, Traffic, on
from strategies.transformer import Attention, Linear, Result, Transformer, Weights, causal


@dataclass(frozen=True)
class Ulysses:
    """fused: whether Q, K and V travel in one call."""

    fused: bool = False


VARIANTS = {"separate": Ulysses(), "fused": Ulysses(fused=True)}


def kv_copies(heads: int, kv_heads: int, nranks: int) -> int:
    """Return how often each key/value head is repeated so that all ranks get one. ValueError if heads do not divide."""
    divide(heads, nranks, "heads", f"ulysses={nranks}")
    if kv_heads >= nranks:
        divide(kv_heads, nranks, "key/value heads", f"ulysses={nranks}")
        return 1
    return divide(nranks, kv_heads, "Ulysses ranks", f"{kv_heads} key/value heads, which are repeated to one a rank")


class UlyssesCalls:
    """What one layer's attention communicates, around what the attention inside does."""

    def __init__(self, job: Job, mesh: Mesh, variant: Ulysses, inner: Callable[[str], Calls] = no_calls):
        check_tensor_parallel(job, mesh)
        model, tp, nranks = job.model, mesh.length("tp"), mesh.length("ulysses")
        heads, kv_heads = model.heads // tp, model.kv_heads // tp
        kv_heads *= kv_copies(heads, kv_heads, nranks)
        self._mesh, self._dtype, self._fused, self._inner = mesh, job.dtype, variant.fused, inner
        token = job.tokens(mesh) * job.itemsize
        self._nbytes = {
            "queries": token * heads * model.head_dim,
            "keys": token * kv_heads * model.head_dim,
            "values": token * kv_heads * model.value_dim,
            "output": token * heads * model.value_dim,
        }

    def __call__(self, phase: str) -> Calls:
        """Give the calls of `phase`."""
        names = ["queries", "keys", "values"]
        first = [(sum(self._nbytes[name] for name in names), "queries, keys, values")] if self._fused else [
            (self._nbytes[name], name) for name in names
        ]  # fmt: skip
        inputs = self._exchanges(first, phase)
        output = self._exchanges([(self._nbytes["output"], "output")], phase)
        outer = (inputs, output) if phase == "forward" else (output, inputs)
        return outer[0] + self._inner(phase) + outer[1]

    def _exchanges(self, messages: list[tuple[int, str]], phase: str) -> Calls:
        return tuple(
            call
            for nbytes, why in messages
            for call in on(self._mesh, "ulysses", "alltoall", nbytes, phase, dtype=self._dtype, why=why)
        )


def traffic(job: Job, mesh: Mesh, rank: int) -> Traffic:
    """Give the calls of a step."""
    attention = UlyssesCalls(job, mesh, find_variant(VARIANTS, job.variant))
    yield from alone(Passes(job, mesh, LinearCalls(job, mesh), attention), rank)
    yield from synchronise(job, mesh, rank)


class UlyssesAttention:
    """Attention between two exchanges. inner: what attends to all tokens of the group with some of the heads."""

    def __init__(self, wire: Wire, inner: Callable[[Array, Array, Array], tuple[Array, Back]], variant: Ulysses):
        self.wire, self._inner, self._fused = wire, inner, variant.fused
        self._nranks = wire.mesh.length("ulysses")

    def __call__(self, q: Array, k: Array, v: Array) -> tuple[Array, Back]:
        """Attend: q (b, s/u, a, d), k (b, s/u, g, d), v (b, s/u, g, dv) to (b, s/u, a, dv)."""
        copies, repeat = kv_copies(q.shape[2], k.shape[2], self._nranks), module_of(q).repeat
        gathered = self.exchange([q, repeat(k, copies, axis=2), repeat(v, copies, axis=2)], to_heads=True)
        output, inner_back = self._inner(*gathered)

        def back(dout: Array) -> tuple[Array, Array, Array]:
            dgathered = inner_back(*self.exchange([dout], to_heads=True))
            dq, dk, dv = self.exchange(list(dgathered), to_heads=False)
            return dq, _sum_copies(dk, copies), _sum_copies(dv, copies)

        return self.exchange([output], to_heads=False)[0], back

    def exchange(self, arrays: list[Array], to_heads: bool) -> list[Array]:
        """Exchange tokens for heads, (b, s/u, a, d) to (b, s, a/u, d), or back; in one call or one for each array."""
        calls = [arrays] if self._fused else [[array] for array in arrays]
        return [array for together in calls for array in self._exchange(together, to_heads)]

    def _exchange(self, arrays: list[Array], to_heads: bool) -> list[Array]:
        # Cut by heads (axis 2), a block for each rank, what comes are other tokens (axis 1); or the other way round.
        along, into = (2, 1) if to_heads else (1, 2)
        blocks = [cut(array, self._nranks, axis=along) for array in arrays]
        flat = [block.reshape(self._nranks, -1) for block in blocks]
        received = self.wire.alltoall("ulysses", module_of(flat[0]).concatenate(flat, axis=1))
        ends = accumulate(block.shape[1] for block in flat)
        return [
            joined(received[:, end - part.shape[1] : end].reshape(block.shape), axis=into)
            for end, part, block in zip(ends, flat, blocks, strict=True)
        ]


def _sum_copies(x: Array, copies: int) -> Array:
    """Sum the gradients of copies of a head: (b, s, g·copies, d) to (b, s, g, d)."""
    return x.reshape(*x.shape[:2], -1, copies, x.shape[3]).sum(axis=3)


def step(job: Job, wire: Wire) -> Result:
    """Run a training step on this rank."""
    check_axes("ulysses", wire.mesh, ("ulysses",))
    variant = find_variant(VARIANTS, job.variant)
    kv_copies(job.model.heads, job.model.kv_heads, wire.mesh.length("ulysses"))
    share = Share(job, wire.mesh, wire.rank)
    inside = positions_of(wire.mesh, wire.rank, job.seq, phase="inside")
    attention = UlyssesAttention(wire, Attention(causal(inside)), variant)
    return Transformer(share, wire, Weights(share, wire), Linear(), attention).run(one_stage(job.micro_batches))


def expected(job: Job, mesh: Mesh) -> dict[str, Array]:
    """Give what the steps of all ranks must make together."""
    return reference(job, mesh.length(SEQUENCE_AXES))
