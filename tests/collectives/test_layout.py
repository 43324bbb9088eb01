"""What a layout looks like: few copies, messages as large as may be, both ends alike, little scratch."""

from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from collectives import PRIMITIVES, allgather, allreduce, alltoall, barrier, broadcast, reduce, reduce_scatter
from collectives.layout import CACHE_LINE_NBYTES, LOOKAHEAD, PACK_FROM_NBYTES, PIECE_NBYTES, Options, lay_out
from collectives.program import Fold, Move, Start, Wait
from collectives.regions import RECV, SCRATCH, SEND, Region
from collectives.rounds import Send

ALL = [algorithm for primitive in PRIMITIVES.values() for algorithm in primitive.algorithms.values()]


def laid_out(primitive, name, nranks, count, options=None, **more):
    problem = primitive.problem(nranks, count, **more)
    return [lay_out(problem, primitive.find(name), rank, options) for rank in range(nranks)]


def of_kind(layout, kind):
    return [one for one in layout.program if isinstance(one, kind)]


def length(regions):
    return sum(one.stop - one.start for one in regions)


def test_a_first_reduction_reads_the_input_and_writes_the_output():
    for layout in laid_out(allreduce, "ring", 4, 40):
        folds = of_kind(layout, Fold)
        assert len(folds) == 3
        assert not of_kind(layout, Move)
        assert {one.into.buffer for one in folds} == {RECV}
        assert all({one.left.buffer, one.right.buffer} == {SEND, SCRATCH} for one in folds)


def test_what_is_final_from_the_start_is_copied_while_the_first_messages_are_under_way():
    for rank, layout in enumerate(laid_out(allgather, "ring", 4, 40)):
        assert isinstance(layout.program[0], Start)
        assert layout.program[1] == Move(Region(SEND, 0, 10), Region(RECV, 10 * rank, 10 * rank + 10))
        assert len(of_kind(layout, Move)) == 1


def test_an_in_place_call_copies_nothing():
    for primitive, name in ((allgather, "bruck"), (allreduce, "ring"), (allreduce, "rabenseifner")):
        for layout in laid_out(primitive, name, 4, 40, in_place=True):
            assert not of_kind(layout, Move)
            assert SEND not in {one.buffer for transfer in layout.transfers for one in transfer.regions}


def test_one_rank_copies_its_input_and_no_more():
    (layout,) = laid_out(allreduce, "ring", 1, 5)
    assert layout.program == [Move(Region(SEND, 0, 5), Region(RECV, 0, 5))]
    assert laid_out(allreduce, "ring", 1, 5, in_place=True)[0].program == []


def test_a_message_is_cut_where_its_chunks_do_not_follow_one_another():
    sent = [
        [length(one.regions) for one in layout.transfers if one.outgoing]
        for layout in laid_out(allgather, "bruck", 4, 40)
    ]
    assert sent == [[10, 20], [10, 20], [10, 20], [10, 10, 10]]  # rank 3 has blocks 3 and 0
    packed = laid_out(allgather, "bruck", 4, 40, Options(cuts=1, pack_from=1))
    assert [layout.nmessages for layout in packed] == [2, 2, 2, 2]
    assert all(len(one.regions) == 1 for layout in packed for one in layout.transfers)
    described = laid_out(allgather, "bruck", 4, 40, Options(cuts=1, pack_from=100))
    assert [len(one.regions) for one in described[3].transfers if one.outgoing] == [1, 2]
    assert [layout.sent_count for layout in described] == [30, 30, 30, 30]


def test_empty_messages_are_dropped_on_both_sides_and_signals_stay():
    for layout in laid_out(allgather, "ring", 5, 2):
        received = [one for one in layout.transfers if not one.outgoing]
        assert [length(one.regions) for one in received] == [1] * len(received)
    assert sum(layout.nmessages for layout in laid_out(allgather, "ring", 5, 2)) == 2 * 4
    assert all(not layout.transfers for layout in laid_out(allreduce, "rabenseifner", 4, 0))
    assert [layout.nmessages for layout in laid_out(barrier, "dissemination", 5, 0)] == [3] * 5


def test_what_is_reduced_lands_in_two_pieces_a_peer():
    count, piece = 8000, 64
    for layout in laid_out(allreduce, "spread", 4, count, Options(piece=piece, align=16)):
        assert layout.scratch_count <= 3 * 2 * piece
        received = [one for one in layout.transfers if not one.outgoing and one.regions[0].buffer == SCRATCH]
        assert sum(length(one.regions) for one in received) == 3 * 2000
        assert max(length(one.regions) for one in received) == piece


@pytest.mark.parametrize("name", ["ring", "recursive_doubling", "rabenseifner"])
def test_scratch_does_not_grow_with_the_rounds(name):
    for nranks in (2, 4, 8, 16):
        for layout in laid_out(allreduce, name, nranks, 4096, Options(piece=128)):
            assert layout.scratch_count <= 4096 + 2 * 128


def test_a_round_that_waits_only_for_data_lets_few_transfers_stay_under_way():
    most = 0
    for layout in laid_out(broadcast, "chain:segments=64", 3, 6400, Options(waits="data"), root=0):
        under_way = set()
        for one in layout.program:
            if isinstance(one, Start):
                under_way.update(one.transfers)
            elif isinstance(one, Wait):
                under_way.difference_update(one.transfers)
            most = max(most, len(under_way))
    assert 2 < most <= LOOKAHEAD + 2


def test_a_round_that_is_waited_for_ends_before_the_next():
    for layout in laid_out(broadcast, "chain", 3, 6400, Options(waits="round"), root=0):
        started = 0
        for one in layout.program:
            if isinstance(one, Start):
                assert started == 0
                started = len(one.transfers)
            elif isinstance(one, Wait):
                started -= len(one.transfers)


def test_alltoall_in_place_writes_over_nothing_that_is_still_to_be_sent():
    for rank, layout in enumerate(laid_out(alltoall, "pairwise", 4, 40, in_place=True)):
        unsent = {Region(RECV, 10 * peer, 10 * peer + 10) for peer in range(4) if peer != rank}
        for one in layout.program:
            if isinstance(one, Wait):
                unsent -= {
                    layout.transfers[index].regions[0] for index in one.transfers if layout.transfers[index].outgoing
                }
            elif isinstance(one, Move):
                assert one.target not in unsent


def test_reduce_scatter_in_place_leaves_the_rest_of_the_buffer_alone():
    for rank, layout in enumerate(laid_out(reduce_scatter, "ring", 4, 40, in_place=True)):
        written = [one.target for one in of_kind(layout, Move)] + [one.into for one in of_kind(layout, Fold)]
        written += [region for one in layout.transfers if not one.outgoing for region in one.regions]
        assert {one for one in written if one.buffer == RECV} == {Region(RECV, 0, 10)}, rank


def test_a_chunk_that_is_not_there_cannot_be_sent():
    copy = allgather.like("allgather")

    @copy.algorithm()
    def gives_away_what_it_has_not(rank, nranks):
        yield Send(1 - rank, 1 - rank)

    with pytest.raises(ValueError, match=r"rank 0, round 0: Send\(1, 1\) of 1, which the rank does not have"):
        laid_out(copy, "gives_away_what_it_has_not", 2, 4)


def test_options_are_told_in_bytes_and_used_in_elements():
    ring = allreduce.find("ring:piece=4096:cuts=3:waits=round")
    options = Options.of(ring, itemsize=8, cap_nbytes=1 << 20)
    assert (options.piece, options.cuts, options.waits, options.cap) == (512, 3, "round", 1 << 17)
    default = Options.of(allreduce.find("ring"), itemsize=4, cap_nbytes=1 << 20)
    assert (default.piece, default.pack_from) == (PIECE_NBYTES // 4, PACK_FROM_NBYTES // 4)
    assert (default.align, default.waits) == (CACHE_LINE_NBYTES // 4, "data")
    assert Options.of(ring, itemsize=8, cap_nbytes=3).cap == 1  # one element at least


def test_one_rank_of_a_large_ring_is_laid_out_alone():
    layout = lay_out(allreduce.problem(1024, 1 << 20), allreduce.find("ring"), 17)
    assert layout.nrounds == 2046
    assert layout.nmessages == 2046
    assert layout.sent_count == 2 * 1023 * 1024
    assert layout.scratch_count <= 1024 * (LOOKAHEAD + 2)


@st.composite
def cases(draw):
    algorithm = draw(st.sampled_from(ALL))
    primitive = algorithm.primitive
    nranks = draw(st.integers(1, 17))
    root = draw(st.integers(0, nranks - 1)) if primitive.rooted else 0
    problem = primitive.problem(nranks, draw(st.integers(0, 200)), root=root, in_place=draw(st.booleans()))
    options = Options(
        piece=draw(st.integers(1, 100)),
        cap=draw(st.integers(1, 100)),
        cuts=draw(st.integers(1, 4)),
        pack_from=draw(st.integers(1, 100)),
    )
    return algorithm, problem, options


@settings(max_examples=100)
@given(cases())
def test_both_ends_cut_alike_and_no_message_is_larger_than_allowed(case):
    algorithm, problem, options = case
    assume(not algorithm.unmet(problem))
    layouts = [lay_out(problem, algorithm, rank, options) for rank in range(problem.nranks)]
    ends = {
        (layout.rank, one.peer, one.ordinal, one.outgoing): length(one.regions)
        for layout in layouts
        for one in layout.transfers
    }
    assert len(ends) == sum(len(layout.transfers) for layout in layouts)
    for (rank, peer, ordinal, outgoing), count in ends.items():
        assert ends[peer, rank, ordinal, not outgoing] == count
        assert count <= options.cap
        assert count > 0 or algorithm.primitive.synchronises
    for layout in layouts:
        started = [index for one in of_kind(layout, Start) for index in one.transfers]
        waited = [index for one in of_kind(layout, Wait) for index in one.transfers]
        assert sorted(started) == sorted(waited) == list(range(len(layout.transfers)))
        inside = [region for one in layout.transfers for region in one.regions]
        assert all(0 <= one.start < one.stop for one in inside)
        assert all(one.stop <= layout.scratch_count for one in inside if one.buffer == SCRATCH)


EXTRA_VECTORS = {
    ("allreduce", "allgather_reduce"): 9.0,  # every rank holds the vectors of all: here of nine
    ("allreduce", "recursive_multiplying"): 3.0,  # the vectors of three partners arrive while the own one is sent
    ("scan", "recursive_doubling"): 4.0,  # what arrives, total and prefix, each old and new
    ("exscan", "recursive_doubling"): 5.0,
    ("alltoall", "bruck"): 2.5,  # half the blocks in slots, half packed to be sent, half as they arrive, and holes
    ("alltoallv", "bruck"): 2.5,
    ("alltoall", "k_bruck"): 2.5,
    ("alltoallv", "k_bruck"): 2.5,
    ("alltoallv", "padded_bruck"): 3.5,  # the same, and the padded copies
    ("reduce_scatter", "recursive_doubling"): 2.3,
    ("reduce_scatterv", "recursive_doubling"): 2.3,
}
"""Those that need more than two vectors of extra memory, and why."""


@pytest.mark.parametrize(
    "algorithm", [one for one in ALL if not one.takes_nodes], ids=lambda one: f"{one.primitive.name}-{one.name}"
)
def test_extra_memory_is_at_most_twice_the_vector(algorithm):
    """Of flat algorithms; the leader of a node has the vectors of its whole node."""
    primitive = algorithm.primitive
    limit = EXTRA_VECTORS.get((primitive.name, algorithm.name), 2.0)
    for nranks, in_place in product((2, 3, 5, 8, 9), (False, True)):
        vector, counts = 30_000 * nranks, None  # of one rank
        if primitive.name.endswith("v"):
            counts = (30_000,) * nranks
        if primitive.name == "alltoallv":
            counts = (counts,) * nranks
        count = vector * nranks if primitive.name == "alltoallv" else vector
        problem = primitive.problem(nranks, count, counts=counts, in_place=in_place)
        if algorithm.unmet(problem) or (in_place and primitive.aliasing(problem, 0) is None):
            continue
        for rank in range(nranks):
            layout = lay_out(problem, algorithm, rank, Options.of(algorithm, 4, 1 << 31))
            assert layout.scratch_count + layout.shared_count <= limit * vector + 64 * nranks


def test_pieces_that_are_reduced_wait_for_a_place_where_all_would_not_fit_in_a_vector():
    count = PACK_FROM_NBYTES  # elements: a vector of 256 KiB, one piece
    root = laid_out(reduce, "linear", 5, count, Options())[0]
    assert root.scratch_count == count
    assert [len(one.transfers) for one in of_kind(root, Start)] == [1, 1, 1, 1]
    small = laid_out(reduce, "linear", 5, 100, Options())[0]
    assert [len(one.transfers) for one in of_kind(small, Start)] == [4]


def test_messages_of_both_kinds_between_two_ranks_are_counted_as_they_are_listed():
    layouts = laid_out(allreduce, "double_binary_tree", 3, 48, Options(waits="data"))
    ends = {}
    for layout in layouts:
        for one in layout.transfers:
            pair = (layout.rank, one.peer) if one.outgoing else (one.peer, layout.rank)
            ends.setdefault((*pair, one.ordinal), []).append(length(one.regions))
    assert all(len(lengths) == 2 and lengths[0] == lengths[1] for lengths in ends.values())
