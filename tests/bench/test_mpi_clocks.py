"""Clocks of several hosts, made up on one machine: each runs from another moment and at another speed.

Where MPI sees several hosts that are network namespaces of one machine (tests/cluster), messages between them take
their time, but they share one clock like everything else under one kernel: skew is put in there too.
"""

from pathlib import Path
from time import perf_counter

import pytest

from bench.clocks import SAME, Clocks, Look, Relation, best_look, relation
from bench.job import Job
from bench.start import Deadline
from collectives import barrier

pytestmark = pytest.mark.mpi


BOOT = Path("/proc/sys/kernel/random/boot_id")
"""The same under one kernel, whatever hosts are pretended."""


def skewed(number):
    """The clock of rank or host r is 10 r s ahead and gains 50 ppm x r; that of the first is the machine's."""
    return lambda: (perf_counter() + 10.0 * number) * (1 + 5e-5 * number)


def spin(seconds):
    deadline = perf_counter() + seconds
    while perf_counter() < deadline:
        pass


def within_the_error(clocks, now):
    """Whether the own clock, shown as rank 0's, is what the machine's clock is just then."""
    before, mine, after = perf_counter(), now(), perf_counter()
    shown = clocks.relation.shared(mine)
    # Drift that is not yet known exactly adds little to the error within so short a time.
    slack = 2 * clocks.relation.error + 1e-6
    return before - slack <= shown <= after + slack


def test_on_one_host_the_clock_is_the_same(comm):
    if Job(comm).nnodes > 1:
        pytest.skip("MPI sees several hosts")
    clocks = Clocks(comm)
    clocks.look()
    assert clocks.relation == SAME
    clocks.free()


def test_the_clocks_of_hosts_are_related_within_the_error_that_is_shown(comm):
    now = skewed(comm.Get_rank())
    clocks = Clocks(comm, now, one_host=False)
    spin(0.05)
    clocks.look()
    clocks.free()
    assert within_the_error(clocks, now)
    assert (clocks.relation.error > 0) == (comm.Get_rank() > 0)


def test_the_clocks_of_hosts_that_mpi_tells_apart_are_related_host_by_host(comm):
    nodes = Job(comm).nodes
    if len(nodes) == 1:
        pytest.skip("MPI sees one host; see tests/cluster")
    if len(set(comm.allgather(BOOT.read_text()))) > 1:
        pytest.skip("the hosts are machines, and no clock tells what is right")
    here = next(number for number, node in enumerate(nodes) if comm.Get_rank() in node)
    now = skewed(here)
    clocks = Clocks(comm, now)
    spin(0.05)
    clocks.look()
    clocks.free()
    assert within_the_error(clocks, now)
    assert (clocks.relation.error > 0) == (here > 0)
    related = comm.allgather(clocks.relation)
    assert all(related[rank] == related[node[0]] for node in nodes for rank in node)


def test_all_ranks_begin_at_the_instant_or_say_that_they_were_late(comm):
    clocks = Clocks(comm)
    with barrier.plan(comm, algorithm="dissemination") as plan:
        generous, hopeless = Deadline(comm, plan, clocks, lead=0.05), Deadline(comm, plan, clocks, lead=-1.0)
        late = generous()
        began = perf_counter()
        instant = float(generous._instant[0])
        assert late or began >= instant
        assert began - perf_counter() < 1
        assert hopeless() is True
        assert Deadline(comm, plan, clocks).lead > 0
    clocks.free()
    assert len(set(comm.allgather(instant))) == 1


def test_the_quickest_exchange_counts_and_half_of_it_is_the_error():
    look = best_look([(1.0, 105.0, 5.0), (6.0, 107.0, 7.0), (8.0, 109.5, 10.0)])
    assert look == Look(at=6.5, offset=100.5, error=0.5)


def test_drift_is_the_change_of_the_offset_over_the_time_between():
    related = relation(Look(0.0, 10.0, 0.1), Look(100.0, 10.5, 0.1))
    assert related == Relation(offset=10.5, drift=0.005, since=100.0, error=0.1)
    assert related.shared(200.0) == pytest.approx(200 + 10.5 + 0.5)
    assert related.own(related.shared(123.0)) == pytest.approx(123.0)


def test_one_look_knows_no_drift():
    look = Look(3.0, 10.0, 0.1)
    assert relation(look, look) == Relation(10.0, 0.0, 3.0, 0.1)
