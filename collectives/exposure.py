"""What ranks that share memory see of each other's chunks: where each lies for its peers, and when. No MPI.

Peers must agree on these places without talking, so they are fixed: what its owner has not yet written lies in its
input buffer, what has been written lies in its output buffer; where that buffer is not shared, or where buffers alias,
it has a slot of its own in shared scratch. All of it follows from the rounds, and all ranks work out the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from collectives.races import reads_and_writes
from collectives.regions import RECV, SHARED, Region, of_peer
from collectives.registry import Algorithm, Problem
from collectives.rounds import Chunk, Fence, Pull, Push, Round, as_rounds

Places = Callable[[int], tuple[Mapping[Chunk, Region], Mapping[Chunk, Region]]]
"""For a rank: where its inputs lie, and where its outputs belong."""

UNWRITTEN = 1 << 60


class Exposure:
    """One algorithm's accesses to memory of others, as far as they concern `rank` and those that it meets at fences.

    `shared` names the buffers (send, recv) of the user that lie in shared memory on all these ranks.
    """

    def __init__(
        self,
        problem: Problem,
        algorithm: Algorithm,
        rank: int,
        shared: frozenset[str],
        places: Places,
        count: Callable[[Chunk], int],
    ) -> None:
        self.problem, self.algorithm, self.rank, self.shared, self.count = problem, algorithm, rank, shared, count
        self.rounds = self._met(rank)
        self.places = {one: places(one) for one in self.rounds}
        self.written: dict[tuple[int, Chunk], int] = {}
        self.read: dict[tuple[int, Chunk], list[int]] = {}
        self.pushed: dict[tuple[int, Chunk], list[int]] = {}
        self.exposed: dict[int, dict[Chunk, None]] = {one: {} for one in self.rounds}
        self._follow()
        if algorithm.staged:  # peers read copies of inputs, whatever is written meanwhile
            self.written = {}
        self.slots = {one: self._slots_of(one) for one in self.rounds}

    def _met(self, rank: int) -> dict[int, list[Round]]:
        """Return the rounds of all ranks that `rank` meets at fences, or that those meet."""
        rounds: dict[int, list[Round]] = {}
        waiting = [rank]
        while waiting:
            one = waiting.pop()
            if one not in rounds:
                rounds[one] = as_rounds(self.algorithm.rounds(self.problem, one))
                groups = {op.group for operations in rounds[one] for op in operations if isinstance(op, Fence)}
                waiting += [member for group in groups for member in group]
        return dict(sorted(rounds.items()))

    def _follow(self) -> None:
        for one, rounds in self.rounds.items():
            for number, operations in enumerate(rounds):
                for operation in operations:
                    for written, owner, chunk in reads_and_writes(one, operation):
                        place = owner, chunk
                        if written:
                            self.written[place] = min(number, self.written.get(place, UNWRITTEN))
                        if owner != one:
                            self.exposed[owner][chunk] = None
                            (self.pushed if written else self.read).setdefault(place, []).append(number)

    # Where chunks lie for peers

    def _unwritten_reads(self, owner: int, chunk: Chunk) -> bool:
        first = self.written.get((owner, chunk), UNWRITTEN)
        return any(number <= first for number in self.read.get((owner, chunk), ()))

    def _written_reads(self, owner: int, chunk: Chunk) -> bool:
        """Whether what is written to the chunk must lie where peers find it."""
        first = self.written.get((owner, chunk), UNWRITTEN)
        return (owner, chunk) in self.pushed or any(number > first for number in self.read.get((owner, chunk), ()))

    def _home_usable(self, owner: int, chunk: Chunk) -> bool:
        inputs, homes = self.places[owner]
        home = homes.get(chunk)
        if home is None or RECV not in self.shared:
            return False
        return not any(other != chunk and region.overlaps(home) for other, region in inputs.items())

    def _input_usable(self, owner: int, chunk: Chunk) -> bool:
        region = self.places[owner][0].get(chunk)
        return region is not None and region.buffer in self.shared

    def _slots_of(self, owner: int) -> dict[Chunk, Region]:
        inputs, homes = self.places[owner]
        start = 0
        slots = {}
        for chunk in dict.fromkeys((*inputs, *homes, *self.exposed[owner])):
            if chunk in self.exposed[owner] and (
                (self._unwritten_reads(owner, chunk) and not self._input_usable(owner, chunk))
                or (self._written_reads(owner, chunk) and not self._home_usable(owner, chunk))
            ):
                slots[chunk] = Region(SHARED, start, start + self.count(chunk))
                start += self.count(chunk)
        return slots

    def _written_place(self, owner: int, chunk: Chunk) -> Region:
        return self.places[owner][1][chunk] if self._home_usable(owner, chunk) else self.slots[owner][chunk]

    def _seen(self, owner: int, region: Region) -> Region:
        return region if owner == self.rank else of_peer(owner, region)

    def seen(self, owner: int, chunk: Chunk, number: int) -> Region:
        """Return where the own rank finds `chunk` of `owner` in round `number`."""
        if self.written.get((owner, chunk), UNWRITTEN) < number:
            return self._seen(owner, self._written_place(owner, chunk))
        inputs = self.places[owner][0]
        if chunk not in inputs:
            raise ValueError(
                f"rank {self.rank}, round {number}: chunk {chunk!r} of rank {owner} is read before it is written"
            )
        return self._seen(owner, inputs[chunk] if self._input_usable(owner, chunk) else self.slots[owner][chunk])

    def places_of(self, owner: int, chunks: Sequence[Chunk], number: int) -> dict[Chunk, Region]:
        """Return where the own rank finds `chunks` of `owner` in round `number`."""
        return {chunk: self.seen(owner, chunk, number) for chunk in chunks}

    def target(self, owner: int, chunk: Chunk) -> Region:
        """Return where the own rank writes `chunk` of `owner`."""
        return self._seen(owner, self._written_place(owner, chunk))

    def written_by_several(self) -> tuple[int, int] | None:
        """Return two ranks that write the same output chunk, other than by copying it from one to the other."""
        writers: dict[Chunk, int] = {}
        for one, rounds in self.rounds.items():
            inputs, homes = self.places[one]
            written = {chunk for chunk in homes if chunk in inputs and (one, chunk) not in self.written}
            for operations in rounds:
                for operation in operations:
                    if isinstance(operation, Push):
                        continue
                    copies = isinstance(operation, Pull) and not any(
                        chunk in self.places[peer][0] and (peer, chunk) not in self.written
                        for peer in operation.peers
                        for chunk in operation.chunks
                        if not self.problem.primitive.one_buffer
                    )
                    if not copies:
                        accesses = reads_and_writes(one, operation)
                        written |= {chunk for writes, owner, chunk in accesses if writes and owner == one}
            for chunk in written & homes.keys():
                if writers.setdefault(chunk, one) != one:
                    return writers[chunk], one
        return None

    # The own rank's part

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """All groups that meet at fences, in the same order on all these ranks."""
        return tuple(
            sorted(
                {
                    operation.group
                    for rounds in self.rounds.values()
                    for operations in rounds
                    for operation in operations
                    if isinstance(operation, Fence)
                }
            )
        )

    @property
    def slot_count(self) -> int:
        """The elements of shared scratch that the own rank must have."""
        return max((region.stop for region in self.slots[self.rank].values()), default=0)

    @property
    def staged(self) -> list[tuple[Region, Region]]:
        """The own inputs that peers read from slots: from where to where they are copied as the call begins."""
        inputs = self.places[self.rank][0]
        return [
            (region, self.slots[self.rank][chunk])
            for chunk, region in inputs.items()
            if self._unwritten_reads(self.rank, chunk) and not self._input_usable(self.rank, chunk)
        ]

    def fixed(self) -> dict[Chunk, Region]:
        """Return where the own chunks must be written that peers read afterwards, or write themselves."""
        return {
            chunk: self._written_place(self.rank, chunk)
            for chunk in self.exposed[self.rank]
            if self._written_reads(self.rank, chunk)
        }

    def pushed_in(self) -> dict[int, list[Chunk]]:
        """Return which own chunks peers write, by round."""
        result: dict[int, list[Chunk]] = {}
        for (owner, chunk), numbers in self.pushed.items():
            if owner == self.rank:
                for number in numbers:
                    result.setdefault(number, []).append(chunk)
        return result

    def last_reads(self) -> dict[Chunk, int]:
        """Return for own chunks that peers read the round of the fence behind the last such read."""
        rounds = enumerate(self.rounds[self.rank])
        fences = [number for number, operations in rounds if any(isinstance(one, Fence) for one in operations)]
        result = {}
        for (owner, chunk), numbers in self.read.items():
            if owner == self.rank:
                last = max(numbers)
                result[chunk] = next((number for number in fences if number >= last), UNWRITTEN)
        return result


def same_everywhere(one: Region, other: Region) -> bool:
    """Whether both are the same elements of the receive buffer, of whichever rank."""
    buffers = [region.buffer[1] if isinstance(region.buffer, tuple) else region.buffer for region in (one, other)]
    return buffers == [RECV, RECV] and one[1:] == other[1:]
