"""The pieces of a transformer in NumPy, or in CuPy where their arrays lie on a GPU, forward and backward by hand.

Each piece returns its result and a function that takes the gradient of the result and returns those of the inputs:

    y, back = linear(x, weight)
    dx, dweight = back(dy)

Letters of the field: b sequences, s tokens (t where keys are counted), h hidden, a query heads, g key/value heads (a/g
query heads share one), d head width, f inner width, V vocabulary, E experts, k experts of a token.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from strategies.arrays import beside, module_of

Array: TypeAlias = NDArray[Any]
Back: TypeAlias = Callable[..., Any]

EPSILON = 1e-6  # under the root of the norm


def linear(x: Array, weight: Array) -> tuple[Array, Back]:
    """Multiply x (..., inputs) by weight (outputs, inputs): (..., outputs)."""

    def back(dy: Array) -> tuple[Array, Array]:
        return dy @ weight, rows(dy).T @ rows(x)

    return x @ weight.T, back


def rows(x: Array) -> Array:
    """View (..., h) as (tokens, h)."""
    return x.reshape(-1, x.shape[-1])


def rms_norm(x: Array, weight: Array) -> tuple[Array, Back]:
    """Scale x (..., h) to root mean square 1, times weight (h,) (Zhang and Sennrich 2019, arXiv 1910.07467)."""
    scale = 1 / module_of(x).sqrt((x * x).mean(axis=-1, keepdims=True) + EPSILON)
    normal = x * scale

    def back(dy: Array) -> tuple[Array, Array]:
        dnormal = dy * weight
        dx = scale * (dnormal - normal * (dnormal * normal).mean(axis=-1, keepdims=True))
        return dx, rows(dy * normal).sum(axis=0)

    return normal * weight, back


def swiglu(gate: Array, up: Array) -> tuple[Array, Back]:
    """Return silu(gate) · up, all (..., f) (Shazeer 2020, arXiv 2002.05202)."""
    sigmoid = 1 / (1 + module_of(gate).exp(-gate))
    silu = gate * sigmoid

    def back(dy: Array) -> tuple[Array, Array]:
        return dy * up * (sigmoid + silu * (1 - sigmoid)), dy * silu

    return silu * up, back


def mlp(x: Array, gate: Array, up: Array, down: Array) -> tuple[Array, Back]:
    """Feed x (tokens, h) forward through gate, up (f, h) and down (h, f): (tokens, h). Gradients in this order."""
    gated, gate_back = linear(x, gate)
    upped, up_back = linear(x, up)
    inner, inner_back = swiglu(gated, upped)
    y, down_back = linear(inner, down)

    def back(dy: Array) -> tuple[Array, Array, Array, Array]:
        dinner, ddown = down_back(dy)
        dgated, dupped = inner_back(dinner)
        (dx_gate, dgate), (dx_up, dup) = gate_back(dgated), up_back(dupped)
        return dx_gate + dx_up, dgate, dup, ddown

    return y, back


def embedding(tokens: Array, table: Array) -> tuple[Array, Back]:
    """Look up tokens (b, s) in table (V, h): (b, s, h)."""
    places = beside(tokens, table)

    def back(dx: Array) -> Array:
        return add_rows(places, dx, table)

    return table[places], back


def add_rows(places: Array, values: Array, like: Array) -> Array:
    """Add up values (..., h) by the places (...) to which they belong, in an array like `like`."""
    module = module_of(like)
    summed: Array = module.zeros_like(like)
    module.add.at(summed, beside(places, like), values)
    return summed


def put_last(values: Array, places: Array, length: int) -> Array:
    """Put values (tokens, k) at places (tokens, k), all different, of rows of zeros: (tokens, length)."""
    module = module_of(values)
    spread: Array = module.zeros((len(places), length))
    spread[module.arange(len(places))[:, None], places] = values
    return spread


def cross_entropy(logits: Array, targets: Array, scale: float) -> tuple[Array, Back]:
    """Return scale · the sum over tokens of -log softmax(logits (b, s, V)) at targets (b, s), of shape ()."""
    module, chosen = module_of(logits), beside(targets[..., None], logits)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    total = module.exp(shifted).sum(axis=-1)
    at_target = module.take_along_axis(shifted, chosen, axis=-1)[..., 0]

    def back() -> Array:
        dlogits = module.exp(shifted) / total[..., None]
        return scale * (dlogits - (module.arange(logits.shape[-1]) == chosen))

    return scale * (module.log(total) - at_target).sum(), back


def attend(q: Array, k: Array, v: Array, visible: Array) -> tuple[Array, Array]:
    """Attend from queries to keys.

    q (b, s, a, d), k (b, t, g, d), v (b, t, g, dv); visible (s, t): which key each query sees.
    Returns the output (b, s, a, dv) and the log of the sum of exponentials (b, s, a); a query that sees nothing has
    output 0 and -inf, so that `merge` drops it.
    """
    module = module_of(q)
    scores = _scores(q, k, visible)
    highest = scores.max(axis=-1, keepdims=True)
    weights = module.exp(scores - module.where(module.isfinite(highest), highest, 0))
    total = weights.sum(axis=-1, keepdims=True)
    output = _grouped("bgrst,btgd->bsgrd", weights / module.where(total > 0, total, 1), v)
    with np.errstate(divide="ignore"):
        logs = module.log(total) + highest
    b, s, a, _ = q.shape
    return output.reshape(b, s, a, v.shape[-1]), logs[..., 0].transpose(0, 3, 1, 2).reshape(b, s, a)


def attend_back(
    dout: Array, q: Array, k: Array, v: Array, output: Array, logs: Array, visible: Array
) -> tuple[Array, Array, Array]:
    """Give dq, dk, dv for one block of keys; output and logs are those over *all* keys (Dao 2023, arXiv 2307.08691).

    Shapes as in `attend`; dout is that of the output.
    """
    b, s, a, _ = q.shape
    g = k.shape[2]
    by_head = (b, s, g, a // g)
    log = logs.reshape(by_head).transpose(0, 2, 3, 1)[..., None]
    module = module_of(q)
    weights = module.exp(_scores(q, k, visible) - module.where(module.isfinite(log), log, 0))
    dout = dout.reshape(*by_head, -1)
    own = (dout * output.reshape(*by_head, -1)).sum(axis=-1).transpose(0, 2, 3, 1)[..., None]
    dscores = weights * (_grouped("bsgrd,btgd->bgrst", dout, v) - own) / math.sqrt(q.shape[-1])
    dq = _grouped("bgrst,btgd->bsgrd", dscores, k).reshape(q.shape)
    dk = _grouped("bgrst,bsgrd->btgd", dscores, q.reshape(*by_head, -1))
    return dq, dk, _grouped("bgrst,bsgrd->btgd", weights, dout)


def merge(output: Array, logs: Array, more: Array, more_logs: Array) -> tuple[Array, Array]:
    """Merge attention over two sets of keys by their log-sum-exp: outputs (b, s, a, dv), logs (b, s, a).

    Only differences of logs are exponentiated, so that large scores do not overflow. Not by logaddexp, which in CuPy
    gives NaN where both are -inf.
    """
    module = module_of(logs)
    highest = module.maximum(logs, more_logs)
    base = module.where(module.isfinite(highest), highest, 0)
    weight, more_weight = module.exp(logs - base), module.exp(more_logs - base)
    total = weight + more_weight
    with np.errstate(divide="ignore"):
        merged = module.log(total) + base
    share = module.where(total > 0, total, 1)
    return (weight / share)[..., None] * output + (more_weight / share)[..., None] * more, merged


def _scores(q: Array, k: Array, visible: Array) -> Array:
    """Give the scaled scores (b, g, a/g, s, t), -inf where not visible."""
    b, s, a, d = q.shape
    scores = _grouped("bsgrd,btgd->bgrst", q.reshape(b, s, k.shape[2], a // k.shape[2], d), k) / math.sqrt(d)
    hidden: Array = module_of(q).where(beside(visible, q), scores, -math.inf)
    return hidden


def _grouped(subscripts: str, left: Array, right: Array) -> Array:
    product: Array = module_of(left).einsum(subscripts, left, right, optimize=True)
    return product


def route(x: Array, router: Array, chosen: Array, kept: Array) -> tuple[Array, Back]:
    """Give the weights (tokens, k) of the experts chosen (tokens, k), 0 where not kept.

    x (tokens, h), router (E, h); the weights are the softmax over all experts, taken at the chosen ones.
    """
    module, chosen, kept = module_of(x), beside(chosen, x), beside(kept, x)
    logits, logits_back = linear(x, router)
    powers = module.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities = powers / powers.sum(axis=-1, keepdims=True)

    def back(dweights: Array) -> tuple[Array, Array]:
        dprobabilities = put_last(dweights * kept, chosen, len(router))
        own = (dprobabilities * probabilities).sum(axis=-1, keepdims=True)
        return logits_back(probabilities * (dprobabilities - own))

    return module.take_along_axis(probabilities, chosen, axis=-1) * kept, back


def dense_mixture(x: Array, weights: Array, chosen: Array, experts: list[tuple[Array, ...]]) -> tuple[Array, Back]:
    """Send every token through every expert and weigh: what a mixture computes, without moving a token.

    x (tokens, h); weights, chosen (tokens, k); experts: E triples (gate, up, down).
    Gradients: dx, dweights, and a triple for each expert.
    """
    module, chosen = module_of(x), beside(chosen, x)
    shares = put_last(weights, chosen, len(experts))
    outputs, backs = zip(*(mlp(x, *expert) for expert in experts), strict=True)

    def back(dy: Array) -> tuple[Array, Array, list[tuple[Array, ...]]]:
        dshares = module.stack([(dy * output).sum(axis=-1) for output in outputs], axis=-1)
        dx, dexperts = module.zeros_like(x), []
        for number, expert_back in enumerate(backs):
            dx_expert, *dexpert = expert_back(shares[:, number, None] * dy)
            dx += dx_expert
            dexperts.append(tuple(dexpert))
        return dx, module.take_along_axis(dshares, chosen, axis=-1), dexperts

    return module.einsum("te,eth->th", shares, module.stack(outputs)), back
