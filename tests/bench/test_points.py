from dataclasses import replace

import pytest

from bench.options import parse
from bench.points import KEY, Point, fingerprint, has_common_result, points
from bench.rows import COLUMNS
from collectives import PRIMITIVES

NAMES = {name: ["native", *primitive.algorithms] for name, primitive in PRIMITIVES.items()}


def swept(line):
    return list(points(parse(line.split(), 4, NAMES)))


def test_the_key_names_columns_and_tells_points_apart():
    assert set(KEY) <= set(COLUMNS)
    every = swept("all -b 8 -e 64 -d float32,int32 --op sum,max --in-place both --memory plain,registered,shared")
    assert len({point.key for point in every}) == len(every)
    assert all(len(point.key) == len(KEY) for point in every)


def test_memories_follow_one_another_at_each_size():
    found = [(point.nbytes, point.memory) for point in swept("allreduce -b 8 -e 64 -f 8 --memory registered,plain")]
    assert found == [(8, "registered"), (8, "plain"), (64, "registered"), (64, "plain")]


def test_a_barrier_has_no_memory():
    assert [point.memory for point in swept("barrier --memory registered,shared")] == ["plain"]


def test_memory_is_part_of_what_ranks_agree_on():
    one, other = swept("allreduce -b 8 -e 8 --memory plain,registered")
    assert fingerprint(one, ["native"]) != fingerprint(other, ["native"])
    assert "registered memory" in str(other) and "memory" not in str(one)


@pytest.mark.parametrize(
    "change", [{"count": 3}, {"dtype": "int32"}, {"op": "max"}, {"primitive": PRIMITIVES["reduce"]}], ids=str
)
def test_ranks_agree_on_all_that_makes_a_point(change):
    (point,) = swept("allreduce -b 8 -e 8")
    assert fingerprint(replace(point, **change), ["native"]) != fingerprint(point, ["native"])
    assert fingerprint(point, ["native", "ring"]) != fingerprint(point, ["native"])


@pytest.mark.parametrize("name", [name for name in PRIMITIVES if name != "barrier"])
def test_what_leaves_all_ranks_the_same_can_be_shared_on_a_node(name):
    primitive = PRIMITIVES[name]
    same = name in ("broadcast", "allgather", "allgatherv", "allreduce")
    assert has_common_result(primitive) == same
    reason = Point(primitive, 16, "float32", "sum", 0, memory="shared").unmet(4)
    assert (reason is None) == same
    assert same or f"{name} leaves ranks different results" in reason
