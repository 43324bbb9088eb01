"""Accesses to memory of others: what is pulled, combined and pushed from which regions to which. No MPI."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from collectives.cutting import Cuts
from collectives.exposure import Exposure, all_same, same_everywhere
from collectives.places import Places
from collectives.program import Program
from collectives.regions import NOWHERE, Region, part, side_by_side, stream_of
from collectives.rounds import Access, Push


class _Step(NamedTuple):
    """What an access does for all of its chunks, each place a stream: combine `sources`, or copy the one, to `into`."""

    sources: list[list[Region]]
    into: list[Region]


class Accesses:
    """The accesses of one rank, added to its program."""

    def __init__(self, rank: int, exposure: Exposure, places: Places, cuts: Cuts, program: Program) -> None:
        self.rank, self.exposure, self.places, self.cuts, self.program = rank, exposure, places, cuts, program
        self.options = cuts.options

    def add(self, number: int, accesses: Sequence[Access]) -> None:
        """Add those of round `number` in order; those of the same chunks that follow one another in small pieces.

        So what was combined is still in cache when it is written to all peers.
        """
        while accesses:
            chunks = accesses[0].chunks
            several = next((index for index, one in enumerate(accesses) if one.chunks != chunks), len(accesses))
            run, accesses = accesses[:several], accesses[several:]
            steps = [step for one in run for step in self._steps(number, one)]
            targets = self._fused(steps)
            if targets:
                sources = steps[0].sources
                for regions in side_by_side(*sources, *targets):
                    self.program.reduce(regions[: len(sources)], regions[len(sources) :])
                continue
            total = self.cuts.total(chunks)
            in_pieces = len(steps) > 1 or len(run[0].peers) > 2
            piece = min(self.options.piece, total) if in_pieces else total
            calls = [partial(self._fold_all, *step, self._partial_sum(step, total, number)) for step in steps]
            for start in range(0, total, max(1, piece)):
                for call in calls:
                    call(start, min(start + piece, total))

    def _steps(self, number: int, access: Access) -> Iterator[_Step]:
        """Yield what together carries out an access."""
        chunks, places, exposure = access.chunks, self.places, self.exposure
        if isinstance(access, Push):
            source = stream_of(chunks, places.where)
            for peer in access.peers:
                if peer != self.rank:
                    theirs = {chunk: exposure.target(peer, chunk) for chunk in chunks}
                    yield _Step([source], stream_of(chunks, theirs))
            homes = places.homes_free(chunks, number, places.where)
        else:
            sources = [
                stream_of(chunks, places.where if peer == self.rank else exposure.places_of(peer, chunks, number))
                for peer in access.peers
            ]
            free = places.homes_free(chunks, number, places.where if self.rank in access.peers else {})
            places.where.update(places.with_scratch(chunks, number, free))
            source = stream_of(chunks, places.where)
            yield _Step(sources, source)
            homes = {
                chunk: places.home[chunk]
                for chunk in chunks
                if chunk in places.home and chunk in places.fixed and exposure.settled_at_once(chunk, number)
            }
        settled = {chunk: homes.get(chunk, places.where[chunk]) for chunk in chunks}
        if any(places.where[chunk] != place for chunk, place in settled.items()):  # while a piece is in cache
            yield _Step([source], stream_of(chunks, settled))
            places.where.update(settled)

    def _fused(self, steps: Sequence[_Step]) -> list[list[Region]]:
        """Return where the result of a reduction goes if `steps` are no more and are to be one, else nothing.

        What a step copies is then the result, as it already lies in one of the places. Where all ranks have one receive
        buffer, a place in it is the same of whichever rank.
        """
        targets: list[list[Region]] = []
        if self.options.fused and steps and len(steps[0].sources) > 1:
            for sources, into in steps:
                if targets and (len(sources) > 1 or sources[0] not in targets):
                    return []
                if not any(one == into or (self.options.common and all_same(one, into)) for one in targets):
                    targets.append(into)
        return targets

    def _partial_sum(self, step: _Step, count: int, number: int) -> Region:
        """Return where a piece is summed up that several peers have."""
        return self.places.take(min(self.options.piece, count), number) if len(step.sources) > 2 else NOWHERE

    def _fold_all(
        self, sources: Sequence[Sequence[Region]], into: Sequence[Region], partial_sum: Region, start: int, stop: int
    ) -> None:
        if len(sources) == 1:
            self._moves(sources[0], into, start, stop)
            return
        for *operands, target in side_by_side(*(part(one, start, stop) for one in (*sources, into))):
            count = target.stop - target.start
            kept = Region(partial_sum.buffer, partial_sum.start, partial_sum.start + count)
            left = operands[0]
            for right in operands[1:-1]:
                self.program.fold(left, right, kept)
                left = kept
            self.program.fold(left, operands[-1], target)

    def _moves(self, sources: Sequence[Region], targets: Sequence[Region], start: int, stop: int) -> None:
        for source, target in side_by_side(part(sources, start, stop), part(targets, start, stop)):
            if not (self.options.common and same_everywhere(source, target)):
                self.program.move(source, target)
