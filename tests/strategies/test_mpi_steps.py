"""Every step gives what the one-process step gives, and makes the calls that its traffic tells."""

import pytest

from strategies import audit, passes
from strategies.audit import ALGORITHMS, run_case, verdicts
from strategies.cases import STRATEGIES, cases

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_results_and_calls_are_equal(comm, strategy):
    ran = 0
    for case in cases(comm.Get_size()):
        if case.strategy == strategy:
            row, seen = run_case(comm, case, ALGORITHMS)
            assert (row.traffic, row.results, row.moved) == ("equal", "equal", "equal"), (case, row)
            assert row.ok, row
            if strategy == "pipeline" and comm.Get_size() > 1:
                wanted = audit.ideal_bubble(comm.Get_size(), 2 * comm.Get_size(), case.job.virtual_stages)
                assert row.bubble == str(wanted)
            assert (row.calls > 0) == bool(seen) == (comm.Get_size() > 1 and bool(case.mesh.spec))
            ran += 1
    # On a prime number of ranks there is no mesh of two axes for some.
    assert ran or strategy == "hybrid"


def few_ranks(comm):
    if comm.Get_size() > 4:
        pytest.skip("shown with up to 4 ranks, which have the same variants")


def test_native_calls_give_the_same(comm):
    few_ranks(comm)
    for case in cases(comm.Get_size()):
        if case.strategy in ("sequence", "expert"):
            row, _ = run_case(comm, case, {})
            assert row.ok and row.moved == "hidden", row


def test_a_step_asks_nothing_of_its_traffic(comm, monkeypatch):
    """While steps run, all that tells traffic raises."""
    few_ranks(comm)

    def forbidden(*arguments, **options):
        raise AssertionError("a step asked its traffic")

    chosen = {}
    for case in cases(comm.Get_size()):
        chosen.setdefault((case.strategy, case.job.variant), case)
    helpers = ["on", "repeated", "alone", "walk", "synchronise", "tied_embedding", "fill", "broadcasts", "Ready"]
    helpers += [name for module in STRATEGIES.values() for name in vars(module) if name.endswith("Calls")]
    for module in (*STRATEGIES.values(), passes):
        for name in {*helpers, "traffic", "decode_traffic", "Passes"} & set(vars(module)):
            monkeypatch.setattr(module, name, forbidden)
    for case in chosen.values():
        with case.mesh as mesh:
            case.module.step(case.job, audit.Wire(comm, mesh))


def test_command_writes_tables_and_verdicts(comm, tmp_path, monkeypatch, capsys):
    folder = comm.bcast(str(tmp_path))
    assert audit.main(["--strategy", "pipeline,context", "--output", folder]) == 0
    if comm.Get_rank() == 0:
        text = (tmp_path / "audit.md").read_text()
        lines = (tmp_path / "audit.csv").read_text().splitlines()
        assert len(lines) == 1 + sum(case.strategy in ("pipeline", "context") for case in cases(comm.Get_size()))
        assert lines[0].startswith("strategy,variant,mesh,order,nranks,model")
        if comm.Get_size() > 1:
            assert "| Pipeline Parallel | sendrecv | sendrecv | right |" in text
            assert (
                "| Context Parallel | allgather, sendrecv | allgather, reduce_scatter, sendrecv | incomplete |" in text
            )
        assert "right only for ring-inner, inside attention, contiguous (1 of 8)" in text
    comm.Barrier()


@pytest.mark.parametrize("options", [["--strategy", "magic"], ["--algorithms", "fast"], ["--what"]])
def test_options_that_make_no_sense_are_refused_on_one_rank(comm, options, capsys):
    assert audit.main(options) == 2
    written = capsys.readouterr().err
    assert ("error:" in written and written.count("\n") == 1) if comm.Get_rank() == 0 else written == ""


def test_verdicts_over_all_strategies(comm):
    if comm.Get_size() != 4:
        return
    seen = {}
    for case in cases(4):
        with case.mesh as mesh:
            wire = audit.Wire(comm, mesh)
            case.module.step(case.job, wire)
            mine = {(call.phase, call.primitive) for call in wire.calls}
        for one in comm.allgather(mine):
            seen.setdefault(case.strategy, set()).update(one)
    judged = {name: verdict for name, _, _, verdict, _ in verdicts(seen)}
    assert judged["Data Parallel"] == judged["Tensor Parallel"] == judged["Context Parallel"] == "incomplete"
    assert judged["MoE"] == "incomplete"
    assert judged["Pipeline Parallel"] == "right"
    assert judged["Sequence Parallel"] == "wrong"
