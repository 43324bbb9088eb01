"""How messages are cut: what a layout is told of that, and what follows from it, alike at both ends. No MPI."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from collectives.problem import Problem
from collectives.registry import Algorithm
from collectives.rounds import Chunk, Message, RecvReduce, Round, Send, as_round
from collectives.vector import consecutive

PIECE_NBYTES = 256 << 10
STAGED_NBYTES = 1 << 20
"""The longest message that goes through the host, so that its copies overlap with it. To be tuned on a GPU."""
PACK_FROM_NBYTES = 64 << 10
LANDING_NBYTES = 64 << 10
SMALL_NBYTES = 4 << 10
CACHE_LINE_NBYTES = 64


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


class _Counts(dict[Chunk, int]):
    """The elements of each chunk, asked of its primitive once."""

    def __init__(self, ask: Callable[[Chunk], int]) -> None:
        super().__init__()
        self.ask = ask

    def __missing__(self, chunk: Chunk) -> int:
        count = self[chunk] = self.ask(chunk)
        return count


class Cuts:
    """Into which messages one rank's sends and receives are cut; peers cut theirs alike, without talking.

    `count` gives the elements of a chunk, `nchunks` into how many a vector is cut.
    """

    def __init__(self, problem: Problem, algorithm: Algorithm, rank: int, options: Options) -> None:
        self.problem, self.algorithm, self.rank, self.options = problem, algorithm, rank, options
        self.nchunks = algorithm.nchunks(problem.nranks, problem.nodes)
        self.peers: dict[int, list[Round]] = {}
        self.count = _Counts(lambda chunk: problem.primitive.chunk_count(problem, chunk, self.nchunks)).__getitem__

    def total(self, chunks: Sequence[Chunk]) -> int:
        """Return the elements of all of these chunks."""
        return self.count(chunks[0]) if len(chunks) == 1 else sum(map(self.count, chunks))

    def runs(self, chunks: Sequence[Chunk]) -> list[Sequence[Chunk]]:
        """Cut a message where its chunks do not follow one another, if that makes few enough messages.

        A message without chunks is a signal and stays; one whose chunks are all empty is dropped.
        """
        if len(chunks) <= 1:
            return [chunks] if not chunks or self.count(chunks[0]) else []
        runs = [chunks[first:last] for first, last in consecutive(chunks)]
        runs = [run for run in runs if self.total(run)]
        return runs if len(runs) <= self.options.cuts else [chunks]

    def pieces(self, chunks: Sequence[Chunk], reduced: bool) -> list[tuple[int, int]]:
        """Cut a message into pieces: the first element of each, and the one after its last."""
        count = self.total(chunks)
        piece = min(self.options.piece, self.options.cap) if reduced else self.options.cap
        if count <= piece:
            return [(0, count)]
        return [(start, min(start + piece, count)) for start in range(0, count, piece)]

    def reduced_at(self, number: int, send: Send) -> bool:
        """Whether the peer reduces what it is sent; asked of its own rounds, and only if it changes the cut."""
        if not self.problem.primitive.combines or self.total(send.chunks) <= self.options.piece:
            return False
        if send.peer not in self.peers:
            self.peers[send.peer] = [
                tuple(one for one in as_round(operations) if isinstance(one, Message) and one.peer == self.rank)
                for operations in self.algorithm.rounds(self.problem, send.peer)
            ]
        theirs = self.peers[send.peer][number] if number < len(self.peers[send.peer]) else ()
        return any(isinstance(one, RecvReduce) and one.chunks == send.chunks for one in theirs)
