from fractions import Fraction

import pytest

from bench.options import parse
from bench.strategy_options import SHORT, StrategyOptions, trainings
from bench.usage import UsageError
from strategies.cases import OWN_AXES, STRATEGIES

ALGORITHMS = {"broadcast": ("native", "binomial"), "allreduce": ("native", "ring"), "allgather": ("native", "ring")}


def options(line, nranks=4):
    return parse(line.split(), nranks, ALGORITHMS).strategies


def refusal(line, nranks=4):
    with pytest.raises(UsageError) as error:
        trainings(options(line, nranks), nranks)
    return str(error.value)


def test_a_plain_sweep_with_defaults_replays_a_short_part_and_one_with_names_none():
    assert options("") == SHORT
    assert options("allreduce") is None
    assert options("-a ring") is None


def test_strategies_alone_sweep_no_primitive():
    assert parse(["--strategy", "tensor"], 4, ALGORITHMS).primitives == ()
    assert parse(["--strategy", "tensor", "allreduce"], 4, ALGORITHMS).primitives == ("allreduce",)
    assert parse(["--strategy", "tensor", "-a", "ring"], 4, ALGORITHMS).algorithms == ("ring",)


def test_every_option_has_its_place():
    line = (
        "--strategy hybrid,context --variant zigzag --model llama3-8b --mesh ulysses=2,cp=2 --order llama3 "
        "--placement ring-inner --batch 2 --seq 512 --micro-batches 4 --virtual-stages 3 --routing zipf:1.5 "
        "--scale-bytes 1/64 --overlap"
    )
    assert options(line) == StrategyOptions(
        ("hybrid", "context"),
        variant="zigzag",
        model="llama3-8b",
        mesh="ulysses=2,cp=2",
        order="llama3",
        placement="ring-inner",
        batch=2,
        seq=512,
        micro_batches=4,
        virtual_stages=3,
        routing="zipf:1.5",
        scale=Fraction(1, 64),
        overlap=True,
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--strategy tensr", "unknown strategy 'tensr' for --strategy"),
        ("--strategy tensor --model llama9", "'llama9' for --model"),
        ("--strategy tensor --mesh tp=3", "'tp=3' for --mesh (4 ranks do not divide"),
        ("--strategy tensor --mesh tp", "'tp' for --mesh"),
        ("--strategy tensor --mesh sp=4", "'sp=4' for --mesh"),
        ("--strategy tensor --mesh dp=4", "'tensor' for --strategy (tensor needs one of the axes tp"),
        ("--strategy tensor --order tp-xx", "'tp-xx' for --order"),
        ("--strategy tensor --placement outer", "unknown placement 'outer' for --placement"),
        ("--strategy tensor --variant fast", "'fast' for --variant"),
        ("--strategy tensor --batch 0", "'0' for --batch"),
        ("--strategy tensor --seq -1", "'-1' for --seq"),
        ("--strategy tensor --micro-batches x", "'x' for --micro-batches"),
        ("--strategy pipeline --virtual-stages 2", "virtual_stages=2"),
        ("--strategy expert --routing zipf", "'zipf' for --routing"),
        ("--strategy tensor --scale-bytes 0", "'0' for --scale-bytes"),
        ("--strategy tensor --scale-bytes 1/0", "'1/0' for --scale-bytes"),
        ("--strategy tensor --scale-bytes half", "'half' for --scale-bytes"),
        ("--strategy context --seq 10", "10 tokens do not divide"),
        ("--strategy expert --model llama3-8b", "llama3-8b has no experts"),
        ("--mesh tp=4", "'tp=4' for --mesh (goes with --strategy"),
        ("allreduce --overlap", "for --overlap (goes with --strategy"),
        ("--strategy tensor --resume DIR", "for --resume"),
        ("--strategy tensor --ppn 2", "'2' for --ppn"),
        ("--strategy tensor --memory registered", "'registered' for --memory"),
    ],
)
def test_bad_input_names_option_value_and_remedy(line, says):
    assert says in refusal(line)


def test_of_all_strategies_those_that_do_not_fit_are_skipped_with_the_reason():
    found = {one.strategy: one for one in trainings(options("--strategy all --mesh tp=2,cp=2"), 4)}
    assert set(found) == set(STRATEGIES)
    assert not found["tensor"].reason
    assert not found["context"].reason
    assert not found["hybrid"].reason
    assert "ep" in found["expert"].reason
    assert "pp" in found["pipeline"].reason


@pytest.mark.parametrize("nranks", [2, 4])
def test_without_a_mesh_each_strategy_has_all_ranks_on_its_own_axis(nranks):
    for one in trainings(options("--strategy all", nranks), nranks):
        if one.reason:
            assert one.strategy == "hybrid"
            assert "--mesh" in one.reason
        else:
            assert one.mesh.nranks == nranks
            assert one.mesh.length("repeat") == 1
            assert one.strategy == "hybrid" or one.mesh.length(OWN_AXES[one.strategy][0]) == nranks


def test_every_strategy_has_axes_of_its_own():
    assert set(OWN_AXES) == set(STRATEGIES)
