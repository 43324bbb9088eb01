"""What ranks that share memory see of each other's chunks: where each lies for its peers, and when. No MPI.

Peers must agree on these places without talking, so they are fixed: what its owner has not yet written lies in its
input buffer, what has been written lies in its output buffer; where that buffer is not shared, or where buffers alias,
it has a slot in shared scratch. A slot is used from the step in which it is filled to that in which it is read last,
and then again for another chunk; steps are what fences divide a call into. All of it follows from the rounds, and all
ranks work out the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

from collectives.problem import Problem
from collectives.races import reads_and_writes
from collectives.regions import ALWAYS, RECV, SHARED, Region, Scratch, of_peer
from collectives.registry import Algorithm
from collectives.rounds import Access, Chunk, Fence, Pull, Push, Round, as_rounds

Ends: TypeAlias = Callable[[int], tuple[Mapping[Chunk, Region], Mapping[Chunk, Region]]]
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
        ends: Ends,
        count: Callable[[Chunk], int],
    ) -> None:
        self.problem, self.algorithm, self.rank, self.shared, self.count = problem, algorithm, rank, shared, count
        self.rounds = self._met(rank)
        self.places = {one: ends(one) for one in self.rounds}
        self.written: dict[tuple[int, Chunk], int] = {}
        self.read: dict[tuple[int, Chunk], list[int]] = {}
        self.pushed: dict[tuple[int, Chunk], list[int]] = {}
        self.touched: dict[tuple[int, Chunk], int] = {}  # by its owner, for the last time
        self.set_last: dict[tuple[int, Chunk], tuple[int, bool]] = {}  # by its owner: when, and whether by an access
        self.exposed: dict[int, dict[Chunk, None]] = {one: {} for one in self.rounds}
        self.fences = {one: self._fences_of(rounds) for one, rounds in self.rounds.items()}
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

    def _fences_of(self, rounds: Sequence[Round]) -> list[int]:
        """Return the rounds that end with a fence."""
        return [number for number, one in enumerate(rounds) if any(isinstance(each, Fence) for each in one)]

    def _follow(self) -> None:
        for one, rounds in self.rounds.items():
            for number, operations in enumerate(rounds):
                for operation in operations:
                    for written, owner, chunk in reads_and_writes(one, operation):
                        place = owner, chunk
                        if written:
                            self.written[place] = min(number, self.written.get(place, UNWRITTEN))
                        if owner == one:
                            self.touched[place] = number
                            if written:
                                self.set_last[place] = number, isinstance(operation, Access)
                        else:
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
        homes = self.places[owner][1]
        return chunk in homes and RECV in self.shared and self._home_alone(owner, chunk)

    def _input_usable(self, owner: int, chunk: Chunk) -> bool:
        region = self.places[owner][0].get(chunk)
        return region is not None and region.buffer in self.shared

    def _slots_of(self, owner: int) -> dict[Chunk, Region]:
        """Return the slots of `owner`: for chunks that are used in the same step, side by side."""
        inputs, homes = self.places[owner]
        steps = {
            chunk: self._steps_of(owner, chunk)
            for chunk in dict.fromkeys((*inputs, *homes, *self.exposed[owner]))
            if chunk in self.exposed[owner] and (self._copied(owner, chunk) or self._elsewhere(owner, chunk))
        }
        scratch, slots = Scratch(1), {}
        for chunk in sorted(steps, key=lambda one: steps[one][0]):
            first, last = steps[chunk]
            scratch.expire(first - 1)
            start = scratch.take(self.count(chunk), last)
            slots[chunk] = Region(SHARED, start, start + self.count(chunk))
        return slots

    def _copied(self, owner: int, chunk: Chunk) -> bool:
        """Whether peers read a copy of an input."""
        return self._unwritten_reads(owner, chunk) and not self._input_usable(owner, chunk)

    def _elsewhere(self, owner: int, chunk: Chunk) -> bool:
        """Whether what is written to the chunk lies in a slot for peers."""
        return self._written_reads(owner, chunk) and not self._home_usable(owner, chunk)

    def _steps_of(self, owner: int, chunk: Chunk) -> tuple[int, int]:
        """Return the first and the last step in which the slot of a chunk is used.

        Steps can be told where all ranks meet at all fences; else a slot is used all the time.
        """
        everyone = tuple(self.rounds)
        if any(tuple(sorted(one)) != everyone for one in self.groups):
            return 0, ALWAYS
        place = owner, chunk
        first = self.written.get(place, UNWRITTEN)
        used = []
        if self._copied(owner, chunk):
            used = [number for number in self.read[place] if number <= first]
            used.append(self.copied_in(owner, min(used)))
        if self._elsewhere(owner, chunk):
            if not self._settled_at_once(owner, chunk):
                return 0, ALWAYS
            used += [first, self.touched[place], *(number for number in self.read[place] if number > first)]
        return self._step(owner, min(used)), self._step(owner, max(used))

    def _step(self, owner: int, number: int) -> int:
        """Return how many fences `owner` has passed before a round."""
        return bisect_left(self.fences[owner], number)

    def copied_in(self, owner: int, number: int) -> int:
        """Return the round at whose end an input is copied that peers read in round `number`: at the last fence."""
        index = self._step(owner, number)
        return self.fences[owner][index - 1] if index else 0

    def _settled_at_once(self, owner: int, chunk: Chunk) -> bool:
        """Whether the owner copies a chunk from its slot to where it belongs as soon as it is there."""
        if (owner, chunk) in self.pushed or not self.set_last.get((owner, chunk), (0, False))[1]:
            return False
        return chunk not in self.places[owner][1] or self._home_alone(owner, chunk)

    def _home_alone(self, owner: int, chunk: Chunk) -> bool:
        """Whether nothing but the chunk itself lies where it belongs."""
        inputs, homes = self.places[owner]
        return not any(other != chunk and region.overlaps(homes[chunk]) for other, region in inputs.items())

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

    @cached_property
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
    def copies(self) -> dict[int, list[tuple[Region, Region]]]:
        """The own inputs that peers read from slots: for each round from where to where they are copied at its end."""
        result: dict[int, list[tuple[Region, Region]]] = {}
        for chunk, region in self.places[self.rank][0].items():
            if self._copied(self.rank, chunk):
                first = self.copied_in(self.rank, min(self.read[self.rank, chunk]))
                result.setdefault(first, []).append((region, self.slots[self.rank][chunk]))
        return result

    def settled_at_once(self, chunk: Chunk, number: int) -> bool:
        """Whether an own chunk, written to its slot in round `number`, is to be copied to where it belongs then."""
        place = self.rank, chunk
        return self._settled_at_once(*place) and self.set_last[place][0] == number

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


def all_same(some: Sequence[Region], others: Sequence[Region]) -> bool:
    """Whether two streams are the same elements of the receive buffer, of whichever rank."""
    return len(some) == len(others) and all(map(same_everywhere, some, others))
