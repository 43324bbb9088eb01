"""Scan and exclusive scan: every rank gets the combination of all ranks up to it (MPI-5.0 section 6.11).

A chunk is (first, stop): what the ranks from `first` to before `stop` contribute, combined. Rank r begins with
(r, r+1); a scan ends with (0, r+1), an exclusive scan with (0, r), which rank 0 has none of.
"""

from typing import Any

from collectives.problem import Problem
from collectives.registry import Primitive
from collectives.rounds import Combine, Operation, Recv, Rounds, Send, powers_of_two_below
from collectives.vector import Chunks


def _own(problem: Problem, rank: int, nchunks: int) -> Chunks:
    return ((rank, rank + 1),)


def _whole(problem: Problem, chunk: Any, nchunks: int) -> int:
    return problem.count


def _combined(problem: Problem, rank: int, chunk: Any) -> range:
    return range(*chunk)


def _contribution(rank: int, chunk: Any) -> tuple[int, int]:
    return rank, rank + 1


def _native_exscan(call: Any) -> list[Any]:
    # Nothing is received on rank 0, but mpi4py wants a buffer there too.
    recv = call.recv or [call.send[0].copy(), call.send[1]]
    return [("Exscan", call.send, recv, call.op)]


scan = Primitive(
    "scan",
    inputs=_own,
    outputs=lambda problem, rank, nchunks: ((0, rank + 1),),
    chunk_count=_whole,
    aliasing=lambda problem, rank: (0, 0),
    native=lambda call: [("Scan", call.send, call.recv, call.op)],
    contributors=_combined,
    contribution=_contribution,
    combines=True,
    vector=True,
)
exscan = Primitive(
    "exscan",
    inputs=_own,
    outputs=lambda problem, rank, nchunks: ((0, rank),) if rank else (),
    chunk_count=_whole,
    aliasing=lambda problem, rank: (0, 0),
    native=_native_exscan,
    contributors=_combined,
    contribution=_contribution,
    combines=True,
    vector=True,
)


@scan.algorithm(keeps_order=True)
def linear(rank: int, nranks: int) -> Rounds:
    """Each rank adds its contribution to what comes from the one below and passes it on (MPI-5.0 section 6.11)."""
    yield from _linear(rank, nranks, rank + 1)


@exscan.algorithm(name="linear", keeps_order=True)
def exclusive_linear(rank: int, nranks: int) -> Rounds:
    """Each rank passes on what comes from the one below with its contribution added (MPI-5.0 section 6.11)."""
    yield from _linear(rank, nranks, rank)


def _linear(rank: int, nranks: int, stop: int) -> Rounds:
    """Pass prefixes up the chain of ranks; this one needs that up to `stop`."""
    before, own, after = (0, rank), (rank, rank + 1), (0, rank + 1)
    for receiver in range(1, nranks):
        operations: list[Operation] = []
        if rank == receiver:
            operations.append(Recv(rank - 1, before))
            if stop > rank or rank < nranks - 1:
                operations.append(Combine(before, own, after))
        elif rank == receiver - 1:
            operations.append(Send(receiver, after))
        yield tuple(operations)


@scan.algorithm(keeps_order=True)
def recursive_doubling(rank: int, nranks: int) -> Rounds:
    """Groups of 1, 2, 4, ... ranks exchange their results; the upper adds it to its prefix (Thakur et al. 2005)."""
    yield from _doubling(rank, nranks, rank + 1)


@exscan.algorithm(name="recursive_doubling", keeps_order=True)
def exclusive_doubling(rank: int, nranks: int) -> Rounds:
    """Groups of 1, 2, 4, ... ranks exchange their results; the upper adds it to its prefix (Thakur et al. 2005)."""
    yield from _doubling(rank, nranks, rank)


def _doubling(rank: int, nranks: int, stop: int) -> Rounds:
    """Bring (0, stop) to this rank: combine the group's part of it with what each lower group next to it has.

    The combination of a whole group is only needed where there are ranks above it.
    """
    for distance in powers_of_two_below(nranks):
        first = rank - rank % distance
        lower = first - first % (2 * distance)
        middle, end = lower + distance, lower + 2 * distance
        peer = rank ^ distance
        operations: list[Operation] = []
        if peer < nranks:
            mine, theirs = ((lower, middle), (middle, end))[:: 1 if rank < peer else -1]
            if rank < peer or end < nranks:
                operations.append(Send(peer, mine))
            if rank > peer or end < nranks:
                operations.append(Recv(peer, theirs))
            if rank > peer and first < stop:
                operations.append(Combine((lower, middle), (first, stop), (lower, stop)))
            if end < nranks and (rank < peer or stop != end):
                operations.append(Combine((lower, middle), (middle, end), (lower, end)))
        yield tuple(operations)
