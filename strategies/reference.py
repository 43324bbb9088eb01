"""The step in one process, which the steps of all strategies must equal, and the comparison with it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strategies.arrays import to_host
from strategies.mesh import Mesh
from strategies.record import Wire
from strategies.routing import within_capacity
from strategies.schedule import one_stage
from strategies.share import Share
from strategies.traffic import Job
from strategies.transformer import Attention, Linear, Mixture, Result, Transformer, Weights, causal

Array = NDArray[Any]

TOLERANCE = 1e-10
"""How far a result may be from that of one process, as a share of the largest element there."""


def reference(job: Job, replicas: int, capacity: int | None = None, is_causal: bool = True) -> dict[str, Array]:
    """Run the step of all data-parallel ranks in one process and give its results by name.

    replicas: how many ranks work on sequences of their own, b each. capacity: rows that an expert takes from the tokens
    of one replica, more being dropped; None for all. Names: "loss", "output 0" of each micro-batch (replicas·b, s, h),
    "gradient NAME" and "weight NAME", after the update, of each weight.
    """
    whole = Job(
        job.model, replicas * job.batch, job.seq, job.micro_batches,
        routing=job.routing, routing_seed=job.routing_seed,
    )  # fmt: skip
    return _reference(whole, replicas, capacity, is_causal)


@lru_cache(maxsize=4)  # many variants have one reference
def _reference(whole: Job, replicas: int, capacity: int | None, is_causal: bool) -> dict[str, Array]:
    wire, model = Wire(None, Mesh({})), whole.model
    share = Share(whole, wire.mesh, 0)
    mixture = None
    if model.experts:
        chosen = share.chosen()
        kept = None
        if capacity is not None:
            groups = np.split(chosen, replicas)
            kept = np.concatenate([within_capacity(group, model.experts, capacity) for group in groups])
        mixture = Mixture(chosen, kept)
    visible = causal(share.positions) if is_causal else np.ones((whole.seq, whole.seq), bool)
    transformer = Transformer(share, wire, Weights(share, wire), Linear(), Attention(visible), mixture)
    result = transformer.run(one_stage(whole.micro_batches))
    return {"loss": np.array(result.loss)} | {piece.name: piece.value for piece in result.pieces}


class Difference(NamedTuple):
    """How far one rank's value is from its part of the reference, and the largest element of the whole reference."""

    name: str
    distance: float
    scale: float

    @property
    def ok(self) -> bool:
        """Whether it is within the tolerance; where the reference is all zero, only zero is."""
        return self.distance <= TOLERANCE * self.scale


def differences(result: Result, whole: dict[str, Array]) -> list[Difference]:
    """Compare what one rank has with its parts of the one-process step."""
    found = []
    for name, value, part in result.pieces:
        expected, value = part(whole[name]), to_host(value)
        if expected.shape != value.shape:
            raise ValueError(f"{name} has shape {value.shape}; its part of the one-process step has {expected.shape}")
        distance = float(np.max(np.abs(value - expected), initial=0))
        # A NaN is equal to nothing, and infinitely far here.
        found.append(Difference(name, np.inf if np.isnan(distance) else distance, float(np.abs(whole[name]).max())))
    return found
