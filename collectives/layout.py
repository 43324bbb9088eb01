"""The layout of an algorithm on one rank: what moves between which regions of its buffers, a plan without MPI.

`lay_out` follows one rank's rounds. Where chunks lie is decided by `places`, how messages are cut by `cutting`, and
what is accessed in memory of others by `accesses`; here they become a short program (`program`), which `plan` binds to
a communicator and `interpret` runs for all ranks in one process.

Rules that keep a timed call short:

- a first reduction reads the send buffer and writes the receive buffer, so nothing is copied beforehand;
- a chunk that is final from the start is copied while the messages of the first round are under way;
- a message is cut where its chunks do not follow one another in the vector, which both ends know from the names;
- what is to be reduced arrives in two alternating pieces, one combined while the next is under way;
- the old value of a place is never overwritten while it is still needed (only where buffers alias).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from collectives.accesses import Accesses
from collectives.cutting import Cuts, Options
from collectives.exposure import Exposure
from collectives.places import Moves, Places, ends
from collectives.problem import Problem
from collectives.program import Instruction, Program, Transfer
from collectives.regions import NOWHERE, Region, joined, part, side_by_side, stream_of
from collectives.registry import Algorithm
from collectives.rounds import (
    LEFT,
    Access,
    Chunk,
    Combine,
    Copy,
    Fence,
    Message,
    Recv,
    RecvReduce,
    Round,
    Send,
    as_rounds,
)

LOOKAHEAD = 8
"""How many transfers may stay under way behind a round that waits only for data (bounds unexpected messages)."""


class Unshareable(ValueError):
    """One receive buffer for all ranks of a node, and an algorithm that would write to it twice."""


@dataclass(frozen=True)
class Layout:
    """What one rank does: its transfers, its program, and the elements of scratch that it needs.

    `shared_count` is what of it others access, `host_count` what lies on the host if buffers are on a GPU.
    """

    problem: Problem
    rank: int
    transfers: list[Transfer]
    program: list[Instruction]
    scratch_count: int
    nrounds: int
    shared_count: int = 0
    groups: tuple[tuple[int, ...], ...] = ()
    host_count: int = 0

    @property
    def sent_count(self) -> int:
        """The elements that this rank sends."""
        return sum(region.stop - region.start for one in self.transfers if one.outgoing for region in one.regions)

    def sent_count_beyond(self, ranks: Collection[int]) -> int:
        """Return the elements that this rank sends to others than `ranks`."""
        beyond = [one for one in self.transfers if one.outgoing and one.peer not in ranks]
        return sum(region.stop - region.start for one in beyond for region in one.regions)

    @property
    def longest_message(self) -> int:
        """The elements of the longest message that this rank sends or receives."""
        return max((sum(stop - start for _, start, stop in one.regions) for one in self.transfers), default=0)

    @property
    def nmessages(self) -> int:
        """The messages that this rank sends."""
        return sum(one.outgoing for one in self.transfers)


def lay_out(problem: Problem, algorithm: Algorithm, rank: int, options: Options | None = None) -> Layout:
    """Lay out `algorithm` for one rank of `problem`."""
    return _Builder(problem, algorithm, rank, options or Options()).build()


@dataclass(slots=True)
class _Piece:
    """A piece of a message that is reduced: elements of its chunks, its turn, and where it lands."""

    chunks: Sequence[Chunk]
    start: int
    stop: int
    turn: int = 0
    landing: Region = NOWHERE


class _Arrival(NamedTuple):
    """A piece of a message that is reduced: its transfer, and what is then combined where."""

    transfer: int
    folds: list[tuple[Region, Region, Region]]


class _Builder:
    """Follows one rank's rounds."""

    def __init__(self, problem: Problem, algorithm: Algorithm, rank: int, options: Options) -> None:
        self.problem, self.algorithm, self.rank, self.options = problem, algorithm, rank, options
        self.rounds = as_rounds(algorithm.rounds(problem, rank))
        self.lookahead = 0 if (options.waits or algorithm.waits) == "round" else LOOKAHEAD
        self.program = Program()
        self.cuts = Cuts(problem, algorithm, rank, options)
        self.exposure = self._expose()
        self.places = Places(
            problem, rank, self.cuts.nchunks, self.rounds, self.cuts.count, options.align, self.exposure
        )
        self.accesses: Accesses | None = None
        self.copies: Mapping[int, Moves] = {}
        self.pushed_in: Mapping[int, Sequence[Chunk]] = {}
        if self.exposure:
            self.accesses = Accesses(rank, self.exposure, self.places, self.cuts, self.program)
            self.copies, self.pushed_in = self.exposure.copies, self.exposure.pushed_in()

    def _expose(self) -> Exposure | None:
        """Find out what peers see of this rank's chunks, if ranks access memory of others."""
        if not any(isinstance(one, (Access, Fence)) for operations in self.rounds for one in operations):
            return None
        shared = frozenset() if self.algorithm.staged else self.options.shared
        exposure = Exposure(self.problem, self.algorithm, self.rank, shared, self._ends, self.cuts.count)
        if self.options.common:
            twice = exposure.written_by_several()
            if twice:
                both = f"ranks {twice[0]} and {twice[1]} would both write to the receive buffer that they share"
                raise Unshareable(f"{self.algorithm.name}: {both}")
        return exposure

    def _ends(self, rank: int) -> tuple[dict[Chunk, Region], dict[Chunk, Region]]:
        return ends(self.problem, rank, self.cuts.nchunks, self.cuts.count)

    def build(self) -> Layout:
        for number, operations in enumerate(self.rounds):
            self._round(number, operations)
            self.places.scratch.expire(number)
        if not self.rounds:
            self.program.move_all(self.places.settle_final(with_pushed=self.options.common))
        self.program.move_all(self.places.settle())
        self.program.wait_all()
        return Layout(
            self.problem,
            self.rank,
            self.program.transfers,
            self.program.instructions,
            self.places.scratch.count,
            len(self.rounds),
            0 if self.exposure is None else self.exposure.slot_count,
            () if self.exposure is None else self.exposure.groups,
        )

    # One round

    def _round(self, number: int, operations: Round) -> None:
        program = self.program
        sends: list[int] = []
        receives: list[int] = []
        unpack: Moves = []
        others: list[Copy | Combine | Access | Fence] = []
        sent = 0
        for operation in operations:  # sends first: they carry what chunks were at the start of the round
            if isinstance(operation, Send):
                sends += self._send(number, operation)
                sent += self.cuts.total(operation.chunks)
        reduces = [operation for operation in operations if isinstance(operation, RecvReduce)]
        cuts, nlandings = self._landings(number, reduces, bool(sends)) if reduces else ([], 0)
        turns: dict[int, _Arrival] = {}
        for operation in operations:  # as they are listed: so both ends count the messages between them alike
            if isinstance(operation, Recv):
                receives += self._recv(number, operation, unpack)
            elif isinstance(operation, RecvReduce):
                turns.update(self._arrivals(number, operation, cuts.pop(0)))
            elif not isinstance(operation, Message):
                others.append(operation)
        arrivals = [turns[turn] for turn in range(len(turns))]
        receives += [arrival.transfer for arrival in arrivals[:nlandings]]
        # Small messages leave at once; large ones find their receive ready, so that no copy waits for it.
        program.start(sends + receives if sent <= self.options.small else receives + sends)
        if number == 0:
            self.program.move_all(self.places.settle_final(with_pushed=self.options.common))
        for following, arrival in enumerate(arrivals, start=nlandings):
            for fold in arrival.folds:
                program.fold(*fold)
            program.start([one.transfer for one in arrivals[following : following + 1]])
        program.move_all(unpack)
        if others:
            self._local(number, others)
        program.wait_all_but(self.lookahead)
        program.move_all(joined(self.copies.get(number, ())))
        for operation in others:
            if isinstance(operation, Fence):
                program.sync(operation.group)
        if number in self.pushed_in:
            self.places.where.update((chunk, self.places.fixed[chunk]) for chunk in self.pushed_in[number])

    def _local(self, number: int, operations: Sequence[Copy | Combine | Access | Fence]) -> None:
        """Carry out what needs no message: first accesses to memory of others, then what is between own names."""
        if self.accesses:
            self.accesses.add(number, [one for one in operations if isinstance(one, Access)])
        for operation in operations:
            if isinstance(operation, Copy):
                self._copy(number, operation)
            elif isinstance(operation, Combine):
                self._combine(number, operation)

    # Messages

    def _send(self, number: int, send: Send) -> list[int]:
        for chunk in send.chunks:
            if chunk not in self.places.where:
                raise ValueError(f"rank {self.rank}, round {number}: {send} of {chunk!r}, which the rank does not have")
        reduced = self.cuts.reduced_at(number, send)
        transfers = []
        for chunks in self.cuts.runs(send.chunks):
            stream = stream_of(chunks, self.places.where)
            for start, stop in self.cuts.pieces(chunks, reduced):
                regions = part(stream, start, stop)
                if len(regions) > 1 and stop - start >= self.options.pack_from:
                    packed = [self.places.take(stop - start, number)]
                    self.program.move_all(side_by_side(regions, packed))
                    regions = packed
                transfers.append(self.program.transfer(True, send.peer, regions))
        return transfers

    def _recv(self, number: int, recv: Recv, unpack: Moves) -> list[int]:
        transfers = []
        for chunk in recv.chunks:
            if not self.cuts.count(chunk):
                self.places.where[chunk] = NOWHERE
        for chunks in self.cuts.runs(recv.chunks):
            homes = self.places.homes_free(chunks, number, {})
            if self.places.scattered(chunks, homes) and self.cuts.total(chunks) >= self.options.pack_from:
                places = self.places.with_scratch(chunks, number, {}, passing=homes)
                unpack += [(places[chunk], home) for chunk, home in homes.items()]
            else:
                places = self.places.with_scratch(chunks, number, homes)
            stream = stream_of(chunks, places)
            for start, stop in self.cuts.pieces(chunks, False):
                transfers.append(self.program.transfer(False, recv.peer, part(stream, start, stop)))
            self.places.where.update({**places, **homes})
        return transfers

    def _landings(self, number: int, operations: Sequence[RecvReduce], sends: bool) -> tuple[list[list[_Piece]], int]:
        """Cut messages that are reduced into pieces, and let these land in turn in a few places.

        Pieces are combined in the order of their turns: the first ones of all messages, the second ones, and so on. A
        piece has to wait until the one that so many turns before it, as places are returned, has been combined. There
        are two places for each message, or fewer where these would take more room than the vector. Not fewer where the
        rank `sends` in this round: what it combines may have to wait until it is sent, and that for a peer which waits
        likewise.
        """
        cuts = [
            [
                _Piece(chunks, start, stop)
                for chunks in self.cuts.runs(operation.chunks)
                for start, stop in self.cuts.pieces(chunks, True)
            ]
            for operation in operations
        ]
        in_turn = [piece for pieces in zip_longest(*cuts) for piece in pieces if piece] if len(cuts) > 1 else cuts[0]
        longest = max([piece.stop - piece.start for piece in in_turn], default=1)
        room = max(self.problem.count, self.options.landing) // max(1, longest)
        nplaces = min(2 * len(operations), len(in_turn) if sends else max(1, room), len(in_turn))
        for first in range(nplaces):
            sharing = in_turn[first::nplaces]
            place = self.places.take(max([piece.stop - piece.start for piece in sharing]), number)
            for turn, piece in enumerate(sharing):
                piece.turn, piece.landing = first + turn * nplaces, place
        return cuts, nplaces

    def _arrivals(self, number: int, operation: RecvReduce, pieces: Sequence[_Piece]) -> Iterator[tuple[int, _Arrival]]:
        """Yield for each piece of a message that is reduced its turn, and what arrives and is combined."""
        for piece in pieces:
            chunks, start, stop = piece.chunks, piece.start, piece.stop
            if start == 0:
                own = stream_of(chunks, self.places.where)
                places = self.places.of_reduced(chunks, number)
                into = stream_of(chunks, places)
                self.places.where.update(places)
            landing = part([piece.landing], 0, stop - start)
            transfer = self.program.transfer(False, operation.peer, landing)
            streams = side_by_side(part(own, start, stop), landing, part(into, start, stop))
            if operation.side == LEFT:
                folds = [(incoming, mine, target) for mine, incoming, target in streams]
            else:
                folds = [(mine, incoming, target) for mine, incoming, target in streams]
            yield piece.turn, _Arrival(transfer, folds)

    # What is between own names

    def _copy(self, number: int, copy: Copy) -> None:
        source = self.places.where[copy.src]
        place = self.places.of_local(copy.dst, number, source)
        count = min(self.cuts.count(copy.src), self.cuts.count(copy.dst))  # one of the two may be padded
        self.program.move(*(one._replace(stop=one.start + count) for one in (source, place)))
        self.places.where[copy.dst] = place

    def _combine(self, number: int, combine: Combine) -> None:
        left, right = self.places.where[combine.left], self.places.where[combine.right]
        place = self.places.of_local(combine.into, number, left)
        if left.start != left.stop:
            self.program.fold(left, right, place)
        self.places.where[combine.into] = place
