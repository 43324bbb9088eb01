"""Options of the strategy part of a sweep: which training steps are replayed, on which mesh. No MPI."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from fractions import Fraction

from bench.usage import UsageError
from strategies.cases import OWN_AXES, STRATEGIES, WHOLE
from strategies.choice import find_variant
from strategies.mesh import DEFAULT_ORDER, ORDERS, PLACEMENTS, Mesh, parse_order
from strategies.models import MODELS, Model, find_model
from strategies.routing import expert_shares
from strategies.traffic import Job


@dataclass(frozen=True)
class StrategyOptions:
    """What to replay. `demanded`: what does not fit is refused, rather than skipped with the reason."""

    names: tuple[str, ...]
    demanded: bool = True
    variant: str = ""
    model: str = "tiny"
    mesh: str = ""  # blank: all ranks on the strategy's own axis
    order: str = DEFAULT_ORDER
    placement: str | None = None
    batch: int = 1
    seq: int = 0  # 0: the model's own
    micro_batches: int = 1
    virtual_stages: int = 1
    routing: str = "uniform"
    scale: Fraction = Fraction(1)
    overlap: bool = False
    algorithms: tuple[str, ...] = ()  # beside native; empty: those of the sweep
    max_seconds: float | None = None  # for each kind of call and each whole step; None: as in the sweep


SHORT = StrategyOptions(
    ("tensor", "ulysses", "expert"),
    demanded=False,
    scale=Fraction(1, 4),
    algorithms=("spread", "pairwise", "recursive_doubling", "window"),
    max_seconds=0.1,
)
"""What a sweep with defaults replays: a tiny model and few contenders, so that it takes seconds."""


@dataclass(frozen=True)
class Training:
    """One strategy's step to replay; `reason` says why not, and is blank where nothing speaks against it."""

    strategy: str
    job: Job
    mesh: Mesh | None = None
    reason: str = ""


def add_arguments(group: argparse._ArgumentGroup) -> None:
    """Add the options. Values stay text, so that each is checked, and refused in the same words, by `parse`."""
    given = (
        ("--strategy", "NAME,...", None, f"replay training steps: {', '.join(STRATEGIES)}, or all"),
        ("--variant", "NAME", "", "a form of the strategy, such as fsdp or ring-zigzag (default: its usual one)"),
        ("--model", "NAME", SHORT.model, f"{', '.join(MODELS)}, or FILE.toml (default: {SHORT.model})"),
        ("--mesh", "AXIS=N,...", "", "such as tp=2,cp=2,dp=2 (default: all ranks on the strategy's own axis)"),
        ("--order", "NAME", DEFAULT_ORDER, f"of axes, fastest first: {', '.join(ORDERS)}, or as tp-cp-dp"),
        ("--placement", "NAME", None, f"which of Ulysses and ring has neighbours: {', '.join(PLACEMENTS)}"),
        ("--batch", "N", "1", "sequences in a micro-batch (default: 1)"),
        ("--seq", "N", "0", "tokens in a sequence (default: the model's)"),
        ("--micro-batches", "N", "1", "in a step (default: 1)"),
        ("--virtual-stages", "N", "1", "of a pipeline stage, for interleaved schedules (default: 1)"),
        ("--routing", "NAME", "uniform", "how tokens choose experts: uniform, zipf:1.5, all-to-one"),
        ("--scale-bytes", "X", "1", "multiply all messages with this, such as 1/64, for a small machine"),
    )
    for flag, metavar, default, meaning in given:
        group.add_argument(flag, metavar=metavar, default=default, help=meaning)
    meaning = "compute between start and wait, with and without polling, and tell what is left exposed"
    group.add_argument("--overlap", action="store_true", help=meaning)


def parse(words: argparse.Namespace) -> StrategyOptions | None:
    """Return the options in these words; None where no strategy is named. Raises UsageError."""
    if words.strategy is None:
        for name, default in (("mesh", ""), ("variant", ""), ("placement", None), ("overlap", False)):
            if getattr(words, name) != default:
                raise UsageError(f"--{name}", getattr(words, name), "goes with --strategy: name one, or all")
        return None
    names = tuple(dict.fromkeys(name.strip() for name in words.strategy.split(",")))
    every = "all" in names
    for name in () if every else names:
        if name not in STRATEGIES:
            raise UsageError("--strategy", name, f"known: {', '.join(STRATEGIES)}, all", "unknown strategy")
    try:
        scale = Fraction(words.scale_bytes)
    except (ValueError, ZeroDivisionError):
        scale = Fraction(0)
    if scale <= 0:
        raise UsageError("--scale-bytes", words.scale_bytes, "must be a share above 0, such as 1/64 or 0.5")
    try:
        find_model(words.model)
    except ValueError as error:
        raise UsageError("--model", words.model, str(error)) from error
    try:
        expert_shares(words.routing, 1)
    except ValueError as error:
        raise UsageError("--routing", words.routing, str(error)) from error
    if words.placement is not None and words.placement not in PLACEMENTS:
        raise UsageError("--placement", words.placement, f"known: {', '.join(PLACEMENTS)}", "unknown placement")
    try:
        parse_order(words.order)
    except ValueError as error:
        raise UsageError("--order", words.order, str(error)) from error
    return StrategyOptions(
        tuple(STRATEGIES) if every else names,
        demanded=not every,
        variant=words.variant,
        model=words.model,
        mesh=words.mesh,
        order=words.order,
        placement=words.placement,
        routing=words.routing,
        scale=scale,
        overlap=words.overlap,
        batch=_count(words.batch, "--batch", 1),
        seq=_count(words.seq, "--seq", 0),
        micro_batches=_count(words.micro_batches, "--micro-batches", 1),
        virtual_stages=_count(words.virtual_stages, "--virtual-stages", 1),
    )


def trainings(options: StrategyOptions, nranks: int) -> list[Training]:
    """Return the steps to replay on `nranks` ranks.

    Raises UsageError for a mesh that cannot be, and, where strategies are demanded by name, for what does not fit.
    """
    model = find_model(options.model)
    found = [_training(options, name, model, nranks) for name in options.names]
    for one in found:
        if one.reason and options.demanded:
            raise UsageError("--strategy", one.strategy, one.reason, "cannot replay")
    return found


def _training(options: StrategyOptions, name: str, model: Model, nranks: int) -> Training:
    job = Job(
        model,
        batch=options.batch,
        seq=options.seq,
        micro_batches=options.micro_batches,
        virtual_stages=options.virtual_stages,
        routing=options.routing,
    )
    variants = STRATEGIES[name].VARIANTS
    if options.variant:
        try:
            find_variant(variants, options.variant)
        except ValueError as error:
            if options.demanded:
                raise UsageError("--variant", options.variant, f"{name}: {error}") from error
            return Training(name, job, reason=str(error))
        job = replace(job, variant=options.variant)
    spec = options.mesh or _own_mesh(name, nranks)
    if not spec:
        return Training(name, job, reason=f"{name} has no mesh of its own for {nranks} ranks; give --mesh")
    try:
        mesh = Mesh(spec, options.order, nranks, options.placement)
    except ValueError as error:
        raise UsageError("--mesh", spec, str(error)) from error
    own = OWN_AXES[name]
    if all(mesh.length(axis) == 1 for axis in own):
        return Training(name, job, mesh, f"{name} needs one of the axes {', '.join(own)} longer than 1 in --mesh")
    try:
        for rank in mesh.group("pp", 0):
            for _ in STRATEGIES[name].traffic(job, mesh, rank):
                pass
    except ValueError as error:
        return Training(name, job, mesh, str(error))
    return Training(name, job, mesh)


def _own_mesh(name: str, nranks: int) -> str:
    return next(iter(WHOLE.get(nranks, ())), "") if name == "hybrid" else f"{OWN_AXES[name][0]}={nranks}"


def _count(text: str, option: str, least: int) -> int:
    if not text.isdecimal() or len(text) > 9 or int(text) < least:
        raise UsageError(option, text, f"must be a whole number, {least} or more")
    return int(text)
