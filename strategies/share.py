"""Which part of the whole one rank has: sequences, tokens and weights, cut from arrays that every rank can draw."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.layout import tokens_of
from strategies.mesh import REPLICA_AXES, Mesh, block, divide
from strategies.models import Model
from strategies.routing import choices
from strategies.traffic import Job

Array = NDArray[Any]

SPLITS = ("contiguous", "zigzag", "striped")
# Axes whose ranks work on different sequences; those of cp and ulysses share them.
SEQUENCE_AXES = tuple(axis for axis in REPLICA_AXES if axis not in ("cp", "ulysses"))


def positions_of(mesh: Mesh, rank: int, seq: int, split: str = "contiguous", phase: str = "outside") -> Array:
    """List the places in the sequence of the tokens that `rank` holds, in the order in which it holds them.

    split: contiguous or zigzag as in `layout`; striped: every c-th token (Brandon et al. 2023, arXiv 2311.09431).
    phase: outside attention, or inside it, where a Ulysses group has its tokens together.
    """
    if split not in SPLITS:
        raise ValueError(f"{split!r} is no split of a sequence; take {', '.join(SPLITS)}")
    if split != "striped":
        return np.concatenate([np.array(part) for part in tokens_of(mesh, rank, seq, phase, split == "zigzag")])
    cp, ulysses = mesh.length("cp"), mesh.length("ulysses")
    divide(seq, cp * ulysses, "tokens", f"cp·ulysses = {cp}·{ulysses}")
    ring = np.arange(mesh.coordinate("cp", rank), seq, cp)
    return ring if phase == "inside" else np.split(ring, ulysses)[mesh.coordinate("ulysses", rank)]


class Share:
    """One rank's part of a job on a mesh.

    split: how the sequence is cut over cp. cut_over_tp: whether the tokens rest cut over tp as well (Megatron's
    sequence parallelism). ValueError where something does not divide.
    """

    def __init__(self, job: Job, mesh: Mesh, rank: int, split: str = "contiguous", cut_over_tp: bool = False):
        check_tensor_parallel(job, mesh)
        self.job, self.mesh, self.rank = job, mesh, rank
        self.replicas = mesh.length(SEQUENCE_AXES)
        replica = mesh.group_rank(SEQUENCE_AXES, rank)
        self.sequences = range(replica * job.batch, (replica + 1) * job.batch)
        self.positions = positions_of(mesh, rank, job.seq, split)
        self.resting = self.positions
        if cut_over_tp:
            tp = mesh.length("tp")
            divide(len(self.positions), tp, "tokens of a rank", f"tp={tp}")
            part = block(len(self.positions), tp, mesh.coordinate("tp", rank))
            self.resting = self.positions[part.start : part.stop]
        self._whole = {tensor.name: tensor for tensor in job.model.tensors()}
        for tensor in self._whole.values():
            parts, axis = self._cut(tensor.name)
            if tensor.cut is not None:
                divide(tensor.shape[tensor.cut], parts, f"rows or columns of {tensor.name}", f"{axis}={parts}")
        self.names = [tensor.name for tensor in job.tensors_of(mesh, rank)]

    @property
    def nlayers(self) -> int:
        """How many layers this rank has."""
        return self.job.layers_of(self.mesh, self.rank)

    def batch(self, micro_batch: int) -> tuple[Array, Array]:
        """Give the tokens of a micro-batch and those that follow them, each (b, s of this rank)."""
        whole = draw_tokens(self.job, self.replicas)[micro_batch]
        mine = whole[self.sequences.start : self.sequences.stop]
        return mine[:, self.positions], mine[:, self.positions + 1]

    def chosen(self) -> Array:
        """Give the experts (tokens, k) of the tokens resting here."""
        return np.concatenate([choices(self.job, sequence)[self.resting] for sequence in self.sequences])

    def hidden(self, whole: Array) -> Array:
        """Cut activations (sequences, s, h) of all data-parallel ranks to what rests here."""
        return whole[self.sequences.start : self.sequences.stop][:, self.resting]

    def weight(self, name: str, whole: Array) -> Array:
        """Cut a weight, or its gradient, to the part of this rank."""
        cut = self._whole[name].cut
        if cut is None:
            return whole
        parts, axis = self._cut(name)
        return np.split(whole, parts, axis=cut)[self.mesh.coordinate(axis, self.rank)]

    def _cut(self, name: str) -> tuple[int, str]:
        axis = "tp" if self._whole[name].expert is None else "etp"
        return self.mesh.length(axis), axis


def check_tensor_parallel(job: Job, mesh: Mesh) -> None:
    """Refuse what tensor parallelism cannot cut: heads that do not divide, and latent attention."""
    tp = mesh.length("tp")
    divide(job.model.heads, tp, "heads", f"tp={tp}")
    divide(job.model.kv_heads, tp, "key/value heads", f"tp={tp}")
    if tp > 1 and job.model.kv_rank:
        raise ValueError(
            f"tp={tp}: model {job.model.name} has latent attention, whose low-rank projections are not described for "
            "tensor parallelism; take tp=1"
        )


@lru_cache(maxsize=4)
def draw_weights(model: Model) -> dict[str, Array]:
    """Draw all weights by name: matrices (outputs, inputs) that keep the scale of their input, norms around 1.

    They are kept for the next call, so whoever changes them takes a copy.
    """
    weights = {}
    for number, tensor in enumerate(model.tensors()):
        noise = np.random.default_rng([1, number]).normal(size=tensor.shape)
        weights[tensor.name] = 1 + 0.1 * noise if len(tensor.shape) == 1 else noise / np.sqrt(tensor.shape[-1])
    return weights


def draw_tokens(job: Job, replicas: int) -> Array:
    """Draw the tokens of a step: (m, replicas·b, s + 1), the last one only as a target."""
    shape = (job.micro_batches, replicas * job.batch, job.seq + 1)
    return np.random.default_rng(2).integers(job.model.vocab, size=shape)
