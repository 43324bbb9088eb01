"""Megatron's sequence parallel, on top of tensor parallel (Korthikanti et al. 2022, arXiv 2205.05198).

Between the pairs of linear layers the tokens are cut over the same ranks that cut the layers: s/t tokens a rank. What
was a sum becomes a reduce-scatter after the pair and an all-gather before it: the same bytes. Since the input of a pair
is kept cut, it is gathered once more in the backward pass. What stands between pairs (norms, the router, experts) sees
only the own tokens, and its gradients are summed over tp at the end.
"""

from __future__ import annotations

from strategies import tensors
from strategies.arrays import cut, joined
from strategies.choice import check_axes, find_variant
from strategies.mesh import Mesh, divide
from strategies.passes import Passes, alone, synchronise
from strategies.record import Wire
from strategies.reference import Array, reference
from strategies.schedule import one_stage
from strategies.share import SEQUENCE_AXES, Share
from strategies.tensor import TensorCalls, TensorParallel
from strategies.tensors import Back
from strategies.traffic import Calls, Job, Traffic, on
from strategies.transformer import Attention, Result, Transformer, Weights, causal, is_expert

VARIANTS = {"train": "a training step"}


class SequenceCalls(TensorCalls):
    """What the same places communicate where tokens rest cut. ValueError where they do not divide."""

    def __init__(self, job: Job, mesh: Mesh):
        super().__init__(job, mesh)
        tp = mesh.length("tp")
        divide(job.tokens(mesh) // job.batch, tp, "tokens of a rank", f"tp={tp}")

    def _gather(self, phase: str, why: str) -> Calls:
        nbytes = self.job.activation_nbytes(self.mesh)
        return on(self.mesh, "tp", "allgather", nbytes, phase, dtype=self.job.dtype, why=why)

    def _scatter(self, phase: str, why: str) -> Calls:
        nbytes = self.job.activation_nbytes(self.mesh)
        return on(self.mesh, "tp", "reduce_scatter", nbytes, phase, dtype=self.job.dtype, why=why)

    def embed(self, phase: str) -> Calls:
        """Forward the rows found are reduce-scattered along the sequence; backward their gradients are gathered."""
        return self._scatter(phase, "embedding") if phase == "forward" else self._gather(phase, "gradient of embedding")

    def column(self, phase: str) -> Calls:
        """Forward the tokens are gathered; backward once more, and the gradient of the input is reduce-scattered."""
        if phase == "forward":
            return self._gather(phase, "tokens before a pair")
        return self._gather(phase, "tokens once more") + self._scatter(phase, "gradient of the input")

    def row(self, phase: str) -> Calls:
        """Forward the results are reduce-scattered; backward their gradients are gathered."""
        return self._scatter(phase, "partial results") if phase == "forward" else self._gather(phase, "gradient")

    def shared_count(self, rank: int) -> int:
        """Count the elements of norms, routers and experts."""
        held = self.job.tensors_of(self.mesh, rank)
        return sum(one.count for one in held if one.cut is None or one.expert is not None)

    def activation_nbytes(self) -> int:
        """Bytes of the tokens that rest on a rank."""
        return self.job.activation_nbytes(self.mesh) // self.mesh.length("tp")


def traffic(job: Job, mesh: Mesh, rank: int) -> Traffic:
    """Give the calls of a step."""
    find_variant(VARIANTS, job.variant)
    linear = SequenceCalls(job, mesh)
    yield from alone(Passes(job, mesh, linear), rank)
    yield from synchronise(job, mesh, rank)
    yield from linear.synchronise(rank)


class SequenceParallel(TensorParallel):
    """Linear layers cut over tp between tokens cut over tp; s is that of the group, s/t what rests on a rank."""

    def __init__(self, wire: Wire, shared: frozenset[str]):
        super().__init__(wire)
        self._shared = shared

    def gather(self, x: Array) -> Array:
        """Put the tokens of the group together: (b, s/t, h) to (b, s, h)."""
        return joined(self.wire.allgather("tp", x), axis=1)

    def scatter(self, x: Array) -> Array:
        """Sum over the group and keep the own tokens: (b, s, h) to (b, s/t, h)."""
        return self.wire.reduce_scatter("tp", cut(x, self.wire.mesh.length("tp"), axis=1))

    def embed(self, tokens: Array, table: Array) -> tuple[Array, Back]:
        """Look up tokens (b, s) in the own rows of the table (V, h): (b, s/t, h)."""
        part, part_back = self._embed_own(tokens, table)

        def back(dx: Array) -> Array:
            return part_back(self.gather(dx))

        return self.scatter(part), back

    def column(self, x: Array, *weights: Array) -> tuple[list[Array], Back]:
        """Gather x (b, s/t, h) and multiply by the own rows (outputs, h) of each weight: (b, s, outputs)."""
        gathered = self.gather(x)
        ys = [gathered @ weight.T for weight in weights]

        def back(*dys: Array) -> tuple[Array, list[Array]]:
            again = tensors.rows(self.gather(x))  # only x was kept
            first, *others = (dy @ weight for dy, weight in zip(dys, weights, strict=True))
            dx = self.scatter(sum(others, first))
            return dx, [tensors.rows(dy).T @ again for dy in dys]

        return ys, back

    def row(self, x: Array, weight: Array) -> tuple[Array, Back]:
        """Multiply the own columns x (b, s, inputs) by weight (h, inputs), sum, keep the own tokens: (b, s/t, h)."""
        part, part_back = tensors.linear(x, weight)

        def back(dy: Array) -> tuple[Array, Array]:
            return part_back(self.gather(dy))

        return self.scatter(part), back

    def is_shared(self, name: str) -> bool:
        """Norms, routers and experts see only the own tokens."""
        return name in self._shared


def sees_own_tokens(job: Job) -> frozenset[str]:
    """Name the weights that stand between the pairs of linear layers."""
    return frozenset(one.name for one in job.model.tensors() if one.cut is None or is_expert(one.name))


def step(job: Job, wire: Wire) -> Result:
    """Run a training step on this rank."""
    check_axes("sequence", wire.mesh, ("tp",))
    find_variant(VARIANTS, job.variant)
    share = Share(job, wire.mesh, wire.rank, cut_over_tp=True)
    linear = SequenceParallel(wire, sees_own_tokens(job))
    attention = Attention(causal(share.positions))
    return Transformer(share, wire, Weights(share, wire), linear, attention).run(one_stage(job.micro_batches))


def expected(job: Job, mesh: Mesh) -> dict[str, Array]:
    """Give what the steps of all ranks must make together."""
    return reference(job, mesh.length(SEQUENCE_AXES))
