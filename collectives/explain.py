"""Explain a primitive or an algorithm: `python -m collectives.explain allgather -n 3`.

Prints what each rank has before and after, in letters: A is what rank 0 had, B what rank 1 had, A0 the first part of
A, A0+B0 a sum. With `--algorithm` every round stands between them, and `--svg` draws it. All of it is read off the
symbolic proof of the algorithm.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from collectives import PRIMITIVES, catalogue
from collectives.count import count, lower_bound
from collectives.drawing import draw
from collectives.names import UnknownNameError
from collectives.printing import reader_may_leave
from collectives.proof import Refuted
from collectives.registry import Algorithm, Primitive
from collectives.replay import Replay, replay
from collectives.rounds import Combine, Copy

MISSING = "·"
MOST_RANKS_DRAWN = 64


def diagram(told: Replay) -> Iterator[str]:
    """Yield the lines of what each rank has before and after; sums in rank order, whatever order the proof ran in."""
    yield from _before(told)
    yield ""
    yield from _after(told, in_order=True)


def story(told: Replay) -> Iterator[str]:
    """Yield the lines of the whole algorithm: before, each round with the state it leads to, after, and its cost."""
    yield told.title
    yield told.algorithm.summary
    if told.problem.primitive.synchronises:
        yield "A letter stands for a rank that is known to have entered."
    yield ""
    yield from _before(told)
    for position in range(len(told.numbers)):
        yield ""
        yield from _round(told, position)
    yield ""
    yield from _after(told)
    yield ""
    yield from _cost(told)


def _before(told: Replay) -> Iterator[str]:
    yield "[Before]"
    for rank, state in enumerate(told.states[0]):
        yield _rank(rank, [told.label(chunk, state[chunk]) for chunk in told.inputs(rank)])


def _after(told: Replay, in_order: bool = False) -> Iterator[str]:
    yield "[After]"
    for rank, state in enumerate(told.states[-1]):
        values = [(chunk, state[chunk]) for chunk in told.outputs(rank)]
        if in_order and told.problem.primitive.combines:
            values = [(chunk, tuple(sorted(value))) for chunk, value in values]
        yield _rank(rank, [told.label(chunk, value) for chunk, value in values])


def _round(told: Replay, position: int) -> Iterator[str]:
    yield f"[Round {told.numbers[position]}]"
    for one in told.deliveries[position]:
        what = ", ".join(told.sent(position, one)) or "signal"
        how = (", combined" if one.combined else "") + (f", {one.memory} in shared memory" if one.memory else "")
        yield f"Rank {one.source} -> Rank {one.target}: {what}{how}"
    for rank, operation in told.local[position]:
        if isinstance(operation, Copy):
            yield f"Rank {rank} copies {operation.src} to {operation.dst}"
        elif isinstance(operation, Combine):
            yield f"Rank {rank} combines {operation.left} and {operation.right} into {operation.into}"
        elif rank == min(operation.group):
            yield f"Ranks {', '.join(map(str, operation.group))} meet at a fence"
    for rank, state in enumerate(told.states[position + 1]):
        places = [told.label(one, state[one]) if one in state else MISSING for one in told.places(rank)]
        carried = ", ".join(told.label(one, state[one]) for one in told.carried(position + 1, rank))
        yield _rank(rank, places) + (f" carries {carried}" if carried else "")


def _rank(rank: int, values: list[str]) -> str:
    return f"Rank {rank}: [{', '.join(values)}]"


def _cost(told: Replay) -> Iterator[str]:
    """Say what the rounds cost, beside the lower bound of ranks that send one message at a time."""
    counted, bound, whole = count(told.algorithm, told.problem), lower_bound(told.problem), told.problem.count

    def beside(least: str) -> str:
        return "" if told.algorithm.shares_memory(told.problem) else f" (at least {least})"

    yield f"Rounds: {counted.rounds}; messages one after another: {counted.steps}{beside(str(bound.steps))}"
    if told.problem.primitive.synchronises:
        return
    moved = max(counted.sent_count_max, counted.received_count_max)
    yield f"The busiest rank moves {moved / whole:.4g} vectors{beside(f'{bound.moved_count / whole:.4g}')}"
    if told.problem.primitive.combines:
        least = beside(f"{bound.combined_count / whole:.4g}")
        yield f"The busiest rank combines {counted.combined_count_max / whole:.4g} vectors{least}"


class _Parser(argparse.ArgumentParser):
    """Refuses with one line rather than with the usage before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (--help lists the options)\n")


def _ranks(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up; write one such as 4")
    return int(text)


def _root(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not the number of a rank; write one such as 0")
    return int(text)


def _parser() -> _Parser:
    parser = _Parser(
        prog="python -m collectives.explain",
        description="Show what a collective primitive does, or how an algorithm does it, round by round.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("primitive", nargs="?", metavar="PRIMITIVE", help=f"one of {', '.join(PRIMITIVES)}")
    add("-a", "--algorithm", metavar="NAME", help="show its rounds; with parameters as in chain:segments=4")
    add("-n", "--nranks", type=_ranks, metavar="RANKS", help="how many ranks (default: 4; with --list: 8)")
    add("-r", "--root", type=_root, metavar="RANK", help="of a rooted primitive (default: 0)")
    add("--svg", type=Path, metavar="FILE", help="draw the rounds of --algorithm into this file instead")
    add("--list", action="store_true", help="list all algorithms with what they need and cost; explain none")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Explain what the options ask for. Exit status 2, with one message, where they do not fit together."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        if args.list:
            _print([catalogue.table(args.nranks or 8)])
            return 0
        args.nranks = args.nranks or 4
        algorithm, root = _chosen(args)
        told = replay(algorithm, args.nranks, root)
        if args.svg is None:
            _print(story(told) if args.algorithm else diagram(told))
        else:
            args.svg.write_text(draw(told), encoding="utf-8")
    except (UnknownNameError, ValueError) as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"--svg {args.svg}: {error.strerror}; name a file that can be written")
    except Refuted as error:
        parser.exit(1, f"{parser.prog}: this algorithm is wrong: {error}\n")
    return 0


def _chosen(args: argparse.Namespace) -> tuple[Algorithm, int]:
    """Return the algorithm and root that the options name; ValueError where there is none."""
    primitive = _primitive(args.primitive)
    if args.root is not None and not primitive.rooted:
        raise ValueError(f"--root {args.root}: {primitive.name} has no root; leave it out")
    root = args.root or 0
    problem = primitive.problem(args.nranks, args.nranks, root=root)
    if args.algorithm is not None:
        algorithm = primitive.find(args.algorithm)
        reason = algorithm.unmet(problem)
    elif args.svg is not None:
        raise ValueError(f"--svg draws the rounds of an algorithm: add --algorithm, one of {_names(primitive)}")
    else:
        reason = primitive.unmet(problem)
        algorithm = next(one for one in primitive.algorithms.values() if reason or not one.unmet(problem))
    if reason:
        raise ValueError(f"-n {args.nranks}: {reason}")
    if args.svg is not None and args.nranks > MOST_RANKS_DRAWN:
        raise ValueError(f"-n {args.nranks}: more ranks than can be drawn; at most {MOST_RANKS_DRAWN}")
    return algorithm, root


def _primitive(name: str | None) -> Primitive:
    if name is None:
        raise ValueError(f"name a primitive: one of {', '.join(PRIMITIVES)}")
    if name not in PRIMITIVES:
        near = difflib.get_close_matches(name, PRIMITIVES, 1, cutoff=0.7)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"there is no primitive {name!r} ({hint}there are: {', '.join(PRIMITIVES)})")
    return PRIMITIVES[name]


def _names(primitive: Primitive) -> str:
    return ", ".join(primitive.algorithms)


def _print(lines: Iterator[str] | list[str]) -> None:
    with reader_may_leave():
        for line in lines:
            print(line)


if __name__ == "__main__":
    sys.exit(main())
