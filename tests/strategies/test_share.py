import numpy as np
import pytest

from strategies.cases import dense, job_of, mixed
from strategies.mesh import Mesh
from strategies.share import SPLITS, Share, draw_weights, positions_of


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("spec", ["cp=4", "cp=2,ulysses=2", "ulysses=4", "cp=4,dp=2"])
@pytest.mark.parametrize("placement", ["ring-inner", "ulysses-inner"])
def test_ranks_together_hold_every_token_once(split, spec, placement):
    mesh = Mesh(spec, placement=placement)
    for group in mesh.groups("cp-ulysses"):
        held = np.concatenate([positions_of(mesh, rank, 32, split) for rank in group])
        assert sorted(held) == list(range(32))


@pytest.mark.parametrize("split", SPLITS)
def test_a_ulysses_group_has_together_inside_what_its_ranks_have_outside(split):
    mesh = Mesh("cp=2,ulysses=2")
    for group in mesh.groups("ulysses"):
        outside = np.concatenate([positions_of(mesh, rank, 32, split) for rank in group])
        for rank in group:
            assert np.array_equal(positions_of(mesh, rank, 32, split, "inside"), outside)


def test_stripes_and_zigzag():
    mesh = Mesh("cp=4")
    assert positions_of(mesh, 1, 16, "striped").tolist() == [1, 5, 9, 13]
    assert positions_of(mesh, 1, 16, "zigzag").tolist() == [2, 3, 12, 13]
    with pytest.raises(ValueError, match="'wave' is no split of a sequence; take contiguous, zigzag, striped"):
        positions_of(mesh, 0, 16, "wave")


def test_parts_of_weights_put_together_are_the_whole():
    job, mesh, whole = job_of(mixed(4)), Mesh("tp=4"), draw_weights(mixed(4))
    shares = [Share(job, mesh, rank) for rank in range(4)]
    cuts = {tensor.name: tensor.cut for tensor in job.model.tensors() if tensor.expert is None}
    for name, cut in cuts.items():
        parts = [share.weight(name, whole[name]) for share in shares]
        assert np.array_equal(parts[0] if cut is None else np.concatenate(parts, axis=cut), whole[name])


def test_sequences_and_resting_tokens_of_each_rank():
    job, mesh = job_of(dense(4), batch=3), Mesh("tp=2,dp=2")
    shares = [Share(job, mesh, rank, cut_over_tp=True) for rank in range(4)]
    assert [share.sequences for share in shares] == [range(3), range(3), range(3, 6), range(3, 6)]
    assert [list(share.resting) for share in shares[:2]] == [list(range(8)), list(range(8, 16))]
    tokens, following = shares[0].batch(1)
    assert tokens.shape == following.shape == (3, 16)
    assert np.array_equal(tokens[:, 1:], following[:, :-1])
    assert np.array_equal(tokens, shares[1].batch(1)[0])
    assert not np.array_equal(tokens, shares[2].batch(1)[0])
