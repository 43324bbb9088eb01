"""The vocabulary of rounds: what one rank of a collective algorithm says.

An algorithm is a generator, seen from one rank. Each ``yield`` is one round: a tuple of operations that start
together and have all completed before the next round. Rounds are global: the k-th yield of one rank is round k of
all ranks, and a rank with nothing to do yields ``()``. A chunk is any hashable name of a piece of data; it is named
by what it is, never by where it lies. Nothing here knows of MPI, buffers or element types.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Literal, TypeAlias, get_args

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
    """Local: chunk `dst` gets the value of chunk `src`, after all messages of the round.

    If one is longer than the other, it is padded: the elements that both have are copied.
    """

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


class Access:
    """An operation on memory that `peers` share with the own rank: the peers do nothing for it.

    Accesses take effect after the messages of the round, in the order listed, before local operations. Between two
    fences a peer's chunk has one writer, or readers.
    """

    __slots__ = ("chunks", "peers")

    def __init__(self, peers: Iterable[int], *chunks: Chunk) -> None:
        self.peers = tuple(peers)
        self.chunks = chunks

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, (list(self.peers), *self.chunks)))})"


class Pull(Access):
    """Read `chunks` from the memory of one peer: each gets the peer's value."""

    __slots__ = ()

    def __init__(self, peer: int, *chunks: Chunk) -> None:
        super().__init__((peer,), *chunks)

    def __repr__(self) -> str:
        return f"Pull({', '.join(map(repr, (*self.peers, *self.chunks)))})"


class PullReduce(Access):
    """Each chunk gets the combination of the values that `peers` have, in the order in which they are listed.

    The own value counts only if the own rank is listed, so that ``PullReduce(range(nranks), chunk)`` keeps rank order.
    """

    __slots__ = ()


class Push(Access):
    """Write the own values of `chunks` into the memory of `peers`."""

    __slots__ = ()


class Fence:
    """All that was done before it, in the same round too, is seen by the ranks of `group` after it."""

    __slots__ = ("group",)

    def __init__(self, group: Iterable[int]) -> None:
        self.group = tuple(group)

    def __repr__(self) -> str:
        return f"Fence({list(self.group)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fence) and self.group == other.group

    def __hash__(self) -> int:
        return hash(self.group)


Operation: TypeAlias = Message | Copy | Combine | Access | Fence
OPERATIONS = get_args(Operation)
Round: TypeAlias = tuple[Operation, ...]
Rounds: TypeAlias = Iterator[Round | Operation]


def as_round(yielded: Round | Operation) -> Round:
    """Return what an algorithm yielded as a tuple; a lone operation is a round of one.

    Raises:
        TypeError: it is neither, so that nothing would be done for it.

    """
    operations = yielded if isinstance(yielded, tuple) else (yielded,)
    for one in operations:
        if not isinstance(one, OPERATIONS):
            raise TypeError(f"{one!r} is no operation of a round; yield an operation, or a tuple of them")
    return operations


def as_rounds(yielded: Iterable[Round | Operation]) -> list[Round]:
    """Return all rounds of one rank as a list of tuples."""
    return [as_round(one) for one in yielded]


def together(*algorithms: Iterable[Round | Operation]) -> Rounds:
    """Merge algorithms round by round: round k of the result is round k of each; equal fences become one."""
    for rounds in zip_longest(*algorithms, fillvalue=()):
        merged = tuple(operation for one in rounds for operation in as_round(one))
        fences = dict.fromkeys(operation for operation in merged if isinstance(operation, Fence))
        if fences:
            merged = (*(operation for operation in merged if not isinstance(operation, Fence)), *fences)
        yield merged


def relabel(
    rounds: Iterable[Round | Operation],
    ranks: Sequence[int] | Callable[[int], int] | None = None,
    chunks: Callable[[Chunk], Chunk] | None = None,
    parts: Callable[[Chunk], Sequence[Chunk]] | None = None,
) -> Rounds:
    """Run an algorithm among other ranks or on other chunks.

    `ranks` maps the algorithm's ranks to real ones (a sequence or a function), `chunks` its chunk names; `parts`,
    instead of `chunks`, maps each name to the several that it stands for.
    """
    rank_of = ranks.__getitem__ if isinstance(ranks, Sequence) else ranks or (lambda rank: rank)

    def names(*of: Chunk) -> Sequence[Chunk]:
        if parts:
            return [name for chunk in of for name in parts(chunk)]
        return [chunks(chunk) for chunk in of] if chunks else of

    def renamed(operation: Operation) -> Iterable[Operation]:
        if isinstance(operation, RecvReduce):
            return [RecvReduce(rank_of(operation.peer), *names(*operation.chunks), side=operation.side)]
        if isinstance(operation, Message):
            return [type(operation)(rank_of(operation.peer), *names(*operation.chunks))]
        if isinstance(operation, Pull):
            return [Pull(rank_of(operation.peers[0]), *names(*operation.chunks))]
        if isinstance(operation, Access):
            return [type(operation)(map(rank_of, operation.peers), *names(*operation.chunks))]
        if isinstance(operation, Copy):
            return map(Copy, names(operation.src), names(operation.dst))
        if isinstance(operation, Combine):
            return map(Combine, names(operation.left), names(operation.right), names(operation.into))
        return [Fence(map(rank_of, operation.group))]

    for one in rounds:
        yield tuple([new for operation in as_round(one) for new in renamed(operation)])


def among(
    members: Sequence[int],
    rank: int,
    algorithm: Callable[[int, int], Rounds],
    chunks: Callable[[Chunk], Chunk] | None = None,
    parts: Callable[[Chunk], Sequence[Chunk]] | None = None,
) -> Rounds:
    """Run ``algorithm(index, len(members))`` among `members`; a rank outside stays idle for as many rounds.

    `chunks` and `parts` are those of `relabel`.
    """
    if rank in members:
        yield from relabel(algorithm(members.index(rank), len(members)), members, chunks, parts)
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


def cyclic(start: int, length: int, nranks: int) -> list[int]:
    """Return the `length` numbers from `start` on, modulo `nranks`."""
    return [(start + index) % nranks for index in range(length)]


def powers_below(limit: int, radix: int) -> list[int]:
    """Return 1, radix, radix^2, ... below `limit`."""
    powers = [1]
    while powers[-1] < limit:
        powers.append(powers[-1] * radix)
    return powers[:-1]


def powers_of_two_below(limit: int) -> list[int]:
    """Return 1, 2, 4, ... below `limit`."""
    return [1 << bit for bit in range((limit - 1).bit_length())] if limit > 1 else []


def largest_power_of_two(limit: int) -> int:
    """Return the largest power of two that is at most `limit` (at least 1)."""
    return 1 << (limit.bit_length() - 1)


def largest_power(limit: int, radix: int) -> int:
    """Return the largest power of `radix` that is at most `limit` (at least 1)."""
    return powers_below(limit + 1, radix)[-1]
