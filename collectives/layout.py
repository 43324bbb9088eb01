"""Where each chunk of an algorithm lies on one rank, and what moves: a plan without MPI.

`lay_out` follows one rank's rounds and decides for every chunk whether it lies in the send buffer, the receive buffer
or scratch. The result is a short program of four instructions (`Start`, `Wait`, `Move`, `Fold`) on regions of those
buffers, which `plan` binds to a communicator and `interpret` runs for all ranks in one process.

Rules that keep a timed call short:

- a first reduction reads the send buffer and writes the receive buffer, so nothing is copied beforehand;
- a chunk that is final from the start is copied while the messages of the first round are under way;
- a message is cut where its chunks do not follow one another in the vector, which both ends know from the names;
- what is to be reduced arrives in two alternating pieces, one combined while the next is under way;
- the old value of a place is never overwritten while it is still needed (only where buffers alias).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import NamedTuple

from collectives.exposure import Exposure, all_same, same_everywhere
from collectives.program import Instruction, Program, Transfer
from collectives.regions import (
    ALWAYS,
    NOWHERE,
    RECV,
    SCRATCH,
    SEND,
    Region,
    Scratch,
    joined,
    part,
    side_by_side,
    stream_of,
)
from collectives.registry import Algorithm, Problem, consecutive, offsets
from collectives.rounds import (
    LEFT,
    Access,
    Chunk,
    Combine,
    Copy,
    Fence,
    Message,
    Push,
    Recv,
    RecvReduce,
    Round,
    Send,
    as_round,
    as_rounds,
)

NEVER = -1
LOOKAHEAD = 8
"""How many transfers may stay under way behind a round that waits only for data (bounds unexpected messages)."""


PIECE_NBYTES = 256 << 10
STAGED_NBYTES = 1 << 20
"""The longest message that goes through the host, so that its copies overlap with it. To be tuned on a GPU."""
PACK_FROM_NBYTES = 64 << 10
LANDING_NBYTES = 64 << 10
SMALL_NBYTES = 4 << 10
CACHE_LINE_NBYTES = 64


class Unshareable(ValueError):
    """One receive buffer for all ranks of a node, and an algorithm that would write to it twice."""


@dataclass(frozen=True)
class Options:
    """How messages are cut; sizes in elements. The same on all ranks.

    `piece`: the largest message that is to be reduced (256 KiB is best on the machines tried: it stays in cache).
    `cap`: the largest message of all. `cuts`: into how many messages a scattered set of chunks may be cut before it
    travels as one. `pack_from`: from how many elements such a set is packed rather than described by a datatype.
    `landing`: so much room for what is to be reduced may be taken even where the vector is smaller.
    `small`: up to how many elements a round sends before it starts to receive. `align`: elements to which scratch is
    aligned. `waits` overrides the algorithm's own. `shared`: which of the user's buffers lie in memory that the ranks
    of a node share. `common`: the receive buffer is one and the same memory on all of them. `fused`: whether what is
    combined from several places at once, and written to several, is one instruction, as kernels on a GPU want it.
    """

    piece: int = 65536
    cap: int = 1 << 28
    cuts: int = 2
    pack_from: int = 16384
    landing: int = 16384
    small: int = 1024
    align: int = 16
    waits: str | None = None
    shared: frozenset[str] = frozenset()
    common: bool = False
    fused: bool = False

    @classmethod
    def of(
        cls,
        algorithm: Algorithm,
        itemsize: int,
        cap_nbytes: int,
        on_device: bool = False,
        through_host: bool = False,
    ) -> Options:
        """Return what `algorithm` is told, for elements of `itemsize` bytes and messages of at most `cap_nbytes`.

        `on_device`: whether buffers lie on a GPU, `through_host`: and messages go through the host. A set of chunks
        that MPI takes from a GPU is always packed: libraries were seen to ask only of a buffer's address whether it
        lies there, and a datatype of many places has none.
        """
        how = algorithm.how
        piece_nbytes = int(how.get("piece", STAGED_NBYTES if on_device else PIECE_NBYTES))
        if through_host:
            cap_nbytes = min(cap_nbytes, max(piece_nbytes, STAGED_NBYTES))

        def elements(nbytes: int) -> int:
            return max(1, nbytes // itemsize)

        return cls(
            piece=elements(piece_nbytes),
            cap=elements(cap_nbytes),
            cuts=int(how.get("cuts", cls.cuts)),
            pack_from=1 if on_device and not through_host else elements(int(how.get("pack_from", PACK_FROM_NBYTES))),
            landing=elements(LANDING_NBYTES),
            small=elements(SMALL_NBYTES),
            align=elements(CACHE_LINE_NBYTES),
            waits=str(how.get("waits", algorithm.waits)),
        )


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


class _Step(NamedTuple):
    """What an access does for all of its chunks, each place a stream: combine `sources`, or copy the one, to `into`."""

    sources: list[list[Region]]
    into: list[Region]


class _Counts(dict[Chunk, int]):
    """The elements of each chunk, asked of its primitive once."""

    def __init__(self, ask: Callable[[Chunk], int]) -> None:
        super().__init__()
        self.ask = ask

    def __missing__(self, chunk: Chunk) -> int:
        count = self[chunk] = self.ask(chunk)
        return count


class _Builder:
    """Follows one rank's rounds."""

    def __init__(self, problem: Problem, algorithm: Algorithm, rank: int, options: Options) -> None:
        self.problem, self.algorithm, self.rank, self.options = problem, algorithm, rank, options
        self.primitive = problem.primitive
        self.nchunks = algorithm.nchunks(problem.nranks, problem.nodes)
        self.rounds = as_rounds(algorithm.rounds(problem, rank))
        self.program = Program()
        self.scratch = Scratch(options.align)
        self.peers: dict[int, list[Round]] = {}
        self.count = _Counts(lambda chunk: self.primitive.chunk_count(problem, chunk, self.nchunks)).__getitem__
        self.aliased = False
        self.lookahead = 0 if (options.waits or algorithm.waits) == "round" else LOOKAHEAD

        self.where, self.home = self._places(rank)
        self.aliased = self._aliasing(rank) is not None
        self.written: set[Chunk] = set()
        self.last_read: dict[Chunk, int] = {}
        self.fixed: dict[Chunk, Region] = {}
        self.pushed_in: dict[int, list[Chunk]] = {}
        self.pushed: set[Chunk] = set()
        self.exposure = self._expose() if self._look_ahead() else None
        self.copies = self.exposure.copies if self.exposure else {}
        self.last_read.update(dict.fromkeys(self.home, ALWAYS))

    def _aliasing(self, rank: int) -> tuple[int, int] | None:
        in_place = self.problem.in_place or self.primitive.one_buffer
        return self.primitive.aliasing(self.problem, rank) if in_place else None

    def _places(self, rank: int) -> tuple[dict[Chunk, Region], dict[Chunk, Region]]:
        """Return where the inputs of `rank` lie and where its outputs belong."""
        inputs = self.primitive.inputs(self.problem, rank, self.nchunks)
        outputs = self.primitive.outputs(self.problem, rank, self.nchunks)
        aliasing = self._aliasing(rank)
        if aliasing is None:
            return self._place(inputs, SEND, 0), self._place(outputs, RECV, 0)
        return self._place(inputs, RECV, aliasing[0]), self._place(outputs, RECV, aliasing[1])

    def _expose(self) -> Exposure:
        """Find out what peers see of this rank's chunks, and keep that in place as long as they need it."""
        shared = frozenset() if self.algorithm.staged else self.options.shared
        exposure = Exposure(self.problem, self.algorithm, self.rank, shared, self._places, self.count)
        if self.options.common:
            twice = exposure.written_by_several()
            if twice:
                both = f"ranks {twice[0]} and {twice[1]} would both write to the receive buffer that they share"
                raise Unshareable(f"{self.algorithm.name}: {both}")
        self.fixed, self.pushed_in = exposure.fixed(), exposure.pushed_in()
        self.written.update(chunk for chunks in self.pushed_in.values() for chunk in chunks)
        for chunk, number in exposure.last_reads().items():
            self.last_read[chunk] = max(number, self.last_read.get(chunk, NEVER))
        return exposure

    def _place(self, chunks: Sequence[Chunk], buffer: str, start: int) -> dict[Chunk, Region]:
        counts = tuple(map(self.count, chunks))
        return {
            chunk: Region(buffer, start + first, start + first + count)
            for chunk, first, count in zip(chunks, offsets(counts), counts, strict=True)
        }

    def _look_ahead(self) -> bool:
        """Note for each chunk the last round in which its value is read, and whether it is ever written.

        Returns whether memory of other ranks is accessed.
        """
        accesses = False
        for number, operations in enumerate(self.rounds):
            for operation in operations:
                if isinstance(operation, (Access, Fence)):
                    accesses = True
                    if isinstance(operation, Access):
                        if self.rank in operation.peers or isinstance(operation, Push):
                            self.last_read.update(dict.fromkeys(operation.chunks, number))
                        if isinstance(operation, Push):
                            self.pushed.update(operation.chunks)
                        else:
                            self.written.update(operation.chunks)
                elif isinstance(operation, Copy):
                    self.last_read[operation.src] = number
                    self.written.add(operation.dst)
                elif isinstance(operation, Combine):
                    self.last_read[operation.left] = self.last_read[operation.right] = number
                    self.written.add(operation.into)
                else:
                    if not isinstance(operation, Recv):
                        self.last_read.update(dict.fromkeys(operation.chunks, number))
                    if not isinstance(operation, Send):
                        self.written.update(operation.chunks)
        return accesses

    def build(self) -> Layout:
        for number, operations in enumerate(self.rounds):
            self._round(number, operations)
            self.scratch.expire(number)
        if not self.rounds:
            self._settle_final()
        self._settle()
        self.program.wait_all()
        return Layout(
            self.problem,
            self.rank,
            self.program.transfers,
            self.program.instructions,
            self.scratch.count,
            len(self.rounds),
            0 if self.exposure is None else self.exposure.slot_count,
            () if self.exposure is None else self.exposure.groups,
        )

    # One round

    def _round(self, number: int, operations: Round) -> None:
        program = self.program
        sends: list[int] = []
        receives: list[int] = []
        unpack: list[tuple[Region, Region]] = []
        others: list[Copy | Combine | Access | Fence] = []
        sent = 0
        for operation in operations:  # sends first: they carry what chunks were at the start of the round
            if isinstance(operation, Send):
                sends += self._send(number, operation)
                sent += self._total(operation.chunks)
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
            self._settle_final()
        for following, arrival in enumerate(arrivals, start=nlandings):
            for fold in arrival.folds:
                program.fold(*fold)
            program.start([one.transfer for one in arrivals[following : following + 1]])
        for source, target in unpack:
            program.move(source, target)
        if others:
            self._local(number, others)
        program.wait_all_but(self.lookahead)
        for source, target in joined(self.copies.get(number, ())):
            program.move(source, target)
        for operation in others:
            if isinstance(operation, Fence):
                program.sync(operation.group)
        if self.pushed_in:
            self.where.update((chunk, self.fixed[chunk]) for chunk in self.pushed_in.get(number, ()))

    def _local(self, number: int, operations: Sequence[Copy | Combine | Access | Fence]) -> None:
        """Carry out what needs no message: first accesses to memory of others, then what is between own names."""
        if self.exposure:
            self._accesses(number, [one for one in operations if isinstance(one, Access)], self.exposure)
        for operation in operations:
            if isinstance(operation, Copy):
                self._copy(number, operation)
            elif isinstance(operation, Combine):
                self._combine(number, operation)

    # Accesses to memory of others

    def _accesses(self, number: int, accesses: list[Access], exposure: Exposure) -> None:
        """Carry out accesses in order; those of the same chunks that follow one another, together in small pieces.

        So what was combined is still in cache when it is written to all peers.
        """
        while accesses:
            chunks = accesses[0].chunks
            several = next((index for index, one in enumerate(accesses) if one.chunks != chunks), len(accesses))
            run, accesses = accesses[:several], accesses[several:]
            steps = [step for one in run for step in self._access(number, one, exposure)]
            targets = self._fused(steps)
            if targets:
                sources = steps[0].sources
                for regions in side_by_side(*sources, *targets):
                    self.program.reduce(regions[: len(sources)], regions[len(sources) :])
                continue
            total = self._total(chunks)
            in_pieces = len(steps) > 1 or len(run[0].peers) > 2
            piece = min(self.options.piece, total) if in_pieces else total
            calls = [partial(self._fold_all, *step, self._partial_sum(step, total, number)) for step in steps]
            for start in range(0, total, max(1, piece)):
                for call in calls:
                    call(start, min(start + piece, total))

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

    def _access(self, number: int, access: Access, exposure: Exposure) -> Iterator[_Step]:
        """Yield what together carries out an access."""
        chunks = access.chunks
        own = self.rank in access.peers
        if isinstance(access, Push):
            source = stream_of(chunks, self.where)
            for peer in access.peers:
                if peer != self.rank:
                    theirs = {chunk: exposure.target(peer, chunk) for chunk in chunks}
                    yield _Step([source], stream_of(chunks, theirs))
            homes = {chunk: self.home[chunk] for chunk in chunks if self._home_free(chunk, number, self.where[chunk])}
        else:
            sources = [
                stream_of(chunks, self.where if peer == self.rank else exposure.places_of(peer, chunks, number))
                for peer in access.peers
            ]
            self.where.update(self._with_scratch(chunks, number, self._pull_homes(chunks, number, own)))
            source = stream_of(chunks, self.where)
            yield _Step(sources, source)
            homes = {
                chunk: self.home[chunk]
                for chunk in chunks
                if chunk in self.home and chunk in self.fixed and exposure.settled_at_once(chunk, number)
            }
        settled = {chunk: homes.get(chunk, self.where[chunk]) for chunk in chunks}
        if any(self.where[chunk] != place for chunk, place in settled.items()):  # while a piece is in cache
            yield _Step([source], stream_of(chunks, settled))
            self.where.update(settled)

    def _partial_sum(self, step: _Step, count: int, number: int) -> Region:
        """Return where a piece is summed up that several peers have."""
        return self._take(min(self.options.piece, count), number) if len(step.sources) > 2 else NOWHERE

    def _pull_homes(self, chunks: Sequence[Chunk], number: int, own: bool) -> dict[Chunk, Region]:
        return {
            chunk: self.home[chunk]
            for chunk in chunks
            if self._home_free(chunk, number, self.where[chunk] if own else None)
        }

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

    def _send(self, number: int, send: Send) -> list[int]:
        for chunk in send.chunks:
            if chunk not in self.where:
                raise ValueError(f"rank {self.rank}, round {number}: {send} of {chunk!r}, which the rank does not have")
        reduced = self._reduced_at(number, send)
        transfers = []
        for chunks in self._cut(send.chunks):
            stream = stream_of(chunks, self.where)
            for start, stop in self._pieces(chunks, reduced):
                regions = part(stream, start, stop)
                if len(regions) > 1 and stop - start >= self.options.pack_from:
                    regions = self._pack(regions, stop - start, number)
                transfers.append(self.program.transfer(True, send.peer, regions))
        return transfers

    def _recv(self, number: int, recv: Recv, unpack: list[tuple[Region, Region]]) -> list[int]:
        transfers = []
        for chunk in recv.chunks:
            if not self.count(chunk):
                self.where[chunk] = NOWHERE
        for chunks in self._cut(recv.chunks):
            homes = {chunk: self.home[chunk] for chunk in chunks if self._home_free(chunk, number)}
            if self._scattered(chunks, homes) and self._total(chunks) >= self.options.pack_from:
                places = self._with_scratch(chunks, number, {}, passing=homes)
                unpack += [(places[chunk], home) for chunk, home in homes.items()]
            else:
                places = self._with_scratch(chunks, number, homes)
            stream = stream_of(chunks, places)
            for start, stop in self._pieces(chunks, False):
                transfers.append(self.program.transfer(False, recv.peer, part(stream, start, stop)))
            self.where.update({**places, **homes})
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
                for chunks in self._cut(operation.chunks)
                for start, stop in self._pieces(chunks, True)
            ]
            for operation in operations
        ]
        in_turn = [piece for pieces in zip_longest(*cuts) for piece in pieces if piece] if len(cuts) > 1 else cuts[0]
        longest = max([piece.stop - piece.start for piece in in_turn], default=1)
        room = max(self.problem.count, self.options.landing) // max(1, longest)
        nplaces = min(2 * len(operations), len(in_turn) if sends else max(1, room), len(in_turn))
        for first in range(nplaces):
            sharing = in_turn[first::nplaces]
            place = self._take(max([piece.stop - piece.start for piece in sharing]), number)
            for turn, piece in enumerate(sharing):
                piece.turn, piece.landing = first + turn * nplaces, place
        return cuts, nplaces

    def _arrivals(self, number: int, operation: RecvReduce, pieces: Sequence[_Piece]) -> Iterator[tuple[int, _Arrival]]:
        """Yield for each piece of a message that is reduced its turn, and what arrives and is combined."""
        for piece in pieces:
            chunks, start, stop = piece.chunks, piece.start, piece.stop
            if start == 0:
                own = stream_of(chunks, self.where)
                places = self._with_scratch(chunks, number, self._targets(chunks, number))
                into = stream_of(chunks, places)
                self.where.update(places)
            landing = part([piece.landing], 0, stop - start)
            transfer = self.program.transfer(False, operation.peer, landing)
            streams = side_by_side(part(own, start, stop), landing, part(into, start, stop))
            if operation.side == LEFT:
                folds = [(incoming, mine, target) for mine, incoming, target in streams]
            else:
                folds = [(mine, incoming, target) for mine, incoming, target in streams]
            yield piece.turn, _Arrival(transfer, folds)

    def _scattered(self, chunks: Sequence[Chunk], homes: Mapping[Chunk, Region]) -> bool:
        """Whether chunks lie in several pieces if these have `homes` and the others lie in scratch side by side."""
        given = self._given(chunks, homes)
        return bool(given) and (len(given) < len(chunks) or len(stream_of(chunks, given)) > 1)

    def _targets(self, chunks: Sequence[Chunk], number: int) -> dict[Chunk, Region]:
        """Return where reduced chunks go: home if that is free, else where they are if that is scratch."""
        targets = {}
        for chunk in chunks:
            if self._home_free(chunk, number, operand=self.where[chunk]):
                targets[chunk] = self.home[chunk]
            elif self.where[chunk].buffer == SCRATCH and chunk not in self.fixed:
                targets[chunk] = self.where[chunk]
        return targets

    def _copy(self, number: int, copy: Copy) -> None:
        source = self.where[copy.src]
        place = self._local_place(copy.dst, number, source)
        count = min(self.count(copy.src), self.count(copy.dst))  # one of the two may be padded
        self.program.move(*(one._replace(stop=one.start + count) for one in (source, place)))
        self.where[copy.dst] = place

    def _combine(self, number: int, combine: Combine) -> None:
        left, right = self.where[combine.left], self.where[combine.right]
        place = self._local_place(combine.into, number, left)
        if left.start != left.stop:
            self.program.fold(left, right, place)
        self.where[combine.into] = place

    def _local_place(self, chunk: Chunk, number: int, operand: Region) -> Region:
        homes = {chunk: self.home[chunk]} if self._home_free(chunk, number, operand) else {}
        return self._with_scratch([chunk], number, homes)[chunk]

    # Cutting

    def _total(self, chunks: Sequence[Chunk]) -> int:
        return self.count(chunks[0]) if len(chunks) == 1 else sum(map(self.count, chunks))

    def _cut(self, chunks: Sequence[Chunk]) -> list[Sequence[Chunk]]:
        """Cut a message where its chunks do not follow one another, if that makes few enough messages.

        A message without chunks is a signal and stays; one whose chunks are all empty is dropped.
        """
        if len(chunks) <= 1:
            return [chunks] if not chunks or self.count(chunks[0]) else []
        runs = [chunks[first:last] for first, last in consecutive(chunks)]
        runs = [run for run in runs if self._total(run)]
        return runs if len(runs) <= self.options.cuts else [chunks]

    def _pieces(self, chunks: Sequence[Chunk], reduced: bool) -> list[tuple[int, int]]:
        """Cut a message into pieces that both ends agree on."""
        count = self._total(chunks)
        piece = min(self.options.piece, self.options.cap) if reduced else self.options.cap
        if count <= piece:
            return [(0, count)]
        return [(start, min(start + piece, count)) for start in range(0, count, piece)]

    def _reduced_at(self, number: int, send: Send) -> bool:
        """Whether the peer reduces what we send; asked of its own rounds, and only if it changes the cut."""
        if not self.primitive.combines or self._total(send.chunks) <= self.options.piece:
            return False
        if send.peer not in self.peers:
            self.peers[send.peer] = [
                tuple(one for one in as_round(operations) if isinstance(one, Message) and one.peer == self.rank)
                for operations in self.algorithm.rounds(self.problem, send.peer)
            ]
        theirs = self.peers[send.peer][number] if number < len(self.peers[send.peer]) else ()
        return any(isinstance(one, RecvReduce) and one.chunks == send.chunks for one in theirs)

    # Places

    def _take(self, count: int, last_round: int) -> Region:
        start = self.scratch.take(count, last_round)
        return Region(SCRATCH, start, start + count)

    def _pack(self, regions: Sequence[Region], count: int, number: int) -> list[Region]:
        packed = self._take(count, number)
        for source, target in side_by_side(regions, [packed]):
            self.program.move(source, target)
        return [packed]

    def _with_scratch(
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

    def _home_free(self, chunk: Chunk, number: int, operand: Region | None = None) -> bool:
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

    def _settle_final(self) -> None:
        """Copy chunks that are final from the start to their homes, while the first messages are under way.

        Those that are pushed are copied together with that, unless it is needless, as one copy is there for all.
        """
        left = self.written if self.options.common else self.written | self.pushed
        final = [chunk for chunk in self.home if chunk in self.where and chunk not in left]
        free = [chunk for chunk in final if self._home_free(chunk, 0, self.where[chunk])]
        for source, target in joined((self.where[chunk], self.home[chunk]) for chunk in free):
            self.program.move(source, target)
        self.where.update((chunk, self.home[chunk]) for chunk in free)

    def _settle(self) -> None:
        """Copy what did not end at home to its home."""
        left = [(self.where[chunk], home) for chunk, home in self.home.items() if self.where.get(chunk, home) != home]
        for source, target in joined(left):
            self.program.move(source, target)
