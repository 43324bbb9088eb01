"""A layout for buffers on a GPU that MPI takes as they are: pure, no MPI, no GPU.

MPI knows nothing of a GPU's queues. So before a message starts, the host waits for the work in the queue that touches
what is sent or received: the caller's own, copies, and combinations. What MPI has received is there for any work that
is put into the queue afterwards. All is settled when the call ends.
"""

from __future__ import annotations

from dataclasses import replace

from collectives.layout import Layout
from collectives.program import Fold, Instruction, Move, Settle, Start, Wait
from collectives.staging import COMPUTE, ENTRY, Work, with_marks


def settle(layout: Layout) -> Layout:
    """Return `layout` with the waits for the GPU that its messages need.

    Raises:
        TypeError: it accesses shared memory.

    """
    works = [Work(COMPUTE, (), ())]
    instructions: list[Instruction | int] = [ENTRY]  # a number stands for where that work is put in
    settled = -1  # the last work that the host has waited for

    for one in layout.program:
        if isinstance(one, Start):
            conflicting = _last_conflict(layout, one, works, settled)
            if conflicting > settled:
                settled = conflicting
                instructions.append(Settle(settled))
            instructions.append(one)
        elif isinstance(one, (Move, Fold)):
            instructions += [one, len(works)]
            reads, into = ((one.source,), one.target) if isinstance(one, Move) else ((one.left, one.right), one.into)
            works.append(Work(COMPUTE, reads, (into,)))
        elif isinstance(one, Wait):
            instructions.append(one)
        else:
            raise TypeError(f"{one} of shared memory is no message that MPI could be handed")
    if settled < len(works) - 1:
        instructions.append(Settle(len(works) - 1))
    return replace(layout, program=with_marks(instructions, works))


def _last_conflict(layout: Layout, start: Start, works: list[Work], settled: int) -> int:
    """Return the last work behind `settled` that must be done before these messages start, -1 if there is none.

    The work that was in the queue before the call may concern any region.
    """
    messages = [layout.transfers[number] for number in start.transfers]
    sent = [region for one in messages if one.outgoing for region in one.regions]
    received = [region for one in messages if not one.outgoing for region in one.regions]
    own = Work(COMPUTE, sent, received)
    conflicting = (
        number for number in range(len(works) - 1, settled, -1) if number == ENTRY or own.conflicts(works[number])
    )
    return next(conflicting, -1)
