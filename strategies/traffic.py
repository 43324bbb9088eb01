"""The communication of a strategy as data: a `Job` says what is trained, a `Call` is one collective it makes.

A strategy's `traffic(job, mesh, rank)` yields the calls of one training step as one rank sees them:

    yield Call("allgather", "tp", job.activation_nbytes(mesh), "forward", times=2 * job.layers_of(mesh, rank),
               why="gather the sequence before attention and feed-forward")

An axis of length 1 makes no call. Calls come in the order in which the rank makes them. Layers that repeat are written
once, with `times`, and `within` says which calls repeat together; `unrolled` writes them out, `merge` puts equal ones
together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from itertools import groupby, repeat
from math import floor
from typing import Any, TypeAlias

from strategies.mesh import Mesh, block, divide
from strategies.models import Model, Tensor

ITEMSIZES = {"float8_e4m3fn": 1, "bfloat16": 2, "float16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8}
PHASES = ("setup", "forward", "backward", "step")

# Bytes that a rank sends, as a share of `nbytes` among n ranks, with an algorithm that moves no byte twice.
_SHARES = {
    "allreduce": lambda n: Fraction(2 * (n - 1), n),
    "allgather": lambda n: Fraction(n - 1, n),
    "reduce_scatter": lambda n: Fraction(n - 1, n),
    "alltoall": lambda n: Fraction(n - 1, n),
    "barrier": lambda n: Fraction(0),
}
# The same where ranks differ: (root, each other rank). A chain hands a whole broadcast on, and a whole reduction.
_ROOTED_SHARES = {
    "broadcast": lambda n: (Fraction(1), Fraction(1)),
    "reduce": lambda n: (Fraction(0), Fraction(1)),
    "scatter": lambda n: (Fraction(n - 1, n), Fraction(0)),
    "gather": lambda n: (Fraction(0), Fraction(1, n)),
}
# Per-peer bytes are part of the call.
_UNEVEN = ("alltoallv", "allgatherv", "reduce_scatterv")
COMBINING = ("allreduce", "reduce_scatter", "reduce", "reduce_scatterv")
PRIMITIVES = (*_SHARES, *_ROOTED_SHARES, *_UNEVEN, "sendrecv")


@dataclass(frozen=True)
class Job:
    """What is trained. Letters as in `models`; b and s are those of one micro-batch on one data-parallel rank.

    batch: b, sequences in a micro-batch. micro_batches: m, in a step. seq: s, the model's own unless given.
    dtype: of activations; param_dtype: of gathered parameters; grad_dtype: of gradients on the wire;
    accumulate_dtype: of losses, softmax statistics and gradients summed on the way.
    variant: which form of the strategy, in the strategy's own words; "" is its usual one.
    virtual_stages: v, chunks of layers on each pipeline rank (interleaved schedule).
    routing: how tokens choose experts ("uniform", "all-to-one", or "zipf:1.5"), drawn with routing_seed.
    """

    model: Model
    batch: int = 1
    seq: int = 0
    micro_batches: int = 1
    dtype: str = "bfloat16"
    param_dtype: str = "bfloat16"
    grad_dtype: str = "bfloat16"
    accumulate_dtype: str = "float32"
    variant: str = ""
    virtual_stages: int = 1
    routing: str = "uniform"
    routing_seed: int = 0

    def __post_init__(self):
        if self.seq == 0:
            object.__setattr__(self, "seq", self.model.seq)
        for name in ("batch", "seq", "micro_batches", "virtual_stages"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; a job needs at least 1")
        for name in ("dtype", "param_dtype", "grad_dtype", "accumulate_dtype"):
            itemsize(getattr(self, name))

    @property
    def itemsize(self) -> int:
        """w, bytes of an activation element."""
        return itemsize(self.dtype)

    def tokens(self, mesh: Mesh) -> int:
        """Return b·s/(c·u), the tokens of a micro-batch on a rank outside attention. ValueError if not whole."""
        cp, ulysses = mesh.length("cp"), mesh.length("ulysses")
        return self.batch * divide(self.seq, cp * ulysses, "tokens", f"cp·ulysses = {cp}·{ulysses}")

    def activation_nbytes(self, mesh: Mesh) -> int:
        """Return b·s/(c·u)·h·w, the bytes of the activations between blocks, not split over tp."""
        return self.tokens(mesh) * self.model.hidden * self.itemsize

    def layer_chunks(self, mesh: Mesh, rank: int) -> list[range]:
        """List the layers of each virtual stage of `rank`, by number.

        Chunk i of the p·v chunks is on stage i mod p (Narayanan et al. 2021, arXiv 2104.04473, section 2.2);
        the first chunks have one layer more where the layers do not divide. ValueError for an empty chunk.
        """
        stages = mesh.length("pp")
        chunks = stages * self.virtual_stages
        if chunks > self.model.layers:
            raise ValueError(
                f"pp·virtual_stages = {stages}·{self.virtual_stages} = {chunks} chunks of {self.model.layers} layers "
                f"leave some empty; take at most {self.model.layers}"
            )
        stage = mesh.coordinate("pp", rank)
        return [block(self.model.layers, chunks, chunk) for chunk in range(stage, chunks, stages)]

    def layers_of(self, mesh: Mesh, rank: int) -> int:
        """Count the layers that `rank` has."""
        return sum(len(chunk) for chunk in self.layer_chunks(mesh, rank))

    def tensors_of(self, mesh: Mesh, rank: int) -> list[Tensor]:
        """List the weights, or parts of weights, that `rank` has, in the order of the forward pass.

        Cut over tp; experts whole over ep and cut over etp; layers over pp, with the embedding on the first stage,
        the head on the last, and a copy of a tied embedding there. Sharding over data-parallel ranks is not applied.
        """
        model, tp, etp = self.model, mesh.length("tp"), mesh.length("etp")
        stage, stages = mesh.coordinate("pp", rank), mesh.length("pp")
        experts: range | None = None
        if model.experts:
            own = divide(model.experts, mesh.length("ep"), "experts", f"ep={mesh.length('ep')}")
            first = own * mesh.coordinate("ep", rank)
            experts = range(first, first + own)

        layers = tuple(layer for chunk in self.layer_chunks(mesh, rank) for layer in chunk)
        copied = model.tied and stages > 1
        return list(_tensors_of(model, layers, experts, stage == 0, stage == stages - 1, copied, tp, etp))

    def parameters_of(self, mesh: Mesh, rank: int) -> int:
        """Return Ψ, the elements that `rank` has before any sharding over data-parallel ranks."""
        return sum(tensor.count for tensor in self.tensors_of(mesh, rank))


@lru_cache(maxsize=256)
def _tensors_of(
    model: Model,
    layers: tuple[int, ...],
    experts: range | None,
    first: bool,
    last: bool,
    copied: bool,
    tp: int,
    etp: int,
) -> tuple[Tensor, ...]:
    """List what a rank has of these layers, of the embedding if first, of the head if last. copied: the tied one."""
    tensors = list(model.embedding_tensors) if first else []
    for layer in layers:
        tensors += [
            replace(tensor, name=f"layer{layer}.{tensor.name}")
            for tensor in model.layer_tensors(layer)
            if tensor.expert is None or (experts is not None and tensor.expert in experts)
        ]
    if last:
        tensors += model.head_tensors
        if copied:
            tensors.append(model.embedding_tensors[0])
    return tuple(tensor.part(tp if tensor.expert is None else etp) for tensor in tensors)


@dataclass(frozen=True)
class Call:
    """One collective call, or `times` equal ones, as one rank makes it.

    primitive: one of PRIMITIVES. axis: the axes of its group, such as "tp" or "dp-cp".
    nbytes: the whole vector: the buffer of broadcast, reduce, allreduce and sendrecv; all blocks together where
        blocks are gathered, scattered or exchanged (the sum of `receives` for allgatherv, else of `sends`).
    phase: one of PHASES.
    ends: the group is only its first and last rank.
    root: group rank that a rooted primitive starts or ends at.
    send_to, receive_from: group ranks of a sendrecv; None where this rank only receives, or only sends.
    sends, receives: bytes meant for and coming from each group rank in the v forms, itself included.
    why: what it is for, in words. within: calls in a row with the same words here repeat as a block, A B A B ... rather
        than A A B B. Calls that differ only in these are equal.
    """

    primitive: str
    axis: str
    nbytes: int
    phase: str
    times: int = 1
    dtype: str = "bfloat16"
    op: str = ""
    ends: bool = False
    root: int | None = None
    send_to: int | None = None
    receive_from: int | None = None
    sends: tuple[int, ...] = ()
    receives: tuple[int, ...] = ()
    why: str = field(default="", compare=False)
    within: str = field(default="", compare=False)

    def __post_init__(self):
        if self.primitive not in PRIMITIVES:
            raise ValueError(f"{self.primitive!r} is no primitive; take one of {', '.join(PRIMITIVES)}")
        if self.phase not in PHASES:
            raise ValueError(f"{self.phase!r} is no phase; take one of {', '.join(PHASES)}")
        if self.nbytes < 0 or self.times < 1:
            raise ValueError(f"nbytes={self.nbytes}, times={self.times}: bytes are at least 0 and times at least 1")
        if (self.root is not None) != (self.primitive in _ROOTED_SHARES):
            raise ValueError(f"{self.primitive}, root={self.root}: {', '.join(_ROOTED_SHARES)} have a root, no other")
        if (self.send_to is not None or self.receive_from is not None) != (self.primitive == "sendrecv"):
            raise ValueError(f"{self.primitive}: a sendrecv has send_to or receive_from, no other primitive has")
        uneven = self.primitive in _UNEVEN
        if bool(self.sends) != uneven or bool(self.receives) != uneven:
            raise ValueError(f"{self.primitive}: {', '.join(_UNEVEN)} list sends and receives, no other does")
        if uneven and self.nbytes != _uneven_nbytes(self.primitive, self.sends, self.receives):
            raise ValueError(f"{self.primitive}: nbytes={self.nbytes} is not the sum of its blocks")


Calls: TypeAlias = tuple[Call, ...]
Traffic: TypeAlias = Iterator[Call]


def on(mesh: Mesh, axes: str | Iterable[str], primitive: str, nbytes: int, phase: str, **more: Any) -> Calls:
    """Make the call on `axes`, named as the mesh uses them; none where they have one rank. The op is sum unless given.

    more: the other fields of `Call`.
    """
    used = mesh.used(axes)
    if not used:
        return ()
    if primitive in COMBINING:
        more.setdefault("op", "sum")
    return (Call(primitive, used, nbytes, phase, **more),)


def repeated(calls: Iterable[Call], times: int, within: str) -> Calls:
    """Repeat calls, in this order, `times` times over. within: what repeats, such as "forward, layers 2 to 5"."""
    return tuple(replace(call, times=times, within=within) for call in unrolled(calls)) if times else ()


def unrolled(calls: Iterable[Call]) -> Iterator[Call]:
    """Give every single call, times 1, in the order in which the rank makes them."""
    for within, alike in groupby(calls, key=lambda call: call.within):
        body = [(_single(call), call.times) for call in alike]
        if within:
            singles = [single for single, _ in body]
            for _ in range(body[0][1]):
                yield from singles
        else:
            for single, times in body:
                yield from repeat(single, times)


def _single(call: Call) -> Call:
    return call if call.times == 1 and not call.within else replace(call, times=1, within="")


def merge(calls: Iterable[Call]) -> list[Call]:
    """Put equal calls together, their times added, in the order of first appearance."""
    merged: dict[Call, int] = {}
    for call in calls:
        key = _single(call)
        merged[key] = merged.get(key, 0) + call.times
    return [call if times == 1 else replace(call, times=times) for call, times in merged.items()]


def sent_nbytes(call: Call, mesh: Mesh, rank: int) -> Fraction:
    """Return the bytes that `rank` sends in one of the calls, with an algorithm that moves no byte twice."""
    group = mesh.group(call.axis, rank, call.ends)
    nranks, place = len(group), group.index(rank)
    if call.primitive == "sendrecv":
        return Fraction(0 if call.send_to in (None, place) else call.nbytes)
    if call.sends:
        return Fraction(sum(call.sends) - call.sends[place])
    if nranks == 1:
        return Fraction(0)
    if call.primitive in _ROOTED_SHARES:
        at_root, elsewhere = _ROOTED_SHARES[call.primitive](nranks)
        return call.nbytes * (at_root if call.root == place else elsewhere)
    return call.nbytes * _SHARES[call.primitive](nranks)


def totals(calls: Iterable[Call], mesh: Mesh, rank: int) -> dict[tuple[str, str], Fraction]:
    """Add up the bytes that `rank` sends in all calls, by (phase, primitive)."""
    sums: dict[tuple[str, str], Fraction] = {}
    for call in calls:
        key = call.phase, call.primitive
        sums[key] = sums.get(key, Fraction(0)) + call.times * sent_nbytes(call, mesh, rank)
    return sums


def scaled(call: Call, factor: Fraction) -> Call:
    """Return the call with its bytes times `factor`: whole elements, at least one where there were any.

    Each message depends only on its own bytes, so that both its ends scale it alike.
    """
    width = itemsize(call.dtype)

    def scale(nbytes: int) -> int:
        return max(floor(nbytes * factor) // width * width, min(nbytes, width))

    sends, receives = tuple(map(scale, call.sends)), tuple(map(scale, call.receives))
    nbytes = _uneven_nbytes(call.primitive, sends, receives) if sends else scale(call.nbytes)
    return replace(call, nbytes=nbytes, sends=sends, receives=receives)


def itemsize(dtype: str) -> int:
    """Return the bytes of an element. Raises ValueError naming the types."""
    if dtype not in ITEMSIZES:
        raise ValueError(f"{dtype!r} is no dtype; take one of {', '.join(ITEMSIZES)}")
    return ITEMSIZES[dtype]


def _uneven_nbytes(primitive: str, sends: tuple[int, ...], receives: tuple[int, ...]) -> int:
    return sum(receives if primitive == "allgatherv" else sends)
