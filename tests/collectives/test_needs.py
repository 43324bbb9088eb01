from collectives import PRIMITIVES, allgather, allreduce
from collectives.needs import COMMUTATIVE, EVEN, POWER_OF_TWO


def test_needs_are_data_and_named():
    doubling = allgather.find("recursive_doubling")
    assert POWER_OF_TWO in doubling.needs
    assert doubling.unmet(allgather.problem(8, 8)) is None
    assert doubling.unmet(allgather.problem(6, 6)) == (
        "recursive_doubling needs a number of ranks that is a power of two"
    )
    ring = allreduce.find("ring")
    assert ring.unmet(allreduce.problem(3, 8)) is None
    assert ring.unmet(allreduce.problem(3, 8), commutative=False) == f"ring needs {COMMUTATIVE.words}"
    assert allreduce.find("recursive_doubling").unmet(allreduce.problem(3, 8), commutative=False) is None
    assert PRIMITIVES["sendrecv_stream"].unmet(PRIMITIVES["sendrecv_stream"].problem(1, 8)) == (
        "sendrecv_stream needs at least two ranks"
    )
    assert [EVEN.met(allgather.problem(n, n), True) for n in (1, 2, 3, 4)] == [True, True, False, True]
