from functools import partial
from itertools import product
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from collectives import PRIMITIVES, allgather, allreduce, alltoall, barrier, broadcast, reduce, reduce_scatter
from collectives.needs import COMMUTATIVE
from collectives.proof import Refuted, prove, proved_ranks
from collectives.rounds import LEFT, RIGHT, Combine, Copy, Recv, RecvReduce, Send
from collectives.vector import per_rank

ALL = [
    algorithm
    for primitive in PRIMITIVES.values()
    for algorithm in primitive.algorithms.values()
    if algorithm.name not in getattr(PRIMITIVES.get(primitive.name.removesuffix("v")), "algorithms", {})
    or not primitive.name.endswith("v")  # the others run the same rounds on blocks of any length
]


def name_of(algorithm):
    return f"{algorithm.primitive.name}-{algorithm.label}"


def variants(algorithm):
    """The algorithm with other values of its own parameters."""
    kinds = get_type_hints(algorithm.generate, include_extras=True)
    values = {
        key: get_args(kinds[key]) if get_origin(kinds[key]) is Literal else (2, 3, 5) for key in algorithm.parameters
    }
    for chosen in product(*values.values()):
        yield algorithm.with_parameters(dict(zip(values, chosen, strict=True)))


FLAT = [algorithm for algorithm in ALL if not algorithm.takes_nodes]  # for the others see test_hierarchy.py
VARIANTS = [variant for algorithm in FLAT if algorithm.parameters for variant in variants(algorithm)]


@pytest.mark.parametrize("algorithm", ALL, ids=name_of)
def test_every_algorithm_is_proved(algorithm):
    proved = [(nranks, prove(algorithm, nranks, root)) for nranks, root in proved_ranks(algorithm, 17)]
    assert {nranks for nranks, _ in proved} & {2, 4, 8, 16}


@pytest.mark.parametrize("algorithm", VARIANTS, ids=name_of)
def test_every_algorithm_is_proved_with_other_parameters(algorithm):
    for nranks, root in proved_ranks(algorithm, 9):
        prove(algorithm, nranks, root)


@pytest.mark.full
@pytest.mark.parametrize("algorithm", ALL, ids=name_of)
def test_every_algorithm_is_proved_for_up_to_64_ranks(algorithm):
    for nranks, root in proved_ranks(algorithm, 64):
        prove(algorithm, nranks, root)


@pytest.mark.parametrize("algorithm", FLAT, ids=name_of)
def test_what_is_needed_is_really_needed(algorithm):
    """Without its precondition the algorithm is wrong for some number of ranks, and without order it is mixed."""
    ranks = range(1, 18)
    refused = [
        n for n in ranks if any(not need.met(algorithm.primitive.problem(n, n), True) for need in algorithm.needs)
    ]
    if refused:
        with pytest.raises((Refuted, ValueError, IndexError, ZeroDivisionError)):
            for nranks in refused:
                prove(algorithm, nranks)
    if algorithm.needs == (COMMUTATIVE,):
        assert not all(prove(algorithm, nranks, root).in_order for nranks, root in proved_ranks(algorithm, 9))


def test_a_proof_says_how_many_rounds_there_are_and_what_every_rank_ends_with():
    proof = prove(allreduce.find("ring"), 3)
    assert proof.nrounds == 4
    assert not proof.in_order
    assert [{chunk: sorted(value) for chunk, value in values.items()} for values in proof.values] == [
        {0: [0, 1, 2], 1: [0, 1, 2], 2: [0, 1, 2]}
    ] * 3
    assert prove(allreduce.find("recursive_doubling"), 5).values[4] == {0: (0, 1, 2, 3, 4)}
    assert prove(alltoall.find("bruck"), 3).values[1][2, 1] == ((2, 1),)


def test_every_root_is_proved_for_few_ranks_and_the_ends_for_more():
    linear = broadcast.find("linear")
    assert [root for nranks, root in proved_ranks(linear, 11) if nranks == 9] == list(range(9))
    assert [root for nranks, root in proved_ranks(linear, 11) if nranks == 11] == [0, 5, 10]
    assert list(proved_ranks(allgather.find("recursive_doubling"), 9)) == [(1, 0), (2, 0), (4, 0), (8, 0)]


def test_a_watcher_sees_every_round_of_every_rank():
    seen = []

    def watch(rank, number, operations, values, heard):
        seen.append((rank, number, operations, sorted(values), sorted(heard)))

    prove(allgather.find("ring"), 3, watch=watch)
    assert len(seen) == 6
    assert (1, 0, (Send(2, 1), Recv(0, 0)), [0, 1], [0, 1]) in seen
    assert (1, 1, (Send(2, 0), Recv(0, 2)), [0, 1, 2], [0, 1, 2]) in seen


# Algorithms that are broken, each in one way, and the words in which that is told.


def leaves_one_out(rank, nranks, root):
    last = nranks - 1
    if rank == root:
        yield tuple(RecvReduce(peer, 0) for peer in range(nranks) if peer not in (root, last))
    elif rank != last:
        yield Send(root, 0)


def counts_twice(rank, nranks):
    for distance in (1, 1):
        yield Send(rank ^ distance, 0), RecvReduce(rank ^ distance, 0)


def swaps_two_at_the_end(rank, nranks):
    others = [peer for peer in range(nranks) if peer != rank]
    yield (*(Send(peer, (rank, peer)) for peer in others), *(Recv(peer, (peer, rank)) for peer in others))
    yield Copy((0, rank), (1, rank))


def stops_early(rank, nranks):
    left, right = (rank - 1) % nranks, (rank + 1) % nranks
    for step in range(nranks - 2):
        yield Send(right, (rank - step) % nranks), Recv(left, (rank - step - 1) % nranks)


def all_wait_first(rank, nranks):
    yield Recv((rank - 1) % nranks, (rank - 1) % nranks)
    yield Send((rank + 1) % nranks, rank)


def all_send_first(rank, nranks):
    """Works as long as the library buffers what is sent."""
    yield Send(1 - rank, rank)
    yield Recv(1 - rank, 1 - rank)


def one_is_late(rank, nranks, root):
    if rank == root:
        yield ()
        yield Send(1, 0)
    else:
        yield Recv(root, 0)


def one_sends_more(rank, nranks, root):
    if rank == root:
        yield Send(1, 0)
        yield Send(1, 0)
    else:
        yield Recv(root, 0)


def one_waits_for_more(rank, nranks, root):
    if rank == root:
        yield Send(1, 0)
    else:
        yield Recv(root, 0)
        yield Recv(root, 0)


def swaps_one_chunk(rank, nranks):
    yield Send(1 - rank, 0), Recv(1 - rank, 0)


def receives_twice(rank, nranks, root):
    if rank == root:
        yield Send(1, 0), Send(1, 0)
    else:
        yield Recv(root, 0), Recv(root, 0)


def names_a_chunk_twice(rank, nranks, root):
    yield Send(1, 0, 0) if rank == root else Recv(root, 0, 0)


def mixes_the_order(rank, nranks):
    for distance in (1, 2):
        yield Send(rank ^ distance, 0), RecvReduce(rank ^ distance, 0, side=RIGHT)


def wrong_side(rank, nranks, root):
    if rank == root:
        yield tuple(RecvReduce(peer, 0, side=LEFT) for peer in range(1, nranks))
    else:
        yield Send(root, 0)


def sends_what_it_has_not(rank, nranks):
    yield Send(1, 1) if rank == 0 else Recv(0, 1)


def combines_what_it_has_not(rank, nranks):
    yield Combine(0, "partial", 0)


def sends_to_nobody(rank, nranks, root):
    if rank == root:
        yield Send(nranks, 0)


def combines_blocks(rank, nranks):
    yield Send(1 - rank, rank), Recv(1 - rank, 1 - rank)
    yield Send(1 - rank, 0), RecvReduce(1 - rank, 0)


def two_names_for_one_message(rank, nranks, root):
    yield Send(1, 0) if rank == root else Recv(root, 1)


def lets_ranks_leave(rank, nranks):
    if rank == 0:
        yield tuple(Recv(peer) for peer in range(1, nranks))
    else:
        yield Send(0)


ordered = partial(dict, keeps_order=True)
BROKEN = [
    (reduce, leaves_one_out, {}, 4, "rank 0, round 1: chunk 0 lacks the contribution of rank 3"),
    (allreduce, counts_twice, {}, 2, "round 1: RecvReduce(1, 0) counts the contribution of rank 0 to chunk 0 twice"),
    (alltoall, swaps_two_at_the_end, {}, 3, "rank 0, round 2: ends with (0, 0) where chunk (1, 0) belongs"),
    (allgather, stops_early, {}, 4, "rank 0, round 2: ends without chunk 1"),
    (allgather, all_wait_first, {}, 3, "rank 0, round 0: deadlock: 3 ranks wait for ever (rank 0 in round 0 of (Recv"),
    (allgather, all_send_first, {}, 2, "deadlock: 2 ranks wait for ever (rank 0 in round 0 of (Send(1, 0),); rank 1"),
    (
        broadcast,
        one_is_late,
        {},
        2,
        "rank 0 Send(1, 0) and rank 1 Recv(0, 0) are the two ends of a message in rounds 1 and 0",
    ),
    (broadcast, one_sends_more, {}, 2, "rank 0, round 1: Send(1, 0) is never matched: the rounds of rank 1 are over"),
    (broadcast, one_waits_for_more, {}, 2, "rank 1, round 1: Recv(0, 0) is never matched: the rounds of rank 0"),
    (allreduce, swaps_one_chunk, {}, 2, "rank 0, round 0: race: Recv(1, 0) while chunk 0 is also sent or received"),
    (broadcast, receives_twice, {}, 2, "rank 1, round 0: race: Recv(0, 0) while chunk 0 is also sent or received"),
    (broadcast, names_a_chunk_twice, {}, 2, "rank 0, round 0: Send(1, 0, 0) names a chunk twice"),
    (
        allreduce,
        mixes_the_order,
        ordered(),
        4,
        "rank 1, round 2: chunk 0 is combined in the order (1, 0, 3, 2), although rank order is claimed",
    ),
    (reduce, wrong_side, ordered(), 3, "chunk 0 is combined in the order (2, 1, 0), although rank order is claimed"),
    (
        allgather,
        sends_what_it_has_not,
        {},
        2,
        "rank 0, round 0: Send(1, 1) needs chunk 1, which the rank does not have",
    ),
    (
        allreduce,
        combines_what_it_has_not,
        {},
        2,
        "round 0: Combine(0, 'partial', 0) needs chunk 'partial', which the rank does not have",
    ),
    (broadcast, sends_to_nobody, {}, 2, "rank 0, round 0: Send(2, 0): there is no rank 2"),
    (allgather, combines_blocks, {}, 2, "rank 0, round 1: RecvReduce(1, 0): allgather combines nothing"),
    (
        broadcast,
        two_names_for_one_message,
        {},
        2,
        "rank 0 Send(1, 0) and rank 1 Recv(0, 1) do not name the same chunks",
    ),
    (barrier, lets_ranks_leave, {}, 3, "rank 1, round 1: leaves before it can know that rank 0 has entered"),
]


def registered(primitive, generate, **how):
    """Register on a copy of the primitive, so that the catalogue stays as it is."""
    copy = primitive.like(primitive.name)
    copy.algorithm(**how)(generate)
    return copy.find(generate.__name__)


@pytest.mark.parametrize(
    ("primitive", "generate", "how", "nranks", "words"), BROKEN, ids=[one[1].__name__ for one in BROKEN]
)
def test_what_is_broken_is_named(primitive, generate, how, nranks, words):
    algorithm = registered(primitive, generate, **how)
    with pytest.raises(Refuted) as refuted:
        prove(algorithm, nranks)
    told = str(refuted.value)
    assert words in told
    root = ", root 0" if primitive.rooted else ""
    assert told.startswith(f"{primitive.name} {generate.__name__}, {nranks} ranks{root}: rank ")


def test_a_contribution_too_many_is_named():
    def gives_all_to_the_first(rank, nranks):
        yield RecvReduce(1, 0) if rank == 0 else Send(0, 0)

    only_lower = allreduce.like("lower", contributors=lambda problem, rank, chunk: range(rank + 1))
    only_lower.algorithm()(gives_all_to_the_first)
    with pytest.raises(Refuted, match="rank 0, round 1: chunk 0 has too much: the contribution of rank 1"):
        prove(only_lower.find("gives_all_to_the_first"), 2)


def test_sending_a_chunk_while_reducing_into_it_is_allowed():
    def exchange(rank, nranks):
        yield Send(1 - rank, 0), RecvReduce(1 - rank, 0)

    assert prove(registered(allreduce, exchange), 2).nrounds == 1


def test_several_reductions_of_one_chunk_take_effect_in_the_order_listed():
    def fan_in(rank, nranks, root):
        if rank == root:
            yield RecvReduce(1, 0, side=RIGHT), RecvReduce(2, 0, side=RIGHT)
        else:
            yield Send(root, 0)

    assert prove(registered(reduce, fan_in, keeps_order=True), 3).values[0] == {0: (0, 1, 2)}


def without(generate, index):
    """The algorithm without its index-th operation, counted over all ranks."""

    def shortened(rank, nranks):
        seen = sum(len(as_tuple(one)) for other in range(rank) for one in generate(other, nranks))
        for one in generate(rank, nranks):
            operations = as_tuple(one)
            yield tuple(operation for place, operation in enumerate(operations, seen) if place != index)
            seen += len(operations)

    return shortened


def as_tuple(one):
    return one if isinstance(one, tuple) else (one,)


SHORTENED = [(allreduce, name) for name in ("ring", "recursive_doubling", "rabenseifner", "spread", "reduce_broadcast")]
SHORTENED += [(allreduce, "bine"), (allgather, "ring"), (allgather, "bruck"), (allgather, "sparbit")]
SHORTENED += [(reduce_scatter, "pairwise"), (reduce_scatter, "butterfly"), (alltoall, "bruck"), (alltoall, "pairwise")]


@pytest.mark.parametrize(("primitive", "name"), SHORTENED, ids=lambda one: getattr(one, "name", one))
def test_no_operation_can_be_left_out(primitive, name):
    algorithm, nranks = primitive.find(name), 5
    generate = partial(algorithm.generate, **algorithm.parameters)
    operations = sum(len(as_tuple(one)) for rank in range(nranks) for one in generate(rank, nranks))
    for index in range(operations):
        shorter = registered(primitive, without(generate, index), chunks=algorithm.chunks)
        with pytest.raises(Refuted):
            prove(shorter, nranks)


def test_chunks_are_cut_as_the_algorithm_says():
    copy = allreduce.like("allreduce")
    copy.algorithm(chunks=per_rank)(counts_twice)
    assert copy.find("counts_twice").nchunks(2) == 2
