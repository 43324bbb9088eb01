from contextlib import AbstractContextManager, nullcontext

import pytest

from bench.contenders import Contender, greedy, labels
from bench.options import parse
from bench.usage import UsageError
from collectives import PRIMITIVES, allreduce

NAMES = {name: ["native", "native_persistent", *primitive.algorithms] for name, primitive in PRIMITIVES.items()}


def chosen(line, primitive):
    return labels(PRIMITIVES[primitive], parse(line.split(), 4, NAMES))


def test_all_algorithms_compete_the_baseline_first():
    assert chosen("", "broadcast")[:3] == [
        "native",
        "native_persistent",
        next(iter(PRIMITIVES["broadcast"].algorithms)),
    ]
    assert set(PRIMITIVES["scatter"].algorithms) <= set(chosen("", "scatter"))


def test_what_goes_by_nodes_competes_where_there_are_several():
    everyone = labels(PRIMITIVES["broadcast"], parse([], 4, NAMES), nnodes=2)
    assert set(everyone) - set(chosen("", "broadcast")) == {
        name for name, one in PRIMITIVES["broadcast"].algorithms.items() if one.takes_nodes
    }
    assert "two_level" in everyone
    assert chosen("-a two_level", "broadcast") == ["native", "two_level"]


def test_the_baseline_competes_unasked():
    assert chosen("-a binomial", "broadcast") == ["native", "binomial"]


def test_an_algorithm_of_another_primitive_leaves_the_baseline_alone():
    assert chosen("-a binomial", "allreduce") == ["native"]


def test_parameters_are_part_of_the_name_and_defaults_are_not():
    assert chosen("-a chain:segments=2|16", "broadcast")[1:] == [
        f"chain:segments={segments}" if segments != PRIMITIVES["broadcast"].algorithms["chain"].defaults["segments"]
        else "chain"
        for segments in (2, 16)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("-a ring:x", "invalid value 'ring:x' for --algorithm ('x' is not a parameter; write it as name=value"),
        ("-a ring:depth=2", "has no parameter 'depth'"),
        ("-a ring:waits=never", "is not one of round, data"),
        ("-a ring:piece=0", "is not a whole number of at least 1"),
        ("-a ring:piece=12Y", "is not a whole number of at least 1"),
    ],
)
def test_a_parameter_that_does_not_fit_is_refused_with_the_reason(line, says):
    with pytest.raises(UsageError) as error:
        chosen(line, "allreduce")
    assert says in str(error.value)


def test_all_competes_beside_what_is_named():
    assert set(chosen("-a all,chain:segments=3", "broadcast")) == {*chosen("", "broadcast"), "chain:segments=3"}


class Armed(AbstractContextManager):
    """A plan that must be armed; it tells which are."""

    def __init__(self, armed):
        self.told = armed

    def armed(self):
        return self

    def __enter__(self):
        self.told.append(self)

    def __exit__(self, *exception):
        self.told.remove(self)


def test_all_plans_of_a_contender_are_armed_and_disarmed_again_as_often_as_needed():
    armed = []
    plans = [Armed(armed), Armed(armed)]
    context = Contender("native:ring", plans).armed()
    for _ in range(2):
        with pytest.raises(KeyError), context:
            assert armed == plans
            raise KeyError
        assert armed == []


def test_where_one_plan_cannot_be_armed_none_stays_armed():
    class Refusing(Armed):
        def __enter__(self):
            raise LookupError

    armed = []
    context = Contender("native:ring", [Armed(armed), Refusing(armed)]).armed()
    for _ in range(2):
        with pytest.raises(LookupError), context:
            pass
        assert armed == []


def test_what_needs_no_arming_costs_no_context():
    class Plain:
        def armed(self):
            return nullcontext()

    armed = []
    for plans in ([], [Plain()], [Plain(), Plain()], [object()]):
        assert isinstance(Contender("ring", plans).armed(), nullcontext)
    one = Armed(armed)
    assert Contender("native:ring", [Plain(), one]).armed() is one


def test_what_wants_many_vectors_of_scratch_is_not_measured_unasked():
    problem = allreduce.problem(8, 4 << 20)
    assert "needs 8 times the vector as scratch; name it" in greedy(problem, "allgather_reduce", 4)
    assert greedy(problem, "allgather_reduce:allgather=spread", 4)
    assert greedy(allreduce.problem(2, 4 << 20), "allgather_reduce", 4) is None
    assert greedy(allreduce.problem(8, 1 << 10), "allgather_reduce", 4) is None
    assert all(greedy(problem, name, 4) is None for name in ("native", "ring", "window", "native:ring"))
