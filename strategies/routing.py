"""Which experts the tokens choose: drawn from a seed, so that traffic can be told without running the router."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.traffic import Job

Array = NDArray[Any]


def choices(job: Job, sequence: int) -> Array:
    """Give the experts (s, k) that the tokens of a sequence choose, all different for a token, ascending.

    sequence: its number among those that all data-parallel ranks work on at once. Every layer and micro-batch chooses
    alike. ValueError for a routing that does not exist.
    """
    model = job.model
    return _choices(job.routing, job.routing_seed, job.seq, model.experts, model.experts_per_token, sequence)


@lru_cache(maxsize=512)
def _choices(routing: str, seed: int, seq: int, experts: int, each: int, sequence: int) -> Array:
    popularity = expert_shares(routing, experts)
    if popularity is None:
        chosen = np.broadcast_to(np.arange(each), (seq, each))
    else:
        # The k largest of log p + Gumbel noise are k draws without replacement (Kool et al. 2019, arXiv 1903.06059).
        noise = np.random.default_rng([seed, sequence]).gumbel(size=(seq, experts))
        chosen = np.sort(np.argpartition(-(np.log(popularity) + noise), each - 1, axis=-1)[:, :each], axis=-1)
    chosen = chosen.astype(np.int32)
    chosen.flags.writeable = False
    return chosen


def expert_shares(routing: str, experts: int) -> Array | None:
    """Give the popularity of each expert: all the same, or 1/rank^z; None where all tokens take the first k."""
    name, _, exponent = routing.partition(":")
    if routing == "all-to-one":
        return None
    if routing == "uniform":
        return np.full(experts, 1 / experts)
    try:
        shares = np.arange(1, experts + 1) ** -float(exponent)
        if name != "zipf" or not np.all(np.isfinite(shares) & (shares > 0)):
            raise ValueError
    except ValueError:
        raise ValueError(f"{routing!r} is no routing; take uniform, all-to-one, or zipf:1.5 (an exponent)") from None
    return shares / shares.sum()


def within_capacity(chosen: Array, experts: int, capacity: int) -> Array:
    """Tell which choices (tokens, k) are kept: of each expert the first `capacity`, in token order (GShard 2020)."""
    flat = chosen.reshape(-1)
    order = np.argsort(flat, kind="stable")
    before = np.searchsorted(flat[order], np.arange(experts))
    place = np.empty(len(flat), int)
    place[order] = np.arange(len(flat)) - before[flat[order]]
    return (place < capacity).reshape(chosen.shape)


def capacity_of(job: Job, tokens: int, factor: float) -> int:
    """Return the rows that an expert takes from a rank of `tokens` tokens: factor·T·k/E, rounded up."""
    return int(np.ceil(factor * tokens * job.model.experts_per_token / job.model.experts))
