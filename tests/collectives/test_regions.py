from hypothesis import given
from hypothesis import strategies as st

from collectives.regions import ALWAYS, RECV, SCRATCH, SEND, Region, Scratch, joined, part, side_by_side, stream_of

lengths = st.lists(st.integers(1, 5), min_size=1, max_size=6)


def scattered(sizes):
    """Regions of these lengths with a hole after each."""
    regions, start = [], 0
    for length in sizes:
        regions.append(Region(RECV, start, start + length))
        start += length + 1
    return regions


def elements(regions):
    return [(one.buffer, index) for one in regions for index in range(one.start, one.stop)]


def test_regions_overlap_where_they_share_an_element_of_one_buffer():
    assert Region(SEND, 0, 4).overlaps(Region(SEND, 3, 5))
    assert not Region(SEND, 0, 4).overlaps(Region(SEND, 4, 5))
    assert not Region(SEND, 0, 4).overlaps(Region(RECV, 0, 4))
    assert not Region(SEND, 2, 2).overlaps(Region(SEND, 0, 4))


def test_a_stream_joins_what_follows_in_memory_and_leaves_out_what_is_empty():
    places = {
        "a": Region(RECV, 0, 2),
        "b": Region(RECV, 2, 5),
        "empty": Region(SCRATCH, 0, 0),
        "c": Region(SCRATCH, 5, 6),
        "d": Region(RECV, 5, 6),
    }
    assert stream_of(["a", "empty", "b", "c", "d"], places) == [
        Region(RECV, 0, 5),
        Region(SCRATCH, 5, 6),
        Region(RECV, 5, 6),
    ]
    assert stream_of(["b", "a"], places) == [Region(RECV, 2, 5), Region(RECV, 0, 2)]
    assert stream_of(["empty"], places) == []


@given(lengths, st.data())
def test_a_part_of_a_stream_is_those_elements_of_it(sizes, data):
    stream = scattered(sizes)
    start = data.draw(st.integers(0, sum(sizes)))
    stop = data.draw(st.integers(start, sum(sizes)))
    assert elements(part(stream, start, stop)) == elements(stream)[start:stop]


@given(lengths, st.integers(0, 1000))
def test_streams_side_by_side_pair_their_elements_in_order(sizes, seed):
    one = scattered(sizes)
    other = [Region(SCRATCH, 100, 100 + sum(sizes))] if seed % 2 else scattered(sorted(sizes))
    pairs = [
        pair
        for left, right in side_by_side(one, other)
        for pair in zip(elements([left]), elements([right]), strict=True)
    ]
    assert pairs == list(zip(elements(one), elements(other), strict=True))


def test_moves_are_joined_only_where_both_ends_follow_one_another():
    def move(source, target, length):
        return Region(SEND, source, source + length), Region(RECV, target, target + length)

    assert joined([move(0, 5, 2), move(2, 7, 3)]) == [move(0, 5, 5)]
    assert joined([move(0, 5, 2), move(2, 9, 3)]) == [move(0, 5, 2), move(2, 9, 3)]
    assert joined([move(0, 5, 2), move(3, 7, 3)]) == [move(0, 5, 2), move(3, 7, 3)]
    assert joined([]) == []


def test_scratch_is_used_again_after_the_round_in_which_it_was_last_needed():
    scratch = Scratch(align=1)
    first = scratch.take(10, last_round=0)
    kept = scratch.take(5, last_round=2)
    assert (first, kept, scratch.count) == (0, 10, 15)
    scratch.expire(0)
    assert scratch.take(4, last_round=1) == 0
    assert scratch.take(6, last_round=1) == 4
    assert scratch.count == 15
    scratch.expire(2)
    assert scratch.take(15, last_round=3) == 0  # the holes are one again
    assert scratch.count == 15


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=30), st.sampled_from([1, 4]))
def test_what_is_taken_at_the_same_time_never_overlaps(takes, align):
    scratch = Scratch(align)
    alive = []
    for number, (count, rounds) in enumerate(takes):
        start = scratch.take(count, number + rounds)
        room = Region(SCRATCH, start, start + count)
        assert start % align == 0
        assert room.stop <= scratch.count
        assert not any(room.overlaps(other) for other, last in alive if last >= number)
        alive.append((room, number + rounds))
        scratch.expire(number)


def test_scratch_that_is_always_needed_is_never_given_back():
    scratch = Scratch(align=1)
    scratch.take(4, ALWAYS)
    scratch.expire(10**6)
    assert scratch.take(4, 10**6 + 1) == 4
