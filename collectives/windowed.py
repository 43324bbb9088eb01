"""Algorithms on memory that the ranks of a node share: single copy, no messages.

A rank reads from its peers (pull) or writes to them (push). Every call begins with a fence, behind which all buffers
are ready, and ends with one, behind which they may be used again. Where the work is one rank's, the others take their
share of it, so that all cores move data.
"""

from collections.abc import Sequence

from collectives.allgather import allgather, allgatherv
from collectives.allreduce import allreduce
from collectives.alltoall import alltoall
from collectives.alltoallv import alltoallv
from collectives.barrier import barrier
from collectives.broadcast import broadcast
from collectives.gather import gather, gatherv
from collectives.needs import SHARED_MEMORY
from collectives.parameters import Parameter
from collectives.reduce import reduce
from collectives.reduce_scatter import reduce_scatter, reduce_scatterv
from collectives.registry import algorithm_of
from collectives.rounds import Fence, Pull, PullReduce, Push, Rounds, cyclic
from collectives.scatter import scatter, scatterv
from collectives.vector import per_rank, per_segment


def others(rank: int, nranks: int) -> list[int]:
    """All other ranks, from the next above on, so that no rank is everyone's first."""
    return cyclic(rank + 1, nranks - 1, nranks)


def per_segment_and_rank(nranks: int, *, segments: int, **parameters: Parameter) -> int:
    """The vector is cut into segments, and each of these into as many chunks as there are ranks."""
    return segments * nranks


@allreduce.algorithm(name="window", chunks=per_rank, needs=SHARED_MEMORY, keeps_order=True)
def allreduce_push(rank: int, nranks: int) -> Rounds:
    """Combine the own slice of all vectors, and write each piece of the result to all while it is in cache."""
    everyone = range(nranks)
    yield Fence(everyone)
    yield PullReduce(everyone, rank), Push(others(rank, nranks), rank), Fence(everyone)


@allreduce.algorithm(name="window_pull", chunks=per_rank, needs=SHARED_MEMORY, keeps_order=True)
def allreduce_pull(rank: int, nranks: int) -> Rounds:
    """Combine the own slice of all vectors, then read the other slices of the result."""
    everyone = range(nranks)
    yield Fence(everyone)
    yield PullReduce(everyone, rank), Fence(everyone)
    yield (*(Pull(peer, peer) for peer in others(rank, nranks)), Fence(everyone))


@allreduce.algorithm(name="window_pipelined", chunks=per_segment_and_rank, needs=SHARED_MEMORY, keeps_order=True)
def allreduce_pipelined(rank: int, nranks: int, segments: int = 16) -> Rounds:
    """Combine the own slice of one segment after another, and read the others' results of the one before.

    What lies in no shared memory goes through slots that are used again for every other segment: they stay in cache.
    """
    yield from _combined(rank, nranks, segments, others(rank, nranks))


def _combined(rank: int, nranks: int, segments: int, read_from: Sequence[int]) -> Rounds:
    """Combine the own slice of each segment, and read those of the segment before from `read_from`."""
    everyone = range(nranks)
    yield Fence(everyone)
    for segment in range(segments + 1):
        before = [Pull(peer, (segment - 1) * nranks + peer) for peer in read_from] if segment else []
        own = [PullReduce(everyone, segment * nranks + rank)] if segment < segments else []
        yield (*before, *own, Fence(everyone))


@allreduce.algorithm(name="window_one_shot", needs=SHARED_MEMORY, keeps_order=True, staged=True)
def allreduce_one_shot(rank: int, nranks: int) -> Rounds:
    """Every rank leaves a copy of its vector for the others and combines all of them itself: one fence in all."""
    everyone = range(nranks)
    yield Fence(everyone)
    yield PullReduce(everyone, 0)


@reduce.algorithm(name="window", chunks=per_rank, needs=SHARED_MEMORY, keeps_order=True)
def reduce_push(rank: int, nranks: int, root: int) -> Rounds:
    """Every rank combines its slice of all vectors and writes it to the root."""
    everyone = range(nranks)
    yield Fence(everyone)
    yield PullReduce(everyone, rank), Push([root], rank), Fence(everyone)


@reduce.algorithm(name="window_pipelined", chunks=per_segment_and_rank, needs=SHARED_MEMORY, keeps_order=True)
def reduce_pipelined(rank: int, nranks: int, root: int, segments: int = 16) -> Rounds:
    """Combine the own slice of one segment after another, of which the root reads the one before."""
    yield from _combined(rank, nranks, segments, others(rank, nranks) if rank == root else ())


@algorithm_of(reduce_scatter, reduce_scatterv, name="window", needs=SHARED_MEMORY, keeps_order=True)
def reduce_scatter_pull(rank: int, nranks: int) -> Rounds:
    """Every rank combines its block of all vectors."""
    everyone = range(nranks)
    yield Fence(everyone)
    yield PullReduce(everyone, rank), Fence(everyone)


@broadcast.algorithm(name="window", chunks=per_rank, needs=SHARED_MEMORY)
def broadcast_push(rank: int, nranks: int, root: int) -> Rounds:
    """Every rank reads its slice from the root and writes it to all others."""
    everyone = range(nranks)
    receivers = [peer for peer in others(rank, nranks) if peer != root]
    yield Fence(everyone)
    own = (Pull(root, rank),) if rank != root else ()
    yield (*own, Push(receivers, rank), Fence(everyone))


@broadcast.algorithm(name="window_pull", needs=SHARED_MEMORY)
def broadcast_pull(rank: int, nranks: int, root: int) -> Rounds:
    """Every rank reads all from the root."""
    everyone = range(nranks)
    yield Fence(everyone)
    own = (Pull(root, 0),) if rank != root else ()
    yield (*own, Fence(everyone))


@broadcast.algorithm(name="window_pipelined", chunks=per_segment, needs=SHARED_MEMORY)
def broadcast_pipelined(rank: int, nranks: int, root: int, segments: int = 16) -> Rounds:
    """Every rank reads one segment after another from the root."""
    everyone = range(nranks)
    yield Fence(everyone)
    for segment in range(segments):
        own = (Pull(root, segment),) if rank != root else ()
        yield (*own, Fence(everyone))


@algorithm_of(allgather, allgatherv, name="window", needs=SHARED_MEMORY)
def allgather_push(rank: int, nranks: int) -> Rounds:
    """Every rank writes its block to all others."""
    everyone = range(nranks)
    yield Fence(everyone)
    yield Push(others(rank, nranks), rank), Fence(everyone)


@algorithm_of(allgather, allgatherv, name="window_pull", needs=SHARED_MEMORY)
def allgather_pull(rank: int, nranks: int) -> Rounds:
    """Every rank reads the blocks of all others."""
    everyone = range(nranks)
    yield Fence(everyone)
    yield (*(Pull(peer, peer) for peer in others(rank, nranks)), Fence(everyone))


@algorithm_of(gather, gatherv, name="window", needs=SHARED_MEMORY)
def gather_push(rank: int, nranks: int, root: int) -> Rounds:
    """Every rank writes its block to the root."""
    everyone = range(nranks)
    yield Fence(everyone)
    own = (Push([root], rank),) if rank != root else ()
    yield (*own, Fence(everyone))


@algorithm_of(gather, gatherv, name="window_pull", needs=SHARED_MEMORY)
def gather_pull(rank: int, nranks: int, root: int) -> Rounds:
    """The root reads the blocks of all others."""
    everyone = range(nranks)
    yield Fence(everyone)
    own = [Pull(peer, peer) for peer in others(rank, nranks)] if rank == root else []
    yield (*own, Fence(everyone))


@algorithm_of(scatter, scatterv, name="window", needs=SHARED_MEMORY)
def scatter_pull(rank: int, nranks: int, root: int) -> Rounds:
    """Every rank reads its block from the root."""
    everyone = range(nranks)
    yield Fence(everyone)
    own = (Pull(root, rank),) if rank != root else ()
    yield (*own, Fence(everyone))


@algorithm_of(alltoall, alltoallv, name="window", needs=SHARED_MEMORY)
def alltoall_push(rank: int, nranks: int) -> Rounds:
    """Every rank writes to every other what it has for it, the next above first."""
    everyone = range(nranks)
    yield Fence(everyone)
    yield (*(Push([peer], (rank, peer)) for peer in others(rank, nranks)), Fence(everyone))


@algorithm_of(alltoall, alltoallv, name="window_pull", needs=SHARED_MEMORY)
def alltoall_pull(rank: int, nranks: int) -> Rounds:
    """Every rank reads from every other what it has for it, the next above first."""
    everyone = range(nranks)
    yield Fence(everyone)
    yield (*(Pull(peer, (peer, rank)) for peer in others(rank, nranks)), Fence(everyone))


@barrier.algorithm(name="window", needs=SHARED_MEMORY)
def barrier_fence(rank: int, nranks: int) -> Rounds:
    """A fence, and nothing else."""
    yield Fence(range(nranks))
