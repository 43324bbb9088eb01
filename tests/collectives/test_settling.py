"""Layouts whose messages MPI takes from a GPU: right for every algorithm, and no message meets unfinished work."""

import numpy as np
import pytest

from collectives import PRIMITIVES
from collectives.cutting import Options
from collectives.interpret import interpret
from collectives.layout import Layout, lay_out
from collectives.program import Fold, Mark, Move, Settle, Start, Sync, Wait
from collectives.reference import expected
from collectives.settling import settle
from collectives.staging import synchronisations
from tests.collectives.test_staging import arrays_of, every_algorithm, values_of

PIECES = Options(piece=4, cap=6, cuts=2, pack_from=1, small=3, align=1)
"""Everything is cut into small pieces, and packed."""


def problems(primitive, nranks):
    if not primitive.name.endswith("v"):
        for in_place in (False, True):
            problem = primitive.problem(
                nranks, 12 * nranks, root=nranks - 1 if primitive.rooted else 0, in_place=in_place
            )
            if not in_place or any(primitive.aliasing(problem, rank) for rank in range(nranks)):
                yield problem


def settled_layouts(primitive, algorithm, options=PIECES):
    for nranks in range(1, 6):
        for problem in problems(primitive, nranks):
            if not algorithm.unmet(problem):
                yield problem, [settle(lay_out(problem, algorithm, rank, options)) for rank in range(nranks)]


@every_algorithm
def test_every_layout_gives_the_right_result(primitive, algorithm):
    for problem, layouts in settled_layouts(primitive, algorithm):
        send, recv, starts = zip(*(arrays_of(problem, rank) for rank in range(problem.nranks)), strict=True)
        interpret(layouts, send, recv, np.add, True)
        for rank in range(problem.nranks):
            wanted = expected(problem, rank, lambda one, p=problem: values_of(p, one), np.add)
            if wanted is not None:
                np.testing.assert_array_equal(recv[rank][starts[rank] :][: len(wanted)], wanted)


@every_algorithm
def test_no_message_starts_before_the_work_on_what_it_touches_is_done(primitive, algorithm):
    for _, layouts in settled_layouts(primitive, algorithm):
        for layout in layouts:
            # Before the call there may be work on anything; a mark is of all work that is in the queue by then.
            queued, done, marks = [None], 0, {}
            for one in layout.program:
                if isinstance(one, (Move, Fold)):
                    queued.append((one[:-1], one[-1:]))
                elif isinstance(one, Mark):
                    marks[one.number] = len(queued)
                elif isinstance(one, Settle):
                    done = marks[one.number]
                elif isinstance(one, Start):
                    for work in queued[done:]:
                        assert work is not None, f"{one} does not wait for the caller's own work"
                        for transfer in (layout.transfers[number] for number in one.transfers):
                            touched = [*work[1], *([] if transfer.outgoing else work[0])]
                            assert not any(region.overlaps(other) for region in transfer.regions for other in touched)
            assert done == len(queued)  # the call ends complete


@pytest.mark.parametrize("nranks", range(2, 9))
def test_the_host_waits_once_before_each_message_of_what_the_gpu_has_made(nranks):
    allreduce = PRIMITIVES["allreduce"]
    layout = settle(lay_out(allreduce.problem(nranks, 100 * nranks), allreduce.find("ring"), 0))
    # For the caller's own work, then for each of the sums; what the all-gather receives is passed on as it is.
    assert synchronisations(layout) == nranks
    assert layout.host_count == 0


def test_a_call_without_messages_ends_complete():
    allreduce = PRIMITIVES["allreduce"]
    layout = settle(lay_out(allreduce.problem(1, 10), allreduce.find("ring"), 0))
    assert [type(one) for one in layout.program] == [Move, Mark, Settle]


def test_shared_memory_is_no_message():
    problem = PRIMITIVES["barrier"].problem(2, 0)
    with pytest.raises(TypeError, match="shared memory is no message"):
        settle(Layout(problem, 0, [], [Sync((0, 1))], 0, 1))


def test_what_mpi_takes_from_a_gpu_is_packed_rather_than_described():
    algorithm = PRIMITIVES["alltoall"].find("bruck")
    assert Options.of(algorithm, 4, 1 << 30, on_device=True).pack_from == 1
    assert Options.of(algorithm, 4, 1 << 30, on_device=True, through_host=True).pack_from > 1
    problem = PRIMITIVES["alltoall"].problem(8, 800)
    layout = lay_out(problem, algorithm, 3, Options.of(algorithm, 4, 1 << 30, on_device=True))
    assert all(len(one.regions) == 1 for one in layout.transfers)
    assert Wait in map(type, layout.program)
