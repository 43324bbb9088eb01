"""The layouts of all ranks, run in one process and compared with NumPy: the proof of the plan itself.

What is moved is a different number for every element; what is combined are words, so that it is seen which
contributions came together, whether each did once, and in which order.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from collectives import PRIMITIVES, allgather, allreduce, alltoall, broadcast, reduce_scatter
from collectives.cutting import Options
from collectives.interpret import Deadlock, interpret
from collectives.layout import lay_out
from collectives.program import Fold, Move, Reduce, Start, Wait
from collectives.reference import expected
from tests.collectives.drawn import cases, has_in_place, uneven_counts

ALL = [
    algorithm
    for primitive in PRIMITIVES.values()
    for algorithm in primitive.algorithms.values()
    if not algorithm.primitive.synchronises
]
PIECES = Options(piece=2, cap=3, pack_from=10**6, align=1, landing=1)
"""Everything in small messages, scattered ones described by datatypes."""
PACKED = Options(piece=3, cap=5, cuts=1, pack_from=2, align=4, landing=1)
"""Scattered messages packed into one."""
OPTIONS = [
    Options(),
    PIECES,
    PACKED,
    replace(PIECES, waits="data"),
    replace(PACKED, waits="data"),
    Options(waits="data"),
]
OPTIONS += [Options(waits="round"), Options(landing=1)]


def name_of(algorithm):
    return f"{algorithm.primitive.name}-{algorithm.name}"


def assert_waits(layout):
    """Expect that no instruction touches what a transfer under way writes, or writes what it reads."""
    under_way = set()

    def touch(regions, written):
        for index in under_way:
            transfer = layout.transfers[index]
            if written or not transfer.outgoing:
                met = [one for one in regions for other in transfer.regions if one.overlaps(other)]
                assert not met, f"rank {layout.rank} touches {met} while {transfer} is under way"

    for one in layout.program:
        if isinstance(one, Start):
            for index in one.transfers:
                touch(layout.transfers[index].regions, not layout.transfers[index].outgoing)
                under_way.add(index)
        elif isinstance(one, Wait):
            under_way.difference_update(one.transfers)
        elif isinstance(one, Move):
            touch([one.source], False)
            touch([one.target], True)
        elif isinstance(one, Fold):
            touch([one.left, one.right], False)
            touch([one.into], True)
        elif isinstance(one, Reduce):
            touch(one.operands, False)
            touch(one.targets, True)
    assert not under_way, f"rank {layout.rank} never waits for {under_way}"


def data_of(problem, rank):
    """A rank's input: a number or word for each element that no other element of any rank has."""
    count = problem.primitive.send_count(problem, rank)
    if problem.primitive.combines:
        return np.array([f"{rank}:{index};" for index in range(count)] + [None], object)[:-1]
    return 1000 * (rank + 1) + np.arange(count)


def buffers_of(problem, rank, data):
    """Send buffer, receive buffer, and where the output begins in the latter."""
    primitive = problem.primitive
    length = primitive.recv_count(problem, rank)
    aliasing = primitive.aliasing(problem, rank) if problem.in_place or primitive.one_buffer else None
    if aliasing is None:
        send = None if primitive.one_buffer else data.copy()
        return send, np.full(length, -1, data.dtype), 0
    first, output = aliasing
    recv = np.full(max(first + len(data), output + length), -1, data.dtype)
    recv[first : first + len(data)] = data
    return None, recv, output


def check(algorithm, problem, options, late, layouts=None):
    """Interpret the algorithm on a problem and compare every rank's buffers."""
    ranks = range(problem.nranks)
    if layouts is None:
        layouts = [lay_out(problem, algorithm, rank, options) for rank in ranks]
    for layout in layouts:
        assert_waits(layout)
    inputs = [data_of(problem, rank) for rank in ranks]
    buffers = [buffers_of(problem, rank, inputs[rank]) for rank in ranks]
    before = [recv.copy() for _, recv, _ in buffers]
    interpret(layouts, [one[0] for one in buffers], [one[1] for one in buffers], np.add, late)
    for rank, (send, recv, start) in enumerate(buffers):
        wanted = expected(problem, rank, inputs.__getitem__, np.add)
        wanted = [] if wanted is None else list(wanted)
        count = len(wanted)
        got, rest = recv[start : start + count], np.delete(recv, np.s_[start : start + count])
        if problem.primitive.combines and not algorithm.keeps_order:
            got, wanted = ([sorted(str(word).split(";")) for word in words] for words in (got, wanted))
        where = f"{algorithm.primitive.name} {algorithm.label}, {problem}, {options}, late={late}: rank {rank}"
        assert list(got) == wanted, where
        assert list(rest) == list(np.delete(before[rank], np.s_[start : start + count])), f"{where} wrote elsewhere"
        if send is not None:
            assert list(send) == list(inputs[rank]), f"{where} changed its input"


def counts_worth_trying(nranks):
    return list(dict.fromkeys((0, 1, nranks - 1, nranks, nranks + 1, 3 * nranks + 2, 40)))


def cases_of(algorithm):
    """Problems of 1 to 17 ranks, all roots of few, with counts, in place and options dealt out in turn."""
    primitive = algorithm.primitive
    turn = 0
    few = primitive.name.endswith("v") or algorithm.takes_nodes  # the same rounds, or slow ones
    few = few or algorithm.shares_memory(primitive.problem(2, 2))  # where each rank follows all others
    for nranks in (1, 2, 3, 5, 8, 9) if few else range(1, 18):
        counts = counts_worth_trying(nranks)
        roots = range(nranks) if primitive.rooted and nranks <= 9 else {0, nranks - 1} if primitive.rooted else (0,)
        for root in roots:
            for _ in range(max(1, (7 if nranks <= 9 else 1) // len(roots))):
                more = {
                    "root": root,
                    "in_place": turn % 3 == 2 and has_in_place(primitive, nranks),
                    "counts": uneven_counts(primitive, nranks, turn),
                }
                count = counts[turn % len(counts)] if more["counts"] is None else int(np.sum(more["counts"]))
                yield primitive.problem(nranks, count, **more), OPTIONS[turn % len(OPTIONS)], turn % 2 == 1
                turn += 1


@pytest.mark.parametrize("algorithm", ALL, ids=name_of)
def test_every_layout_does_what_numpy_does(algorithm):
    for problem, options, late in cases_of(algorithm):
        if not algorithm.unmet(problem):
            check(algorithm, problem, options, late)


@settings(max_examples=80)
@given(cases(), st.booleans(), st.integers(1, 100))
def test_any_layout_does_what_numpy_does(case, late, landing):
    assume(not case.problem.primitive.synchronises)
    assume(not case.algorithm.unmet(case.problem))
    check(case.algorithm, case.problem, replace(Options.of(case.algorithm, 4, case.cap), landing=landing), late)


# Layouts that are broken, each in one way. Ranks run in turn, each as far as it can, rank 0 first.

BREAKABLE = [(allreduce, "ring"), (allreduce, "recursive_doubling"), (allgather, "bruck"), (reduce_scatter, "spread")]
BREAKABLE += [(alltoall, "bruck"), (broadcast, "chain")]
pairs = pytest.mark.parametrize(("primitive", "name"), BREAKABLE, ids=lambda one: getattr(one, "name", one))


def laid_out(primitive, name, options):
    algorithm, problem = primitive.find(name), primitive.problem(4, 37, root=3 if primitive.rooted else 0)
    return algorithm, problem, [lay_out(problem, algorithm, rank, options) for rank in range(4)]


def first(layout, kind, meets=lambda one: True):
    return next(index for index, one in enumerate(layout.program) if isinstance(one, kind) and meets(one))


def without(layout, index):
    return replace(layout, program=[one for place, one in enumerate(layout.program) if place != index])


def assert_seen(algorithm, problem, layouts):
    """Expect that early or late movement of data shows that `layouts` are wrong."""
    with pytest.raises((AssertionError, TypeError, ValueError)):  # TypeError: a word was added to unwritten scratch
        for late in (False, True):
            check(algorithm, problem, None, late, layouts)


@pairs
def test_a_layout_that_leaves_a_wait_out_is_seen(primitive, name):
    algorithm, problem, whole = laid_out(primitive, name, Options())
    for rank in range(4):
        for index, instruction in enumerate(whole[rank].program):
            if isinstance(instruction, Wait):
                layouts = [without(one, index) if place == rank else one for place, one in enumerate(whole)]
                assert_seen(algorithm, problem, layouts)


@pairs
def test_a_layout_whose_message_takes_the_wrong_elements_is_seen(primitive, name):
    algorithm, problem, layouts = laid_out(primitive, name, Options())
    rank = 3  # has something to send in each of them
    index = next(index for index, one in enumerate(layouts[rank].transfers) if one.outgoing)
    sent = layouts[rank].transfers[index]
    moved = tuple(one._replace(start=one.start + 1, stop=one.stop + 1) for one in sent.regions)
    if moved[0].stop > 37:
        moved = tuple(one._replace(start=one.start - 1, stop=one.stop - 1) for one in sent.regions)
    transfers = [*layouts[rank].transfers]
    transfers[index] = sent._replace(regions=moved)
    layouts[rank] = replace(layouts[rank], transfers=transfers)
    assert_seen(algorithm, problem, layouts)


@pairs
def test_a_layout_that_leaves_an_instruction_out_is_seen(primitive, name):
    algorithm, problem, whole = laid_out(primitive, name, PACKED)
    for rank in range(4):
        for index, instruction in enumerate(whole[rank].program):
            if isinstance(instruction, (Start, Move, Fold)):
                layouts = [without(one, index) if place == rank else one for place, one in enumerate(whole)]
                assert_seen(algorithm, problem, layouts)


def test_what_is_never_started_is_a_deadlock():
    algorithm, problem, layouts = laid_out(allreduce, "ring", Options())
    layouts[2] = without(layouts[2], first(layouts[2], Start))
    with pytest.raises(Deadlock, match="waits for ever at Wait"):
        check(algorithm, problem, None, False, layouts)


def test_ends_of_different_lengths_are_named():
    algorithm, problem, layouts = laid_out(allreduce, "recursive_doubling", Options())
    transfers = [*layouts[1].transfers]
    index = next(index for index, one in enumerate(transfers) if one.outgoing)
    (region,) = transfers[index].regions
    transfers[index] = transfers[index]._replace(regions=(region._replace(stop=region.stop - 1),))
    layouts[1] = replace(layouts[1], transfers=transfers)
    with pytest.raises(ValueError, match=r"rank 1 sends .* to .* of rank 0"):
        check(algorithm, problem, None, False, layouts)


def test_a_send_that_is_overwritten_before_it_is_waited_for_shows_if_data_moves_late():
    """Why both are tried: a library that copies at once hides this fault, one that does not is disturbed by it."""
    problem = broadcast.problem(2, 4, root=1)
    receiver, sender = (lay_out(problem, broadcast.find("linear"), rank, Options()) for rank in range(2))
    (region,) = sender.transfers[0].regions
    sender = replace(sender, program=[Start((0,)), Move(region._replace(stop=2), region._replace(start=2)), Wait((0,))])
    for late, wanted in ((False, [5, 6, 7, 8]), (True, [5, 6, 5, 6])):
        arrays = [np.zeros(4, int), np.array([5, 6, 7, 8])]
        interpret([receiver, sender], [None, None], arrays, np.add, late)
        assert list(arrays[0]) == wanted


def test_a_region_outside_its_buffer_is_named():
    _, _, layouts = laid_out(allreduce, "recursive_doubling", Options())
    short = [np.zeros(36)] * 4
    with pytest.raises(ValueError, match=r"rank . has no elements 0 to 37 of its send buffer"):
        interpret(layouts, short, [np.zeros(37)] * 4)
