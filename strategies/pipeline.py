"""Pipeline parallel: each rank has some layers; activations go to the next stage, their gradients back.

Schedules: GPipe, 1F1B and interleaved, see `schedule`. A stage receives what it needs, works, and sends on without
waiting, so that no two stages wait for each other in a circle. A tied embedding is on the first and the last stage,
which sum its gradients at the end.
"""

from __future__ import annotations

from strategies.choice import check_axes, find_variant
from strategies.mesh import Mesh
from strategies.passes import LinearCalls, Passes, synchronise, tied_embedding, walk
from strategies.record import Wire
from strategies.reference import Array, reference
from strategies.schedule import SCHEDULES, Action
from strategies.share import SEQUENCE_AXES, Share
from strategies.traffic import Job, Traffic
from strategies.transformer import Attention, Linear, Result, Transformer, Weights, causal

VARIANTS = {"1f1b": "1f1b", "gpipe": "gpipe", "interleaved": "interleaved"}


def actions_of(job: Job, mesh: Mesh, rank: int, schedule: str) -> list[Action]:
    """List what the stage of `rank` does, in order. ValueError where the schedule does not fit."""
    stage, stages = mesh.coordinate("pp", rank), mesh.length("pp")
    return SCHEDULES[schedule](stage, stages, job.micro_batches, job.virtual_stages)


def traffic(job: Job, mesh: Mesh, rank: int) -> Traffic:
    """Give the calls of a step."""
    actions = actions_of(job, mesh, rank, find_variant(VARIANTS, job.variant))
    yield from walk(Passes(job, mesh, LinearCalls(job, mesh)), rank, actions)
    yield from synchronise(job, mesh, rank)
    yield from tied_embedding(job, mesh, rank)


def step(job: Job, wire: Wire) -> Result:
    """Run a training step on this rank."""
    check_axes("pipeline", wire.mesh, ("pp",))
    share = Share(job, wire.mesh, wire.rank)
    model = Transformer(share, wire, Weights(share, wire), Linear(), Attention(causal(share.positions)))
    return model.run(actions_of(job, wire.mesh, wire.rank, find_variant(VARIANTS, job.variant)))


def expected(job: Job, mesh: Mesh) -> dict[str, Array]:
    """Give what the steps of all ranks must make together."""
    return reference(job, mesh.length(SEQUENCE_AXES))
