import pytest

from collectives.fallbacks import TABLES, Case, outcome

MIB = 1 << 20


@pytest.mark.parametrize(
    ("function", "name", "case", "becomes"),
    [
        ("Allreduce", "ring", Case(8, 7), "recursive_doubling"),
        ("Allreduce", "ring", Case(8, 8), "ring"),
        ("Allreduce", "segmented_ring", Case(8, MIB), "ring"),
        ("Allreduce", "segmented_ring", Case(8, 7), "recursive_doubling"),
        ("Allreduce", "segmented_ring", Case(8, 8191, 4, parameters={"segsize": 4096}), "ring"),
        ("Allreduce", "segmented_ring", Case(8, 8192, 4, parameters={"segsize": 4096}), "segmented_ring"),
        ("Allreduce", "rabenseifner", Case(7, 3), "basic_linear"),
        ("Allreduce", "rabenseifner", Case(7, 4), "rabenseifner"),
        ("Allreduce", "rabenseifner", Case(4, MIB, commutative=False), "basic_linear"),
        ("Reduce", "rabenseifner", Case(8, 7), "linear"),
        ("Reduce", "rabenseifner", Case(8, MIB, commutative=False), "linear"),
        ("Allgather", "recursive_doubling", Case(6, MIB), "bruck"),
        ("Allgather", "recursive_doubling", Case(8, MIB), "recursive_doubling"),
        ("Allgather", "neighbor", Case(5, MIB), "ring"),
        ("Allgatherv", "neighbor", Case(5, MIB), "ring"),
        ("Allgather", "two_proc", Case(3, MIB), None),
        ("Barrier", "two_proc", Case(4, 0), None),
        ("Alltoall", "two_proc", Case(2, MIB), "two_proc"),
        ("Bcast", "scatter_allgather", Case(8, 7), "basic_linear"),
        ("Bcast", "scatter_allgather_ring", Case(8, 7), "basic_linear"),
        ("Bcast", "split_binary_tree", Case(8, 1), "chain"),
        ("Bcast", "split_binary_tree", Case(8, 1000, 4, parameters={"segsize": 4096}), "chain"),
        ("Bcast", "split_binary_tree", Case(8, 4000, 4, parameters={"segsize": 4096}), "split_binary_tree"),
        ("Bcast", "knomial", Case(8, 9, parameters={"radix": 1}), "binomial"),
        ("Reduce_scatter_block", "recursive_halving", Case(8, 64, commutative=False), "basic_linear"),
        ("Reduce_scatter_block", "butterfly", Case(8, 1 << 31), "basic_linear"),
        ("Alltoall", "pairwise", Case(4, MIB, in_place=True), None),
        ("Barrier", "tree", Case(8, 0), "tree"),
    ],
)
def test_what_open_mpi_runs_instead(function, name, case, becomes):
    effective, why = outcome("openmpi", function, name, case)
    assert effective == becomes
    assert bool(why) == (effective != name)


@pytest.mark.parametrize(
    ("function", "name"),
    [("Allreduce", "ring"), ("Reduce", "binomial"), ("Reduce", "chain"), ("Reduce_scatter", "ring")],
)
def test_open_mpi_does_not_combine_in_a_wrong_order_unnoticed(function, name):
    assert outcome("openmpi", function, name, Case(4, MIB, commutative=False)).effective is None
    assert outcome("openmpi", function, name, Case(4, MIB)).effective == name


@pytest.mark.parametrize(
    ("function", "name", "case"),
    [
        ("Allgather", "recursive_doubling", Case(6, MIB)),
        ("Allreduce", "reduce_scatter_allgather", Case(8, 7)),
        ("Allreduce", "reduce_scatter_allgather", Case(8, MIB, built_in=False)),
        ("Allreduce", "ring", Case(8, MIB, commutative=False)),
        ("Allreduce", "ccl", Case(8, MIB)),
        ("Reduce", "reduce_scatter_gather", Case(8, 7)),
        ("Reduce_scatter_block", "noncommutative", Case(6, MIB)),
        ("Reduce_scatter", "noncommutative", Case(4, 7, even=False)),
        ("Alltoall", "pairwise_sendrecv_replace", Case(4, MIB)),
        ("Alltoall", "brucks", Case(4, MIB, in_place=True)),
    ],
)
def test_mpich_fails_instead_of_running_another(function, name, case):
    effective, why = outcome("mpich", function, name, case)
    assert effective is None
    assert name in why


def test_one_rank_and_no_elements_leave_nothing_to_choose():
    for flavour in TABLES:
        assert outcome(flavour, "Allreduce", "ring", Case(1, MIB)).effective is None
        assert outcome(flavour, "Allreduce", "ring", Case(4, 0)).effective is None


@pytest.mark.parametrize("flavour", TABLES)
def test_what_runs_instead_does_not_become_something_else_again(flavour):
    for entry in TABLES[flavour]:
        for nranks in range(2, 10):
            for count in (1, 2, nranks - 1, nranks, MIB):
                case = Case(nranks, count, 4)
                for name in entry.names:
                    effective = outcome(flavour, entry.function, name, case).effective
                    if effective is not None:
                        assert outcome(flavour, entry.function, effective, case) == (effective, "")


def test_the_reason_names_every_link_of_the_chain():
    why = outcome("openmpi", "Allreduce", "segmented_ring", Case(8, 7)).why
    assert "segmented_ring becomes ring" in why
    assert "ring becomes recursive_doubling" in why
