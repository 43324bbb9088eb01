"""A vector, and how it is cut: into blocks of ranks, or into as many chunks as an algorithm wants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TypeAlias

from collectives.parameters import Parameter
from collectives.rounds import Chunk, largest_power_of_two

Chunks: TypeAlias = Sequence[Chunk]


@lru_cache(maxsize=256)
def blocks(count: int, nblocks: int) -> tuple[int, ...]:
    """Cut `count` elements into `nblocks` blocks; the first ``count % nblocks`` have one element more."""
    each, more = divmod(count, nblocks)
    return (each + 1,) * more + (each,) * (nblocks - more)


@lru_cache(maxsize=256)
def offsets(counts: tuple[int, ...]) -> tuple[int, ...]:
    """Return where each block starts if blocks of these counts lie one after another."""
    return (0, *accumulate(counts))[:-1]


def consecutive(chunks: Chunks) -> Iterator[tuple[int, int]]:
    """Yield the index ranges of maximal runs of chunks that follow one another in the vector.

    Both ends of a message know the names of its chunks, so both cut it at the same places without talking.
    """
    start = 0
    for index, (one, following) in enumerate(pairwise(chunks), start=1):
        if not (isinstance(one, int) and isinstance(following, int) and following == one + 1):
            yield start, index
            start = index
    yield start, len(chunks)


# ---------------------------------------------------------------------------------------------------------------
# Into how many chunks an algorithm cuts a vector


def one_chunk(nranks: int, **parameters: Parameter) -> int:
    """The whole vector is one chunk."""
    return 1


def per_rank(nranks: int, **parameters: Parameter) -> int:
    """The vector is cut into as many chunks as there are ranks."""
    return nranks


def per_segment(nranks: int, *, segments: int, **parameters: Parameter) -> int:
    """The vector is cut into the segments of a pipeline."""
    return segments


def two_halves(nranks: int, *, segments: int, **parameters: Parameter) -> int:
    """Each half of the vector is cut into the segments of a pipeline."""
    return 2 * segments


def power_of_two_chunks(nranks: int, **parameters: Parameter) -> int:
    """The vector is cut into the largest power of two of chunks that is at most the ranks."""
    return largest_power_of_two(nranks)
