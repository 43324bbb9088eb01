"""What each rank must have at the end, computed locally from the contract and the inputs of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from collectives.problem import Problem
from collectives.vector import Chunks, offsets


def expected(
    problem: Problem,
    rank: int,
    input_of: Callable[[int], np.ndarray[Any, Any]],
    combine: Callable[..., Any] = np.add,
) -> np.ndarray[Any, Any] | None:
    """Return the receive buffer that `rank` must end with, None if it has none.

    `input_of(rank)` gives any rank's send buffer. No communication is involved.
    """
    primitive = problem.primitive
    outputs = primitive.outputs(problem, rank, 1)
    if not outputs:
        return None
    if primitive.combines:
        return np.concatenate(
            [
                reduce(
                    combine,
                    [_chunk(problem, one, primitive.contribution(one, chunk), input_of) for one in contributors],
                )
                if (contributors := primitive.contributors(problem, rank, chunk))
                else np.empty(0)
                for chunk in outputs
            ]
        )
    return np.concatenate([_chunk(problem, _owner(problem, chunk), chunk, input_of) for chunk in outputs])


def _owner(problem: Problem, chunk: Any) -> int:
    ranks = range(problem.nranks)
    first_guess = [problem.root, chunk, chunk[0] if isinstance(chunk, tuple) else None]
    for rank in (*first_guess, *ranks):
        if rank in ranks and chunk in _inputs(problem, rank):
            return rank
    raise ValueError(f"no rank has chunk {chunk!r} of {problem.primitive.name} at the start")


def _inputs(problem: Problem, rank: int) -> Chunks:
    return problem.primitive.inputs(problem, rank, 1)


def _chunk(problem: Problem, rank: int, chunk: Any, input_of: Callable[[int], Any]) -> Any:
    inputs = _inputs(problem, rank)
    counts = tuple(problem.primitive.chunk_count(problem, one, 1) for one in inputs)
    index = inputs.index(chunk)
    start = offsets(counts)[index]
    return input_of(rank)[start : start + counts[index]]
