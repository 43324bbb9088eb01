"""Rank the meshes on which a model can be trained, by predicted time per step. An estimate; needs no MPI and no GPU.

python -m bench.planner --model llama3-70b --world 64 --gpus-per-node 8 --network a.toml --flops 400T
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from typing import NoReturn

from bench.estimate import SHARDINGS, Estimate, Machine, estimates
from bench.network import Network, rate, read_network
from bench.usage import UsageError
from collectives.printing import reader_may_leave
from strategies.mesh import Mesh
from strategies.models import MODELS, Model, find_model
from strategies.traffic import Job

AXES = ("tp", "cp", "ulysses", "ep", "pp")
"""Axes that are tried; what is left of the world is dp."""

LEFT_OUT = (
    "communication that hides behind computing, and calls of different axes that share a link",
    "what is not a matrix product: norms, softmax, the optimizer, loading data, checkpoints",
    "tokens that choose experts unevenly",
    "memory of libraries, fragmentation, and kernels' own space",
)

GIB = 2.0**30


@dataclass(frozen=True)
class Asked:
    """What was asked. batch: sequences of a step, over all GPUs; micro_batch: of one rank at a time."""

    model: Model
    world: int
    machine: Machine
    batch: int
    micro_batch: int
    seq: int
    axes: tuple[str, ...]
    shardings: tuple[str, ...]
    recompute: bool
    top: int


@dataclass(frozen=True)
class Ranking:
    """Estimates that fit in memory, the fastest first; how many did not, and why other meshes cannot be."""

    fits: list[Estimate]
    too_large: list[Estimate]
    impossible: Counter[str]


def meshes(asked: Asked) -> Iterator[Mesh]:
    """Yield every mesh over the axes that are tried whose lengths divide the world and what they cut."""
    model = asked.model
    seq = asked.seq or model.seq
    most = {
        "tp": gcd(model.heads, model.kv_heads) if not model.kv_rank else 1,
        "cp": seq,
        "ulysses": model.heads,
        "ep": model.experts or 1,
        "pp": model.layers,
    }

    def lengths(axes: Sequence[str], left: int) -> Iterator[dict[str, int]]:
        if not axes:
            yield {"dp": left}
            return
        axis, *others = axes
        for length in _divisors(left):
            fits = length <= most[axis] and (axis == "pp" or most[axis] % length == 0)
            if fits and (axis in asked.axes or length == 1):
                for rest in lengths(others, left // length):
                    yield {axis: length, **rest}

    for found in lengths(AXES, asked.world):
        yield Mesh(found)


def ranked(asked: Asked) -> Ranking:
    """Estimate all of them, with each way to hold weights over data-parallel ranks."""
    ranking = Ranking([], [], Counter())
    for mesh in meshes(asked):
        replicas = mesh.length("dp") * mesh.length("ep")
        if asked.batch % (replicas * asked.micro_batch):
            ranking.impossible["the sequences of a step do not divide by replicas times micro-batch"] += 1
            continue
        job = Job(
            asked.model,
            batch=asked.micro_batch,
            seq=asked.seq,
            micro_batches=asked.batch // (replicas * asked.micro_batch),
        )
        try:
            found = list(estimates(job, mesh, asked.shardings, asked.machine, asked.recompute))
        except ValueError as reason:
            ranking.impossible[_kind_of(str(reason))] += 1
            continue
        for one in found:
            (ranking.fits if one.memory <= asked.machine.memory else ranking.too_large).append(one)
    ranking.fits.sort(key=lambda one: one.time)
    ranking.too_large.sort(key=lambda one: one.memory)
    return ranking


def _kind_of(reason: str) -> str:
    """Return a reason without its numbers, so that equal ones are counted together."""
    return " ".join(word for word in reason.split(":")[0].split() if not any(letter.isdigit() for letter in word))


def _divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


def report(asked: Asked, ranking: Ranking) -> str:
    """Return the ranking as text, with what it is and what it leaves out."""
    machine, model = asked.machine, asked.model
    tokens = asked.batch * (asked.seq or model.seq)
    lines = [
        f"An estimate, not a measurement: {model.name} on {asked.world} GPUs, {machine.gpus} a node, "
        f"{machine.flops / 1e12:g} TFLOP/s and {machine.memory / GIB:g} GiB each",
        *(
            f"links {place} nodes: {link.latency * 1e6:.3g} us, {link.bandwidth / 1e9:.4g} GB/s a GPU"
            for place, link in (("inside", machine.network.inside), ("between", machine.network.between))
        ),
        f"a step is {asked.batch} sequences of {asked.seq or model.seq} tokens, micro-batches of {asked.micro_batch}",
        "",
        f"{'':>3}  {'mesh':<34} {'weights':<8} {'m':>5} {'step s':>9} {'compute':>9} {'comm':>9} {'bubble':>9} "
        f"{'GiB':>7} {'tokens/s/GPU':>13}",
    ]
    for place, one in enumerate(ranking.fits[: asked.top], start=1):
        parts = (one.time, one.compute, one.communication, one.bubble)
        lines.append(
            f"{place:>3}  {one.mesh.spec or 'one GPU':<34} {one.sharding:<8} {one.micro_batches:>5} "
            f"{' '.join(f'{part:>9.3g}' for part in parts)} {one.memory / GIB:>7.1f} "
            f"{tokens / one.time / asked.world:>13.0f}"
        )
    if not ranking.fits:
        lines.append("     none fits")
        nearest = ranking.too_large[:1]
        lines += [f"     nearest: {one.mesh.spec} {one.sharding} needs {one.memory / GIB:.1f} GiB" for one in nearest]
    lines += ["", f"{len(ranking.fits)} fit, {len(ranking.too_large)} need more than {machine.memory / GIB:g} GiB"]
    lines += [f"{count} cannot be: {reason}" for reason, count in ranking.impossible.most_common(5)]
    lines += ["left out:", *(f"- {one}" for one in LEFT_OUT)]
    if not asked.recompute:
        lines.append("- recomputing activations (--recompute)")
    lines += [f"- {note}" for note in machine.network.notes]
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------------------------------
# The command


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError("the command line", "", f"{message}; --help shows how it is used")


def parse(argv: Sequence[str]) -> Asked:
    """Read what is asked. Raises UsageError for what cannot be used; exits for --help."""
    words = _parser().parse_args(argv)
    if words.model is None:
        raise UsageError("--model", "", f"name one of {', '.join(MODELS)}, or FILE.toml")
    if words.network is None:
        raise UsageError("--network", "", "name a .toml file or the folder of a run; --help shows what is in it")
    try:
        model = find_model(words.model)
    except ValueError as error:
        raise UsageError("--model", words.model, str(error)) from error
    network: Network = read_network(words.network)
    world = _whole("--world", words.world, 1)
    machine = Machine(
        network,
        _whole("--gpus-per-node", words.gpus_per_node, 1),
        _rate("--flops", words.flops),
        _rate("--memory", words.memory) / 1e9 * GIB,
    )
    axes = _some("--axes", words.axes, (*AXES, "dp"))
    return Asked(
        model,
        world,
        machine,
        world if words.batch is None else _whole("--batch", words.batch, 1),
        _whole("--micro-batch", words.micro_batch, 1),
        _whole("--seq", words.seq, 0),
        axes,
        _some("--weights", words.weights, SHARDINGS),
        words.recompute,
        _whole("--top", words.top, 1),
    )


def _some(option: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in known:
            raise UsageError(option, name, f"known: {', '.join(known)}", "unknown name")
    return names


def _whole(option: str, text: str, least: int) -> int:
    if not text.isdecimal() or len(text) > 9 or int(text) < least:
        raise UsageError(option, text, f"must be a whole number, {least} or more")
    return int(text)


def _rate(option: str, text: str) -> float:
    try:
        return rate(text)
    except ValueError as error:
        raise UsageError(option, text, str(error)) from error


def _parser() -> _Parser:
    parser = _Parser(
        prog="python -m bench.planner",
        description="Rank meshes by predicted time per step, and show what fits in memory. An estimate.",
        epilog="--network: a .toml file with [inside] and [between], each with latency = '3us' and bandwidth = '400G' "
        "(1e9 bytes a second of one GPU), or the folder of a run with sendrecv_pingpong; several with commas between.",
        allow_abbrev=False,
    )
    for flag, metavar, default, meaning in (
        ("--model", "NAME", None, f"{', '.join(MODELS)}, or FILE.toml"),
        ("--world", "N", "8", "GPUs"),
        ("--gpus-per-node", "N", "8", "GPUs of a node"),
        ("--network", "FILE", None, "latency and bandwidth, given or measured"),
        ("--flops", "RATE", "400T", "what one GPU reaches in matrix products, a second"),
        ("--memory", "SIZE", "80G", "of one GPU, in GiB where G"),
        ("--batch", "N", None, "sequences of a step over all GPUs (default: one a GPU)"),
        ("--micro-batch", "N", "1", "sequences of a micro-batch on one rank"),
        ("--seq", "N", "0", "tokens of a sequence (0: the model's)"),
        ("--axes", "AXIS,...", "tp,cp,ep,pp,dp", f"which are tried: {', '.join(AXES)}, dp"),
        ("--weights", "NAME,...", ",".join(SHARDINGS), "how data-parallel ranks hold them"),
        ("--top", "N", "10", "how many are shown"),
    ):
        shown = "" if default is None or "default" in meaning else f" (default: {default})"
        parser.add_argument(flag, metavar=metavar, default=default, help=meaning + shown)
    parser.add_argument("--recompute", action="store_true", help="keep only the inputs of layers, and compute again")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command: 0 if a mesh fits, 1 if none does, 2 for options that make no sense."""
    try:
        asked = parse(sys.argv[1:] if argv is None else argv)
    except UsageError as error:
        print(f"bench.planner: {error}", file=sys.stderr)
        return 2
    ranking = ranked(asked)
    with reader_may_leave():
        print(report(asked, ranking))
    return 0 if ranking.fits else 1


if __name__ == "__main__":
    sys.exit(main())
