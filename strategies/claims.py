"""The claims of the note that the project began from, as data, and the rules that judge them.

Which primitives a strategy needs: a primitive that is claimed but seen in no variant makes the claim *wrong*; one that
is seen but not claimed, *incomplete*; else it is *right*. The exchange of a ring counts as send/recv, and the forms
with uneven blocks as their even ones. Gradients are synchronised in every strategy, so phase "step", and what happens
once before training, count for data parallel only.

Who holds what: a claimed table is compared with the layout under every placement, phase and cut of the sequence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import product

from strategies.layout import PHASES, experts_of, heads_of, tokens_of
from strategies.mesh import PLACEMENTS, Mesh

FAMILIES = {"alltoallv": "alltoall", "allgatherv": "allgather", "reduce_scatterv": "reduce_scatter"}


@dataclass(frozen=True)
class Claim:
    """A strategy in the note's words, the strategies here that are meant, and the primitives it is said to need."""

    name: str
    strategies: tuple[str, ...]
    primitives: tuple[str, ...]
    phases: tuple[str, ...] = ("forward", "backward")
    remark: str = ""


CLAIMS = (
    Claim(
        "Data Parallel", ("data", "sharded"), ("allreduce", "reduce_scatter"), ("setup", "forward", "backward", "step"),
        "plain data parallel sums gradients; reduce-scatter comes with shards, and then with an all-gather of weights",
    ),
    Claim(
        "Tensor Parallel", ("tensor", "sequence"), ("allreduce", "allgather"),
        remark="alone it sums activations (and gathers logits in inference); all-gather comes with sequence parallel "
        "on the same ranks, and then with its partner reduce-scatter",
    ),
    Claim(
        "Pipeline Parallel", ("pipeline",), ("sendrecv",),
        remark="activations forward and gradients backward; at the end of a step a tied embedding is summed",
    ),
    Claim(
        "Sequence Parallel", ("sequence", "ulysses"), ("scatter", "allgather"),
        remark="two things have this name: Megatron's, by all-gather and reduce-scatter, and Ulysses, by all-to-all; "
        "the entry's cut of the tokens is local",
    ),
    Claim(
        "Context Parallel", ("context",), ("allgather", "sendrecv"),
        remark="ring attention is made of send/recv; the all-gather form reduce-scatters gradients of keys and values",
    ),
    Claim(
        "MoE", ("expert",), ("alltoall",),
        remark="blocks are uneven; counts are gathered first; expert tensor parallel and the all-gather form add "
        "all-gather and reduce-scatter",
    ),
)  # fmt: skip


def judge(claim: Claim, seen: Mapping[str, Iterable[tuple[str, str]]]) -> tuple[str, set[str]]:
    """Give the verdict on a claim, and the primitives that count.

    seen: by strategy, pairs (phase, primitive) over all its variants.
    """
    needed = {
        FAMILIES.get(primitive, primitive)
        for strategy in claim.strategies
        for phase, primitive in seen.get(strategy, ())
        if phase in claim.phases
    }
    if not needed:
        return "not seen: one rank makes no call", needed
    if set(claim.primitives) - needed:
        return "wrong", needed
    return ("incomplete" if needed - set(claim.primitives) else "right"), needed


@dataclass(frozen=True)
class LayoutClaim:
    """A table of the note: for each GPU its first token, tokens and first head and heads, inside a named mesh."""

    name: str
    spec: str
    nranks: int
    seq: int
    heads: int
    holds: tuple[tuple[range, range], ...]


def _quarter(gpu: int) -> range:
    return range(gpu % 4 * 4000, gpu % 4 * 4000 + 4000)


LAYOUT_CLAIMS = (
    LayoutClaim("CP=4 on 8 GPUs", "cp=4", 8, 16000, 16, tuple((_quarter(gpu), range(16)) for gpu in range(8))),
    LayoutClaim(
        "CP=4, SP=2 on 8 GPUs", "cp=4,ulysses=2", 8, 16000, 16,
        tuple((_quarter(gpu), range(gpu // 4 * 8, gpu // 4 * 8 + 8)) for gpu in range(8)),
    ),
)  # fmt: skip


def matches(claim: LayoutClaim) -> list[tuple[str, str, bool, bool]]:
    """Compare a claim with every placement, phase and cut: (placement, phase, zigzag, whether it is so)."""
    found = []
    for placement, phase, zigzag in product(PLACEMENTS, PHASES, (False, True)):
        mesh = Mesh(claim.spec, nranks=claim.nranks, placement=placement)
        holds = tuple(
            (tokens_of(mesh, gpu, claim.seq, phase, zigzag), heads_of(mesh, gpu, claim.heads, phase))
            for gpu in range(claim.nranks)
        )
        so = holds == tuple(([tokens], heads) for tokens, heads in claim.holds)
        found.append((placement, phase, zigzag, so))
    return found


def judge_layout(found: Collection[tuple[str, str, bool, bool]]) -> str:
    """Say where a claimed table holds."""
    true = [_words(*one[:3]) for one in found if one[3]]
    if not true:
        return "wrong: it holds under no placement, phase and cut"
    return "right" if len(true) == len(found) else f"right only for {'; '.join(true)} ({len(true)} of {len(found)})"


def _words(placement: str, phase: str, zigzag: bool) -> str:
    return f"{placement}, {phase} attention, {'zigzag' if zigzag else 'contiguous'}"


def judge_experts(experts: int = 16) -> str:
    """Judge that every GPU of expert parallelism holds complete experts."""
    mesh = Mesh("ep=4")
    own = [experts_of(mesh, rank, experts) for rank in range(4)]
    held = sorted(expert for numbers in own for expert in numbers)
    if held != list(range(experts)):
        return "wrong: experts are missing or on several ranks"
    return (
        f"right with conditions: ep=4 of {experts} experts holds {len(own[0])} whole ones a GPU, not all of them, and "
        "with etp or sharding over data-parallel ranks a part of each"
    )
