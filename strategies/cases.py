"""What the audit runs: for a number of ranks, each strategy in all its variants on the meshes that fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from strategies import context, data, expert, hybrid, pipeline, sequence, sharded, tensor, ulysses
from strategies.mesh import PLACEMENTS, Mesh
from strategies.models import Model
from strategies.traffic import Job

STRATEGIES: dict[str, ModuleType] = {
    "data": data,
    "sharded": sharded,
    "tensor": tensor,
    "sequence": sequence,
    "pipeline": pipeline,
    "context": context,
    "ulysses": ulysses,
    "hybrid": hybrid,
    "expert": expert,
}

OWN_AXES = {
    "data": ("dp", "dp_shard", "dp_replicate"),
    "sharded": ("dp", "dp_shard", "dp_replicate"),
    "tensor": ("tp",),
    "sequence": ("tp",),
    "pipeline": ("pp",),
    "context": ("cp",),
    "ulysses": ("ulysses",),
    "hybrid": ("tp", "cp", "ulysses", "pp"),
    "expert": ("ep", "etp"),
}
"""Axes of which at least one must have several ranks, or the strategy does nothing of its own; the usual one first."""


def dense(nranks: int, **changes: Any) -> Model:
    """Make a small model that divides by `nranks`, and twice over where zigzag or pairs need it, wherever it is cut."""
    return replace(
        Model(
            name="audit-dense", layers=2, hidden=12, heads=2 * nranks, kv_heads=2 * nranks, head_dim=2, v_head_dim=3,
            ffn=2 * nranks, vocab=6 * nranks, seq=4 * nranks, tied=True, qk_norm=True, source="made up for the audit",
        ),
        **changes,
    )  # fmt: skip


def mixed(nranks: int) -> Model:
    """Make the same with experts in two of three layers, and one that all tokens share."""
    return dense(
        nranks, name="audit-moe", layers=3, tied=False, experts=2 * nranks, experts_per_token=2, expert_ffn=2 * nranks,
        dense_layers=1, shared_experts=1,
    )  # fmt: skip


def job_of(model: Model, **changes: Any) -> Job:
    """Make a job in float64 throughout, so that a step can be compared with the one-process step to rounding."""
    wide = dict.fromkeys(("dtype", "param_dtype", "grad_dtype", "accumulate_dtype"), "float64")
    return Job(model, **{"batch": 1, "micro_batches": 2, **wide, **changes})


# All axes at once, where the ranks are enough for at least three of them.
WHOLE = {
    4: ("tp=2,dp=2",),
    6: ("tp=3,pp=2", "cp=3,dp=2"),
    8: ("tp=2,cp=2,pp=2", "tp=2,ulysses=2,dp=2"),
    16: ("tp=2,cp=2,pp=2,dp=2",),
}


@dataclass(frozen=True)
class Case:
    """One step to run."""

    strategy: str
    mesh: Mesh
    job: Job

    @property
    def module(self) -> ModuleType:
        """The strategy's file."""
        return STRATEGIES[self.strategy]


def cases(nranks: int) -> Iterator[Case]:
    """List what is run on `nranks` ranks."""
    pairs = [(first, nranks // first) for first in range(2, nranks) if nranks % first == 0]
    for strategy, module in STRATEGIES.items():
        for variant in module.VARIANTS:
            job = job_of(dense(nranks), variant=variant)
            for mesh, fitted in _fitting(strategy, job, nranks, pairs[:1]):
                yield Case(strategy, mesh, fitted)


def _fitting(strategy: str, job: Job, nranks: int, pairs: list[tuple[int, int]]) -> Iterator[tuple[Mesh, Job]]:
    moe = replace(job, model=mixed(nranks), seq=0)
    if strategy == "data":
        yield Mesh({"dp": nranks}), job
    elif strategy == "sharded":
        yield Mesh({"dp": nranks}), job
        for shard, copies in pairs:
            yield Mesh({"dp_shard": shard, "dp_replicate": copies}, "torch"), moe
    elif strategy == "tensor":
        yield Mesh({"tp": nranks}), job
    elif strategy == "sequence":
        yield Mesh({"tp": nranks}), moe
    elif strategy == "pipeline":
        stages = 2 if job.variant == "interleaved" else 1
        model = replace(job.model, layers=nranks * stages + 1)
        yield Mesh({"pp": nranks}), replace(job, model=model, virtual_stages=stages, micro_batches=2 * nranks)
    elif strategy == "context":
        yield Mesh({"cp": nranks}), replace(job, model=dense(nranks, kv_heads=nranks))
    elif strategy == "ulysses":
        for kv_heads in (2 * nranks, 1):
            yield Mesh({"ulysses": nranks}), replace(job, model=dense(nranks, kv_heads=kv_heads))
    elif strategy == "hybrid":
        yield from _hybrid(job, nranks, pairs)
    elif strategy == "expert":
        routings = ("uniform", "zipf:1.5", "all-to-one") if job.variant != "allgather" else ("zipf:1.5",)
        for routing in routings:
            yield Mesh({"ep": nranks}), replace(moe, routing=routing)
        for other, ep in pairs:
            for axis in ("etp", "expert_dp"):
                yield Mesh({axis: other, "ep": ep}, "megatron-expert"), replace(moe, routing="zipf:0.5")


def _hybrid(job: Job, nranks: int, pairs: list[tuple[int, int]]) -> Iterator[tuple[Mesh, Job]]:
    if job.variant == "interleaved":
        for stages, others in pairs or [(nranks, 1)]:
            layered = replace(job, model=dense(nranks, layers=2 * stages), virtual_stages=2, micro_batches=stages)
            yield Mesh({"pp": stages, "dp": others}), layered
        return
    for ulysses_length, cp in pairs:
        for placement in PLACEMENTS:
            yield Mesh({"ulysses": ulysses_length, "cp": cp}, placement=placement), job
    for spec in WHOLE.get(nranks, ()):
        yield Mesh(spec), job
