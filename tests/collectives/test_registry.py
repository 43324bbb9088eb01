import subprocess
import sys

import pytest

from collectives import PRIMITIVES, broadcast
from collectives.contracts import own_block, rank_block
from collectives.registry import Primitive
from collectives.rounds import Recv, Send

ALL = [algorithm for primitive in PRIMITIVES.values() for algorithm in primitive.algorithms.values()]


def name_of(algorithm):
    return f"{algorithm.primitive.name}-{algorithm.name}"


def test_the_usual_primitives_are_there_with_the_algorithms_that_define_them():
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


def test_the_core_is_used_without_mpi():
    code = (
        "import sys; from collectives import PRIMITIVES, count, explain, interpret, layout, proof;"
        "proof.prove(PRIMITIVES['allreduce'].find('ring'), 4);"
        "sys.exit(any(name == 'mpi4py.MPI' or name in ('pandas', 'matplotlib') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
