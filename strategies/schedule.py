"""The order in which the stages of a pipeline take micro-batches, and the time that they wait.

m micro-batches, p stages, v chunks of layers on each (virtual stages). Forward of a chunk takes 1 unit, backward 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from strategies.mesh import divide


class Action(NamedTuple):
    """One thing that a stage does: the forward or backward pass of a micro-batch through one of its chunks."""

    phase: str
    micro_batch: int
    chunk: int = 0


FORWARD_UNITS, BACKWARD_UNITS = 1, 2


def one_stage(micro_batches: int) -> list[Action]:
    """Forward and backward of each micro-batch in turn, where there are no stages."""
    return [Action(phase, number) for number in range(micro_batches) for phase in ("forward", "backward")]


def gpipe(stage: int, stages: int, micro_batches: int, chunks: int = 1) -> list[Action]:
    """All forward, then all backward (Huang et al. 2019, arXiv 1811.06965)."""
    _one_chunk("gpipe", chunks)
    return [Action(phase, number) for phase in ("forward", "backward") for number in range(micro_batches)]


def one_forward_one_backward(stage: int, stages: int, micro_batches: int, chunks: int = 1) -> list[Action]:
    """Fill the pipeline, then one forward and one backward in turn (Narayanan et al. 2019, arXiv 1806.03377)."""
    _one_chunk("1f1b", chunks)
    return _in_turn(gpipe(stage, stages, micro_batches), micro_batches, stages - stage - 1)


def interleaved(stage: int, stages: int, micro_batches: int, chunks: int) -> list[Action]:
    """1F1B over v chunks a stage, p micro-batches through a chunk at a time (Narayanan et al. 2021, arXiv 2104.04473).

    ValueError where m is no multiple of p.
    """
    divide(micro_batches, stages, "micro-batches", f"pp={stages} (interleaved schedule)")
    total = micro_batches * chunks
    order = [(k // (stages * chunks) * stages + k % stages, k // stages % chunks) for k in range(total)]
    forward = [Action("forward", number, chunk) for number, chunk in order]
    backward = [Action("backward", number, chunks - 1 - chunk) for number, chunk in order]
    return _in_turn(forward + backward, total, 2 * (stages - stage - 1) + (chunks - 1) * stages)


def _in_turn(actions: list[Action], total: int, warm_up: int) -> list[Action]:
    """Take `warm_up` forwards, then a forward and a backward in turn, then the backwards that are left."""
    forward, backward = actions[:total], actions[total:]
    warm_up = min(warm_up, total)
    pairs = [action for pair in zip(forward[warm_up:], backward, strict=False) for action in pair]
    return forward[:warm_up] + pairs + backward[total - warm_up :]


def _one_chunk(name: str, chunks: int) -> None:
    if chunks != 1:
        raise ValueError(f"virtual_stages={chunks}: {name} has one chunk a stage; take the interleaved schedule")


SCHEDULES = {"gpipe": gpipe, "1f1b": one_forward_one_backward, "interleaved": interleaved}


def bubble(orders: Sequence[Sequence[Action]]) -> Fraction:
    """Return the time that stages wait, as a share of the time that they work, for the orders they acted in.

    orders: the actions of each stage. A logical clock: an action begins when its stage is free and its input is there;
    messages take no time, and each of the chunks of a stage takes 1/v of its units. ValueError if the stages wait for
    each other in a circle.
    """
    stages = len(orders)
    chunks = 1 + max(action.chunk for order in orders for action in order)
    done: dict[tuple[str, int, int], Fraction] = {}  # phase, micro-batch, chunk number in the pipeline
    clocks, places = [Fraction(0)] * stages, [0] * stages
    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(orders):
            while places[stage] < len(order):
                phase, number, chunk = order[places[stage]]
                at = chunk * stages + stage
                needed = [(phase, number, at - 1)] if at else []
                if phase == "backward":
                    needed = [("forward", number, at)] + ([(phase, number, at + 1)] if at < stages * chunks - 1 else [])
                if any(one not in done for one in needed):
                    break
                units = FORWARD_UNITS if phase == "forward" else BACKWARD_UNITS
                clocks[stage] = max([clocks[stage], *(done[one] for one in needed)]) + Fraction(units, chunks)
                done[phase, number, at] = clocks[stage]
                places[stage] += 1
                moved = True
    if any(place < len(order) for place, order in zip(places, orders, strict=True)):
        waiting = ", ".join(
            f"stage {stage} for {order[place]}"
            for stage, (place, order) in enumerate(zip(places, orders, strict=True))
            if place < len(order)
        )
        raise ValueError(f"the stages wait for each other: {waiting}")
    work = Fraction(len(orders[0]) * (FORWARD_UNITS + BACKWARD_UNITS), 2 * chunks)
    return (max(clocks) - work) / work


def ideal_bubble(stages: int, micro_batches: int, chunks: int = 1) -> Fraction:
    """Return the bubble of all three schedules, (p - 1)/(v·m) of the work (arXiv 2104.04473, section 2.2)."""
    return Fraction(stages - 1, chunks * micro_batches)


def most_under_way(order: Sequence[Action]) -> int:
    """Count the passes whose activations a stage holds at its worst moment."""
    held, most = 0, 0
    for action in order:
        held += 1 if action.phase == "forward" else -1
        most = max(most, held)
    return most
