"""Which rank holds what: `python -m strategies.layout --world 8 --mesh cp=4 --seq 16000`.

What an axis cuts, seen at one rank:

- the tokens of a sequence, over cp, contiguous or zigzag. Outside attention Ulysses cuts them further; inside, after
  its all-to-all, it cuts the heads instead, and the tokens of its group are back together.
- the attention heads, over tp, and inside attention over ulysses;
- the experts, over ep: each whole;
- the layers, over pp;
- the sequences of a batch, over the data-parallel axes and ep, whose ranks are data parallel outside the experts.
"""

from __future__ import annotations

import argparse
import colorsys
import csv
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import NoReturn, TextIO

from collectives.printing import reader_may_leave
from strategies.mesh import (
    DEFAULT_ORDER,
    DEFAULT_PLACEMENT,
    ORDERS,
    PLACEMENTS,
    Mesh,
    axis_names,
    block,
    divide,
    parse_order,
    parse_spec,
)

PHASES = ("inside", "outside")
BATCH_AXES = ("dp", "dp_shard", "dp_replicate", "expert_dp", "ep")


def tokens_of(mesh: Mesh, rank: int, seq: int, phase: str = "inside", zigzag: bool = False) -> list[range]:
    """List the tokens of a sequence that `rank` holds, as ascending ranges.

    Contiguous: ring index R has the R-th of c parts. Zigzag: of 2c chunks it has chunks R and 2c-1-R, so that causal
    attention gives each rank the same work (zhuzilin/ring-flash-attention). Outside attention the U-th of u equal
    parts of that. Raises ValueError where seq does not divide by c·u, or by 2·c·u for zigzag.
    """
    cp, ulysses = mesh.length("cp"), mesh.length("ulysses")
    ring = mesh.coordinate("cp", rank)
    if zigzag:
        divide(seq, 2 * cp * ulysses, "tokens", f"2·cp·ulysses = 2·{cp}·{ulysses} (zigzag)")
        held = [block(seq, 2 * cp, ring), block(seq, 2 * cp, 2 * cp - 1 - ring)]
    else:
        divide(seq, cp * ulysses, "tokens", f"cp·ulysses = {cp}·{ulysses}")
        held = [block(seq, cp, ring)]
    if phase == "outside":
        part = seq // (cp * ulysses)
        first = mesh.coordinate("ulysses", rank) * part
        held = _cut(held, first, first + part)
    return held


def heads_of(mesh: Mesh, rank: int, heads: int, phase: str = "inside") -> range:
    """Give the attention heads that `rank` holds: a/t, and inside attention a/(t·u). ValueError if not whole."""
    tp, ulysses = mesh.length("tp"), mesh.length("ulysses")
    divide(heads, tp * ulysses, "heads", f"tp·ulysses = {tp}·{ulysses}")
    held = block(heads, tp, mesh.coordinate("tp", rank))
    if phase == "outside":
        return held
    part = block(len(held), ulysses, mesh.coordinate("ulysses", rank))
    return held[part.start : part.stop]


def experts_of(mesh: Mesh, rank: int, experts: int) -> range:
    """Give the routed experts that `rank` holds, each whole unless etp cuts it. ValueError if ep does not divide."""
    divide(experts, mesh.length("ep"), "experts", f"ep={mesh.length('ep')}")
    return block(experts, mesh.length("ep"), mesh.coordinate("ep", rank))


def layers_of(mesh: Mesh, rank: int, layers: int) -> range:
    """Give the layers of `rank`'s pipeline stage; the first stages have one more where they do not divide."""
    if layers < mesh.length("pp"):
        raise ValueError(f"{layers} layers on pp={mesh.length('pp')} stages leave some empty; take more layers")
    return block(layers, mesh.length("pp"), mesh.coordinate("pp", rank))


def sequences_of(mesh: Mesh, rank: int, batch: int) -> range:
    """Give the sequences of a global batch that `rank` works on. ValueError if they do not divide."""
    replicas = mesh.length(BATCH_AXES)
    used = "·".join(axis for axis in _used_axes(mesh) if axis in BATCH_AXES)
    divide(batch, replicas, "sequences", f"{used or 'dp'} = {replicas}")
    return block(batch, replicas, mesh.group_rank(BATCH_AXES, rank))


def _cut(ranges: list[range], start: int, stop: int) -> list[range]:
    """Take elements start to stop of the ranges laid end to end."""
    pieces, before = [], 0
    for held in ranges:
        pieces.append(held[max(start - before, 0) : max(stop - before, 0)])
        before += len(held)
    return [piece for piece in pieces if piece]


# What can be shown: its option, and what a rank holds of it.
_Find = Callable[[Mesh, int, int, argparse.Namespace], list[range]]
_SHOWN: dict[str, tuple[str, _Find]] = {
    "tokens": ("seq", lambda mesh, rank, seq, args: tokens_of(mesh, rank, seq, args.phase, args.zigzag)),
    "heads": ("heads", lambda mesh, rank, heads, args: [heads_of(mesh, rank, heads, args.phase)]),
    "experts": ("experts", lambda mesh, rank, experts, args: [experts_of(mesh, rank, experts)]),
    "layers": ("layers", lambda mesh, rank, layers, args: [layers_of(mesh, rank, layers)]),
    "sequences": ("batch", lambda mesh, rank, batch, args: [sequences_of(mesh, rank, batch)]),
}
# What an axis cuts first of all; also the order in which one of them is taken to group the picture by.
_CUTS = {"cp": "tokens", "ulysses": "heads", "ep": "experts", "tp": "heads", "pp": "layers"} | dict.fromkeys(
    ("dp", "dp_shard", "dp_replicate", "expert_dp"), "sequences"
)


def holdings(mesh: Mesh, rank: int, args: argparse.Namespace) -> dict[str, list[range]]:
    """Tell what `rank` holds of each thing whose number is given, such as {"tokens": [range(0, 4000)]}."""
    return {
        name: find(mesh, rank, getattr(args, option), args)
        for name, (option, find) in _SHOWN.items()
        if getattr(args, option) is not None
    }


def remarks(mesh: Mesh, args: argparse.Namespace) -> Iterator[str]:
    """Say what the lines do not say by themselves."""
    repeat = mesh.length("repeat")
    if repeat > 1:
        used = mesh.nranks // repeat
        verb = "repeats" if mesh.nranks - used == 1 else "repeat"
        yield (
            f"{_span(used, mesh.nranks)} {verb} the work of {_span(0, used)}: wasted, unless another axis uses them "
            f"(as dp={repeat * mesh.length('dp')} they would not be)"
        )
    shown = holdings(mesh, 0, args)
    for axis in _used_axes(mesh):
        cut = "tokens" if axis == "ulysses" and args.phase == "outside" else _CUTS.get(axis)
        if shown and cut and cut not in shown:
            yield f"{axis}={mesh.length(axis)} also cuts the {cut}: add --{_SHOWN[cut][0]} to see which"
    if "experts" in shown:
        etp = mesh.length("etp")
        whole = "whole" if etp == 1 else f"1/{etp} of each (etp={etp})"
        yield f"experts on each GPU: {args.experts // mesh.length('ep')} of {args.experts}, {whole}"


def write_text(out: TextIO, mesh: Mesh, args: argparse.Namespace) -> None:
    """Write one line a GPU, by group; then the groups of the other axes, and remarks."""
    for number, group in enumerate(mesh.groups(args.group)):
        print(_group_line(args.group, number, group), file=out)
        for rank in group:
            held = ", ".join(_texts(holdings(mesh, rank, args)))
            if held:
                print(f"  GPU{rank}: {held}", file=out)
    for axis in _used_axes(mesh):
        if axis not in axis_names(args.group):
            for number, group in enumerate(mesh.groups(axis)):
                print(_group_line(axis, number, group), file=out)
    for remark in remarks(mesh, args):
        print(remark, file=out)


def write_csv(out: TextIO, mesh: Mesh, args: argparse.Namespace) -> None:
    """Write one row a rank: coordinate and group number on each axis, and the ranges held ("0-1999;14000-15999")."""
    axes = _used_axes(mesh)
    numbers = {axis: _group_numbers(mesh, axis) for axis in axes}
    shown = list(holdings(mesh, 0, args))
    names = [*axes, *(["repeat"] if mesh.length("repeat") > 1 else [])]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["rank", *names, *(f"{axis}_group" for axis in axes), *shown])
    for rank in range(mesh.nranks):
        held = holdings(mesh, rank, args)
        writer.writerow(
            [rank, *(mesh.coordinate(name, rank) for name in names), *(numbers[axis][rank] for axis in axes)]
            + [";".join(f"{r[0]}-{r[-1]}" for r in held[name]) for name in shown]
        )


def write_svg(out: TextIO, mesh: Mesh, args: argparse.Namespace) -> None:
    """Draw a grid of GPUs in rank order, a node a row, coloured by group; repeating ones pale and dashed."""
    numbers = _group_numbers(mesh, args.group)
    used = mesh.nranks // mesh.length("repeat")
    axes = _used_axes(mesh)
    cells = [
        [
            f"{_label(args.group)} group {numbers[rank]}",
            *_texts(holdings(mesh, rank, args)),
            *([" ".join(f"{axis}{mesh.coordinate(axis, rank)}" for axis in axes)] if len(axes) > 1 else []),
        ]
        for rank in range(mesh.nranks)
    ]
    columns = min(args.gpus_per_node, mesh.nranks)
    rows = -(-mesh.nranks // columns)
    wide = 20 + 7 * max(len(line) for lines in cells for line in lines)
    high = 36 + 17 * len(cells[0])
    title = f"{mesh.spec or '1 rank'}, order {mesh.order}, {args.phase} attention{', zigzag' if args.zigzag else ''}"
    foot = list(remarks(mesh, args))
    left, top, gap = 70, 44, 8
    width = max(left + columns * (wide + gap) + gap, 30 + 7 * max(map(len, [title, *foot])))
    height = top + rows * (high + gap) + 20 * len(foot) + 10
    print(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n'
        f'<text x="12" y="26" font-size="14">{escape(title)}</text>',
        file=out,
    )
    for row in range(rows):
        print(f'<text x="12" y="{top + row * (high + gap) + high // 2}">node {row}</text>', file=out)
    for rank, lines in enumerate(cells):
        x, y = left + rank % columns * (wide + gap), top + rank // columns * (high + gap)
        pale = ' fill-opacity="0.4" stroke-dasharray="5 4"' if rank >= used else ""
        print(
            f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" rx="5" fill="{_colour(numbers[rank])}" '
            f'stroke="#444"{pale}/>\n<text x="{x + 10}" y="{y + 22}" font-weight="bold">GPU{rank}</text>',
            file=out,
        )
        for number, line in enumerate(lines):
            print(f'<text x="{x + 10}" y="{y + 41 + 17 * number}">{escape(line)}</text>', file=out)
    for number, remark in enumerate(foot):
        print(f'<text x="12" y="{height - 20 * (len(foot) - number) + 6}">{escape(remark)}</text>', file=out)
    print("</svg>", file=out)


def _used_axes(mesh: Mesh) -> list[str]:
    return [axis for axis in mesh.axes if mesh.length(axis) > 1 and axis != "repeat"]


def _group_numbers(mesh: Mesh, axes: str) -> list[int]:
    """Tell the number of each rank's group over `axes`."""
    numbers = [0] * mesh.nranks
    for number, group in enumerate(mesh.groups(axes)):
        for rank in group:
            numbers[rank] = number
    return numbers


def _texts(held: dict[str, list[range]]) -> list[str]:
    return [_text(name, ranges) for name, ranges in held.items()]


def _text(name: str, ranges: list[range]) -> str:
    if name == "tokens":
        return "token " + " and ".join(f"{r[0]}~{r[-1]}" for r in ranges)
    (only,) = ranges
    return f"{name} {only[0]}-{only[-1]}" if len(only) > 1 else f"{name.removesuffix('s')} {only[0]}"


def _group_line(axes: str, number: int, group: tuple[int, ...]) -> str:
    return f"{_label(axes)} group {number}: {' '.join(f'GPU{rank}' for rank in group)}"


def _label(axes: str) -> str:
    return "-".join("Ulysses" if axis == "ulysses" else axis.upper() for axis in axis_names(axes))


def _span(start: int, stop: int) -> str:
    return f"GPU{start}" if stop - start == 1 else f"GPU{start} to GPU{stop - 1}"


def _colour(number: int) -> str:
    # Steps of the golden ratio keep neighbouring groups far apart in hue, however many there are.
    red, green, blue = colorsys.hls_to_rgb(number * 0.618034 % 1, 0.82, 0.65)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


class _Parser(argparse.ArgumentParser):
    """Refuses with one line rather than with the usage before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (--help lists the options)\n")


def _count(text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up; write one such as 8")
    return count


def _parser() -> _Parser:
    parser = _Parser(
        prog="python -m strategies.layout",
        description="Show which GPU holds which tokens, heads, experts, layers and sequences.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--mesh",
        required=True,
        metavar="AXIS=LENGTH,...",
        help=f"such as cp=4,ulysses=2; axes: {', '.join(_CUTS)}, etp",
    )
    add("--world", type=_count, metavar="GPUS", help="how many GPUs there are (default: as many as the mesh needs)")
    add(
        "--order",
        default=DEFAULT_ORDER,
        help=f"axes joined by '-', the first varying fastest, or one of {', '.join(ORDERS)} (default: %(default)s)",
    )
    add(
        "--placement", choices=PLACEMENTS, help=f"which of ring and Ulysses is innermost (default: {DEFAULT_PLACEMENT})"
    )
    add("--phase", choices=PHASES, default="inside", help="inside attention, after the Ulysses exchange, or outside it")
    add("--zigzag", action="store_true", help="two chunks of the sequence a rank, to balance causal attention")
    add("--seq", type=_count, metavar="TOKENS", help="tokens of a sequence, cut over cp and ulysses")
    add("--heads", type=_count, help="attention heads, cut over tp and ulysses")
    add("--experts", type=_count, help="experts of a layer, whole ones spread over ep")
    add("--layers", type=_count, help="layers, cut over pp")
    add("--batch", type=_count, metavar="SEQUENCES", help="sequences of the global batch, cut over dp and ep")
    add(
        "--group",
        metavar="AXES",
        help="group the lines by these axes, such as tp or dp-cp (default: cp if there is one)",
    )
    add(
        "--gpus-per-node",
        type=_count,
        default=8,
        metavar="N",
        help="GPUs a row of the svg picture (default: %(default)s)",
    )
    add("--format", choices=("text", "csv", "svg"), default="text", help="what to print (default: %(default)s)")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Print the layout that the options ask for. Exit status 2, with one message, where they do not fit together."""
    parser = _parser()
    args = parser.parse_args(argv)

    @contextmanager
    def blame(option: str) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            parser.error(f"{option}: {error}")

    with blame(f"--mesh {args.mesh}"):
        lengths = parse_spec(args.mesh)
    with blame(f"--order {args.order}"):
        parse_order(args.order, args.placement)
    with blame(f"--world {args.world} --mesh {args.mesh}" if args.world else f"--mesh {args.mesh}"):
        mesh = Mesh(lengths, args.order, args.world, args.placement)
    if args.group is None:
        args.group = next((axis for axis in (*_CUTS, "etp") if mesh.length(axis) > 1), "cp")
    with blame(f"--group {args.group}"):
        axis_names(args.group)
    for option, find in _SHOWN.values():
        if getattr(args, option) is not None:
            with blame(f"--{option} {getattr(args, option)}"):
                find(mesh, 0, getattr(args, option), args)

    write = {"text": write_text, "csv": write_csv, "svg": write_svg}[args.format]
    with reader_may_leave():
        write(sys.stdout, mesh, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
