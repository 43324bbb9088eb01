"""Check that fences keep apart what ranks do to memory that they share.

A location is one chunk of one rank. Between two fences it has one writer or readers, its owner among them. Which
access happened before which is followed with vector clocks (Lamport 1978; Mattern 1989) that only fences advance:
messages order nothing here, since they promise nothing about shared memory. Three calls in a row are followed, so
that a rank which is already in the next call may not disturb a slow one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from collectives.rounds import (
    Access,
    Chunk,
    Combine,
    Copy,
    Fence,
    Operation,
    Pull,
    PullReduce,
    Push,
    Recv,
    RecvReduce,
    Round,
    Send,
)

CALLS = 3


class Race(Exception):
    """Two ranks use one location and no fence is between them. Holds rank, round and the fault."""

    def __init__(self, rank: int, number: int, fault: str) -> None:
        super().__init__(f"rank {rank}, round {number}: {fault}")
        self.rank, self.number, self.fault = rank, number, fault


def check_races(
    rounds: Sequence[Sequence[Round]],
    inputs: Sequence[Sequence[Chunk]],
    outputs: Sequence[Sequence[Chunk]],
    staged: bool = False,
) -> None:
    """Follow the accesses of all ranks through three calls.

    Args:
        rounds: of each rank.
        inputs: the chunks that each rank has at the start.
        outputs: the chunks that each rank must have at the end. Between two calls their owner may write all of both.
        staged: what peers read are copies of inputs that their owner makes as the call begins, in two sets of places
            that alternate from call to call.

    Raises:
        Race: the first two accesses that no fence keeps apart, a fence at which not all of its group meet, or an access
            to the memory of a rank that there is not.

    """
    _Races(rounds, inputs, outputs, staged).run()


def reads_and_writes(rank: int, operation: Operation) -> Iterator[tuple[bool, int, Chunk]]:
    """Yield what `operation` does to locations: (whether it writes, owner, chunk)."""
    if isinstance(operation, Access):
        for chunk in operation.chunks:
            reads = operation.peers if isinstance(operation, (Pull, PullReduce)) else (rank,)
            writes = operation.peers if isinstance(operation, Push) else (rank,)
            yield from ((False, peer, chunk) for peer in reads)
            yield from ((True, peer, chunk) for peer in writes)
    elif isinstance(operation, Copy):
        yield False, rank, operation.src
        yield True, rank, operation.dst
    elif isinstance(operation, Combine):
        yield False, rank, operation.left
        yield False, rank, operation.right
        yield True, rank, operation.into
    elif isinstance(operation, (Send, Recv, RecvReduce)):
        for chunk in operation.chunks:
            yield not isinstance(operation, Send), rank, chunk


class _Location:
    """Who wrote a location last, and who has read it since, each with the own clock of that moment."""

    __slots__ = ("read", "written")

    def __init__(self) -> None:
        self.written: tuple[int, int] | None = None
        self.read: dict[int, int] = {}


class _Races:
    def __init__(
        self,
        rounds: Sequence[Sequence[Round]],
        inputs: Sequence[Sequence[Chunk]],
        outputs: Sequence[Sequence[Chunk]],
        staged: bool,
    ) -> None:
        self.rounds, self.inputs, self.outputs, self.staged = rounds, inputs, outputs, staged
        self.ranks = range(len(rounds))
        self.clocks = [[int(rank == other) for other in self.ranks] for rank in self.ranks]
        exposed: list[set[Chunk]] = [set() for _ in self.ranks]
        for rank in self.ranks:
            for number, operations in enumerate(rounds[rank]):
                for operation in operations:
                    if isinstance(operation, Access):
                        for peer in set(operation.peers) - {rank}:
                            if peer not in self.ranks:
                                raise Race(rank, number, f"{operation}: there is no rank {peer}")
                            exposed[peer].update(operation.chunks)
        # What only its owner accesses is left out. Of staged places there are two sets, by turns.
        self.sets = [
            [{chunk: _Location() for chunk in chunks} for chunks in exposed] for _ in range(2 if staged else 1)
        ]
        self.locations = self.sets[0]
        self.call = 0

    def run(self) -> None:
        for self.call in range(CALLS):
            self.locations = self.sets[self.call % len(self.sets)]
            for rank in self.ranks:
                mine = self.inputs[rank] if self.staged else (*self.inputs[rank], *self.outputs[rank])
                for chunk in mine:
                    self._access(rank, 0, True, rank, chunk, "what its owner writes before the call")
            for number in range(max(map(len, self.rounds), default=0)):
                for rank in self.ranks:
                    for operation in self._operations(rank, number):
                        for written, peer, chunk in reads_and_writes(rank, operation):
                            if peer != rank or not self.staged:
                                self._access(rank, number, written, peer, chunk, operation)
                self._fences(number)
            for rank in self.ranks if not self.staged else ():
                for chunk in self.outputs[rank]:
                    self._access(rank, len(self.rounds[rank]), True, rank, chunk, "what its owner does after the call")

    def _operations(self, rank: int, number: int) -> Round:
        return self.rounds[rank][number] if number < len(self.rounds[rank]) else ()

    def _access(self, rank: int, number: int, written: bool, peer: int, chunk: Chunk, what: object) -> None:
        location = self.locations[peer].get(chunk)
        if location is None:
            return
        if self.staged and written and peer != rank:
            raise Race(rank, number, f"{what} writes to copies of inputs, which others only read")
        clock, last = self.clocks[rank], location.written
        if last is not None and last[0] != rank and clock[last[0]] < last[1]:
            raise self._race(rank, number, written, peer, chunk, what, last[0], "written")
        if not written:
            location.read[rank] = clock[rank]
            return
        for reader, time in location.read.items():
            if reader != rank and clock[reader] < time:
                raise self._race(rank, number, written, peer, chunk, what, reader, "read")
        location.written, location.read = (rank, clock[rank]), {}

    def _race(
        self, rank: int, number: int, written: bool, peer: int, chunk: Chunk, what: object, other: int, how: str
    ) -> Race:
        """Return the race of `rank`, which does not know of what `other` did."""
        word = "writes" if written else "reads"
        where = "" if self.call == 0 else ", in a later call"
        return Race(
            rank,
            number,
            f"race{where}: {what} {word} chunk {chunk!r} of rank {peer}, "
            f"which rank {other} has {how} with no fence between",
        )

    def _fences(self, number: int) -> None:
        passed: set[int] = set()
        for rank in self.ranks:
            fences = [one for one in self._operations(rank, number) if isinstance(one, Fence)]
            if len(fences) > 1:
                raise Race(rank, number, f"{fences[0]} and {fences[1]} in one round; a rank meets one group at a time")
            if not fences or rank in passed:
                continue
            group = fences[0].group
            if rank not in group:
                raise Race(rank, number, f"{fences[0]} is a fence of others")
            for member in group:
                if member not in self.ranks or fences[0] not in self._operations(member, number):
                    raise Race(rank, number, f"{fences[0]}, where rank {member} has none of this group")
            joined = [max(times) for times in zip(*(self.clocks[member] for member in group), strict=True)]
            for member in group:
                self.clocks[member] = list(joined)
                self.clocks[member][member] += 1
            passed.update(group)
