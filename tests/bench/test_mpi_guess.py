"""Which of the library's own algorithms its default is taken for; what is seen is made up."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

import collectives.forcing
from bench.guess import distance, guess
from bench.points import Point
from bench.samples import Samples
from collectives import PRIMITIVES

pytestmark = pytest.mark.mpi


def samples(*seconds, turns=None):
    times = np.array([seconds], float)
    return Samples(times, np.zeros_like(times), np.arange(len(seconds)) if turns is None else np.array(turns))


@pytest.fixture
def looks(monkeypatch):
    """Let the default leave the trace of some names; return a list of what was looked at."""

    def make(*names):
        looked = []

        def look(primitive, count, among):
            looked.extend((one.choice.name, count) for one in among)
            return [one.choice.name for one in among if one.choice.name in names]

        found = SimpleNamespace(proofs=SimpleNamespace(guess=look))
        monkeypatch.setattr(collectives.forcing, "forcing_of", lambda comm: found)
        return looked

    return make


def requests(*names):
    primitive = PRIMITIVES["allreduce"]
    return [
        SimpleNamespace(
            label=f"native:{name}", choice=SimpleNamespace(name=name, primitive=primitive, is_form=name == "nb")
        )
        for name in names
    ]


POINT = Point(PRIMITIVES["allreduce"], 512, "float64", "sum", 0)


def test_the_nearest_in_time_that_leaves_its_trace_is_the_guess(looks):
    looked = looks("bruck", "linear")
    assert guess(None, POINT, requests("ring", "bruck", "linear")) == {
        "native_guess": "native:bruck",
        "evidence": "in a call of 4KB it leaves the trace of bruck, not that of ring",
    }
    assert looked == [("ring", 1024), ("bruck", 1024)]  # as many bytes, in float32; no further than needed


def test_the_nearest_of_all_needs_one_look(looks):
    looked = looks("ring")
    assert guess(None, POINT, requests("ring", "bruck"))["evidence"].endswith("trace of ring, the nearest in time")
    assert looked == [("ring", 1024)]


def test_forms_are_looked_at_last_and_nothing_twice(looks):
    looked = looks()
    found = guess(None, POINT, requests("nb", "ring", "ring", "bruck"))
    assert [name for name, _ in looked] == ["ring", "bruck", "nb"]
    assert found == {"evidence": "in a call of 4KB it leaves the trace of none of ring, bruck, nb"}


def test_half_and_double_are_equally_far(looks):
    one = samples(2.0, 2.0, 2.0)
    assert distance(one, one) == 0
    assert distance(one, samples(1.0, 1.0, 1.0)) == pytest.approx(distance(one, samples(4.0, 4.0, 4.0)))


def test_only_turns_of_both_count():
    assert distance(samples(1.0, 8.0, 8.0), samples(1.0, turns=[0])) == 0


def test_what_was_not_measured_is_farthest():
    one = samples(1.0)
    assert distance(one, None) == distance(None, one) == distance(one, samples(1.0, turns=[7])) == math.inf
