"""Expert parallel: each rank has some whole experts, and tokens travel to those that they chose (arXiv 2006.16668).

- All-to-all: the ranks exchange how many tokens each expert gets (an all-gather), then the tokens and their weights
  (dispatch), and the results the other way (combine). Backward mirrors it: the gradients of results go out as tokens
  did, those of tokens come back as results did. A rank without tokens enters every exchange.
- Capacity: an expert takes a limited number of tokens from each rank and the rest is dropped; "pad" fills up what is
  missing, so that all blocks are equal, nothing has to be counted and a plain all-to-all does.
- All-gather: every rank gets all tokens and keeps those of its experts; the results are reduce-scattered.

Expert tensor parallel (etp) cuts the inner width of each expert over x ranks, each with tokens of its own: what a rank
received is gathered over them before the experts, and reduce-scattered after. Shapes: T tokens of a rank, k experts of
a token, E experts, e ranks of ep; R rows received by a rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from strategies import tensors
from strategies.arrays import beside, module_of, to_host
from strategies.choice import check_axes, find_variant
from strategies.mesh import Mesh, block, divide
from strategies.passes import LinearCalls, Passes, alone, synchronise
from strategies.record import Wire
from strategies.reference import Array, reference
from strategies.routing import capacity_of, choices, within_capacity
from strategies.schedule import one_stage
from strategies.share import SEQUENCE_AXES, Share, positions_of
from strategies.tensors import Back
from strategies.traffic import Calls, Job, Traffic, itemsize, on
from strategies.transformer import Attention, Linear, Result, Transformer, Weights, causal, expert_names

GROUP = ("etp", "ep")


@dataclass(frozen=True)
class Expert:
    """form: "alltoall" or "allgather". capacity: rows an expert takes of a rank, as a share of T·k/E; None for all."""

    form: str = "alltoall"
    capacity: float | None = None
    pad: bool = False


VARIANTS = {
    "dropless": Expert(),
    "drop": Expert(capacity=1.0),
    "pad": Expert(capacity=1.25, pad=True),
    "allgather": Expert("allgather"),
}


# ---------------------------------------------------------------------------------------------------------------
# Traffic


class ExpertCalls:
    """What one mixture layer communicates."""

    def __init__(self, job: Job, mesh: Mesh, rank: int, variant: Expert):
        check_experts(job, mesh)
        self.job, self.mesh, self.rank, self.variant = job, mesh, rank, variant
        self._tokens = job.tokens(mesh) // mesh.length("tp")

    def __call__(self, phase: str) -> Calls:
        """Give the calls of `phase`."""
        if self.variant.form == "allgather":
            return self._gather(phase)
        return self._pad(phase) if self.variant.pad else self._exchange(phase)

    def _gather(self, phase: str) -> Calls:
        job, tokens = self.job, self._tokens * self.mesh.length(GROUP)
        rows = tokens * job.model.hidden * job.itemsize
        weights = tokens * job.model.experts_per_token * itemsize(job.accumulate_dtype)
        numbers = tokens * job.model.experts_per_token * itemsize("int64")

        def call(primitive: str, nbytes: int, dtype: str, why: str) -> Calls:
            return on(self.mesh, GROUP, primitive, nbytes, phase, dtype=dtype, why=why)

        if phase == "forward":
            return (
                *call("allgather", rows, job.dtype, "tokens"),
                *call("allgather", weights, job.accumulate_dtype, "their weights"),
                *call("allgather", numbers, "int64", "their experts"),
                *call("reduce_scatter", rows, job.dtype, "results"),
            )
        return (
            *call("allgather", rows, job.dtype, "gradients of results"),
            *call("reduce_scatter", rows, job.dtype, "gradients of tokens"),
            *call("reduce_scatter", weights, job.accumulate_dtype, "gradients of weights"),
        )

    def _pad(self, phase: str) -> Calls:
        job, etp = self.job, self.mesh.length("etp")
        assert self.variant.capacity is not None  # a padded variant has one
        nrows = job.model.experts * capacity_of(job, self._tokens, self.variant.capacity)
        rows = nrows * job.model.hidden * job.itemsize
        moved = on(self.mesh, "ep", "alltoall", rows, phase, dtype=job.dtype, why="rows, filled up")
        weights = on(
            self.mesh, "ep", "alltoall", nrows * itemsize(job.accumulate_dtype), phase,
            dtype=job.accumulate_dtype, why="their weights",
        )  # fmt: skip
        inside = tuple(
            call
            for primitive in ("allgather", "reduce_scatter")
            for call in on(self.mesh, "etp", primitive, rows * etp, phase, dtype=job.dtype, why="rows inside experts")
        )
        return moved + weights + inside + moved if phase == "forward" else moved + inside + moved + weights

    def _exchange(self, phase: str) -> Calls:
        job, mesh, experts = self.job, self.mesh, self.job.model.experts
        members = mesh.group(GROUP, self.rank)
        sent = {member: self._counts(member) for member in members}  # rows by expert
        nranks = mesh.length("ep")
        own = [block(experts, nranks, peer) for peer in range(nranks)]

        def between(source: int, to: int) -> int:
            """Count the rows from one rank to the place of another on ep."""
            held = own[mesh.coordinate("ep", to)]
            return int(sent[source][held.start : held.stop].sum())

        peers = mesh.group("ep", self.rank)
        there = [between(self.rank, peer) for peer in peers]
        back = [between(peer, self.rank) for peer in peers]

        def moved(outgoing: Sequence[int], incoming: Sequence[int], width: int, dtype: str, why: str) -> Calls:
            sends, receives = (
                tuple(count * width * itemsize(dtype) for count in counts) for counts in (outgoing, incoming)
            )
            return on(mesh, "ep", "alltoallv", sum(sends), phase, dtype=dtype, sends=sends, receives=receives, why=why)

        hidden, accumulate = job.model.hidden, job.accumulate_dtype
        received = [
            sum(between(peer, self.rank) for peer in mesh.group("ep", sibling)) * hidden * job.itemsize
            for sibling in mesh.group("etp", self.rank)
        ]
        inside: Calls = ()
        if len(received) > 1:
            mine = (received[mesh.coordinate("etp", self.rank)],) * len(received)
            everyone = tuple(received)
            why = "rows inside experts"
            inside = on(
                mesh, "etp", "allgatherv", sum(everyone), phase, dtype=job.dtype, sends=mine, receives=everyone, why=why
            ) + on(
                mesh, "etp", "reduce_scatterv", sum(everyone), phase,
                dtype=job.dtype, sends=everyone, receives=mine, why=why,
            )  # fmt: skip
        if phase == "forward":
            nbytes = len(members) * experts * itemsize("int64")
            return (
                *on(mesh, GROUP, "allgather", nbytes, phase, dtype="int64", why="tokens by expert"),
                *moved(there, back, hidden, job.dtype, "dispatch"),
                *moved(there, back, 1, accumulate, "weights of tokens"),
                *inside,
                *moved(back, there, hidden, job.dtype, "combine"),
            )
        return (
            *moved(there, back, hidden, job.dtype, "gradients of results"),
            *inside,
            *moved(back, there, hidden, job.dtype, "gradients of tokens"),
            *moved(back, there, 1, accumulate, "gradients of weights"),
        )

    def _counts(self, rank: int) -> Array:
        """Count the rows that `rank` sends to each expert, (E,)."""
        job, mesh = self.job, self.mesh
        first = mesh.group_rank(SEQUENCE_AXES, rank) * job.batch
        places = np.split(positions_of(mesh, rank, job.seq), mesh.length("tp"))[mesh.coordinate("tp", rank)]
        counts = sum(
            np.bincount(choices(job, sequence)[places].reshape(-1), minlength=job.model.experts)
            for sequence in range(first, first + job.batch)
        )
        if self.variant.capacity is not None:
            counts = np.minimum(counts, capacity_of(job, self._tokens, self.variant.capacity))
        return np.asarray(counts)


def check_experts(job: Job, mesh: Mesh) -> None:
    """Refuse experts that do not divide, and a model without them."""
    if not job.model.experts:
        raise ValueError(f"model {job.model.name} has no experts; take one that has, such as mixtral-8x7b or tiny")
    divide(job.model.experts, mesh.length("ep"), "experts", f"ep={mesh.length('ep')}")
    divide(job.model.expert_ffn, mesh.length("etp"), "inner width of an expert", f"etp={mesh.length('etp')}")
    tokens, tp = job.tokens(mesh) // job.batch, mesh.length("tp")
    divide(tokens, tp, "tokens of a rank", f"tp={tp}")


def traffic(job: Job, mesh: Mesh, rank: int) -> Traffic:
    """Give the calls of a step."""
    mixture = ExpertCalls(job, mesh, rank, find_variant(VARIANTS, job.variant))
    yield from alone(Passes(job, mesh, LinearCalls(job, mesh), mixture=mixture), rank)
    yield from synchronise(job, mesh, rank)


# ---------------------------------------------------------------------------------------------------------------
# Step


class Exchange(Protocol):
    """How rows get to the ranks of their experts and back. Rows are (rows, width); width is h, or 1 for weights.

    Who chose whom decides how many rows there are, so it is known on the host, wherever the rows lie.
    """

    order: Array
    """Which (token, choice) each row to be sent is: its index in (T, k), flattened; -1 where it only fills up."""
    experts: Array
    """The expert of each row inside (after `spread`), counted from 0 on this rank."""

    def dispatch(self, rows: Array) -> Array:
        """Send rows to the ranks of their experts."""

    def combine(self, rows: Array) -> Array:
        """Send rows back to where they came from."""

    def spread(self, rows: Array) -> Array:
        """Give the ranks that share experts all the rows that each of them received."""

    def collect(self, rows: Array) -> Array:
        """Sum over the ranks that share experts, and give each its rows."""


class CountedExchange:
    """Exchanges of as many rows as there are, after the counts were exchanged.

    chosen (T, k): experts; kept (T, k): what is sent at all.
    """

    def __init__(self, wire: Wire, chosen: Array, kept: Array, experts: int):
        self.wire = wire
        mesh = wire.mesh
        wanted = np.where(kept, chosen, experts).reshape(-1)
        self.order = np.argsort(wanted, kind="stable")[: int(kept.sum())]
        counts = np.bincount(wanted, minlength=experts + 1)[:experts].astype(np.int64)
        gathered = to_host(wire.allgather(GROUP, wire.placed(counts)))
        by_place = np.zeros((mesh.length("ep"), mesh.length("etp"), experts), np.int64)
        for member, line in zip(mesh.group(GROUP, wire.rank), gathered, strict=True):
            by_place[mesh.coordinate("ep", member), mesh.coordinate("etp", member)] = line
        # (source, etp, owner, expert of the owner)
        by_owner = by_place.reshape(*by_place.shape[:2], mesh.length("ep"), -1)
        self._counts = by_owner[:, wire.coordinate("etp")].sum(axis=-1)
        here = by_owner[:, :, wire.coordinate("ep")]  # (source, etp, expert)
        self._received = here.sum(axis=(0, 2))
        numbers = np.arange(here.shape[-1])
        self.experts = np.concatenate([np.repeat(numbers, line) for sibling in here.swapaxes(0, 1) for line in sibling])

    def dispatch(self, rows: Array) -> Array:
        """Row i of the counts goes out; sorted by source, then expert, at the other end."""
        return self.wire.alltoallv("ep", rows, self._counts)

    def combine(self, rows: Array) -> Array:
        """The same with counts transposed."""
        return self.wire.alltoallv("ep", rows, self._counts.T)

    def spread(self, rows: Array) -> Array:
        """Gather what each rank of etp received."""
        return self.wire.allgatherv("etp", rows, self._received)

    def collect(self, rows: Array) -> Array:
        """Sum over etp and keep what was received here."""
        return self.wire.reduce_scatterv("etp", rows, self._received)


class PaddedExchange:
    """Exchanges of `capacity` rows from each rank to each expert, filled up with zeros."""

    def __init__(self, wire: Wire, chosen: Array, kept: Array, experts: int, capacity: int):
        self.wire = wire
        order = np.full((experts, capacity), -1)
        for expert in range(experts):
            rows = np.flatnonzero((chosen == expert) & kept)
            order[expert, : len(rows)] = rows
        self.order: Array = order.reshape(-1)
        self._nranks, self._siblings = wire.mesh.length("ep"), wire.mesh.length("etp")
        numbers = np.repeat(np.arange(experts // self._nranks), capacity)
        self.experts = np.tile(numbers, self._nranks * self._siblings)

    def dispatch(self, rows: Array) -> Array:
        """Blocks are equal: (e, E/e·capacity, width)."""
        blocks = rows.reshape(self._nranks, -1, rows.shape[-1])
        return self.wire.alltoall("ep", blocks).reshape(rows.shape)

    combine = dispatch

    def spread(self, rows: Array) -> Array:
        """Gather what each rank of etp received."""
        return self.wire.allgather("etp", rows).reshape(-1, rows.shape[-1])

    def collect(self, rows: Array) -> Array:
        """Sum over etp and keep what was received here."""
        return self.wire.reduce_scatter("etp", rows.reshape(self._siblings, -1, rows.shape[-1]))


def run_experts(rows: Array, numbers: Array, experts: Sequence[tuple[Array, ...]]) -> tuple[Array, Back]:
    """Feed each row (R, h) through the expert of its number (R,); gradients drows and a triple for each expert."""
    module = module_of(rows)
    output = module.zeros_like(rows)
    places = [beside(np.flatnonzero(numbers == number), rows) for number in range(len(experts))]
    backs = []
    for place, expert in zip(places, experts, strict=True):
        output[place], back = tensors.mlp(rows[place], *expert)
        backs.append(back)

    def whole_back(doutput: Array) -> tuple[Array, list[tuple[Array, ...]]]:
        drows, dexperts = module.zeros_like(rows), []
        for place, expert_back in zip(places, backs, strict=True):
            drows[place], *dexpert = expert_back(doutput[place])
            dexperts.append(tuple(dexpert))
        return drows, dexperts

    return output, whole_back


class ExpertMixture:
    """A mixture of which this rank has some experts. chosen, kept (T, k): the experts of its tokens."""

    def __init__(self, wire: Wire, chosen: Array, kept: Array, experts: int, capacity: int | None, pad: bool):
        self.wire, self.chosen, self.kept = wire, chosen, kept
        self._experts, self._capacity, self._pad = experts, capacity, pad

    def exchange(self) -> Exchange:
        """Prepare the way of the tokens."""
        if self._pad and self._capacity is not None:
            return PaddedExchange(self.wire, self.chosen, self.kept, self._experts, self._capacity)
        return CountedExchange(self.wire, self.chosen, self.kept, self._experts)

    def __call__(self, x: Array, weights: dict[str, Array]) -> tuple[Array, Back]:
        """Mix x (b, s, h): (b, s, h); gradients dx and a dictionary of those of the weights here."""
        module, flat, each, names = module_of(x), tensors.rows(x), self.chosen.shape[1], expert_names(weights)
        shares, route_back = tensors.route(flat, weights["router"], self.chosen, self.kept)
        way = self.exchange()
        order, real = beside(way.order, x), beside((way.order >= 0)[:, None], x)
        rows_sent = beside(np.flatnonzero(way.order >= 0), x)
        choices_sent = order[rows_sent]

        def outgoing(rows: Array) -> Array:
            """Take the rows to send from those of all tokens (T, width)."""
            taken: Array = module.where(real, rows[order // each], 0)
            return taken

        def incoming(rows: Array) -> Array:
            """Add rows that came back to their tokens: (T, h)."""
            return tensors.add_rows(choices_sent // each, rows[rows_sent], flat)

        received = way.dispatch(outgoing(flat))
        scales = way.dispatch(module.where(real, shares.reshape(-1)[order][:, None], 0))
        partial, experts_back = run_experts(
            way.spread(received), way.experts, [tuple(weights[name] for name in expert) for expert in names]
        )
        output = way.collect(partial)
        y = incoming(way.combine(output * scales))

        def back(dy: Array) -> tuple[Array, dict[str, Array]]:
            dscaled = way.dispatch(outgoing(tensors.rows(dy)))
            drows, dexperts = experts_back(way.spread(dscaled * scales))
            dx = incoming(way.combine(way.collect(drows)))
            dscales = way.combine((dscaled * output).sum(axis=1, keepdims=True))
            dshares = module.zeros(shares.size)
            dshares[choices_sent] = dscales[rows_sent, 0]
            dx_router, drouter = route_back(dshares.reshape(shares.shape))
            return (dx + dx_router).reshape(x.shape), _named(drouter, names, dexperts)

        return y.reshape(x.shape), back


class GatheredMixture:
    """A mixture that gathers all tokens of the group, and of which this rank has some experts, or parts of them."""

    def __init__(self, wire: Wire, chosen: Array, experts: int):
        self.wire, self.chosen = wire, chosen
        own = block(experts, wire.mesh.length("ep"), wire.coordinate("ep"))
        self._first = own.start

    def __call__(self, x: Array, weights: dict[str, Array]) -> tuple[Array, Back]:
        """Mix x (b, s, h): (b, s, h); gradients as of `ExpertMixture`."""
        module, flat, each, names = module_of(x), tensors.rows(x), self.chosen.shape[1], expert_names(weights)
        kept = np.ones(self.chosen.shape, bool)
        shares, route_back = tensors.route(flat, weights["router"], self.chosen, kept)
        nranks = self.wire.mesh.length(GROUP)
        rows = tensors.rows(self.wire.allgather(GROUP, flat))  # (n·T, h)
        scales = self.wire.allgather(GROUP, shares).reshape(-1)
        numbers = to_host(self.wire.allgather(GROUP, self.wire.placed(self.chosen.astype(np.int64))))
        numbers = numbers.reshape(-1) - self._first
        found = np.flatnonzero((numbers >= 0) & (numbers < len(names)))
        here, tokens = beside(found, x), beside(found // each, x)
        scale = scales[here][:, None]
        experts = [tuple(weights[name] for name in expert) for expert in names]
        output, experts_back = run_experts(rows[tokens], numbers[found], experts)
        summed = tensors.add_rows(tokens, output * scale, rows)
        y = self.wire.reduce_scatter(GROUP, summed.reshape(nranks, *flat.shape))

        def back(dy: Array) -> tuple[Array, dict[str, Array]]:
            dscaled = tensors.rows(self.wire.allgather(GROUP, tensors.rows(dy)))[tokens]
            drows, dexperts = experts_back(dscaled * scale)
            dsummed = tensors.add_rows(tokens, drows, rows)
            dx = self.wire.reduce_scatter(GROUP, dsummed.reshape(nranks, *flat.shape))
            dscales = module.zeros(scales.size)
            dscales[here] = (dscaled * output).sum(axis=1)
            dshares = self.wire.reduce_scatter(GROUP, dscales.reshape(nranks, *shares.shape))
            dx_router, drouter = route_back(dshares)
            return (dx + dx_router).reshape(x.shape), _named(drouter, names, dexperts)

        return y.reshape(x.shape), back


def _named(drouter: Array, names: Sequence[tuple[str, ...]], dexperts: Sequence[tuple[Array, ...]]) -> dict[str, Array]:
    gradients = {"router": drouter}
    for expert, dexpert in zip(names, dexperts, strict=True):
        gradients.update(zip(expert, dexpert, strict=True))
    return gradients


def step(job: Job, wire: Wire) -> Result:
    """Run a training step on this rank: b sequences of its own in each micro-batch."""
    check_axes("expert", wire.mesh, ("ep", "etp", "expert_dp"))
    check_experts(job, wire.mesh)
    variant, experts = find_variant(VARIANTS, job.variant), job.model.experts
    share = Share(job, wire.mesh, wire.rank)
    chosen = share.chosen()
    capacity = _capacity(job, variant)
    kept = np.ones(chosen.shape, bool) if capacity is None else within_capacity(chosen, experts, capacity)
    mixture: ExpertMixture | GatheredMixture = (
        GatheredMixture(wire, chosen, experts)
        if variant.form == "allgather"
        else ExpertMixture(wire, chosen, kept, experts, capacity, variant.pad)
    )
    attention = Attention(causal(share.positions))
    model = Transformer(share, wire, Weights(share, wire), Linear(), attention, mixture)
    return model.run(one_stage(job.micro_batches))


def _capacity(job: Job, variant: Expert) -> int | None:
    return None if variant.capacity is None else capacity_of(job, job.batch * job.seq, variant.capacity)


def expected(job: Job, mesh: Mesh) -> dict[str, Array]:
    """Give what the steps of all ranks must make together; tokens are dropped there as they are here."""
    return reference(job, mesh.length(SEQUENCE_AXES), _capacity(job, find_variant(VARIANTS, job.variant)))
