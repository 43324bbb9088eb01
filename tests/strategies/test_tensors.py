import numpy as np
import pytest

from strategies import tensors


def rng(seed=0):
    return np.random.default_rng(seed)


def check(function, arrays, tolerance=1e-6):
    """Compare the gradients by hand with central differences, for a random weighting of the results."""
    y, back = function(*arrays)
    dy = rng(9).normal(size=np.shape(y))
    gradients = back(dy) if np.ndim(y) else back()
    gradients = gradients if isinstance(gradients, tuple) else (gradients,)
    weigh = (lambda value: float(np.sum(dy * value))) if np.ndim(y) else float
    for array, gradient in zip(arrays, gradients, strict=True):
        numeric = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            values = []
            for change in (1e-6, -1e-6):
                moved = array.copy()
                moved[index] += change
                values.append(weigh(function(*[moved if one is array else one for one in arrays])[0]))
            numeric[index] = (values[0] - values[1]) / 2e-6
        assert gradient.shape == array.shape
        assert np.abs(gradient - numeric).max() <= tolerance * max(1, np.abs(numeric).max())


def normal(*shapes):
    generator = rng()
    return [generator.normal(size=shape) for shape in shapes]


def test_linear():
    check(tensors.linear, normal((2, 3, 4), (5, 4)))


def test_rms_norm():
    check(tensors.rms_norm, normal((2, 3, 4), (4,)))


def test_swiglu():
    check(tensors.swiglu, normal((3, 4), (3, 4)))


def test_mlp():
    check(tensors.mlp, normal((3, 4), (5, 4), (5, 4), (4, 5)))


def test_embedding_adds_up_tokens_that_repeat():
    tokens = np.array([[1, 2, 1], [0, 1, 2]])
    check(lambda table: tensors.embedding(tokens, table), normal((4, 3)))


def test_cross_entropy():
    targets = np.array([[1, 2, 0]])
    check(lambda logits: tensors.cross_entropy(logits, targets, 0.3), normal((1, 3, 4)))


def attention(visible):
    def run(q, k, v):
        output, logs = tensors.attend(q, k, v, visible)
        return output, lambda dout: tensors.attend_back(dout, q, k, v, output, logs, visible)

    return run


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attention_with_shared_heads_and_a_causal_mask(kv_heads):
    check(attention(np.tri(3, dtype=bool)), normal((2, 3, 4, 2), (2, 3, kv_heads, 2), (2, 3, kv_heads, 3)))


def test_a_query_that_sees_nothing_gives_nothing():
    q, k, v = normal((1, 2, 1, 2), (1, 2, 1, 2), (1, 2, 1, 2))
    visible = np.array([[False, False], [True, False]])
    output, logs = tensors.attend(q, k, v, visible)
    assert np.all(output[0, 0] == 0) and logs[0, 0, 0] == -np.inf
    gradients = tensors.attend_back(np.ones_like(output), q, k, v, output, logs, visible)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("scale", [1, 1e3])  # scores of thousands overflow a plain exp
def test_merging_two_halves_of_the_keys_is_attending_to_all(scale):
    q, k, v = normal((1, 3, 2, 4), (1, 6, 2, 4), (1, 6, 2, 4))
    q = q * scale
    visible = rng(3).random((3, 6)) < 0.6
    visible[:, 0], visible[0, 3:] = True, False
    whole, logs = tensors.attend(q, k, v, visible)
    halves = [tensors.attend(q, k[:, part], v[:, part], visible[:, part]) for part in (slice(3), slice(3, 6))]
    merged, merged_logs = tensors.merge(*halves[0], *halves[1])
    assert np.abs(merged - whole).max() <= 1e-12 * np.abs(whole).max()
    assert np.abs(merged_logs - logs).max() <= 1e-12 * np.abs(logs).max()


def test_merging_nothing_with_nothing_is_nothing():
    nothing = np.zeros((1, 1, 1, 2)), np.full((1, 1, 1), -np.inf)
    output, logs = tensors.merge(*nothing, *nothing)
    assert np.all(output == 0) and np.all(logs == -np.inf)


CHOSEN = np.array([[0, 2], [1, 0], [2, 1], [0, 1]])
KEPT = np.array([[1, 1], [1, 0], [0, 0], [1, 1]], dtype=bool)


def test_router():
    check(lambda x, router: tensors.route(x, router, CHOSEN, KEPT), normal((4, 3), (3, 3)))


def test_dense_mixture():
    def run(x, weights, *flat):
        y, back = tensors.dense_mixture(x, weights, CHOSEN, [flat[i : i + 3] for i in range(0, 9, 3)])

        def flat_back(dy):
            dx, dweights, dexperts = back(dy)
            return (dx, dweights, *(one for expert in dexperts for one in expert))

        return y, flat_back

    check(run, normal((4, 3), (4, 2), *([(5, 3), (5, 3), (3, 5)] * 3)))
