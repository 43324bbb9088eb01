"""What can be seen of an algorithm from outside, whoever wrote it: its traces in memory and in rounding.

Looks at one call that need no help from the library, and a last one where the library gives it:

- One rank is held back. What the others have received by then, and who has left the call, is what the algorithm can do
  without that rank: a chain stops behind it, a binomial tree lacks its subtree, partial sums lie where they were made.
- Which elements are combined at a time, seen by an operation of our own.
- Floating-point sums depend on the order in which they are formed. Random numbers of very different magnitude make
  every order give other bits.
- Open MPI tells for whom each rank is waiting meanwhile (`watched`).

Different traces show different algorithms. Equal traces show that two algorithms exchange the same things.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from collectives.bind import Bound
from collectives.registry import Primitive
from collectives.vector import offsets

BLOCK_COUNT = 1 << 14
"""Elements of one rank's block in a call that is looked at: 64 KiB of float32, beyond what libraries send eagerly."""

SMALL_COUNTS = (1 << 8, 1 << 9)
"""Elements of blocks that libraries send eagerly, so that hardly anyone waits for who is to receive them."""

HOLD_SECONDS = 0.05
"""How long a rank is held back at first, twice that where ranks share CPUs; the others are looked at just before."""

HOLDS = 5
"""How often the time is doubled at most until two looks in succession agree."""

DTYPE = np.dtype("float32")

Seen = tuple[Any, ...]


class Trace(NamedTuple):
    """What was seen of one call: a digest of all results, and for each rank held back what all ranks had by then.

    `combined` is how many elements each rank combined at a time, where that can be told. `settled` is False if what was
    seen changed with the time that was given, so that nothing can be said.
    """

    results: str
    stalls: tuple[tuple[Seen, ...], ...]
    combined: tuple[tuple[int, ...], ...] = ()
    settled: bool = True


def held_back(nranks: int) -> tuple[int, ...]:
    """Return which ranks are held back in turn: one of odd number, the middle, the last."""
    return tuple(dict.fromkeys(rank for rank in (1, nranks // 2, nranks - 1) if rank > 0))


def sample(primitive: Primitive, nranks: int, rank: int, count: int | None = None) -> Bound:
    """Return a problem with buffers to look at: even blocks, float32 of very different magnitude, rooted at rank 0."""
    problem = primitive.problem(nranks, nranks * BLOCK_COUNT if count is None else count)
    send_count, recv_count = primitive.send_count(problem, rank), primitive.recv_count(problem, rank)
    random = np.random.default_rng((1, rank))
    values = random.standard_normal(send_count) * 2.0 ** random.integers(-8, 8, send_count)
    send, recv = values.astype(DTYPE), np.full(recv_count, np.nan, DTYPE)
    if primitive.one_buffer:
        send, recv = recv, send if send_count else recv
    is_sender = send_count > 0 and not primitive.one_buffer
    return Bound(problem, rank, send if is_sender else None, recv if recv_count else None, DTYPE)


def trace(
    comm: MPI.Intracomm, bound: Bound, carry_out: Callable[[], None], watched: Callable[[], Seen] = tuple
) -> Trace:
    """Look at calls of `carry_out`, which write the receive buffer of `bound`. All ranks of `comm` call it.

    `watched` is called by another thread while `carry_out` is under way; what it returns is part of the trace.
    """
    stalls = []
    settled = True
    first = HOLD_SECONDS * (2 if comm.size > len(os.sched_getaffinity(0)) else 1)
    for held in held_back(comm.size):
        before = None
        for attempt in range(HOLDS):
            now = _stall(comm, bound, carry_out, watched, held, first * 2**attempt)
            if now == before:
                break
            before = now
        else:
            settled = False
        stalls.append(now)
    return Trace(_digest(comm.allgather(_bytes(bound.recv))), tuple(stalls), settled=settled)


def _stall(
    comm: MPI.Intracomm,
    bound: Bound,
    carry_out: Callable[[], None],
    watched: Callable[[], Seen],
    held: int,
    seconds: float,
) -> tuple[Seen, ...]:
    """Return what each rank had, and whether it had left the call, before rank `held` entered it."""
    returned, seen = threading.Event(), []

    def look() -> None:
        time.sleep(0.8 * seconds)
        seen.append((returned.is_set(), _digest([_bytes(_arrived(bound))]), *watched()))

    if bound.recv is not None and not (bound.problem.primitive.one_buffer and bound.rank == bound.problem.root):
        bound.recv.fill(np.nan)
    watcher = threading.Thread(target=look)
    comm.Barrier()
    watcher.start()
    if comm.rank == held:
        time.sleep(seconds)
    carry_out()
    returned.set()
    watcher.join()
    return tuple(comm.allgather(seen[0]))


def _arrived(bound: Bound) -> Any:
    """Return what is in the receive buffer but for what this rank put there itself, sooner or later: its own input."""
    if bound.recv is None or bound.send is None:
        return bound.recv
    primitive, problem, arrived = bound.problem.primitive, bound.problem, bound.recv.copy()
    places = []
    for chunks in (primitive.inputs(problem, bound.rank, 1), primitive.outputs(problem, bound.rank, 1)):
        counts = tuple(primitive.chunk_count(problem, one, 1) for one in chunks)
        starts = offsets(counts)
        places.append({one: slice(a, a + count) for one, a, count in zip(chunks, starts, counts, strict=True)})
    for chunk, source in places[0].items():
        if chunk in places[1]:
            part = arrived[places[1][chunk]]
            part[part == bound.send[source]] = np.nan
    return arrived


def _bytes(array: Any) -> bytes:
    return b"" if array is None else array.tobytes()


def _digest(parts: Sequence[bytes]) -> str:
    return hashlib.sha256(b"|".join(parts)).hexdigest()[:12]
