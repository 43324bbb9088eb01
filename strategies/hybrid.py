"""All axes in one step: tensor and sequence parallel, ring and Ulysses, pipeline and data parallel.

Each axis keeps the form that its own file gives it; here they are put together. Ring and Ulysses together are USP
(Fang and Zhao 2024, arXiv 2405.07719): Ulysses outside, and inside it a ring over the ranks that have the same heads.
Which of the two is innermost is the placement of the mesh, and changes who is whose neighbour but no call.
"""

from __future__ import annotations

from dataclasses import dataclass

from strategies.choice import check_axes, find_variant
from strategies.context import Context, ContextCalls, attention_over
from strategies.data import VARIANTS as BUCKETS
from strategies.data import BucketedWeights, Buckets, Ready, broadcasts
from strategies.mesh import Mesh
from strategies.passes import Passes, tied_embedding, walk
from strategies.pipeline import actions_of
from strategies.record import Wire
from strategies.reference import Array, reference
from strategies.sequence import SequenceCalls, SequenceParallel, sees_own_tokens
from strategies.share import SEQUENCE_AXES, Share
from strategies.traffic import Job, Traffic
from strategies.transformer import Result, Transformer
from strategies.ulysses import Ulysses, UlyssesAttention, UlyssesCalls, kv_copies

SEPARATE = Ulysses()


@dataclass(frozen=True)
class Hybrid:
    """The form of each axis."""

    context: Context
    ulysses: Ulysses = SEPARATE
    schedule: str = "1f1b"
    buckets: Buckets = BUCKETS["ddp"]


VARIANTS = {
    "zigzag": Hybrid(Context(split="zigzag")),
    "contiguous": Hybrid(Context()),
    "allgather": Hybrid(Context("allgather", "zigzag"), Ulysses(fused=True)),
    "interleaved": Hybrid(Context(split="zigzag"), schedule="interleaved", buckets=BUCKETS["small-buckets"]),
}


def traffic(job: Job, mesh: Mesh, rank: int) -> Traffic:
    """Give the calls of a step."""
    variant = find_variant(VARIANTS, job.variant)
    linear = SequenceCalls(job, mesh)
    attention = UlyssesCalls(job, mesh, variant.ulysses, ContextCalls(job, mesh, rank, variant.context))
    yield from broadcasts(job, mesh, rank, variant.buckets)
    actions = actions_of(job, mesh, rank, variant.schedule)
    yield from walk(Passes(job, mesh, linear, attention), rank, actions, Ready(job, mesh, rank, variant.buckets))
    yield from linear.synchronise(rank)
    yield from tied_embedding(job, mesh, rank)


def step(job: Job, wire: Wire) -> Result:
    """Run a training step on this rank."""
    check_axes("hybrid", wire.mesh, ("tp", "cp", "ulysses", "pp"))
    mesh, variant = wire.mesh, find_variant(VARIANTS, job.variant)
    tp = mesh.length("tp")
    share = Share(job, mesh, wire.rank, variant.context.split, cut_over_tp=True)
    kv_copies(job.model.heads // tp, job.model.kv_heads // tp, mesh.length("ulysses"))
    attention = UlyssesAttention(wire, attention_over(wire, job.seq, variant.context), variant.ulysses)
    linear = SequenceParallel(wire, sees_own_tokens(job))
    weights = BucketedWeights(share, wire, variant.buckets)
    model = Transformer(share, wire, weights, linear, attention)
    return model.run(actions_of(job, mesh, wire.rank, variant.schedule))


def expected(job: Job, mesh: Mesh) -> dict[str, Array]:
    """Give what the steps of all ranks must make together."""
    return reference(job, mesh.length(SEQUENCE_AXES), is_causal=find_variant(VARIANTS, job.variant).context.causal)
