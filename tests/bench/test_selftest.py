import pytest

from bench.selftest import Cell, verdict, within_promise


def cells(claimed, others):
    return [Cell("p", "a", 1.02, 0.01)] * claimed + [Cell("p", "a", 0.99, 0.5)] * others


def test_the_promise_is_one_in_twenty_give_or_take_chance():
    assert within_promise(cells(0, 100))
    assert within_promise(cells(5, 95))
    assert within_promise(cells(10, 90))
    assert not within_promise(cells(11, 89))
    assert within_promise(cells(66, 934))  # of more cells a smaller share is within chance
    assert not within_promise(cells(67, 933))


def test_the_verdict_counts_claims_and_says_how_far_ratios_are_from_1():
    assert verdict(cells(1, 19)) == [
        "# a difference was claimed in 1 of 20 cells (5.0%)",
        "# |ratio - 1|: median 1.00%, 95th percentile 1.00%",
        "# OK",
    ]
    assert verdict(cells(20, 20))[-1].startswith("# FAILED")
    assert verdict([]) == ["# no cell was measured"]


@pytest.mark.launch
def test_the_self_test_measures_contenders_against_themselves(launch):
    result = launch(2, "-m", "bench.selftest", "allreduce", "-a", "ring", "-b", "8", "-e", "64", "-f", "8", "-n", "30")
    lines = result.out.splitlines()
    assert [line.split()[3] for line in lines if not line.startswith("#")] == ["native", "ring"] * 2
    assert " of 4 cells " in result.out
    assert result.status == (0 if lines[-1] == "# OK" else 1)


@pytest.mark.launch
def test_the_doctor_has_a_line_for_each_finding(launch):
    result = launch(2, "-m", "bench.doctor")
    assert result.status == 0, result.err
    lines = result.out.splitlines()
    assert lines[0].startswith("# ")
    assert {line.split()[0] for line in lines[1:]} <= {"ok", "warn"}
    assert len(lines) == 9


@pytest.mark.launch
@pytest.mark.parametrize("says_so", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_the_doctor_fails_where_ranks_belong_to_another_mpi(alone, says_so):
    result = alone("-m", "bench.doctor", **{says_so: "8"})
    assert result.status == 1
    assert "the launcher started 8 ranks and MPI sees 1" in result.out
