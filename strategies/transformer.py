"""A training step of a small transformer, forward and backward by hand, with the places where ranks talk open.

What a strategy changes is one of the parts, each here in the form of a single process:

- `Linear`: pairs of linear layers, the embedding and the loss (tensor and sequence parallelism)
- the attention, a function of q, k and v (context parallelism, Ulysses)
- the mixture of experts (expert parallelism)
- `Weights`: where weights are, and what becomes of gradients (data parallelism and sharding)
- the order of micro-batches and chunks of layers (pipelines), as a list of actions

A layer is x + o(attention(norm(x))), then x + feed_forward(norm(x)), the latter with a gate (Llama, arXiv 2302.13971).
As in `tensors`, each function gives its result and the function of its gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strategies import tensors
from strategies.arrays import module_of, to_host
from strategies.mesh import EXPERT_REPLICA_AXES, REPLICA_AXES
from strategies.models import Model
from strategies.record import Wire
from strategies.schedule import Action
from strategies.share import Share, draw_weights
from strategies.tensors import Back

Array = NDArray[Any]

RATE = 0.1
"""Learning rate of the update at the end of a step: weight -= RATE · gradient."""

ROOT = -1
"""The unit of weights outside the layers; layer i is unit i."""


class Piece(NamedTuple):
    """A result of one rank: what it is in the one-process step, and which part of that it should equal."""

    name: str
    value: Array
    part: Callable[[Array], Array]


@dataclass
class Result:
    """What a step gave on one rank.

    loss: this rank's part; the parts of ranks with different tokens add up. actions: what it did, in order.
    """

    loss: float
    pieces: list[Piece]
    actions: list[Action] = field(default_factory=list)


class Linear:
    """Linear layers in pairs, the first cut by outputs (columns of Megatron's Aᵀ), the second by inputs; here whole."""

    def embed(self, tokens: Array, table: Array) -> tuple[Array, Back]:
        """Look up tokens (b, s) in table (V, h): (b, s, h)."""
        return tensors.embedding(tokens, table)

    def column(self, x: Array, *weights: Array) -> tuple[list[Array], Back]:
        """Multiply x (b, s, h) by each weight (outputs, h); gradients dx and a list of dweights."""
        ys, backs = zip(*(tensors.linear(x, weight) for weight in weights), strict=True)

        def back(*dys: Array) -> tuple[Array, list[Array]]:
            dxs, dweights = zip(*(one(dy) for one, dy in zip(backs, dys, strict=True)), strict=True)
            return sum(dxs[1:], dxs[0]), list(dweights)

        return list(ys), back

    def row(self, x: Array, weight: Array) -> tuple[Array, Back]:
        """Multiply x (b, s, inputs) by weight (h, inputs): (b, s, h)."""
        return tensors.linear(x, weight)

    def loss(self, logits: Array, targets: Array, scale: float) -> tuple[Array, Back]:
        """Give the cross-entropy of logits (b, s, V) at targets (b, s), summed and scaled, of shape ()."""
        return tensors.cross_entropy(logits, targets, scale)

    def synchronise(self, gradients: dict[str, Array]) -> None:
        """Complete gradients that hold only part of the tokens of this rank's group."""


class Attention:
    """Attention among the tokens of one rank; `visible` (s, s) says which key a query sees."""

    def __init__(self, visible: Array):
        self._visible = visible

    def __call__(self, q: Array, k: Array, v: Array) -> tuple[Array, Back]:
        """Attend: q (b, s, a, d), k (b, s, g, d), v (b, s, g, dv) to (b, s, a, dv)."""
        output, logs = tensors.attend(q, k, v, self._visible)

        def back(dout: Array) -> tuple[Array, Array, Array]:
            return tensors.attend_back(dout, q, k, v, output, logs, self._visible)

        return output, back


def causal(positions: Array, key_positions: Array | None = None) -> Array:
    """Tell which key each query sees: those at its own place or before. Places (s,) and (t,): (s, t)."""
    keys = positions if key_positions is None else key_positions
    return positions[:, None] >= keys[None, :]


class Mixture:
    """A mixture of experts of which this rank has all; chosen, kept (tokens, k) say where its tokens go."""

    def __init__(self, chosen: Array, kept: Array | None = None):
        self._chosen = chosen
        self._kept = np.ones(chosen.shape, bool) if kept is None else kept

    def __call__(self, x: Array, weights: dict[str, Array]) -> tuple[Array, Back]:
        """Mix x (b, s, h): (b, s, h); gradients dx and a dictionary of those of the weights."""
        flat, names = tensors.rows(x), expert_names(weights)
        shares, route_back = tensors.route(flat, weights["router"], self._chosen, self._kept)
        experts = [tuple(weights[name] for name in expert) for expert in names]
        y, back = tensors.dense_mixture(flat, shares, self._chosen, experts)

        def whole_back(dy: Array) -> tuple[Array, dict[str, Array]]:
            dx, dshares, dexperts = back(tensors.rows(dy))
            dx_router, drouter = route_back(dshares)
            gradients = {"router": drouter}
            for expert, dexpert in zip(names, dexperts, strict=True):
                gradients.update(zip(expert, dexpert, strict=True))
            return (dx + dx_router).reshape(x.shape), gradients

        return y.reshape(x.shape), whole_back


def expert_names(weights: Iterable[str]) -> list[tuple[str, str, str]]:
    """List the names of the three matrices of each expert here, in order of the experts."""
    numbers = sorted({int(name.split(".")[0].removeprefix("expert")) for name in weights if name.startswith("expert")})
    return [(f"expert{e}.gate", f"expert{e}.up", f"expert{e}.down") for e in numbers]


class Weights:
    """The weights of one rank and their gradients: here whole, the gradients summed in one piece after the backward.

    start: by name, what the whole weights are at the start.
    """

    def __init__(self, share: Share, wire: Wire, start: dict[str, Array] | None = None):
        whole = draw_weights(share.job.model) if start is None else start
        self.share, self.wire = share, wire
        self.arrays = {name: wire.placed(share.weight(name, whole[name]).copy()) for name in share.names}
        self.gradients = {name: module_of(array).zeros_like(array) for name, array in self.arrays.items()}

    def names(self, unit: int) -> list[str]:
        """List the weights of a unit."""
        return [name for name in self.share.names if unit_of(name) == unit]

    def fetch(self, unit: int) -> dict[str, Array]:
        """Give the weights of a unit by their names inside it. They may be used until `release`."""
        return {name.split(".", 1)[-1] if unit != ROOT else name: self.arrays[name] for name in self.names(unit)}

    def release(self, unit: int) -> None:
        """Say that the weights of a unit are not needed for now."""

    def add(self, unit: int, gradients: dict[str, Array]) -> None:
        """Add what a micro-batch gives to the gradients of a unit."""
        for name, gradient in gradients.items():
            self.gradients[name if unit == ROOT else f"layer{unit}.{name}"] += gradient

    def ready(self, names: Sequence[str], last: bool) -> None:
        """Say that this micro-batch adds no more to these gradients; last: nor does any other."""

    def synchronise(self) -> None:
        """Sum gradients over the ranks that have the same weights and other tokens."""
        for axes, expert in ((REPLICA_AXES, False), (EXPERT_REPLICA_AXES, True)):
            names = [name for name in self.share.names if is_expert(name) == expert]
            if names:
                summed = self.wire.allreduce(axes, flat(self.gradients[name] for name in names))
                self.gradients.update(unflat(summed, {name: self.gradients[name] for name in names}))

    def update(self) -> None:
        """Move the weights against their gradients."""
        for name, gradient in self.gradients.items():
            self.arrays[name] -= RATE * gradient

    def pieces(self) -> list[Piece]:
        """Give gradients and updated weights."""
        return [
            Piece(f"{kind} {name}", array, partial(self.share.weight, name))
            for kind, arrays in (("gradient", self.gradients), ("weight", self.arrays))
            for name, array in arrays.items()
        ]


def unit_of(name: str) -> int:
    """Tell the unit of a weight: its layer, or ROOT."""
    layer = name.split(".")[0]
    return int(layer.removeprefix("layer")) if layer.startswith("layer") else ROOT


def is_expert(name: str) -> bool:
    """Tell whether a weight belongs to a routed expert."""
    return ".expert" in name


def flat(arrays: Iterable[Array]) -> Array:
    """Lay arrays end to end."""
    parts = [array.reshape(-1) for array in arrays]
    vector: Array = module_of(parts[0]).concatenate(parts)
    return vector


def unflat(values: Array, like: dict[str, Array]) -> dict[str, Array]:
    """Cut a vector into arrays of these names and shapes."""
    ends = accumulate(array.size for array in like.values())
    return {
        name: values[end - array.size : end].reshape(array.shape)
        for (name, array), end in zip(like.items(), ends, strict=True)
    }


@dataclass
class Transformer:
    """The layers of one rank and the parts that carry them out.

    mixture: for layers with experts. chunks: the layers of each virtual stage, as `Job.layer_chunks` lists them.
    """

    share: Share
    wire: Wire
    weights: Weights
    linear: Linear
    attention: Callable[[Array, Array, Array], tuple[Array, Back]]
    mixture: Callable[[Array, dict[str, Array]], tuple[Array, Back]] | None = None

    def __post_init__(self) -> None:
        _check_runnable(self.share.job.model)
        job, mesh = self.share.job, self.share.mesh
        self.chunks = job.layer_chunks(mesh, self.share.rank)
        self.stage, self.stages = mesh.coordinate("pp", self.share.rank), mesh.length("pp")
        self.scale = 1 / (job.micro_batches * self.share.replicas * job.batch * job.seq)
        if job.model.experts and self.mixture is None:
            self.mixture = Mixture(self.share.chosen())

    def layer(self, number: int, x: Array) -> tuple[Array, Back]:
        """Carry x (b, s, h) through a layer; gradients dx and a dictionary of those of the weights."""
        w, model = self.weights.fetch(number), self.share.job.model
        normed, norm_back = tensors.rms_norm(x, w["input_norm"])
        (q, k, v), qkv_back = self.linear.column(normed, w["q"], w["k"], w["v"])
        q, k, v = _heads(q, model.head_dim), _heads(k, model.head_dim), _heads(v, model.value_dim)
        if model.qk_norm:
            q, q_norm_back = tensors.rms_norm(q, w["q_norm"])
            k, k_norm_back = tensors.rms_norm(k, w["k_norm"])
        attended, attention_back = self.attention(q, k, v)
        mixed, o_back = self.linear.row(_joined(attended), w["o"])
        middle = x + mixed
        ffn_normed, ffn_norm_back = tensors.rms_norm(middle, w["mlp_norm"])
        fed, ffn_back = self._feed_forward(number, ffn_normed, w)

        def back(dy: Array) -> tuple[Array, dict[str, Array]]:
            g: dict[str, Array] = {}
            dnormed, ffn_gradients = ffn_back(dy)
            dmiddle, g["mlp_norm"] = ffn_norm_back(dnormed)
            dmiddle = dmiddle + dy
            dattended, g["o"] = o_back(dmiddle)
            dq, dk, dv = attention_back(dattended.reshape(attended.shape))
            if model.qk_norm:
                (dq, g["q_norm"]), (dk, g["k_norm"]) = q_norm_back(dq), k_norm_back(dk)
            dnormed, (g["q"], g["k"], g["v"]) = qkv_back(_joined(dq), _joined(dk), _joined(dv))
            dx, g["input_norm"] = norm_back(dnormed)
            return dx + dmiddle, g | ffn_gradients

        return middle + fed, back

    def _feed_forward(self, number: int, x: Array, w: dict[str, Array]) -> tuple[Array, Back]:
        if not self.share.job.model.is_moe(number):
            return self._mlp(x, w, "mlp")
        assert self.mixture is not None  # made for every model with experts
        mixed, mixture_back = self.mixture(x, w)
        if not self.share.job.model.shared_experts:
            return mixed, mixture_back
        shared, shared_back = self._mlp(x, w, "shared")

        def back(dy: Array) -> tuple[Array, dict[str, Array]]:
            dx_shared, shared_gradients = shared_back(dy)
            dx_mixed, mixture_gradients = mixture_back(dy)
            return dx_mixed + dx_shared, mixture_gradients | shared_gradients

        return mixed + shared, back

    def _mlp(self, x: Array, w: dict[str, Array], name: str) -> tuple[Array, Back]:
        (gate, up), column_back = self.linear.column(x, w[f"{name}.gate"], w[f"{name}.up"])
        inner, inner_back = tensors.swiglu(gate, up)
        y, row_back = self.linear.row(inner, w[f"{name}.down"])

        def back(dy: Array) -> tuple[Array, dict[str, Array]]:
            dinner, ddown = row_back(dy)
            dx, (dgate, dup) = column_back(*inner_back(dinner))
            return dx, {f"{name}.gate": dgate, f"{name}.up": dup, f"{name}.down": ddown}

        return y, back

    def forward(self, chunk: int, micro_batch: int, x: Array | None) -> tuple[Array, Any, Back]:
        """Carry a micro-batch through a chunk of layers.

        x (b, s, h): what the stage before sent; the first chunk takes tokens instead. Gives the activations for the
        next stage, or of the last chunk the normed output (b, s, h) and this rank's loss; back takes the gradient
        from the next stage and whether no other micro-batch follows, and gives dx.
        """
        number, weights = chunk * self.stages + self.stage, self.weights
        first, last = number == 0, number == self.stages * len(self.chunks) - 1
        tokens, targets = self.share.batch(micro_batch)
        root = weights.fetch(ROOT) if first or last else {}
        loss: Any = 0.0
        backs = []
        if first:
            x, embed_back = self.linear.embed(tokens, root["embedding"])
        assert x is not None  # the schedule received it
        for layer in self.chunks[chunk]:
            x, layer_back = self.layer(layer, x)
            weights.release(layer)
            backs.append((layer, layer_back))
        if last:
            x, norm_back = tensors.rms_norm(x, root["final_norm"])
            head = "embedding" if self.share.job.model.tied else "head"
            (logits,), head_back = self.linear.column(x, root[head])
            loss, loss_back = self.linear.loss(logits, targets, self.scale)
        if first or last:
            weights.release(ROOT)

        def back(dy: Array | None, final: bool) -> Array | None:
            if first or last:
                weights.fetch(ROOT)
            if last:
                dnormed, (dhead,) = head_back(loss_back())
                dy, dnorm = norm_back(dnormed)
                weights.add(ROOT, {"final_norm": dnorm, head: dhead})
                weights.ready([name for name in weights.names(ROOT) if not first or name != "embedding"], final)
            for layer, layer_back in reversed(backs):
                weights.fetch(layer)
                dy, gradients = layer_back(dy)
                weights.release(layer)
                weights.add(layer, gradients)
                weights.ready(weights.names(layer), final)
            if first:
                weights.add(ROOT, {"embedding": embed_back(dy)})
                weights.release(ROOT)
                weights.ready(["embedding"], final)
                return None
            return dy

        return x, loss, back

    def run(self, actions: Sequence[Action]) -> Result:
        """Carry out a step: the actions in order, then gradients and update."""
        loss: Any = 0.0
        pieces = []
        saved: dict[tuple[int, int], Back] = {}
        handed: dict[tuple[str, int, int], Array] = {}  # between chunks of one rank
        done: list[Action] = []
        for action in actions:
            phase, micro_batch, chunk = action
            self.wire.phase = phase
            number = chunk * self.stages + self.stage
            if phase == "forward":
                x = self._take(phase, number - 1, micro_batch, handed)
                y, part, saved[micro_batch, chunk] = self.forward(chunk, micro_batch, x)
                loss += part
                if number == self.stages * len(self.chunks) - 1:
                    pieces.append(Piece(f"output {micro_batch}", y, self.share.hidden))
                else:
                    self._give(phase, number + 1, micro_batch, y, handed)
            else:
                dy = self._take(phase, number + 1, micro_batch, handed)
                dx = saved.pop((micro_batch, chunk))(dy, micro_batch == self.share.job.micro_batches - 1)
                if number > 0:
                    self._give(phase, number - 1, micro_batch, dx, handed)
            done.append(action)
        self.wire.phase = "step"
        self.weights.synchronise()
        self.linear.synchronise(self.weights.gradients)
        if self.share.job.model.tied and self.stages > 1 and self.stage in (0, self.stages - 1):
            gradients = self.weights.gradients
            gradients["embedding"] = self.wire.allreduce("pp", gradients["embedding"], ends=True)
        self.weights.update()
        self.wire.finish()
        return Result(float(to_host(loss)), pieces + self.weights.pieces(), done)

    def _take(self, phase: str, source: int, micro_batch: int, handed: dict[Any, Array]) -> Array | None:
        """Receive what chunk number `source` of the pipeline made; the first and the last chunk take nothing."""
        if not 0 <= source < self.stages * len(self.chunks):
            return None
        if self.stages == 1:
            return handed.pop((phase, source, micro_batch))
        job = self.share.job
        shape = job.batch, len(self.share.resting), job.model.hidden
        # The chunk that takes it names a message: a forward and a backward one may be under way between the same ranks.
        to = source + (1 if phase == "forward" else -1)
        return self.wire.receive("pp", shape, source % self.stages, self._tag(phase, to, micro_batch))

    def _give(self, phase: str, to: int, micro_batch: int, values: Array, handed: dict[Any, Array]) -> None:
        if self.stages == 1:
            handed[phase, to + (-1 if phase == "forward" else 1), micro_batch] = values
        else:
            self.wire.send("pp", values, to % self.stages, self._tag(phase, to, micro_batch))

    def _tag(self, phase: str, to: int, micro_batch: int) -> int:
        return 2 * (to * self.share.job.micro_batches + micro_batch) + (phase == "backward")


def _heads(x: Array, width: int) -> Array:
    """View (b, s, heads·d) as (b, s, heads, d)."""
    return x.reshape(*x.shape[:2], -1, width)


def _joined(x: Array) -> Array:
    """View (b, s, heads, d) as (b, s, heads·d)."""
    return x.reshape(*x.shape[:2], -1)


def _check_runnable(model: Model) -> None:
    missing = {
        "biases": model.bias,
        "learned positions": model.positions > 0,
        "a feed-forward without gate": not model.gated,
        "latent attention": model.kv_rank > 0,
    }
    has = [words for words, here in missing.items() if here]
    if has:
        raise ValueError(
            f"model {model.name} has {', '.join(has)}, which the step has not; its traffic can be told, "
            "but to run a step take a model without"
        )
