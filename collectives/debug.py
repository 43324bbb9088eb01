"""COLLBENCH_DEBUG=1: every message on stderr, regions under way checked, guard bytes around buffers and scratch."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from collectives import buffers
from collectives.bind import Bound
from collectives.buffers import Arena
from collectives.layout import Layout
from collectives.plan import Plan
from collectives.program import Start, Wait
from collectives.work import WorkPlan

GUARD_NBYTES = 64
GUARD = 0xA5


class Overwritten(AssertionError):
    """A guard is broken, or two transfers under way touch the same memory; the message says which."""


def debugging() -> bool:
    """Whether the debug mode is on."""
    return os.environ.get("COLLBENCH_DEBUG", "0") not in ("", "0")


def check_disjoint(layout: Layout) -> None:
    """Raise Overwritten if a region is received into while another transfer that touches it is under way."""
    under_way: set[int] = set()
    for instruction in layout.program:
        if isinstance(instruction, Wait):
            under_way.difference_update(instruction.transfers)
        elif isinstance(instruction, Start):
            for number in instruction.transfers:
                for other in under_way:
                    _check_pair(layout, number, other)
                under_way.add(number)


def _check_pair(layout: Layout, number: int, other: int) -> None:
    one, two = layout.transfers[number], layout.transfers[other]
    if one.outgoing and two.outgoing:
        return
    for mine in one.regions:
        for theirs in two.regions:
            if mine.overlaps(theirs):
                raise Overwritten(f"rank {layout.rank}: {one} is started while {two} is under way on the same memory")


class Guards:
    """Arrays between guard bytes, and whether the guards are as they were."""

    def __init__(self) -> None:
        self._guards: list[tuple[str, Any]] = []

    def array(self, like: Any, what: str = "buffer") -> Any:
        """Return an array like `like`, guarded."""
        block = buffers.empty(like.nbytes + 2 * GUARD_NBYTES, np.uint8, like)
        block.fill(GUARD)
        self._guards.append((what, block))
        return block[GUARD_NBYTES : GUARD_NBYTES + like.nbytes].view(like.dtype).reshape(like.shape)

    def check(self) -> None:
        """Raise Overwritten if a guard is broken."""
        for what, block in self._guards:
            for side, guard in (("before", block[:GUARD_NBYTES]), ("behind", block[-GUARD_NBYTES:])):
                if (buffers.to_host(guard) != GUARD).any():
                    raise Overwritten(
                        f"bytes {side} a {what} of {len(block) - 2 * GUARD_NBYTES} bytes were overwritten"
                    )


class GuardedArena(Arena):
    """Scratch between guard bytes."""

    def __init__(self, guards: Guards) -> None:
        super().__init__()
        self._guards = guards

    def take(self, count: int, unit: Any, like: Any = None) -> Any:
        """Return guarded memory, never shared."""
        return self._guards.array(super().take(count, unit, like), "scratch")


def watched(bound: Bound, layout: Layout, label: str) -> Any:
    """Return what to call with a transfer's number to have it printed."""
    name = bound.problem.primitive.name

    def say(number: int) -> None:
        one = layout.transfers[number]
        arrow = "->" if one.outgoing else "<-"
        places = " ".join(f"{region.buffer}[{region.start}:{region.stop}]" for region in one.regions) or "nothing"
        # One write, so that ranks do not share a line.
        sys.stderr.write(f"r{bound.rank} {name} {label} #{one.ordinal} {arrow} r{one.peer}: {places}\n")

    return say


def guarded_plan(bound: Bound, make: Any) -> Plan:
    """Return the plan that `make(bound, arena)` makes, on guarded copies of the buffers, checked after each call."""
    guards = Guards()
    return WorkPlan(bound, guards.array, lambda work: make(work, GuardedArena(guards)), guards.check)
