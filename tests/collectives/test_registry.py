import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import PRIMITIVES, allgather, allreduce, alltoall, broadcast, reduce_scatter
from collectives.registry import (
    COMMUTATIVE,
    EVEN,
    POWER_OF_TWO,
    Primitive,
    UnknownNameError,
    blocks,
    consecutive,
    find,
    offsets,
    own_block,
    rank_block,
)
from collectives.rounds import Recv, Send

ALL = [algorithm for primitive in PRIMITIVES.values() for algorithm in primitive.algorithms.values()]


def name_of(algorithm):
    return f"{algorithm.primitive.name}-{algorithm.name}"


def test_the_seeds_primitives_are_there_with_the_algorithms_that_define_them():
    wanted = {
        "broadcast": "binomial linear scatter_allgather chain",
        "scatter": "binomial linear",
        "gather": "binomial linear",
        "reduce": "binomial linear rabenseifner",
        "allgather": "recursive_doubling ring bruck spread gather_broadcast",
        "allreduce": "ring recursive_doubling rabenseifner spread reduce_broadcast",
        "reduce_scatter": "ring pairwise recursive_halving spread reduce_then_scatter",
        "alltoall": "pairwise spread bruck",
        "sendrecv_pingpong": "",
        "sendrecv_stream": "",
        "sendrecv_exchange": "",
        "sendrecv_ring": "",
        "barrier": "dissemination linear",
    }
    assert set(wanted) <= set(PRIMITIVES)
    for name, algorithms in wanted.items():
        assert set(algorithms.split()) <= set(PRIMITIVES[name].algorithms)


@pytest.mark.parametrize("algorithm", ALL, ids=name_of)
def test_every_algorithm_says_in_a_sentence_what_it_does(algorithm):
    assert algorithm.summary.endswith(".")
    assert algorithm.label == algorithm.name
    assert algorithm.primitive.find(algorithm.name) == algorithm
    assert algorithm.primitive.find(algorithm) is algorithm


@given(st.integers(0, 10_000), st.integers(1, 100))
def test_blocks_differ_by_one_element_at_most_and_the_first_are_longer(count, nblocks):
    cut = blocks(count, nblocks)
    assert len(cut) == nblocks
    assert sum(cut) == count
    assert sorted(cut, reverse=True) == list(cut)
    assert cut[0] - cut[-1] <= 1
    assert offsets(cut) == tuple(sum(cut[:index]) for index in range(nblocks))


def test_consecutive_cuts_where_numbers_do_not_follow_one_another():
    assert list(consecutive([6, 7, 0, 1, 2, 5])) == [(0, 2), (2, 5), (5, 6)]
    assert list(consecutive([(0, 1), (0, 2)])) == [(0, 1), (1, 2)]
    assert list(consecutive([4])) == [(0, 1)]


def test_counts_of_buffers_follow_from_the_contract():
    uneven = allgather.problem(4, 73)
    assert uneven.block_counts == (19, 18, 18, 18)
    assert not uneven.even
    assert [allgather.send_count(uneven, rank) for rank in range(4)] == [19, 18, 18, 18]
    assert allgather.recv_count(uneven, 2) == 73
    assert [reduce_scatter.recv_count(reduce_scatter.problem(4, 73), rank) for rank in range(4)] == [19, 18, 18, 18]
    assert broadcast.send_count(broadcast.problem(3, 5, root=1), 0) == 0
    assert broadcast.recv_count(broadcast.problem(3, 5, root=1), 0) == 5
    matrix = alltoall.problem(2, 10, counts=((1, 2), (3, 4)))
    assert [alltoall.send_count(matrix, rank) for rank in range(2)] == [3, 7]
    assert [alltoall.recv_count(matrix, rank) for rank in range(2)] == [4, 6]


@pytest.mark.parametrize(
    ("arguments", "more", "message"),
    [
        ((0, 4), {}, "allgather: 0 ranks; at least 1 is needed"),
        ((4, -1), {}, "count -1 is negative"),
        ((4, 4), {"root": 4}, "root 4 is none of the ranks 0 to 3"),
        ((4, 4), {"root": -1}, "root -1 is none of the ranks 0 to 3"),
        ((4, 4), {"counts": (1, 1, 2)}, "3 counts for 4 ranks; give one for each rank"),
    ],
)
def test_what_is_no_problem_is_refused(arguments, more, message):
    with pytest.raises(ValueError, match=message):
        allgather.problem(*arguments, **more)


def test_names_that_do_not_exist_are_answered_with_those_that_do():
    with pytest.raises(UnknownNameError, match=r"allreduce has no algorithm 'rink' \(it has: .*ring"):
        allreduce.find("rink")
    with pytest.raises(UnknownNameError, match=r"has no parameter 'parts' \(it has: segments"):
        broadcast.find("chain:parts=3")
    with pytest.raises(UnknownNameError, match="'segments' is not a parameter; write it as name=value"):
        broadcast.find("chain:segments")
    with pytest.raises(UnknownNameError, match=r"there is no primitive 'allredux' \(there are: broadcast"):
        find("allredux")


@pytest.mark.parametrize("value", ["0", "-2", "many", "1.5"])
def test_a_parameter_that_does_not_fit_is_refused(value):
    with pytest.raises(ValueError, match=f"chain:segments={value} is not a whole number of at least 1"):
        broadcast.find(f"chain:segments={value}")


def test_a_way_of_waiting_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="ring:waits=never is"):
        allreduce.find("ring:waits=never")


def test_parameters_are_taken_and_told():
    four = broadcast.find("chain:segments=4")
    assert four.parameters == {"segments": 4}
    assert four.nchunks(5) == 4
    assert four.label == "chain:segments=4"
    assert broadcast.find("chain:segments=16").label == "chain"
    told = broadcast.find("chain:segments=4:waits=round:piece=1024")
    assert told.how == {"waits": "round", "piece": 1024}
    assert broadcast.find(told.label) == told
    assert broadcast.find("chain").parameters == {"segments": 16}  # the registered one is as it was


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


def test_an_algorithm_is_one_generator_and_nothing_else():
    pair = Primitive(
        "pair", inputs=own_block, outputs=lambda problem, rank, nchunks: [1 - rank], chunk_count=rank_block, native=None
    )

    @pair.algorithm(waits="data")
    def swap(rank, nranks, lanes: int = 2):
        """Swap the blocks of two ranks."""
        yield Send(1 - rank, rank), Recv(1 - rank, 1 - rank)

    found = pair.find("swap:lanes=3")
    assert (found.name, found.parameters, found.waits) == ("swap", {"lanes": 3}, "data")
    assert found.summary == "Swap the blocks of two ranks."
    assert list(found.rounds(pair.problem(2, 2), 1)) == [(Send(0, 1), Recv(0, 0))]


def test_problems_travel_between_ranks():
    problem = alltoall.problem(2, 10, counts=((1, 2), (3, 4)), in_place=True)
    assert pickle.loads(pickle.dumps(problem)) == problem


def test_the_core_is_used_without_mpi():
    code = (
        "import sys; from collectives import PRIMITIVES, count, explain, interpret, layout, proof;"
        "proof.prove(PRIMITIVES['allreduce'].find('ring'), 4);"
        "sys.exit(any(name == 'mpi4py.MPI' or name in ('pandas', 'matplotlib') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
