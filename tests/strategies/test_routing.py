import numpy as np
import pytest

from strategies.cases import job_of, mixed
from strategies.routing import capacity_of, choices, expert_shares, within_capacity

JOB = job_of(mixed(8))


def job(routing, seed=0):
    return job_of(mixed(8), routing=routing, routing_seed=seed)


@pytest.mark.parametrize("routing", ["uniform", "zipf:1.5", "all-to-one"])
def test_each_token_chooses_different_experts(routing):
    chosen = choices(job(routing), 3)
    assert chosen.shape == (JOB.seq, JOB.model.experts_per_token)
    assert np.all(np.diff(chosen, axis=1) > 0)
    assert np.all((chosen >= 0) & (chosen < JOB.model.experts))


def test_the_seed_and_the_sequence_decide():
    first = choices(job("uniform"), 0)
    assert np.array_equal(first, choices(job("uniform"), 0))
    assert not np.array_equal(first, choices(job("uniform"), 1))
    assert not np.array_equal(first, choices(job("uniform", seed=1), 0))


def test_all_to_one_takes_the_first_experts():
    assert np.array_equal(np.unique(choices(job("all-to-one"), 0)), [0, 1])


def test_skew_makes_the_first_expert_the_busiest():
    counts = sum(np.bincount(choices(job("zipf:1.5"), one).reshape(-1), minlength=16) for one in range(50))
    assert counts.argmax() == 0 and counts[0] > 4 * counts.mean()
    assert np.allclose(expert_shares("zipf:0", 4), 0.25)


def test_capacity_keeps_the_first_tokens_of_each_expert():
    chosen = np.array([[0, 1], [0, 2], [0, 1], [1, 2]])
    assert within_capacity(chosen, 3, 2).tolist() == [[True, True], [True, True], [False, True], [False, True]]
    assert not within_capacity(chosen, 3, 0).any()
    assert capacity_of(JOB, 32, 1.25) == 5  # 1.25·32·2/16


@pytest.mark.parametrize("routing", ["zipf", "zipf:x", "zipf:inf", "random", ""])
def test_unknown_routings_are_refused(routing):
    with pytest.raises(ValueError, match=r"is no routing; take uniform, all-to-one, or zipf:1.5"):
        expert_shares(routing, 4)
