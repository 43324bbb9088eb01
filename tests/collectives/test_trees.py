import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.rounds import Message, as_rounds
from collectives.trees import Tree, blocks_below, double, down, in_order, knomial, pre_order, up, up_and_down

RANKS = range(1, 66)


def below(tree, rank):
    """The ranks of the subtree that begins at `rank`."""
    return sorted([rank, *(one for child in tree.children[rank] for one in below(tree, child))])


def is_run(ranks):
    return ranks == list(range(ranks[0], ranks[0] + len(ranks)))


@pytest.mark.parametrize("radix", [1, 2, 3, 5])
def test_subtrees_of_a_pre_order_tree_are_runs_that_begin_with_their_root(radix):
    for nranks in RANKS:
        tree = pre_order(nranks, radix)
        assert below(tree, 0) == list(range(nranks))
        for rank in range(nranks):
            assert len(tree.children[rank]) <= radix
            assert is_run(below(tree, rank))
            assert below(tree, rank)[0] == rank


@pytest.mark.parametrize("radix", [2, 3, 5])
def test_a_pre_order_tree_is_as_low_as_can_be(radix):
    for nranks in RANKS:
        height = pre_order(nranks, radix).height
        assert sum(radix**level for level in range(height)) < nranks <= sum(radix**level for level in range(height + 1))


def test_a_pre_order_tree_of_radix_1_is_a_chain_from_the_root_around():
    assert pre_order(5, 1, 3).parents == (4, 0, 1, None, 3)


def test_an_in_order_tree_has_lower_ranks_left_and_higher_ones_right_for_any_root():
    for nranks in range(1, 34):
        for root in range(nranks):
            tree = in_order(nranks, root)
            assert tree.root == root
            assert below(tree, root) == list(range(nranks))
            assert tree.height <= 1 + max(root, nranks - 1 - root).bit_length()
            for rank in range(nranks):
                sides = [child < rank for child in tree.children[rank]]
                assert sides in ([], [True], [False], [True, False])
                assert is_run(below(tree, rank))


def test_the_two_trees_have_the_root_in_common_and_no_other_inner_rank():
    for nranks in RANKS:
        for root in {0, nranks // 2, nranks - 1}:
            trees = double(nranks, root)
            inner = [{rank for rank in range(nranks) if tree.children[rank]} for tree in trees]
            assert all(below(tree, root) == list(range(nranks)) for tree in trees)
            assert inner[0] & inner[1] <= {root}
            assert all(len(tree.children[root]) == (nranks > 1) for tree in trees)
            assert max(len(children) for tree in trees for children in tree.children) <= 2
            assert trees[0].height == trees[1].height <= (nranks - 1).bit_length()


def test_a_part_of_a_tree_leaves_the_others_out():
    tree = pre_order(7, 2)
    part = tree.only([0, 1, 2, 3])
    assert tree.parents == (None, 0, 1, 1, 0, 4, 4)
    assert part.parents == (None, 0, 1, 1, None, None, None)
    assert part.depths == [0, 1, 2, 2, 0, 0, 0]


def test_a_tree_is_renumbered():
    tree = Tree(0, [None, 0, 1]).renumbered([2, 0, 1])
    assert (tree.root, tree.parents, tree.children) == (2, (2, 0, None), [[1], [], [0]])


@given(st.integers(1, 40), st.integers(0, 39), st.integers(2, 6))
def test_a_k_nomial_tree_reaches_everyone_once_with_the_blocks_of_its_subtree(nranks, root, radix):
    root %= nranks
    blocks = blocks_below(nranks, root)
    rounds = [as_rounds(knomial(rank, nranks, root, radix, blocks)) for rank in range(nranks)]
    received = {
        rank: [one for operations in rounds[rank] for one in operations if type(one).__name__ == "Recv"]
        for rank in range(nranks)
    }
    assert received.pop(root) == []
    for rank, messages in received.items():
        assert len(messages) == 1
        assert messages[0].chunks[0] == rank
    assert all(len(one) == len(rounds[0]) for one in rounds)


@pytest.mark.parametrize("way", [down, up])
def test_a_pipeline_takes_the_height_and_a_round_for_each_further_segment(way):
    for nranks in range(1, 20):
        tree = pre_order(nranks, 2)
        for segments in (1, 4):
            expected = tree.height + segments - 1 if nranks > 1 else 0
            assert {len(as_rounds(way(tree, rank, range(segments)))) for rank in range(nranks)} == {expected}


def test_a_segment_comes_down_in_the_round_after_it_is_complete_at_the_root():
    tree = pre_order(7, 2)
    rounds = as_rounds(up_and_down(tree, 0, range(3)))
    seen = [[(type(one).__name__, one.chunks[0]) for one in operations] for operations in rounds]
    assert len(rounds) == 2 * 2 + 3 - 1
    assert seen[1] == [("RecvReduce", 0)] * 2
    assert seen[2] == [("RecvReduce", 1)] * 2 + [("Send", 0)] * 2
    assert all(isinstance(one, Message) for operations in rounds for one in operations)
