"""The pieces of a transformer in NumPy, forward and backward by hand.

Each piece returns its result and a function that takes the gradient of the result and returns those of the inputs:

    y, back = linear(x, weight)
    dx, dweight = back(dy)

Letters of the field: b sequences, s tokens (t where keys are counted), h hidden, a query heads, g key/value heads (a/g
query heads share one), d head width, f inner width, V vocabulary, E experts, k experts of a token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

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
    scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPSILON)
    normal = x * scale

    def back(dy: Array) -> tuple[Array, Array]:
        dnormal = dy * weight
        dx = scale * (dnormal - normal * np.mean(dnormal * normal, axis=-1, keepdims=True))
        return dx, rows(dy * normal).sum(axis=0)

    return normal * weight, back


def swiglu(gate: Array, up: Array) -> tuple[Array, Back]:
    """Return silu(gate) · up, all (..., f) (Shazeer 2020, arXiv 2002.05202)."""
    sigmoid = 1 / (1 + np.exp(-gate))
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

    def back(dx: Array) -> Array:
        dtable = np.zeros_like(table)
        np.add.at(dtable, tokens, dx)
        return dtable

    return table[tokens], back


def cross_entropy(logits: Array, targets: Array, scale: float) -> tuple[float, Back]:
    """Return scale · the sum over tokens of -log softmax(logits (b, s, V)) at targets (b, s)."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    total = np.exp(shifted).sum(axis=-1)
    at_target = np.take_along_axis(shifted, targets[..., None], axis=-1)[..., 0]

    def back() -> Array:
        dlogits = np.exp(shifted) / total[..., None]
        np.put_along_axis(
            dlogits, targets[..., None], np.take_along_axis(dlogits, targets[..., None], axis=-1) - 1, axis=-1
        )
        return scale * dlogits

    return scale * float(np.sum(np.log(total) - at_target)), back


def attend(q: Array, k: Array, v: Array, visible: Array) -> tuple[Array, Array]:
    """Attend from queries to keys.

    q (b, s, a, d), k (b, t, g, d), v (b, t, g, dv); visible (s, t): which key each query sees.
    Returns the output (b, s, a, dv) and the log of the sum of exponentials (b, s, a); a query that sees nothing has
    output 0 and -inf, so that `merge` drops it.
    """
    scores = _scores(q, k, visible)
    highest = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(highest), highest, 0))
    total = weights.sum(axis=-1, keepdims=True)
    output = _grouped("bgrst,btgd->bsgrd", weights / np.where(total > 0, total, 1), v)
    with np.errstate(divide="ignore"):
        logs = np.log(total) + highest
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
    weights = np.exp(_scores(q, k, visible) - np.where(np.isfinite(log), log, 0))
    dout = dout.reshape(*by_head, -1)
    own = np.sum(dout * output.reshape(*by_head, -1), axis=-1).transpose(0, 2, 3, 1)[..., None]
    dscores = weights * (_grouped("bsgrd,btgd->bgrst", dout, v) - own) / np.sqrt(q.shape[-1])
    dq = _grouped("bgrst,btgd->bsgrd", dscores, k).reshape(q.shape)
    dk = _grouped("bgrst,bsgrd->btgd", dscores, q.reshape(*by_head, -1))
    return dq, dk, _grouped("bgrst,bsgrd->btgd", weights, dout)


def merge(output: Array, logs: Array, more: Array, more_logs: Array) -> tuple[Array, Array]:
    """Merge attention over two sets of keys by their log-sum-exp: outputs (b, s, a, dv), logs (b, s, a).

    Only differences of logs are exponentiated, so that large scores do not overflow.
    """
    merged = np.logaddexp(logs, more_logs)
    base = np.where(np.isfinite(merged), merged, 0)
    return np.exp(logs - base)[..., None] * output + np.exp(more_logs - base)[..., None] * more, merged


def _scores(q: Array, k: Array, visible: Array) -> Array:
    """Give the scaled scores (b, g, a/g, s, t), -inf where not visible."""
    b, s, a, d = q.shape
    scores = _grouped("bsgrd,btgd->bgrst", q.reshape(b, s, k.shape[2], a // k.shape[2], d), k) / np.sqrt(d)
    return np.where(visible, scores, -np.inf)


def _grouped(subscripts: str, left: Array, right: Array) -> Array:
    return np.einsum(subscripts, left, right, optimize=True)


def route(x: Array, router: Array, chosen: Array, kept: Array) -> tuple[Array, Back]:
    """Give the weights (tokens, k) of the experts chosen (tokens, k), 0 where not kept.

    x (tokens, h), router (E, h); the weights are the softmax over all experts, taken at the chosen ones.
    """
    logits, logits_back = linear(x, router)
    logits = logits - logits.max(axis=-1, keepdims=True)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)

    def back(dweights: Array) -> tuple[Array, Array]:
        dprobabilities = np.zeros_like(probabilities)
        np.put_along_axis(dprobabilities, chosen, dweights * kept, axis=-1)
        own = np.sum(dprobabilities * probabilities, axis=-1, keepdims=True)
        return logits_back(probabilities * (dprobabilities - own))

    return np.take_along_axis(probabilities, chosen, axis=-1) * kept, back


def dense_mixture(x: Array, weights: Array, chosen: Array, experts: list[tuple[Array, ...]]) -> tuple[Array, Back]:
    """Send every token through every expert and weigh: what a mixture computes, without moving a token.

    x (tokens, h); weights, chosen (tokens, k); experts: E triples (gate, up, down).
    Gradients: dx, dweights, and a triple for each expert.
    """
    shares = np.zeros((len(x), len(experts)))
    np.put_along_axis(shares, chosen, weights, axis=-1)
    outputs, backs = zip(*(mlp(x, *expert) for expert in experts), strict=True)

    def back(dy: Array) -> tuple[Array, Array, list[tuple[Array, ...]]]:
        dshares = np.stack([np.sum(dy * output, axis=-1) for output in outputs], axis=-1)
        dx, dexperts = np.zeros_like(x), []
        for share, expert_back in zip(shares.T, backs, strict=True):
            dx_expert, *dexpert = expert_back(share[:, None] * dy)
            dx += dx_expert
            dexperts.append(tuple(dexpert))
        return dx, np.take_along_axis(dshares, chosen, axis=-1), dexperts

    return np.einsum("te,eth->th", shares, np.stack(outputs)), back
