import pytest

pytest.importorskip("mpi4py")

from collectives import allreduce
from collectives.cutting import Options
from collectives.debug import Guards, Overwritten, check_disjoint
from collectives.layout import Layout, lay_out
from collectives.program import Start, Transfer, Wait
from collectives.regions import RECV, Region


def layout_of(*program):
    transfers = [Transfer(False, 1, 0, (Region(RECV, 0, 4),)), Transfer(True, 1, 0, (Region(RECV, 3, 6),))]
    return Layout(allreduce.problem(2, 6), 0, transfers, list(program), 0, 1)


def test_a_receive_beside_a_send_of_the_same_memory_is_seen():
    with pytest.raises(Overwritten, match="is started while"):
        check_disjoint(layout_of(Start((0, 1)), Wait((0, 1))))


def test_one_after_the_other_is_allowed():
    check_disjoint(layout_of(Start((0,)), Wait((0,)), Start((1,)), Wait((1,))))


@pytest.mark.parametrize("waits", ["round", "data"])
def test_no_layout_of_ours_has_two_transfers_on_one_place(waits):
    for algorithm in allreduce.algorithms.values():
        for nranks in (2, 3, 5, 8):
            problem = allreduce.problem(nranks, 37)
            if algorithm.unmet(problem) is None:
                for rank in range(nranks):
                    check_disjoint(lay_out(problem, algorithm, rank, Options(piece=3, align=1, waits=waits)))


def test_a_broken_guard_is_seen():
    import numpy as np

    guards = Guards()
    array = guards.array(np.zeros(3))
    guards.check()
    np.lib.stride_tricks.as_strided(array, (4,), array.strides)[3] = 1
    with pytest.raises(Overwritten, match="bytes behind a buffer of 24 bytes"):
        guards.check()
