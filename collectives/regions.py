"""Regions of a rank's buffers, and how streams of them are joined and cut. No MPI, no arrays."""

from __future__ import annotations

import heapq
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from collectives.rounds import Chunk

SEND, RECV, SCRATCH = "send", "recv", "scratch"
SHARED = "shared"
"""Scratch that the ranks of a node share."""

HOST = "host"
"""Memory of the host beside buffers on a GPU, from and to which messages go."""

Buffer: TypeAlias = str | tuple[int, str]
"""One of the own buffers, or (peer, buffer): one of a peer's in shared memory."""

ALWAYS = 1 << 60
"""A round after all others."""


class Region(NamedTuple):
    """Elements `start` to `stop` of a buffer."""

    buffer: Buffer
    start: int
    stop: int

    def overlaps(self, other: Region) -> bool:
        """Whether the two regions share an element."""
        return self.buffer == other.buffer and max(self.start, other.start) < min(self.stop, other.stop)


def of_peer(peer: int, region: Region) -> Region:
    """Return the region of `peer` that it names `region`."""
    return Region((peer, str(region.buffer)), region.start, region.stop)


NOWHERE = Region(SCRATCH, 0, 0)
"""The place of an empty chunk that no message brought."""

Regions: TypeAlias = tuple[Region, ...]


def stream_of(chunks: Sequence[Chunk], places: Mapping[Chunk, Region]) -> list[Region]:
    """Return the regions of `chunks` one after another, those that follow one another in memory joined."""
    result: list[Region] = []
    for chunk in chunks:
        region = places[chunk]
        if region.start == region.stop:
            continue
        if result and result[-1].buffer == region.buffer and result[-1].stop == region.start:
            region = Region(region.buffer, result.pop().start, region.stop)
        result.append(region)
    return result


def part(regions: Sequence[Region], start: int, stop: int) -> list[Region]:
    """Return elements `start` to `stop` of the stream that `regions` form one after another."""
    if len(regions) == 1:
        buffer, first, last = regions[0]
        if start == 0 and first + stop == last:
            return [*regions]
        return [Region(buffer, first + start, first + stop)]
    result, position = [], 0
    for buffer, first, last in regions:
        low, high = max(start - position, 0), min(stop - position, last - first)
        if low < high:
            result.append(Region(buffer, first + low, first + high))
        position += last - first
    return result


def side_by_side(*streams: Sequence[Region]) -> Iterator[tuple[Region, ...]]:
    """Cut streams of equal length into tuples of equally long regions."""
    if max(map(len, streams)) == 1:
        yield tuple([stream[0] for stream in streams])
        return
    rests = [list(reversed(stream)) for stream in streams]
    while rests[0]:
        heads = [rest.pop() for rest in rests]
        step = min(head.stop - head.start for head in heads)
        yield tuple(Region(head.buffer, head.start, head.start + step) for head in heads)
        for rest, head in zip(rests, heads, strict=True):
            if head.start + step < head.stop:
                rest.append(Region(head.buffer, head.start + step, head.stop))


def joined(moves: Iterable[tuple[Region, Region]]) -> list[tuple[Region, Region]]:
    """Join moves whose sources and targets both follow one another."""
    result: list[tuple[Region, Region]] = []
    for source, target in moves:
        if result:
            before, onto = result[-1]
            if (before.buffer, before.stop, onto.stop) == (source.buffer, source.start, target.start):
                result[-1] = (
                    Region(before.buffer, before.start, source.stop),
                    Region(onto.buffer, onto.start, target.stop),
                )
                continue
        result.append((source, target))
    return result


class Scratch:
    """Elements of scratch, taken first fit and given back after the round in which they were last needed."""

    def __init__(self, align: int) -> None:
        self.align = align
        self.count = 0
        self.free: list[tuple[int, int]] = []
        self.expiring: list[tuple[int, int, int]] = []

    def take(self, count: int, last_round: int) -> int:
        """Return the start of `count` elements that stay taken through `last_round`."""
        return self.take_together([count], [last_round])[0]

    def take_together(self, counts: Sequence[int], last_rounds: Sequence[int]) -> list[int]:
        """Return starts of elements that lie side by side, the first aligned; each is given back by itself."""
        starts = [self._room(sum(counts))]
        for count in counts[:-1]:
            starts.append(starts[-1] + count)
        for start, count, last_round in zip(starts, counts, last_rounds, strict=True):
            if count and last_round < ALWAYS:
                heapq.heappush(self.expiring, (last_round, start, start + count))
        return starts

    def _room(self, count: int) -> int:
        for index, (start, stop) in enumerate(self.free):
            first = self._aligned(start)
            if first + count <= stop:
                rest = ((start, first), (first + count, stop))
                self.free[index : index + 1] = [(low, high) for low, high in rest if low < high]
                return first
        start = self.free.pop()[0] if self.free and self.free[-1][1] == self.count else self.count  # grow the last hole
        first = self._aligned(start)
        if start < first:
            self.free.append((start, first))
        self.count = first + count
        return first

    def _aligned(self, start: int) -> int:
        return -(-start // self.align) * self.align

    def expire(self, after_round: int) -> None:
        """Give back what was needed through `after_round` at most."""
        while self.expiring and self.expiring[0][0] <= after_round:
            _, start, stop = heapq.heappop(self.expiring)
            index = bisect(self.free, (start, stop))
            if index < len(self.free) and self.free[index][0] == stop:
                stop = self.free.pop(index)[1]
            if index and self.free[index - 1][1] == start:
                index -= 1
                start = self.free.pop(index)[0]
            self.free.insert(index, (start, stop))
