"""What contracts of primitives are made of: who has which chunks, of how many elements, and how often bytes travel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from collectives.problem import Problem
from collectives.rounds import Chunk
from collectives.vector import Chunks, blocks

Lies: TypeAlias = Callable[[Problem, int, int], Chunks]


def whole_vector(problem: Problem, rank: int, nchunks: int) -> Chunks:
    """All chunks of the vector."""
    return range(nchunks)


def own_block(problem: Problem, rank: int, nchunks: int) -> Chunks:
    """The block that bears the rank's number."""
    return (rank,)


def all_blocks(problem: Problem, rank: int, nchunks: int) -> Chunks:
    """The blocks of all ranks, in rank order."""
    return range(problem.nranks)


def nothing(problem: Problem, rank: int, nchunks: int) -> Chunks:
    """No chunk."""
    return ()


def at_root(lies: Lies) -> Lies:
    """Restrict `lies` to the root."""
    return lambda problem, rank, nchunks: lies(problem, rank, nchunks) if rank == problem.root else ()


def vector_piece(problem: Problem, chunk: Any, nchunks: int) -> int:
    """Return the elements of chunk number `chunk` of a vector, or of ``(..., number)``, one rank's part in it."""
    return blocks(problem.count, nchunks)[chunk[-1] if isinstance(chunk, tuple) else chunk]


def rank_block(problem: Problem, chunk: Any, nchunks: int) -> int:
    """Return the elements of the block of rank `chunk`, or of ``(..., rank)``, one rank's part in it."""
    return problem.block_counts[chunk[-1] if isinstance(chunk, tuple) else chunk]


def full(nranks: int) -> float:
    """Bus bandwidth factor 1: every byte crosses the busiest link once."""
    return 1.0


def others_share(nranks: int) -> float:
    """Bus bandwidth factor (n-1)/n: all but the own block crosses the link."""
    return (nranks - 1) / nranks


def not_aliased(problem: Problem, rank: int) -> tuple[int, int] | None:
    """There is no in-place form on this rank."""
    return None


def everyone(problem: Problem, rank: int, chunk: Any) -> Sequence[int]:
    """All ranks contribute."""
    return range(problem.nranks)


def same_chunk(rank: int, chunk: Any) -> Chunk:
    """A rank contributes to a chunk what it has under the same name."""
    return chunk
