"""Layouts of algorithms on shared memory, without MPI: they do what NumPy does, with few copies and small slots."""

from collections import defaultdict
from itertools import combinations, product

import pytest

from collectives import allgather, allreduce, alltoall, broadcast, reduce, reduce_scatter
from collectives.count import count as counted_of
from collectives.cutting import Options
from collectives.exposure import Exposure
from collectives.interpret import interpret
from collectives.layout import Unshareable, lay_out
from collectives.program import Fold, Move, Reduce, Start, Sync
from collectives.proof import proved_ranks
from collectives.reference import expected
from collectives.regions import Region
from collectives.rounds import Fence, as_rounds
from tests.collectives.test_interpret import buffers_of, check, data_of, has_in_place
from tests.collectives.test_windowed import WINDOWED, name_of

SHARED = [frozenset(), frozenset({"send"}), frozenset({"recv"}), frozenset({"send", "recv"})]


@pytest.mark.parametrize("algorithm", [one for one in WINDOWED if not one.primitive.synchronises], ids=name_of)
def test_every_layout_on_any_memory_does_what_numpy_does(algorithm):
    primitive = algorithm.primitive
    turn = 0
    for nranks, shared in product((1, 2, 3, 5, 8), SHARED):
        for count in (0, 1, nranks + 1, 40):
            root = turn % nranks if primitive.rooted else 0
            in_place = turn % 3 == 0 and has_in_place(primitive, nranks)
            problem = primitive.problem(nranks, count, root=root, in_place=in_place)
            for fused in (False, True) if primitive.combines else (False,):
                check(algorithm, problem, Options(piece=1 + 7 * (turn % 2), shared=shared, fused=fused), turn % 4 >= 2)
            turn += 1


def instructions(primitive, name, nranks, rank, **options):
    problem = primitive.problem(nranks, 8 * nranks)
    return lay_out(problem, primitive.find(name), rank, Options(**options))


def test_registered_memory_is_neither_copied_in_nor_out():
    both = frozenset({"send", "recv"})
    layout = instructions(allreduce, "window", 4, 1, shared=both)
    assert layout.shared_count == 0
    assert not any(isinstance(one, Start) for one in layout.program)
    moves = [one for one in layout.program if isinstance(one, Move)]
    assert {one.source.buffer for one in moves} == {"recv"}
    assert {one.target.buffer for one in moves} == {(2, "recv"), (3, "recv"), (0, "recv")}
    layout = instructions(allgather, "window_pull", 4, 1, shared=both)
    assert {one.source.buffer for one in layout.program if isinstance(one, Move)} == {
        "send", (2, "send"), (3, "send"), (0, "send")
    }  # fmt: skip


def test_plain_memory_is_copied_in_once_for_others_and_out_once():
    layout = instructions(allgather, "window_pull", 4, 1)
    assert layout.shared_count == 8
    moves = [one for one in layout.program if isinstance(one, Move)]
    assert [one.target.buffer for one in moves].count("shared") == 1
    assert len(moves) == 5
    layout = instructions(reduce_scatter, "window", 4, 1)
    assert layout.shared_count == 24  # not the own block, which nobody else reads


def test_what_was_combined_is_written_to_all_while_it_is_in_cache():
    layout = instructions(allreduce, "window", 3, 0, shared=frozenset({"send", "recv"}), piece=4)
    kinds = [type(one) for one in layout.program]
    assert kinds == [Sync, *([Fold] * 2 + [Move] * 2) * 2, Sync]


def test_an_own_block_is_copied_while_it_is_in_cache_for_others():
    layout = instructions(allgather, "window", 4, 1, shared=frozenset({"send", "recv"}), piece=4)
    moves = [one for one in layout.program if isinstance(one, Move)]
    assert [(one.source.start, one.target.buffer) for one in moves] == [
        *((0, peer) for peer in ((2, "recv"), (3, "recv"), (0, "recv"), "recv")),
        *((4, peer) for peer in ((2, "recv"), (3, "recv"), (0, "recv"), "recv")),
    ]


@pytest.mark.parametrize("primitive", [allreduce, reduce, broadcast], ids=lambda one: one.name)
def test_a_pipeline_needs_slots_for_two_segments_however_many_there_are(primitive):
    for segments in (4, 8, 16):
        algorithm = primitive.find(f"window_pipelined:segments={segments}")
        layouts = [lay_out(primitive.problem(4, 64 * segments), algorithm, rank) for rank in range(4)]
        assert max(one.shared_count for one in layouts) == 2 * 64


def faults_between_fences(layouts):
    """List two accesses of different ranks to elements that peers access, one of them a write, in the same step."""
    found = []
    uses = defaultdict(list)  # by step and buffer: (rank, whether it writes, start, stop)
    for layout in layouts:
        step = 0
        for one in layout.program:
            step += isinstance(one, Sync)
            if isinstance(one, (Move, Fold, Reduce)):
                *read, written = (*one.operands, one.targets) if isinstance(one, Reduce) else (*one[:-1], one[-1:])
                for region in (*read, *written):
                    owner, name = region.buffer if isinstance(region.buffer, tuple) else (layout.rank, region.buffer)
                    uses[step, owner, name].append((layout.rank, region in written, region.start, region.stop))
    for place, of_place in uses.items():
        for (one, writes, start, stop), (other, also, first, last) in combinations(of_place, 2):
            if one != other and (writes or also) and max(start, first) < min(stop, last):
                found.append((place, one, other))
    return found


@pytest.mark.parametrize("algorithm", WINDOWED, ids=name_of)
@pytest.mark.parametrize("shared", SHARED, ids=lambda one: "-".join(sorted(one)) or "plain")
def test_between_two_fences_memory_has_one_writer_or_readers(algorithm, shared):
    for nranks, root in proved_ranks(algorithm, 5):
        for in_place in (False, True):
            problem = algorithm.primitive.problem(nranks, 7 * nranks, root=root, in_place=in_place)
            if algorithm.unmet(problem) or (in_place and not has_in_place(algorithm.primitive, nranks)):
                continue
            options = Options(piece=5, shared=shared, fused=nranks % 2 == 0)
            assert not faults_between_fences([lay_out(problem, algorithm, rank, options) for rank in range(nranks)])


def test_a_slot_that_is_used_again_too_early_is_found(monkeypatch):
    steps = Exposure._steps_of
    monkeypatch.setattr(Exposure, "_steps_of", lambda self, owner, chunk: (steps(self, owner, chunk)[0],) * 2)
    algorithm, problem = allreduce.find("window_pipelined:segments=4"), allreduce.problem(3, 48)
    assert faults_between_fences([lay_out(problem, algorithm, rank) for rank in range(3)])
    with pytest.raises(AssertionError):
        for late in (False, True):
            check(algorithm, problem, Options(), late)


def test_fused_it_is_one_instruction_that_reads_and_writes_once():
    both = frozenset({"send", "recv"})
    layout = instructions(allreduce, "window", 3, 0, shared=both, piece=4, fused=True)
    reduction = Reduce(
        (Region("send", 0, 8), Region((1, "send"), 0, 8), Region((2, "send"), 0, 8)),
        (Region("recv", 0, 8), Region((1, "recv"), 0, 8), Region((2, "recv"), 0, 8)),
    )
    everyone = Sync((0, 1, 2))
    assert layout.program == [everyone, reduction, everyone]
    assert layout.scratch_count == 0
    pulled = instructions(allreduce, "window_pull", 3, 0, shared=both, fused=True)
    assert [type(one) for one in pulled.program] == [Sync, Reduce, Sync, Move, Move, Sync]
    assert pulled.program[1] == reduction._replace(targets=reduction.targets[:1])
    counted = counted_of(allreduce.find("window"), allreduce.problem(3, 24), Options(fused=True))
    assert [one.combined_count for one in counted.ranks] == [16, 16, 16]


def test_what_is_no_reduction_is_not_fused():
    for primitive in (broadcast, allgather, alltoall):
        assert instructions(primitive, "window", 3, 1, fused=True) == instructions(primitive, "window", 3, 1)


def test_one_receive_buffer_for_all_is_written_once():
    everything = frozenset({"send", "recv"})
    cases = (allreduce, "window"), (allreduce, "window_pull"), (allgather, "window")
    for (primitive, name), fused in product(cases, (False, True)):
        algorithm, problem = primitive.find(name), primitive.problem(3, 17)
        options = Options(piece=2, shared=everything, common=True, fused=fused)
        layouts = [lay_out(problem, algorithm, rank, options) for rank in range(3)]
        inputs = [data_of(problem, rank) for rank in range(3)]
        common = buffers_of(problem, 0, inputs[0])[1]
        for late in (False, True):
            common[:] = -1
            interpret(layouts, [one.copy() for one in inputs], [common] * 3, late=late)
            assert list(common) == list(expected(problem, 0, inputs.__getitem__))
        program = [one for layout in layouts for one in layout.program]
        written = [one.target for one in program if isinstance(one, Move)]
        written += [one.into for one in program if isinstance(one, Fold)]
        written += [target for one in program if isinstance(one, Reduce) for target in one.targets]
        assert any(isinstance(one, Fold) for one in program) == (primitive is allreduce and not fused)
        counts = [one.stop - one.start for one in written if one.buffer != "scratch"]
        assert sum(counts) == 17


@pytest.mark.parametrize(("primitive", "name"), [(allreduce, "window_one_shot"), (allgather, "window_pull")])
def test_one_receive_buffer_for_all_is_refused_where_several_would_write_it(primitive, name):
    options = Options(shared=frozenset({"send", "recv"}), common=True)
    with pytest.raises(Unshareable, match="ranks 0 and 1 would both write"):
        lay_out(primitive.problem(3, 12), primitive.find(name), 0, options)


def test_in_place_blocks_that_peers_still_read_are_not_overwritten():
    everything = frozenset({"send", "recv"})
    for primitive in (alltoall, reduce_scatter):
        for name in [one.name for one in WINDOWED if one.primitive is primitive]:
            for late in (False, True):
                check(primitive.find(name), primitive.problem(4, 16, in_place=True), Options(shared=everything), late)


def test_a_layout_without_its_first_fence_reads_too_early():
    algorithm, problem = broadcast.find("window_pull"), broadcast.problem(3, 6)
    layouts = [lay_out(problem, algorithm, rank) for rank in range(3)]
    for layout in layouts:
        layout.program.remove(next(one for one in layout.program if isinstance(one, Sync)))
    with pytest.raises(AssertionError, match="rank"):
        check(algorithm, problem, Options(), True, layouts)


def test_rounds_without_accesses_expose_nothing():
    layout = lay_out(allreduce.problem(4, 16), allreduce.find("ring"), 0, Options(shared=SHARED[3]))
    assert layout.shared_count == 0
    assert layout.groups == ()
    assert as_rounds(allreduce.find("window").rounds(allreduce.problem(2, 4), 0))[0] == (Fence([0, 1]),)
