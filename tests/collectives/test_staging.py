"""Layouts staged through the host: right for every algorithm, and nothing crosses twice. No MPI and no GPU."""

from collections import Counter

import numpy as np
import pytest

from collectives import PRIMITIVES
from collectives.cutting import Options
from collectives.interpret import interpret
from collectives.layout import Layout, lay_out
from collectives.program import After, Fold, Mark, Move, Settle, Start, Wait
from collectives.reference import expected
from collectives.regions import HOST, RECV, Region
from collectives.staging import COMPUTE, IN, OUT, Intervals, copies, lane_of, stage, synchronisations

ALGORITHMS = [
    (primitive, algorithm)
    for primitive in PRIMITIVES.values()
    for algorithm in primitive.algorithms.values()
    if not algorithm.shares_memory(primitive.problem(2, 2))
]
every_algorithm = pytest.mark.parametrize(
    ("primitive", "algorithm"), ALGORITHMS, ids=[f"{one.name}-{other.name}" for one, other in ALGORITHMS]
)
PIECES = Options(piece=4, cap=6, cuts=2, pack_from=8, small=3, align=1)
"""Everything is cut into small pieces."""


def values_of(problem, rank):
    position = np.arange(problem.primitive.send_count(problem, rank))
    return (position * 3 + rank * 7) % 5 + 1


def problems(primitive, nranks):
    counts = None
    if primitive.name == "alltoallv":
        counts = tuple(tuple((3 * one + 5 * other) % 4 for other in range(nranks)) for one in range(nranks))
    elif primitive.name.endswith("v"):
        counts = tuple((7 * rank + 3) % 5 for rank in range(nranks))
    for root in dict.fromkeys([0, nranks - 1]) if primitive.rooted else [0]:
        for in_place in (False, True):
            count = sum(map(np.sum, counts)) if counts else 12 * nranks if in_place else 13 * nranks + 1
            if counts is None and not primitive.vector:
                count = 12 * nranks
            problem = primitive.problem(nranks, int(count), root=root, counts=counts, in_place=in_place)
            if not in_place or any(primitive.aliasing(problem, rank) for rank in range(nranks)):
                yield problem


def arrays_of(problem, rank):
    primitive = problem.primitive
    aliasing = primitive.aliasing(problem, rank) if problem.in_place or primitive.one_buffer else None
    own, nrecv = values_of(problem, rank), primitive.recv_count(problem, rank)
    if aliasing is None:
        return own, np.full(nrecv, 99), 0
    recv = np.full(max(len(own) + aliasing[0], nrecv + aliasing[1]), 99)
    recv[aliasing[0] : aliasing[0] + len(own)] = own
    return None, recv, aliasing[1]


@every_algorithm
@pytest.mark.parametrize("overlapped", [False, True], ids=["one lane", "three lanes"])
def test_every_staged_layout_gives_the_right_result(primitive, algorithm, overlapped):
    for nranks in range(1, 6):
        for problem in problems(primitive, nranks):
            if algorithm.unmet(problem):
                continue
            options = PIECES if overlapped else Options()
            layouts = [stage(lay_out(problem, algorithm, rank, options), overlapped) for rank in range(nranks)]
            for late in (False, True):
                send, recv, starts = zip(*(arrays_of(problem, rank) for rank in range(nranks)), strict=True)
                interpret(layouts, send, recv, np.add, late)
                for rank in range(nranks):
                    wanted = expected(problem, rank, lambda one, p=problem: values_of(p, one), np.add)
                    if wanted is not None:
                        np.testing.assert_array_equal(recv[rank][starts[rank] :][: len(wanted)], wanted)


@every_algorithm
def test_messages_touch_the_host_alone_and_all_is_settled_in_the_end(primitive, algorithm):
    for problem in problems(primitive, 4):
        if algorithm.unmet(problem):
            continue
        for overlapped in (False, True):
            layout = stage(lay_out(problem, algorithm, 1, PIECES), overlapped)
            assert {region.buffer for one in layout.transfers for region in one.regions} <= {HOST}
            assert Order(layout, overlapped).open == set()


class Order:
    """What may be under way when: raises if a message, a copy or a kernel meets work that it should come after."""

    def __init__(self, layout, overlapped):
        self.open = set()
        self.known = {lane: set() for lane in (COMPUTE, OUT, IN)}  # for each lane what its next work comes after
        works, marks, messages = [], {}, set()
        for one in layout.program:
            if isinstance(one, Mark):
                marks[one.number] = {n for n, (lane, *_) in enumerate(works) if lane == one.lane} | self.known[one.lane]
            elif isinstance(one, After):
                self.known[one.lane] |= marks[one.number]
            elif isinstance(one, Settle):
                self.open -= marks[one.number]
                for known in self.known.values():
                    known |= marks[one.number]
            elif isinstance(one, (Move, Fold)):
                lane = lane_of(one) if isinstance(one, Move) and overlapped else COMPUTE
                reads, writes = one[:-1], one[-1:]
                for number in self.open - self.known[lane]:
                    other, its_reads, its_writes = works[number]
                    assert other == lane or not clash(reads, writes, its_reads, its_writes), (one, works[number])
                for transfer in messages:
                    ends = layout.transfers[transfer].regions
                    both = ((), ends) if not layout.transfers[transfer].outgoing else (ends, ())
                    assert not clash(reads, writes, *both), (one, layout.transfers[transfer])
                self.open.add(len(works))
                works.append((lane, reads, writes))
            elif isinstance(one, Start):
                for transfer in one.transfers:
                    ends = layout.transfers[transfer].regions
                    both = (ends, ()) if layout.transfers[transfer].outgoing else ((), ends)
                    for number in self.open:
                        assert not clash(*both, *works[number][1:]), (layout.transfers[transfer], works[number])
                messages |= set(one.transfers)
            elif isinstance(one, Wait):
                messages -= set(one.transfers)


def clash(reads, writes, its_reads, its_writes):
    pairs = ((writes, its_writes), (writes, its_reads), (reads, its_writes))
    return any(mine.overlaps(theirs) for some, others in pairs for mine in some for theirs in others)


@every_algorithm
def test_no_element_that_did_not_change_crosses_twice(primitive, algorithm):
    for problem in problems(primitive, 4):
        if algorithm.unmet(problem):
            continue
        for rank in range(4):
            layout = stage(lay_out(problem, algorithm, rank, Options()), False)
            same = set()  # elements that the host has as the GPU has them
            for one in layout.program:
                if isinstance(one, Move) and HOST in (one.source.buffer, one.target.buffer):
                    here = one.source if one.target.buffer == HOST else one.target
                    elements = {(here.buffer, index) for index in range(here.start, here.stop)}
                    if one.target.buffer == HOST:
                        assert not elements & same, one
                    same |= elements
                elif isinstance(one, (Move, Fold)):
                    into = one[-1]
                    same -= {(into.buffer, index) for index in range(into.start, into.stop)}


@pytest.mark.parametrize("nranks", range(2, 9))
def test_the_ring_copies_each_round_once_out_and_once_in_and_passes_on_what_arrived(nranks):
    allreduce = PRIMITIVES["allreduce"]
    problem = allreduce.problem(nranks, 100 * nranks)
    layout = stage(lay_out(problem, allreduce.find("ring"), 0), False)
    # Reduce-scatter: a chunk out and one in each round. All-gather: the own chunk out once, one in each round.
    assert copies(layout) == (nranks - 1 + 1, 2 * (nranks - 1))
    assert synchronisations(layout) == nranks + 1  # before each send of what the GPU has made, and at the end
    assert Counter(map(type, layout.program))[Fold] == nranks - 1


def test_what_is_sent_to_all_is_copied_out_once():
    allgather = PRIMITIVES["allgather"]
    for rank in range(5):
        layout = stage(lay_out(allgather.problem(5, 50), allgather.find("spread"), rank), False)
        # What arrived is copied in at once, the blocks below the own one and those above it.
        assert copies(layout) == (1, 1 if rank in (0, 4) else 2)
        assert synchronisations(layout) == 2


def test_a_chunk_that_is_only_passed_on_stays_on_the_host():
    scatter = PRIMITIVES["scatter"]
    layout = stage(lay_out(scatter.problem(8, 80), scatter.find("binomial"), 4), False)
    copied = [one for one in layout.program if isinstance(one, Move)]
    assert len(copied) == 1
    assert copied[0].source.buffer == HOST
    assert copied[0].target == Region(RECV, 0, 10)
    assert synchronisations(layout) == 1


def test_a_layout_without_messages_stays_on_the_gpu():
    allreduce = PRIMITIVES["allreduce"]
    layout = stage(lay_out(allreduce.problem(1, 10), allreduce.find("ring"), 0), False)
    assert layout.host_count == 0
    assert [type(one) for one in layout.program] == [Move, Mark, Settle]


def test_shared_memory_cannot_be_staged():
    from collectives.program import Sync

    problem = PRIMITIVES["barrier"].problem(2, 0)
    with pytest.raises(TypeError, match="shared memory cannot be staged"):
        stage(Layout(problem, 0, [], [Sync((0, 1))], 0, 1), False)


def test_intervals_are_a_set_of_elements():
    rng, some, elements = np.random.default_rng(3), Intervals(), set()
    for _ in range(300):
        start, stop = sorted(rng.integers(0, 40, 2).tolist())
        if rng.random() < 0.5:
            some.remove(start, stop)
            elements -= set(range(start, stop))
        elif start < stop:
            some.add(start, stop)
            elements |= set(range(start, stop))
        assert {index for low, high in some.intervals for index in range(low, high)} == elements
        window = set(range(5, 30))
        assert {i for low, high in some.within(5, 30) for i in range(low, high)} == elements & window
        assert {i for low, high in some.lacking(5, 30) for i in range(low, high)} == window - elements
