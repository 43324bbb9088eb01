from hypothesis import given
from hypothesis import strategies as st

from collectives.vector import blocks, consecutive, offsets


@given(st.integers(0, 10_000), st.integers(1, 100))
def test_blocks_differ_by_one_element_at_most_and_the_first_are_longer(count, nblocks):
    cut = blocks(count, nblocks)
    assert len(cut) == nblocks
    assert sum(cut) == count
    assert sorted(cut, reverse=True) == list(cut)
    assert cut[0] - cut[-1] <= 1
    assert offsets(cut) == tuple(sum(cut[:index]) for index in range(nblocks))


def test_consecutive_cuts_where_numbers_do_not_follow_one_another():
    assert list(consecutive([6, 7, 0, 1, 2, 5])) == [(0, 2), (2, 5), (5, 6)]
    assert list(consecutive([(0, 1), (0, 2)])) == [(0, 1), (1, 2)]
    assert list(consecutive([4])) == [(0, 1)]
