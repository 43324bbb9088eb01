"""Which GPU a rank gets, and when, on the stand-in; what is said where there is none is tested with the sweep."""

import pytest

from collectives.gpu import Unusable, find


@pytest.mark.parametrize(
    ("local_rank", "visible", "ordinal"),
    [(0, [0], 0), (7, [0], 0), (1, [0, 1, 2, 3], 1), (5, [0, 1, 2, 3], 1), (3, [2, 3], 1)],
)
def test_the_device_is_the_local_rank_modulo_the_visible_ones(standin, monkeypatch, local_rank, visible, ordinal):
    machine = standin.machine
    monkeypatch.setattr(machine, "visible", visible)
    monkeypatch.setattr(machine, "device", 0)
    found = find(local_rank)
    assert found.ordinal == ordinal == machine.device
    assert find(local_rank + len(visible)).identity == found.identity
    identities = {find(rank).identity for rank in range(len(visible))}
    assert len(identities) == len(visible)


def test_the_device_is_set_before_anything_is_allocated(standin, monkeypatch):
    """Else every rank would leave a context, and what it allocated, on the first GPU."""
    machine, devices = standin.machine, []
    monkeypatch.setattr(machine, "visible", [0, 1])
    monkeypatch.setattr(machine, "device", 0)
    reserve = machine.reserve
    monkeypatch.setattr(machine, "reserve", lambda nbytes: (devices.append(machine.device), reserve(nbytes)))
    standin.get_default_memory_pool().free_all_blocks()
    assert find(1).ordinal == 1
    assert set(devices) == {1}


def test_the_same_ordinal_is_another_gpu_where_others_are_visible(standin, monkeypatch):
    machine, identities = standin.machine, []
    for visible in ([0], [3], [0]):
        monkeypatch.setattr(machine, "visible", visible)
        identities.append(find(0).identity)
    assert identities[0] == identities[2] != identities[1]


def test_no_gpu_is_one_sentence_with_the_remedy(standin, monkeypatch):
    monkeypatch.setattr(standin.machine, "visible", [])
    with pytest.raises(Unusable, match=r"no GPU is visible: see nvidia-smi and CUDA_VISIBLE_DEVICES"):
        find(0)
