"""Prove an algorithm in one process, without MPI: symbolic chunks, synchronous sends, any number of ranks.

`prove` runs the rounds of all ranks. A chunk's value is the tuple of contributions in operand order; for primitives
that only move data it is the chunk's own name. A rank posts a round, messages match in order between each pair of
ranks and complete only when both ends are posted, and a rank goes on when all of its round is matched: no progress
is a deadlock. `Refuted` names what is wrong, where, and with which chunk.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from collectives.problem import Nodes, Problem
from collectives.races import Race, check_races
from collectives.registry import Algorithm
from collectives.rounds import (
    LEFT,
    Access,
    Chunk,
    Combine,
    Copy,
    Fence,
    Message,
    Operation,
    Push,
    Recv,
    RecvReduce,
    Round,
    Send,
    as_round,
    as_rounds,
)

Value: TypeAlias = tuple[Any, ...]
Watcher: TypeAlias = Callable[[int, int, Round, dict[Chunk, Value], set[int]], None]


class Refuted(AssertionError):
    """The algorithm is wrong; the message says in which way."""


@dataclass(slots=True)
class _Rank:
    """One rank in the middle of its rounds."""

    rank: int
    rounds: Any
    values: dict[Chunk, Value]
    number: int = -1
    operations: Round = ()
    missing: int = 0
    arrived: dict[int, tuple[Value, ...]] = field(default_factory=dict)
    heard: set[int] = field(default_factory=set)
    newly_heard: set[int] = field(default_factory=set)
    before_fence: bool = True
    done: bool = False


@dataclass(slots=True)
class _Posted:
    """One posted end of a message."""

    rank: int
    number: int
    index: int
    operation: Message
    values: tuple[Value, ...] = ()
    heard: frozenset[int] = frozenset()


def prove(
    algorithm: Algorithm, nranks: int, root: int = 0, watch: Watcher | None = None, nodes: Nodes | None = None
) -> Proof:
    """Run all ranks of `algorithm` symbolically and check the primitive's contract.

    `watch(rank, round, operations, values, heard)` is called as each rank goes on from a round: what it then has, and
    of which ranks it then knows that they have begun. `nodes` are the ranks of each node, None if all are on one.
    Returns what was found out.

    Raises:
        Refuted: missing or doubled contributions, wrong chunks, a race, ends of a message in different rounds, a
            deadlock, or an order that is claimed and not kept.

    """
    count = nranks * max(1, algorithm.nchunks(nranks, nodes))
    problem = algorithm.primitive.problem(nranks, count, root=root, nodes=nodes)
    return _Prover(problem, algorithm, watch).run()


@dataclass(frozen=True)
class Proof:
    """What a proof found: rounds in all, and each rank's final values."""

    nrounds: int
    values: list[dict[Chunk, Value]]
    in_order: bool


class _Prover:
    def __init__(self, problem: Problem, algorithm: Algorithm, watch: Watcher | None = None) -> None:
        self.problem, self.algorithm, self.watch = problem, algorithm, watch
        self.primitive, self.nranks = problem.primitive, problem.nranks
        self.nchunks = algorithm.nchunks(problem.nranks, problem.nodes)
        self.ranks = [
            _Rank(rank, algorithm.rounds(problem, rank), self._start(rank), heard={rank}) for rank in range(self.nranks)
        ]
        self.sends: defaultdict[tuple[int, int], deque[_Posted]] = defaultdict(deque)
        self.receives: defaultdict[tuple[int, int], deque[_Posted]] = defaultdict(deque)
        self.fences: dict[tuple[int, Fence], int] = {}
        self.shares_memory: bool | None = None
        self.order_kept = True

    def _start(self, rank: int) -> dict[Chunk, Value]:
        chunks = self.primitive.inputs(self.problem, rank, self.nchunks)
        return {chunk: (rank,) if self.primitive.combines else (chunk,) for chunk in chunks}

    def run(self) -> Proof:
        ready = deque(self.ranks)
        while ready:
            one = ready.popleft()
            if one.before_fence:
                self._complete(one)
                fences = [operation for operation in one.operations if isinstance(operation, Fence)]
                if fences:
                    ready.extend(self._meet(one, fences[0]))
                    continue
            if self._post(one):
                ready.extend(self._match(one))
        for waiting in (*self.sends.values(), *self.receives.values()):
            for posted in waiting:
                peer = posted.operation.peer
                if self.ranks[peer].done:
                    fault = f"{posted.operation} is never matched: the rounds of rank {peer} are over"
                    raise self._refuted(posted.rank, posted.number, fault)
        stuck = [one for one in self.ranks if not one.done]
        if stuck:
            raise self._refuted(stuck[0].rank, stuck[0].number, self._deadlock(stuck))
        self._check_end()
        return Proof(max(one.number for one in self.ranks), [one.values for one in self.ranks], self.order_kept)

    def _refuted(self, rank: int, number: int, fault: str) -> Refuted:
        root = f", root {self.problem.root}" if self.primitive.rooted else ""
        where = f"{self.primitive.name} {self.algorithm.label}, {self.nranks} ranks{root}"
        return Refuted(f"{where}: rank {rank}, round {number}: {fault}")

    def _deadlock(self, stuck: list[_Rank]) -> str:
        waits = "; ".join(f"rank {one.rank} in round {one.number} of {one.operations}" for one in stuck[:4])
        return f"deadlock: {len(stuck)} ranks wait for ever ({waits})"

    # One round of one rank

    def _post(self, one: _Rank) -> bool:
        """Post the rank's next round; return whether there is one."""
        if self.watch and one.number >= 0:
            self.watch(one.rank, one.number, one.operations, one.values, one.heard)
        try:
            one.operations = as_round(next(one.rounds))
        except StopIteration:
            one.operations, one.done = (), True
            one.number += 1
            return False
        one.number += 1
        one.before_fence = True
        self._check_races(one)
        for index, operation in enumerate(one.operations):
            if isinstance(operation, Message):
                self._post_message(one, index, operation)
            elif isinstance(operation, (Access, Fence)) and self.shares_memory is None:
                self._check_fences(one, operation)
        return True

    def _check_fences(self, one: _Rank, operation: Operation) -> None:
        """Check once, as the first rank comes to use shared memory, that fences keep all such uses apart."""
        self.shares_memory = self.algorithm.shares_memory(self.problem)
        if not self.shares_memory:
            fault = f"{operation} in an algorithm that does not say that it needs shared memory"
            raise self._refuted(one.rank, one.number, fault)
        ranks = range(self.nranks)
        inputs, outputs = (
            [lies(self.problem, rank, self.nchunks) for rank in ranks]
            for lies in (self.primitive.inputs, self.primitive.outputs)
        )
        try:
            check_races(
                [as_rounds(self.algorithm.rounds(self.problem, rank)) for rank in ranks],
                inputs,
                outputs,
                self.algorithm.staged,
            )
        except Race as race:
            raise self._refuted(race.rank, race.number, race.fault) from None

    def _meet(self, one: _Rank, fence: Fence) -> list[_Rank]:
        """Let a rank arrive at its fence; return the whole group if it was the last."""
        one.before_fence = False
        arrived = self.fences[one.number, fence] = self.fences.get((one.number, fence), 0) + 1
        if arrived < len(fence.group):
            return []
        group = [self.ranks[member] for member in fence.group]
        heard = set().union(*(member.heard for member in group))
        for member in group:
            member.heard |= heard
        return group

    def _post_message(self, one: _Rank, index: int, operation: Message) -> None:
        if not 0 <= operation.peer < self.nranks:
            raise self._refuted(one.rank, one.number, f"{operation}: there is no rank {operation.peer}")
        one.missing += 1
        posted = _Posted(one.rank, one.number, index, operation)
        if isinstance(operation, Send):
            posted.values = tuple(self._value(one, chunk, operation) for chunk in operation.chunks)
            if self.primitive.synchronises or self.watch:
                posted.heard = frozenset(one.heard)
            self.sends[one.rank, operation.peer].append(posted)
        else:
            self.receives[operation.peer, one.rank].append(posted)

    def _match(self, one: _Rank) -> list[_Rank]:
        """Match what can be matched on the pairs that `one` just touched; return ranks whose round is complete."""
        complete = [one] if one.missing == 0 else []
        for operation in one.operations:
            if not isinstance(operation, Message):
                continue
            pair = (one.rank, operation.peer) if isinstance(operation, Send) else (operation.peer, one.rank)
            sends, receives = self.sends[pair], self.receives[pair]
            while sends and receives:
                send, receive = sends.popleft(), receives.popleft()
                self._check_ends(send, receive)
                sender, receiver = self.ranks[send.rank], self.ranks[receive.rank]
                receiver.arrived[receive.index] = send.values
                if send.heard:
                    receiver.newly_heard |= send.heard
                for end in (sender, receiver):
                    end.missing -= 1
                    if end.missing == 0:
                        complete.append(end)
        return complete

    def _complete(self, one: _Rank) -> None:
        """Let receives and reductions of the round take effect in order, then local operations."""
        if one.number >= 0:
            for index, operation in enumerate(one.operations):
                if isinstance(operation, Recv):
                    one.values.update(zip(operation.chunks, one.arrived[index], strict=True))
                elif isinstance(operation, RecvReduce):
                    for chunk, incoming in zip(operation.chunks, one.arrived[index], strict=True):
                        own = self._value(one, chunk, operation)
                        pair = (incoming, own) if operation.side == LEFT else (own, incoming)
                        one.values[chunk] = self._combined(one, operation, chunk, *pair)
            others = [operation for operation in one.operations if not isinstance(operation, Message)]
            for operation in others:
                if isinstance(operation, Access):
                    self._access(one, operation)
            for operation in others:
                if isinstance(operation, Copy):
                    one.values[operation.dst] = self._value(one, operation.src, operation)
                elif isinstance(operation, Combine):
                    left, right = (self._value(one, chunk, operation) for chunk in (operation.left, operation.right))
                    one.values[operation.into] = self._combined(one, operation, operation.into, left, right)
        if one.newly_heard:
            one.heard |= one.newly_heard
            one.newly_heard = set()
        one.arrived.clear()

    def _access(self, one: _Rank, operation: Access) -> None:
        """Read and write at once: fences keep accesses apart, so there is no other order that could be seen."""
        peers = [self.ranks[peer] for peer in operation.peers]
        for chunk in operation.chunks:
            if isinstance(operation, Push):
                value = self._value(one, chunk, operation)
                for peer in peers:
                    peer.values[chunk] = value
            else:
                first, *others = (self._seen(one, peer, chunk, operation) for peer in peers)
                for other in others:
                    first = self._combined(one, operation, chunk, first, other)
                one.values[chunk] = first

    def _seen(self, one: _Rank, peer: _Rank, chunk: Chunk, operation: Operation) -> Value:
        """Return what `one` finds at `peer`: the chunk, or the copy of it that was made as the call began."""
        if self.algorithm.staged and peer is not one:
            copies = self._start(peer.rank)
            if chunk in copies:
                return copies[chunk]
        return self._value(peer, chunk, operation)

    def _value(self, one: _Rank, chunk: Chunk, operation: Operation) -> Value:
        if chunk not in one.values:
            raise self._refuted(
                one.rank, one.number, f"{operation} needs chunk {chunk!r}, which the rank does not have"
            )
        return one.values[chunk]

    def _combined(self, one: _Rank, operation: Operation, chunk: Chunk, left: Value, right: Value) -> Value:
        if not self.primitive.combines:
            raise self._refuted(one.rank, one.number, f"{operation}: {self.primitive.name} combines nothing")
        if not set(left).isdisjoint(right):
            doubled = set(left) & set(right)
            raise self._refuted(
                one.rank,
                one.number,
                f"{operation} counts the contribution of rank {min(doubled)} to chunk {chunk!r} twice",
            )
        return left + right

    # Checks

    def _check_races(self, one: _Rank) -> None:
        """A plain receive of a chunk that is also sent, received or reduced in the same round is a race."""
        messages = [operation for operation in one.operations if isinstance(operation, Message)]
        touched = [chunk for message in messages for chunk in message.chunks]
        if len(set(touched)) == len(touched):
            return
        times = Counter(touched)
        for message in messages:
            if len(set(message.chunks)) < len(message.chunks):
                raise self._refuted(one.rank, one.number, f"{message} names a chunk twice")
            if isinstance(message, Recv):
                for chunk in message.chunks:
                    if times[chunk] > 1:
                        fault = f"race: {message} while chunk {chunk!r} is also sent or received"
                        raise self._refuted(one.rank, one.number, fault)

    def _check_ends(self, send: _Posted, receive: _Posted) -> None:
        if send.number == receive.number and send.operation.chunks == receive.operation.chunks:
            return
        both = f"rank {send.rank} {send.operation} and rank {receive.rank} {receive.operation}"
        if send.number != receive.number:
            fault = f"{both} are the two ends of a message in rounds {send.number} and {receive.number}"
            raise self._refuted(send.rank, send.number, fault)
        raise self._refuted(send.rank, send.number, f"{both} do not name the same chunks")

    def _check_end(self) -> None:
        everyone = tuple(range(self.nranks))
        for one in self.ranks:
            for chunk in self.primitive.outputs(self.problem, one.rank, self.nchunks):
                value = one.values.get(chunk)
                if value is None:
                    raise self._refuted(one.rank, one.number, f"ends without chunk {chunk!r}")
                if not self.primitive.combines:
                    if value != (chunk,):
                        raise self._refuted(
                            one.rank, one.number, f"ends with {value[0]!r} where chunk {chunk!r} belongs"
                        )
                    continue
                expected = self.primitive.contributors(self.problem, one.rank, chunk)
                if sorted(value) != list(expected):
                    missing = sorted(set(expected) - set(value)) or sorted(set(value) - set(expected))
                    what = "lacks" if set(expected) - set(value) else "has too much:"
                    raise self._refuted(
                        one.rank, one.number, f"chunk {chunk!r} {what} the contribution of rank {missing[0]}"
                    )
                if value != tuple(expected):
                    self.order_kept = False
                    if self.algorithm.keeps_order:
                        fault = f"chunk {chunk!r} is combined in the order {value}, although rank order is claimed"
                        raise self._refuted(one.rank, one.number, fault)
            if self.primitive.synchronises and len(one.heard) < self.nranks:
                absent = min(set(everyone) - one.heard)
                raise self._refuted(one.rank, one.number, f"leaves before it can know that rank {absent} has entered")


def proved_ranks(algorithm: Algorithm, up_to: int) -> Iterable[tuple[int, int]]:
    """Yield the (nranks, root) that a proof up to `up_to` ranks covers: every root through 9 ranks, then the ends."""
    for nranks in range(1, up_to + 1):
        if algorithm.unmet(algorithm.primitive.problem(nranks, nranks)):
            continue
        if not algorithm.primitive.rooted:
            yield nranks, 0
        elif nranks <= 9:
            yield from ((nranks, root) for root in range(nranks))
        else:
            yield from ((nranks, root) for root in (0, nranks // 2, nranks - 1))
