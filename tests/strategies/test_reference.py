"""The one-process step, against which all others are held, is itself held against finite differences."""

import numpy as np
import pytest

from strategies.cases import dense, job_of, mixed
from strategies.mesh import Mesh
from strategies.models import MODELS
from strategies.record import Wire
from strategies.reference import Difference, differences, reference
from strategies.schedule import one_stage
from strategies.share import Share, draw_weights
from strategies.traffic import Job
from strategies.transformer import RATE, Attention, Linear, Piece, Result, Transformer, Weights, causal


def run(job, weights):
    wire = Wire(None, Mesh({}))
    share = Share(job, wire.mesh, 0)
    model = Transformer(share, wire, Weights(share, wire, weights), Linear(), Attention(causal(share.positions)))
    return model.run(one_stage(job.micro_batches))


@pytest.mark.parametrize("model", [dense(2), dense(2, kv_heads=1, tied=False), mixed(2)], ids=lambda model: model.name)
def test_gradients_are_those_of_finite_differences(model):
    job = job_of(model, batch=2)
    weights = draw_weights(model)
    gradients = {piece.name: piece.value for piece in run(job, weights).pieces}
    pick = np.random.default_rng(5)
    for name, weight in weights.items():
        for _ in range(2):
            index = tuple(pick.integers(length) for length in weight.shape)
            losses = []
            for change in (1e-5, -1e-5):
                moved = weight.copy()
                moved[index] += change
                losses.append(run(job, weights | {name: moved}).loss)
            numeric = (losses[0] - losses[1]) / 2e-5
            assert abs(gradients[f"gradient {name}"][index] - numeric) <= 1e-6 * max(1, abs(numeric)), name


def test_weights_move_against_their_gradients():
    whole, start = reference(job_of(dense(2)), 2), draw_weights(dense(2))
    for name, weight in start.items():
        assert np.array_equal(whole[f"weight {name}"], weight - RATE * whole[f"gradient {name}"])


def test_micro_batches_and_replicas_make_one_batch():
    whole = reference(job_of(dense(2), micro_batches=3), 2)
    assert [whole[f"output {number}"].shape for number in range(3)] == [(2, 8, 12)] * 3
    assert abs(whole["loss"] - np.log(12)) < 1  # near that of a guess among V = 12


def test_a_value_that_is_not_equal_is_told():
    whole = {"x": np.array([1.0, 2.0]), "zero": np.zeros(2)}

    def verdict(name, value):
        return differences(Result(0.0, [Piece(name, np.asarray(value), lambda whole: whole)]), whole)[0].ok

    assert verdict("x", [1.0, 2.0 + 1e-10])
    assert not verdict("x", [1.0, 2.0 + 1e-9])
    assert not verdict("x", [1.0, np.nan])
    assert verdict("zero", [0.0, 0.0])
    assert not verdict("zero", [0.0, 1e-30])
    assert Difference("x", 0.0, 1.0).ok
    with pytest.raises(ValueError, match=r"x has shape \(1,\); its part of the one-process step has \(2,\)"):
        verdict("x", [1.0])


def test_models_that_the_step_cannot_run_are_refused():
    job = Job(MODELS["gpt3-175b"], seq=8)
    share = object.__new__(Share)
    share.job = job
    with pytest.raises(ValueError, match="gpt3-175b has biases, learned positions, a feed-forward without gate"):
        Transformer(share, None, None, None, None)
