"""Where chunks lie: few copies, little scratch, and nothing overwritten that is still needed."""

from itertools import product

import pytest

from collectives import allgather, allreduce, alltoall, reduce_scatter
from collectives.cutting import Options
from collectives.layout import lay_out
from collectives.program import Fold, Move, Wait
from collectives.regions import RECV, SCRATCH, SEND, Region
from tests.collectives.test_layout import ALL, laid_out, of_kind


def test_a_first_reduction_reads_the_input_and_writes_the_output():
    for layout in laid_out(allreduce, "ring", 4, 40):
        folds = of_kind(layout, Fold)
        assert len(folds) == 3
        assert not of_kind(layout, Move)
        assert {one.into.buffer for one in folds} == {RECV}
        assert all({one.left.buffer, one.right.buffer} == {SEND, SCRATCH} for one in folds)


def test_an_in_place_call_copies_nothing():
    for primitive, name in ((allgather, "bruck"), (allreduce, "ring"), (allreduce, "rabenseifner")):
        for layout in laid_out(primitive, name, 4, 40, in_place=True):
            assert not of_kind(layout, Move)
            assert SEND not in {one.buffer for transfer in layout.transfers for one in transfer.regions}


@pytest.mark.parametrize("name", ["ring", "recursive_doubling", "rabenseifner"])
def test_scratch_does_not_grow_with_the_rounds(name):
    for nranks in (2, 4, 8, 16):
        for layout in laid_out(allreduce, name, nranks, 4096, Options(piece=128)):
            assert layout.scratch_count <= 4096 + 2 * 128


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
