"""Where the chunks of one rank lie, from round to round: in its send buffer, its receive buffer or scratch. No MPI.

The old value of a place is never overwritten while it is still needed; only where buffers alias can that be. Scratch
is given back after the round in which it is read for the last time.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import TypeAlias

from collectives.exposure import Exposure
from collectives.problem import Problem
from collectives.regions import ALWAYS, RECV, SCRATCH, SEND, Region, Scratch, joined, stream_of
from collectives.rounds import Access, Chunk, Combine, Copy, Message, Operation, Push, Recv, Round, Send
from collectives.vector import offsets

NEVER = -1

Count: TypeAlias = Callable[[Chunk], int]
"""The elements of a chunk."""

Moves: TypeAlias = list[tuple[Region, Region]]
"""From where to where something is copied."""


def aliasing(problem: Problem, rank: int) -> tuple[int, int] | None:
    """Return where inputs and outputs of `rank` begin in the one buffer of an in-place call, None if there are two."""
    in_place = problem.in_place or problem.primitive.one_buffer
    return problem.primitive.aliasing(problem, rank) if in_place else None


def ends(problem: Problem, rank: int, nchunks: int, count: Count) -> tuple[dict[Chunk, Region], dict[Chunk, Region]]:
    """Return where the inputs of `rank` lie and where its outputs belong."""
    inputs = problem.primitive.inputs(problem, rank, nchunks)
    outputs = problem.primitive.outputs(problem, rank, nchunks)
    starts = aliasing(problem, rank)
    if starts is None:
        return _in_a_row(inputs, SEND, 0, count), _in_a_row(outputs, RECV, 0, count)
    return _in_a_row(inputs, RECV, starts[0], count), _in_a_row(outputs, RECV, starts[1], count)


def _in_a_row(chunks: Sequence[Chunk], buffer: str, start: int, count: Count) -> dict[Chunk, Region]:
    counts = tuple(map(count, chunks))
    return {
        chunk: Region(buffer, start + first, start + first + length)
        for chunk, first, length in zip(chunks, offsets(counts), counts, strict=True)
    }


class Places:
    """The places of one rank's chunks: `where` each lies now, and the `home` in the output of those that have one.

    `nchunks` are those of a vector, `align` the elements to which scratch is aligned. `exposure` says what peers see,
    where ranks access memory of others.
    """

    def __init__(
        self,
        problem: Problem,
        rank: int,
        nchunks: int,
        rounds: Sequence[Round],
        count: Count,
        align: int,
        exposure: Exposure | None,
    ) -> None:
        self.rank, self.count = rank, count
        self.where, self.home = ends(problem, rank, nchunks, count)
        self.aliased = aliasing(problem, rank) is not None
        self.scratch = Scratch(align)
        self.last_read: dict[Chunk, int] = {}
        self.written: set[Chunk] = set()
        self.pushed: set[Chunk] = set()
        self.fixed: dict[Chunk, Region] = {}
        for number, operations in enumerate(rounds):
            for operation in operations:
                self._look_ahead(number, operation)
        if exposure:
            self._keep_for_peers(exposure)
        self.last_read.update(dict.fromkeys(self.home, ALWAYS))

    def _look_ahead(self, number: int, operation: Operation) -> None:
        """Note for each chunk the last round in which its value is read, and whether it is ever written."""
        if isinstance(operation, Message):
            if not isinstance(operation, Recv):
                self.last_read.update(dict.fromkeys(operation.chunks, number))
            if not isinstance(operation, Send):
                self.written.update(operation.chunks)
        elif isinstance(operation, Copy):
            self.last_read[operation.src] = number
            self.written.add(operation.dst)
        elif isinstance(operation, Combine):
            self.last_read[operation.left] = self.last_read[operation.right] = number
            self.written.add(operation.into)
        elif isinstance(operation, Access):
            if self.rank in operation.peers or isinstance(operation, Push):
                self.last_read.update(dict.fromkeys(operation.chunks, number))
            (self.pushed if isinstance(operation, Push) else self.written).update(operation.chunks)

    def _keep_for_peers(self, exposure: Exposure) -> None:
        """Keep chunks in place as long as peers need them."""
        self.fixed = exposure.fixed()
        for chunks in exposure.pushed_in().values():
            self.written.update(chunks)
        for chunk, number in exposure.last_reads().items():
            self.last_read[chunk] = max(number, self.last_read.get(chunk, NEVER))

    # Homes

    def home_free(self, chunk: Chunk, number: int, operand: Region | None = None) -> bool:
        """Whether the chunk has a home into which it may be written in this round.

        Only where buffers alias can a home hold another value that is still needed. `operand` is what is read in the
        same step; it may lie exactly where the result goes, but not across it.
        """
        home = self.home.get(chunk)
        if home is None:
            return False
        if chunk in self.fixed:
            return self.fixed[chunk] == home
        if not self.aliased or home == operand:
            return True
        if operand is not None and operand.overlaps(home):
            return False
        return not any(
            other != chunk and region.overlaps(home) and self.last_read.get(other, NEVER) >= number
            for other, region in self.where.items()
        )

    def homes_free(self, chunks: Sequence[Chunk], number: int, operands: Mapping[Chunk, Region]) -> dict[Chunk, Region]:
        """Return the homes of those chunks for which `home_free`, given what is read for each."""
        return {chunk: self.home[chunk] for chunk in chunks if self.home_free(chunk, number, operands.get(chunk))}

    def settle_final(self, with_pushed: bool) -> Moves:
        """Let chunks that are final from the start lie at their homes; return the moves that bring them there.

        Those that the rank pushes are left out unless `with_pushed`: a push copies them home on its way.
        """
        left = self.written if with_pushed else self.written | self.pushed
        final = [chunk for chunk in self.home if chunk in self.where and chunk not in left]
        free = self.homes_free(final, 0, self.where)
        moves = joined((self.where[chunk], home) for chunk, home in free.items())
        self.where.update(free)
        return moves

    def settle(self) -> Moves:
        """Return the moves that bring home what did not end there."""
        return joined(
            (self.where[chunk], home) for chunk, home in self.home.items() if self.where.get(chunk, home) != home
        )

    # Where what is written goes

    def take(self, count: int, last_round: int) -> Region:
        """Return `count` elements of scratch that stay taken through `last_round`."""
        start = self.scratch.take(count, last_round)
        return Region(SCRATCH, start, start + count)

    def with_scratch(
        self, chunks: Sequence[Chunk], number: int, places: Mapping[Chunk, Region], passing: Container[Chunk] = ()
    ) -> dict[Chunk, Region]:
        """Return places for all chunks: as given, the others in scratch side by side.

        Those that are `passing` are there for this round alone.
        """
        result = self._given(chunks, places)
        homeless = [chunk for chunk in chunks if chunk not in result]
        if not homeless:
            return result
        starts = self.scratch.take_together(
            [self.count(chunk) for chunk in homeless],
            [number if chunk in passing else max(number, self.last_read.get(chunk, NEVER)) for chunk in homeless],
        )
        for chunk, start in zip(homeless, starts, strict=True):
            result[chunk] = Region(SCRATCH, start, start + self.count(chunk))
        return result

    def _given(self, chunks: Sequence[Chunk], places: Mapping[Chunk, Region]) -> dict[Chunk, Region]:
        """Return `places`, and those of `chunks` that peers find at a fixed place."""
        if not self.fixed:
            return dict(places)
        return {**{chunk: self.fixed[chunk] for chunk in chunks if chunk in self.fixed}, **places}

    def scattered(self, chunks: Sequence[Chunk], homes: Mapping[Chunk, Region]) -> bool:
        """Whether chunks lie in several pieces if these have `homes` and the others lie in scratch side by side."""
        given = self._given(chunks, homes)
        return bool(given) and (len(given) < len(chunks) or len(stream_of(chunks, given)) > 1)

    def of_reduced(self, chunks: Sequence[Chunk], number: int) -> dict[Chunk, Region]:
        """Return where reduced chunks go: home if free, else where they are if that is scratch, else to new scratch."""
        targets = {}
        for chunk in chunks:
            if self.home_free(chunk, number, operand=self.where[chunk]):
                targets[chunk] = self.home[chunk]
            elif self.where[chunk].buffer == SCRATCH and chunk not in self.fixed:
                targets[chunk] = self.where[chunk]
        return self.with_scratch(chunks, number, targets)

    def of_local(self, chunk: Chunk, number: int, operand: Region) -> Region:
        """Return where a chunk goes that is made of what lies at `operand`."""
        return self.with_scratch([chunk], number, self.homes_free([chunk], number, {chunk: operand}))[chunk]
