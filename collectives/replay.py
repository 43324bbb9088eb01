"""Replay an algorithm round by round, as its symbolic proof runs it: who has what, and who sends what to whom.

`explain` writes a replay as text, `drawing` draws it. Nothing in a replay is typed in; a wrong algorithm has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from collectives.problem import Problem
from collectives.proof import Value, prove
from collectives.registry import Algorithm
from collectives.rounds import (
    Access,
    Chunk,
    Combine,
    Copy,
    Fence,
    PullReduce,
    Push,
    RecvReduce,
    Round,
    Send,
)

State = Mapping[Chunk, Value]

ELLIPSIS_FROM = 5
"""From how many neighbours on a sum is shortened: ``A+B+C+D``, but ``A+..+E``."""


@dataclass(frozen=True)
class Delivery:
    """Chunks that go from one rank to another in a round; `combined` if there with another value.

    In a message, or through shared `memory`: ``"read"`` by the target, or ``"written"`` by the source.
    """

    source: int
    target: int
    chunks: tuple[Chunk, ...]
    combined: bool
    memory: str = ""


@dataclass(frozen=True)
class Replay:
    """An algorithm's rounds with what each rank has before, between and after them.

    `states[k][rank]` is what a rank has before `rounds[k]`; there is one state more than rounds. `numbers[k]` is the
    number of that round; rounds in which no rank does anything are left out. For a barrier a state holds the ranks
    that are known to have entered.
    """

    algorithm: Algorithm
    problem: Problem
    numbers: list[int]
    states: list[list[State]]
    deliveries: list[list[Delivery]]
    local: list[list[tuple[int, Copy | Combine | Fence]]]

    @property
    def title(self) -> str:
        """Primitive, algorithm, ranks and root."""
        ranks = f"{self.problem.nranks} rank{'s' if self.problem.nranks != 1 else ''}"
        root = f", root {self.problem.root}" if self.problem.primitive.rooted else ""
        return f"{self.problem.primitive.name} {self.algorithm.label}, {ranks}{root}"

    def inputs(self, rank: int) -> Sequence[Chunk]:
        """Return the chunks that `rank` has at the start."""
        if self.problem.primitive.synchronises:
            return [rank]
        return list(self.problem.primitive.inputs(self.problem, rank, self._nchunks))

    def outputs(self, rank: int) -> Sequence[Chunk]:
        """Return the chunks that `rank` must have at the end."""
        if self.problem.primitive.synchronises:
            return range(self.problem.nranks)
        return list(self.problem.primitive.outputs(self.problem, rank, self._nchunks))

    def places(self, rank: int) -> Sequence[Chunk]:
        """Return the chunks of which it is shown whether `rank` has them: all there are, or its outputs if too many."""
        return self._all_chunks or self.outputs(rank)

    def carried(self, position: int, rank: int) -> list[Chunk]:
        """Return what `rank` has before round `position` of its replay that has no place and is needed later."""
        placed = {*self.places(rank), *self.inputs(rank)}
        return [
            chunk
            for chunk in self.states[position][rank]
            if chunk not in placed and self._last_read[rank].get(chunk, -1) >= position
        ]

    def label(self, chunk: Chunk, value: Value) -> str:
        """Return a value in letters: ``C`` is what rank 2 had at the start, ``C1`` its part 1, ``A1+C1`` a sum."""
        if not self.problem.primitive.combines:
            return self._letter(self._owners[value[0]], value[0])
        words, rest = [], list(value)
        while rest:
            length = _neighbours(rest)
            run, rest = rest[:length], rest[length:]
            names = [self._letter(rank, self.problem.primitive.contribution(rank, chunk)) for rank in run]
            words += [names[0], "..", names[-1]] if length >= ELLIPSIS_FROM else names
        return "+".join(words)

    def sent(self, position: int, delivery: Delivery) -> list[str]:
        """Return what is delivered, in letters. What is written to a peer's memory may have been combined before."""
        state = self.states[position + (delivery.memory == "written")][delivery.source]
        return [self.label(chunk, state[chunk]) for chunk in delivery.chunks if chunk in state]

    def part(self, chunk: Chunk) -> str:
        """Return the part of the vector that `chunk` is, as the number behind the letters; empty if it is one piece."""
        return next((number for number in (self._number(rank, chunk) for rank in self._ranks) if number), "")

    @property
    def _ranks(self) -> range:
        return range(self.problem.nranks)

    @property
    def _nchunks(self) -> int:
        return self.algorithm.nchunks(self.problem.nranks, self.problem.nodes)

    @cached_property
    def _positions(self) -> list[dict[Chunk, int]]:
        return [{chunk: index for index, chunk in enumerate(self.inputs(rank))} for rank in self._ranks]

    @cached_property
    def _owners(self) -> dict[Chunk, int]:
        return {chunk: rank for rank in self._ranks for chunk in self.inputs(rank)}

    @cached_property
    def _all_chunks(self) -> list[Chunk]:
        chunks = dict.fromkeys(chunk for rank in self._ranks for chunk in (*self.inputs(rank), *self.outputs(rank)))
        return list(chunks) if len(chunks) <= max(self.problem.nranks, self._nchunks) else []

    @cached_property
    def _last_read(self) -> list[dict[Chunk, int]]:
        last: list[dict[Chunk, int]] = [{} for _ in self._ranks]
        for position, deliveries in enumerate(self.deliveries):
            for one in deliveries:
                last[one.source].update(dict.fromkeys(one.chunks, position))
                if one.combined:
                    last[one.target].update(dict.fromkeys(one.chunks, position))
            for rank, operation in self.local[position]:
                if isinstance(operation, Copy):
                    last[rank][operation.src] = position
                elif isinstance(operation, Combine):
                    last[rank].update(dict.fromkeys((operation.left, operation.right), position))
        return last

    def _number(self, rank: int, chunk: Chunk) -> str:
        positions = self._positions[rank]
        return str(positions[chunk]) if len(positions) > 1 and chunk in positions else ""

    def _letter(self, rank: int, chunk: Chunk) -> str:
        return letters(rank) + self._number(rank, chunk)


def letters(rank: int) -> str:
    """Return the letters of a rank, as a spreadsheet names its columns: A to Z, AA, AB, ..."""
    result = ""
    rank += 1
    while rank:
        rank, digit = divmod(rank - 1, 26)
        result = chr(ord("A") + digit) + result
    return result


def _neighbours(ranks: Sequence[int]) -> int:
    """Return how many of the first ranks follow one another upwards, or downwards."""
    for step in (1, -1):
        length = 1
        while length < len(ranks) and ranks[length] == ranks[length - 1] + step:
            length += 1
        if length > 1:
            return length
    return 1


def replay(algorithm: Algorithm, nranks: int, root: int = 0) -> Replay:
    """Prove `algorithm` and return what happened.

    Raises:
        Refuted: it is wrong; see `collectives.proof`.

    """
    primitive = algorithm.primitive
    problem = primitive.problem(nranks, nranks * algorithm.nchunks(nranks), root=root)
    seen: list[dict[int, tuple[Round, State]]] = []

    def watch(rank: int, number: int, operations: Round, values: State, heard: set[int]) -> None:
        seen.extend({} for _ in range(number + 1 - len(seen)))
        known: State = {one: (one,) for one in sorted(heard)} if primitive.synchronises else dict(values)
        seen[number][rank] = operations, known

    proof = prove(algorithm, nranks, root, watch)
    result = Replay(algorithm, problem, [], [], [], [])
    result.states.append(
        [
            {chunk: (rank,) if primitive.combines else (chunk,) for chunk in result.inputs(rank)}
            for rank in range(nranks)
        ]
    )
    for number, ranks in enumerate(seen):
        if not any(operations for operations, _ in ranks.values()):
            continue
        done = [(rank, one) for rank, (operations, _) in sorted(ranks.items()) for one in operations]
        combined = {(one.peer, rank, one.chunks) for rank, one in done if isinstance(one, RecvReduce)}
        deliveries: list[Delivery] = []
        for rank, one in done:
            if isinstance(one, Send):
                deliveries.append(Delivery(rank, one.peer, one.chunks, (rank, one.peer, one.chunks) in combined))
            elif isinstance(one, Push):
                deliveries += [Delivery(rank, peer, one.chunks, False, "written") for peer in one.peers if peer != rank]
            elif isinstance(one, Access):
                combines = isinstance(one, PullReduce)
                deliveries += [Delivery(peer, rank, one.chunks, combines, "read") for peer in one.peers if peer != rank]
        result.numbers.append(number)
        result.deliveries.append(deliveries)
        result.local.append([(rank, one) for rank, one in done if isinstance(one, (Copy, Combine, Fence))])
        # A rank whose rounds are over keeps what it has.
        before = result.states[-1]
        result.states.append([ranks[rank][1] if rank in ranks else before[rank] for rank in range(nranks)])
    if not primitive.synchronises:
        result.states[-1] = list(proof.values)  # with what peers wrote after a rank's last round
    return result
