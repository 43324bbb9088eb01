"""How messages are cut: both ends alike, few where that is possible, none too long."""

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from collectives import allgather, allreduce, barrier
from collectives.cutting import CACHE_LINE_NBYTES, PACK_FROM_NBYTES, PIECE_NBYTES, Options
from collectives.layout import lay_out
from collectives.program import Start, Wait
from collectives.regions import SCRATCH
from tests.collectives.test_layout import ALL, laid_out, length, of_kind


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


def test_options_are_told_in_bytes_and_used_in_elements():
    ring = allreduce.find("ring:piece=4096:cuts=3:waits=round")
    options = Options.of(ring, itemsize=8, cap_nbytes=1 << 20)
    assert (options.piece, options.cuts, options.waits, options.cap) == (512, 3, "round", 1 << 17)
    default = Options.of(allreduce.find("ring"), itemsize=4, cap_nbytes=1 << 20)
    assert (default.piece, default.pack_from) == (PIECE_NBYTES // 4, PACK_FROM_NBYTES // 4)
    assert (default.align, default.waits) == (CACHE_LINE_NBYTES // 4, "data")
    assert Options.of(ring, itemsize=8, cap_nbytes=3).cap == 1  # one element at least


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


def test_messages_of_both_kinds_between_two_ranks_are_counted_as_they_are_listed():
    layouts = laid_out(allreduce, "double_binary_tree", 3, 48, Options(waits="data"))
    ends = {}
    for layout in layouts:
        for one in layout.transfers:
            pair = (layout.rank, one.peer) if one.outgoing else (one.peer, layout.rank)
            ends.setdefault((*pair, one.ordinal), []).append(length(one.regions))
    assert all(len(lengths) == 2 and lengths[0] == lengths[1] for lengths in ends.values())
