"""All-to-all with blocks of any length (MPI-5.0 section 6.8). A chunk is (source, target).

All ranks know the whole matrix of counts: it is given, or gathered when the plan is made.
"""

from dataclasses import replace
from typing import Any

from collectives.alltoall import alltoall, pair_count
from collectives.alltoall import bruck as alltoall_bruck
from collectives.problem import Problem
from collectives.rounds import Chunk, Copy, Rounds, cyclic, relabel

PADDED = "padded"


def pair_or_padded_count(problem: Problem, chunk: Any, nchunks: int) -> int:
    """Return the elements of (source, target), or of ("padded", source, target): those of the longest block."""
    return problem.longest_block if chunk[0] == PADDED else pair_count(problem, chunk, nchunks)


alltoallv = alltoall.like(
    "alltoallv",
    chunk_count=pair_or_padded_count,
    native=lambda call: alltoall.native(replace(call, general=True)),
)


@alltoallv.algorithm()
def padded_bruck(rank: int, nranks: int) -> Rounds:
    """Bruck's all-to-all of blocks padded to the longest, so that only its count must be known (Fan et al. 2022)."""
    others = cyclic(rank + 1, nranks - 1, nranks)
    yield tuple(Copy((rank, target), _padded((rank, target))) for target in others)
    yield from relabel(alltoall_bruck(rank, nranks), chunks=_padded)
    yield tuple(Copy(_padded((source, rank)), (source, rank)) for source in others)


def _padded(block: Any) -> Chunk:
    return (PADDED, *block)
