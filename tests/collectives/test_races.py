"""Broken algorithms on shared memory are refuted, with what they do and why it is wrong."""

from dataclasses import replace

import pytest

from collectives import allgather, allreduce, broadcast, gather
from collectives.needs import SHARED_MEMORY
from collectives.proof import Refuted, prove
from collectives.races import Race, check_races
from collectives.rounds import Copy, Fence, Pull, PullReduce, Push, Recv, Send
from collectives.vector import per_rank


def refuted(primitive, generate, words, nranks=3, chunks=per_rank, staged=False, needs=SHARED_MEMORY):
    """Expect that `generate`, as an algorithm of `primitive`, is wrong in this way."""
    algorithm = replace(
        primitive.algorithms["window"], generate=generate, chunks=chunks, staged=staged, declared_needs=needs
    )
    with pytest.raises(Refuted, match=words):
        prove(algorithm, nranks)


def others(rank, nranks):
    return [one for one in range(nranks) if one != rank]


def test_reading_before_a_fence_is_a_race():
    def early(rank, nranks):
        yield tuple(Pull(peer, peer) for peer in others(rank, nranks))
        yield Fence(range(nranks))

    refuted(allgather, early, r"Pull\(1, 1\) reads chunk 1 of rank 1, which rank 1 has written with no fence between")


def test_reading_what_was_written_since_the_last_fence_is_a_race():
    def early(rank, nranks):
        yield Fence(range(nranks))
        yield PullReduce(range(nranks), rank)
        yield (*(Pull(peer, peer) for peer in others(rank, nranks)), Fence(range(nranks)))

    refuted(allreduce, early, "round 2: race: Pull.* reads chunk . of rank ., which rank . has written")


@pytest.mark.parametrize(
    ("access", "rank"), [(Pull(3, 0), 3), (Pull(-1, 0), -1), (Push([0, 7], 0), 7), (PullReduce([0, 1, 2, -2], 0), -2)]
)
def test_memory_of_a_rank_that_there_is_not_is_refused(access, rank):
    def beyond(own, nranks):
        yield Fence(range(nranks))
        if own == 1:
            yield access
        yield Fence(range(nranks))

    refuted(allreduce, beyond, rf"rank 1, round 1: .*: there is no rank {rank}")


def test_writing_while_a_peer_may_still_read_is_a_race():
    def both(rank, nranks):
        yield Fence(range(nranks))
        yield PullReduce(range(nranks), *range(nranks)), Fence(range(nranks))

    words = r"PullReduce\(\[0, 1, 2\], 0, 1, 2\) reads chunk 0 of rank 0, which rank 0 has written"
    refuted(allreduce, both, words)


def test_pushing_to_a_peer_that_may_still_use_its_buffer_is_a_race():
    def early(rank, nranks, root):
        yield (*((Push([root], rank),) if rank != root else ()), Fence(range(nranks)))

    refuted(gather, early, r"Push\(\[0\], 1\) writes chunk 1 of rank 0, which rank 0 has written")


def test_a_call_that_ends_before_peers_have_read_is_a_race_with_the_next():
    def late(rank, nranks):
        yield Fence(range(nranks))
        yield tuple(Pull(peer, peer) for peer in others(rank, nranks))

    refuted(allgather, late, "in a later call|what its owner does after the call")


def test_two_that_write_one_location_are_a_race():
    def twice(rank, nranks, root):
        yield Fence(range(nranks))
        yield (*((Push(others(rank, nranks), 0),) if rank in (root, 1) else ()), Fence(range(nranks)))

    refuted(broadcast, twice, "Push.* chunk 0 of rank 1, which rank 0 has written", chunks=lambda nranks: 1)


def test_messages_keep_nothing_apart_in_shared_memory():
    def signalled(rank, nranks):
        yield tuple(Send(peer) for peer in others(rank, nranks)) + tuple(Recv(peer) for peer in others(rank, nranks))
        yield tuple(Pull(peer, peer) for peer in others(rank, nranks))
        yield Fence(range(nranks))

    refuted(allgather, signalled, "race: Pull")


def test_a_fence_at_which_one_is_missing_is_refused():
    def alone(rank, nranks):
        yield Fence(range(nranks)) if rank else ()

    refuted(allgather, alone, r"rank 1, round 0: Fence\(\[0, 1, 2\]\), where rank 0 has none of this group")


def test_two_fences_in_one_round_are_refused():
    def two(rank, nranks):
        yield Fence(range(nranks)), Fence([rank])

    refuted(allgather, two, "a rank meets one group at a time")


def test_a_staged_algorithm_only_reads():
    def pushed(rank, nranks):
        yield Fence(range(nranks))
        yield Push(others(rank, nranks), rank), Fence(range(nranks))

    refuted(allgather, pushed, "writes to copies of inputs", staged=True)


def test_a_staged_algorithm_needs_its_one_fence():
    refuted(allreduce, lambda rank, nranks: iter([PullReduce(range(nranks), *range(nranks))]), "race", staged=True)


def test_a_contribution_that_is_missing_or_doubled_is_found():
    def without_last(rank, nranks):
        yield Fence(range(nranks))
        yield PullReduce(range(nranks - 1), rank), Push(others(rank, nranks), rank), Fence(range(nranks))

    def doubled(rank, nranks):
        yield Fence(range(nranks))
        yield PullReduce([*range(nranks), 0], rank), Push(others(rank, nranks), rank), Fence(range(nranks))

    refuted(allreduce, without_last, "lacks the contribution of rank 2")
    refuted(allreduce, doubled, "counts the contribution of rank 0 to chunk . twice")


def test_an_algorithm_must_say_that_it_needs_shared_memory():
    generate = allgather.algorithms["window"].generate
    refuted(allgather, generate, "does not say that it needs shared memory", needs=())


def test_accesses_of_one_rank_alone_are_no_race():
    rounds = [[(Push([1], "x"),), (Push([1], "x"), Pull(1, "x")), (Fence([0, 1]),)], [(), (), (Fence([0, 1]),)]]
    check_races(rounds, [["x"], []], [[], []])
    with pytest.raises(Race, match="rank 1"):
        check_races([rounds[0], [(Copy("x", "y"),), (), (Fence([0, 1]),)]], [["x"], []], [[], []])
