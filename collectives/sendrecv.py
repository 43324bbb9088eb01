"""Send and receive: four patterns of point-to-point messages (MPI-5.0 chapter 3), each a primitive of its own.

The ends are ranks 0 and n-1, so that on a cluster the message crosses it; the ring shift keeps all ranks busy.
"""

from typing import Any

from collectives.contracts import Lies, vector_piece
from collectives.needs import TWO_RANKS
from collectives.problem import Problem
from collectives.registry import Primitive
from collectives.rounds import Recv, Rounds, Send
from collectives.vector import Chunks, per_segment


def _at_ends(at_first: Chunks, at_last: Chunks) -> Lies:
    """Place chunks at rank 0 and rank n-1."""
    return lambda problem, rank, nchunks: at_first if rank == 0 else at_last if rank == problem.nranks - 1 else ()


def _whole(problem: Problem, chunk: Any, nchunks: int) -> int:
    return problem.count


def _native_pingpong(call: Any) -> list[Any]:
    last = call.problem.nranks - 1
    if call.rank == 0:
        return [("Send", call.send, last), ("Recv", call.recv, last)]
    return [("Recv", call.recv, 0), ("Send", call.send, 0)] if call.rank == last else []


def _native_stream(call: Any) -> list[Any]:
    last = call.problem.nranks - 1
    if call.rank == 0:
        return [("Send", call.send, last)]
    return [("Recv", call.recv, 0)] if call.rank == last else []


def _native_exchange(call: Any) -> list[Any]:
    last = call.problem.nranks - 1
    if call.rank not in (0, last):
        return []
    peer = last - call.rank
    return [("Sendrecv", call.send, peer, 0, call.recv, peer)]


def _native_ring(call: Any) -> list[Any]:
    right, left = (call.rank + 1) % call.problem.nranks, (call.rank - 1) % call.problem.nranks
    return [("Sendrecv", call.send, right, 0, call.recv, left)]


pingpong = Primitive(
    "sendrecv_pingpong",
    inputs=_at_ends(["ping"], ["pong"]),
    outputs=_at_ends(["pong"], ["ping"]),
    chunk_count=_whole,
    native=_native_pingpong,
    needs=TWO_RANKS,
    legs=2,
)
stream = Primitive(
    "sendrecv_stream",
    inputs=lambda problem, rank, nchunks: range(nchunks) if rank == 0 else (),
    outputs=lambda problem, rank, nchunks: range(nchunks) if rank == problem.nranks - 1 else (),
    chunk_count=vector_piece,
    native=_native_stream,
    needs=TWO_RANKS,
    vector=True,
)
exchange = Primitive(
    "sendrecv_exchange",
    inputs=_at_ends(["there"], ["back"]),
    outputs=_at_ends(["back"], ["there"]),
    chunk_count=_whole,
    native=_native_exchange,
    needs=TWO_RANKS,
)
ring_shift = Primitive(
    "sendrecv_ring",
    inputs=lambda problem, rank, nchunks: (rank,),
    outputs=lambda problem, rank, nchunks: ((rank - 1) % problem.nranks,),
    chunk_count=_whole,
    native=_native_ring,
)


@pingpong.algorithm(name="direct")
def there_and_back(rank: int, nranks: int) -> Rounds:
    """Rank 0 sends to rank n-1, which answers; the time is half of the round trip, as is usual."""
    last = nranks - 1
    yield Send(last, "ping") if rank == 0 else Recv(0, "ping") if rank == last else ()
    yield Recv(last, "pong") if rank == 0 else Send(0, "pong") if rank == last else ()


@stream.algorithm(name="direct")
def one_way(rank: int, nranks: int) -> Rounds:
    """Rank 0 sends the whole message to rank n-1."""
    yield Send(nranks - 1, 0) if rank == 0 else Recv(0, 0) if rank == nranks - 1 else ()


@stream.algorithm(chunks=per_segment)
def segmented(rank: int, nranks: int, segments: int = 8) -> Rounds:
    """Rank 0 sends the message to rank n-1 in segments, all under way at once."""
    if rank == 0:
        yield tuple(Send(nranks - 1, segment) for segment in range(segments))
    else:
        yield tuple(Recv(0, segment) for segment in range(segments)) if rank == nranks - 1 else ()


@exchange.algorithm(name="direct")
def both_ways(rank: int, nranks: int) -> Rounds:
    """Ranks 0 and n-1 send to each other at the same time."""
    last = nranks - 1
    mine, theirs = ("there", "back") if rank == 0 else ("back", "there")
    yield (Send(last - rank, mine), Recv(last - rank, theirs)) if rank in (0, last) else ()


@ring_shift.algorithm(name="direct")
def to_the_right(rank: int, nranks: int) -> Rounds:
    """Every rank sends to its right neighbour and receives from its left one."""
    left, right = (rank - 1) % nranks, (rank + 1) % nranks
    if nranks > 1:
        yield Send(right, rank), Recv(left, left)
