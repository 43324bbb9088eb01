"""The vocabulary of rounds: what one rank of a collective algorithm says.

An algorithm is a generator, seen from one rank. Each ``yield`` is one round: a tuple of operations that start
together and have all completed before the next round. Rounds are global: the k-th yield of one rank is round k of
all ranks, and a rank with nothing to do yields ``()``. A chunk is any hashable name of a piece of data; it is named
by what it is, never by where it lies. Nothing here knows of MPI, buffers or element types.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Literal, TypeAlias

Chunk: TypeAlias = Hashable
Side: TypeAlias = Literal["left", "right"]

LEFT: Side = "left"
RIGHT: Side = "right"


class Message:
    """One end of a message to or from `peer` that carries `chunks`, in this order.

    A message without chunks is a signal: it carries nothing and is always sent. A message whose chunks are all empty
    is dropped on both sides.
    """

    __slots__ = ("chunks", "peer")

    def __init__(self, peer: int, *chunks: Chunk) -> None:
        self.peer = peer
        self.chunks = chunks

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, (self.peer, *self.chunks)))})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


class Send(Message):
    """Send the values that `chunks` had at the start of the round."""

    __slots__ = ()


class Recv(Message):
    """Receive `chunks`: each gets the value that arrives."""

    __slots__ = ()


class RecvReduce(Message):
    """Receive `chunks` and combine each with the own value.

    `side` is where the incoming value stands: ``LEFT`` for incoming op own, ``RIGHT`` for own op incoming, which is
    also what ``None`` does; ``None`` says that the algorithm does not care.
    """

    __slots__ = ("side",)

    def __init__(self, peer: int, *chunks: Chunk, side: Side | None = None) -> None:
        super().__init__(peer, *chunks)
        self.side = side

    def __repr__(self) -> str:
        side = f", side={self.side!r}" if self.side else ""
        return f"{super().__repr__()[:-1]}{side})"


class Copy:
    """Local: chunk `dst` gets the value of chunk `src`, after all messages of the round."""

    __slots__ = ("dst", "src")

    def __init__(self, src: Chunk, dst: Chunk) -> None:
        self.src = src
        self.dst = dst

    def __repr__(self) -> str:
        return f"Copy({self.src!r}, {self.dst!r})"


class Combine:
    """Local: chunk `into` gets `left` op `right`, after all messages of the round."""

    __slots__ = ("into", "left", "right")

    def __init__(self, left: Chunk, right: Chunk, into: Chunk) -> None:
        self.left = left
        self.right = right
        self.into = into

    def __repr__(self) -> str:
        return f"Combine({self.left!r}, {self.right!r}, {self.into!r})"


Operation: TypeAlias = Message | Copy | Combine
Round: TypeAlias = tuple[Operation, ...]
Rounds: TypeAlias = Iterator[Round | Operation]


def as_round(yielded: Round | Operation) -> Round:
    """Return what an algorithm yielded as a tuple; a lone operation is a round of one."""
    return yielded if isinstance(yielded, tuple) else (yielded,)


def as_rounds(yielded: Iterable[Round | Operation]) -> list[Round]:
    """Return all rounds of one rank as a list of tuples."""
    return [as_round(one) for one in yielded]


def together(*algorithms: Iterable[Round | Operation]) -> Rounds:
    """Merge algorithms round by round: round k of the result is round k of each."""
    for rounds in zip_longest(*algorithms, fillvalue=()):
        yield tuple(operation for one in rounds for operation in as_round(one))


def relabel(
    rounds: Iterable[Round | Operation],
    ranks: Sequence[int] | Callable[[int], int] | None = None,
    chunks: Callable[[Chunk], Chunk] | None = None,
) -> Rounds:
    """Run an algorithm among other ranks or on other chunks.

    `ranks` maps the algorithm's ranks to real ones (a sequence or a function), `chunks` its chunk names.
    """
    rank_of = ranks.__getitem__ if isinstance(ranks, Sequence) else ranks or (lambda rank: rank)
    name_of = chunks or (lambda chunk: chunk)

    def renamed(operation: Operation) -> Operation:
        if isinstance(operation, Copy):
            return Copy(name_of(operation.src), name_of(operation.dst))
        if isinstance(operation, Combine):
            return Combine(name_of(operation.left), name_of(operation.right), name_of(operation.into))
        peer, names = rank_of(operation.peer), map(name_of, operation.chunks)
        if isinstance(operation, RecvReduce):
            return RecvReduce(peer, *names, side=operation.side)
        return type(operation)(peer, *names)

    for one in rounds:
        yield tuple(renamed(operation) for operation in as_round(one))


def among(
    members: Sequence[int],
    rank: int,
    algorithm: Callable[[int, int], Rounds],
    chunks: Callable[[Chunk], Chunk] | None = None,
) -> Rounds:
    """Run ``algorithm(index, len(members))`` among `members`; a rank outside stays idle for as many rounds."""
    if rank in members:
        yield from relabel(algorithm(members.index(rank), len(members)), members, chunks)
    else:
        for _ in algorithm(0, len(members)):
            yield ()


def with_chunks(rounds: Iterable[Round | Operation], chunks: Sequence[Chunk]) -> Rounds:
    """Let every message of `rounds` carry `chunks`: an algorithm on one chunk becomes one on several."""
    for one in rounds:
        messages: list[Message] = []
        for message in as_round(one):
            if isinstance(message, RecvReduce):
                messages.append(RecvReduce(message.peer, *chunks, side=message.side))
            elif isinstance(message, Message):
                messages.append(type(message)(message.peer, *chunks))
            else:
                raise ValueError(f"{message} is no message; only messages can carry other chunks")
        yield tuple(messages)


def powers_of_two_below(limit: int) -> list[int]:
    """Return 1, 2, 4, ... below `limit`."""
    return [1 << bit for bit in range((limit - 1).bit_length())] if limit > 1 else []


def largest_power_of_two(limit: int) -> int:
    """Return the largest power of two that is at most `limit` (at least 1)."""
    return 1 << (limit.bit_length() - 1)
