from fractions import Fraction

import pytest

from bench.pattern import MESSAGE, all_kinds, imbalance, problem_of, step_of, stride_of
from strategies.cases import STRATEGIES
from strategies.mesh import Mesh
from strategies.models import MODELS
from strategies.traffic import Job, merge, unrolled

TINY = MODELS["tiny"]


def step(strategy, spec, rank=0, scale=1, **job):
    mesh = Mesh(spec)
    traffic = STRATEGIES[strategy].traffic(Job(TINY, **job), mesh, rank)
    return step_of(traffic, mesh, rank, Fraction(scale))


def test_a_step_has_every_call_of_the_traffic_but_those_before_it():
    mesh, job = Mesh("dp=4"), Job(TINY)
    told = list(unrolled(STRATEGIES["data"].traffic(job, mesh, 2)))
    made = step("data", "dp=4", 2)
    assert [call for _, call in made.calls] == [call for call in told if call.phase != "setup"]
    assert {call.phase for call in told} == {"setup", "backward"}
    assert len(made.kinds) == len({call.nbytes for _, call in made.calls})


def test_calls_that_move_the_same_are_one_kind_whatever_they_are_for():
    made = step("tensor", "tp=4")
    sums = [kind for kind in made.kinds if kind.op == "sum"]
    activations = max(sums, key=lambda kind: kind.nbytes)
    assert activations.nbytes == 1024 * 256 * 2
    # The embedding, and two pairs a layer of which those with experts have no second one.
    assert made.times(activations, "forward") == 1 + 2 * 2 + 2
    assert made.times(activations, "backward") == made.times(activations, "forward")
    assert made.times(activations) == 2 * made.times(activations, "forward")


def test_messages_differ_by_their_direction_and_one_sent_and_one_received_make_a_call():
    ring = step("context", "cp=4", 1)
    keys = next(kind for kind in ring.kinds if kind.use == "forward: keys and values")
    part = ring.parts[keys]
    assert (part.send_to, part.receive_from, part.group) == (2, 0, (0, 1, 2, 3))
    assert ring.times(keys) == 3 * TINY.layers

    stages = [step("pipeline", "pp=2", rank, micro_batches=3) for rank in (0, 1)]
    kinds = all_kinds([stage.kinds for stage in stages])
    forward, backward = (next(one for one in kinds if one.use.startswith(phase)) for phase in ("forward", "backward"))
    assert [(one.parts[forward].send_to, one.parts[forward].receive_from) for one in stages] == [(1, None), (None, 0)]
    assert [(one.parts[backward].send_to, one.parts[backward].receive_from) for one in stages] == [(None, 1), (0, None)]
    assert [one.times(forward) for one in stages] == [3, 3]


def test_a_stage_between_two_sends_and_receives():
    middle = step("pipeline", "pp=4", 1, micro_batches=5)
    forward = next(kind for kind in middle.kinds if kind.primitive == MESSAGE and kind.use.startswith("forward"))
    assert (middle.parts[forward].send_to, middle.parts[forward].receive_from) == (2, 0)
    assert middle.times(forward) == 5


def test_all_kinds_are_in_an_order_that_all_ranks_know():
    lists = [step("pipeline", "pp=4", rank).kinds for rank in range(4)]
    kinds = all_kinds(lists)
    assert len(kinds) == len(set(kinds)) == len({kind for one in lists for kind in one})
    assert kinds[: len(lists[0])] == list(lists[0])


def test_scaling_shrinks_every_message():
    whole, small = step("tensor", "tp=4"), step("tensor", "tp=4", scale="1/64")
    assert [call.nbytes for _, call in small.calls] == [call.nbytes // 64 for _, call in whole.calls]


@pytest.mark.parametrize("scale", [1, "1/7"])
def test_counts_of_experts_agree_between_the_ranks_of_a_group(scale):
    steps = [step("expert", "ep=4", rank, scale, routing="zipf:1.5") for rank in range(4)]
    for kind in steps[0].kinds:
        if kind.primitive != "alltoallv":
            continue
        parts = {rank: one.parts[kind] for rank, one in enumerate(steps)}
        problems = [problem_of(kind, parts, rank, 4) for rank in range(4)]
        assert len(set(problems)) == 1
        received = [problems[0].primitive.recv_count(problems[0], rank) for rank in range(4)]
        assert received == [sum(max(n // 4, min(n, 1)) for n in parts[rank].receives) for rank in range(4)]


def test_blocks_are_equal_and_nothing_that_has_bytes_is_left_without_an_element():
    made = step("sequence", "tp=4", scale="1/1000")
    for kind in made.kinds:
        problem = problem_of(kind, {0: made.parts[kind]}, 0, 4)
        assert problem.count >= 1
        assert problem.count * 4 <= max(kind.nbytes, 4)
        if not problem.primitive.vector and problem.count >= 4:
            assert problem.even


def test_the_whole_pattern_has_as_many_calls_as_its_kinds():
    for strategy, spec in (("hybrid", "tp=2,cp=2,pp=2"), ("sharded", "dp=8"), ("sequence", "tp=4,dp=2")):
        for rank in (0, 7):
            made = step(strategy, spec, rank)
            collective = sum(made.times(kind) for kind in made.kinds if kind.primitive != MESSAGE)
            assert collective == sum(call.primitive != MESSAGE for _, call in made.calls)
            assert len(merge(call for _, call in made.calls)) >= len(made.kinds)


def test_stride_and_imbalance():
    assert stride_of((0, 1, 2)) == 1
    assert stride_of((1, 5)) == 4
    assert stride_of((0, 1, 4, 5)) is None
    assert imbalance([10, 10]) == 1
    assert imbalance([30, 0, 0]) == 3
    assert imbalance([0, 0]) is None
