"""Every step on tensors of a GPU, or of the stand-in where there is none: the same results, and the same calls."""

import numpy as np
import pytest

from strategies import audit
from strategies.audit import ALGORITHMS, run_case
from strategies.cases import STRATEGIES, cases
from strategies.mesh import Mesh
from strategies.record import Wire

pytestmark = pytest.mark.mpi


@pytest.fixture(autouse=True)
def on_a_gpu(gpu, comm):
    if hasattr(gpu, "machine") and comm.Get_size() > 4:
        pytest.skip("on the stand-in steps take minutes with more than 4 ranks")
    return gpu


def chosen(comm, gpu):
    """The cases; on the stand-in with 4 ranks only those on several axes, which fewer ranks do not have."""
    n = comm.Get_size()
    return [one for one in cases(n) if n < 4 or not hasattr(gpu, "machine") or "," in one.mesh.spec]


def device_arrays(value, found):
    """Collect what kinds of arrays are in results."""
    for piece in value.pieces:
        found.add(type(piece.value).__module__.split(".")[0])
    return found


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_results_and_calls_are_those_of_the_host(comm, gpu, strategy):
    ran = 0
    for case in chosen(comm, gpu):
        if case.strategy == strategy:
            row, _ = run_case(comm, case, ALGORITHMS, "cuda")
            assert (row.traffic, row.results, row.moved) == ("equal", "equal", "equal"), (case, row)
            assert row.ok, row
            ran += 1
    assert ran or comm.Get_size() >= 4


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_record_is_the_same_list_and_results_lie_on_the_device(comm, strategy):
    case = next((one for one in cases(comm.Get_size()) if one.strategy == strategy), None)
    if case is None:
        pytest.skip("no mesh of several axes on so few ranks")
    records = []
    for device in ("cpu", "cuda"):
        with case.mesh as mesh:
            wire = Wire(comm, mesh, ALGORITHMS, device)
            result = case.module.step(case.job, wire)
        records.append(wire.records)
        assert device_arrays(result, set()) == {"numpy" if device == "cpu" else "cupy"}
    assert records[0] == records[1]


def test_native_calls_give_the_same(comm, gpu):
    for case in chosen(comm, gpu):
        if case.strategy in ("sequence", "expert"):
            row, _ = run_case(comm, case, {}, "cuda")
            assert row.ok and row.moved == "hidden", row


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_comes_to_the_host_but_what_is_asked_for(comm, standin, strategy):
    """In one process: the loss, and for experts how many tokens each of them gets."""
    if comm.Get_size() > 1:
        return
    counts = standin.machine.counts
    for case in cases(1):
        if case.strategy == strategy:
            counts.clear()
            with case.mesh as mesh:
                case.module.step(case.job, Wire(comm, mesh, ALGORITHMS, "cuda"))
            asked = 0 if case.job.variant == "decode" else 1
            if strategy == "expert" and case.job.variant != "pad":
                moe_layers = sum(case.job.model.is_moe(layer) for layer in range(case.job.model.layers))
                asked += case.job.micro_batches * moe_layers
            assert counts["device to host"] == counts["synchronisations"] == asked


def test_a_step_begins_after_the_callers_work_and_in_the_callers_stream(comm, gpu):
    """What lies in a stream beside the default one is neither overtaken nor left behind."""
    n = comm.Get_size()
    with Mesh({"tp": n}) as mesh:
        for algorithms in ({}, ALGORITHMS):
            wire = Wire(comm, mesh, algorithms, "cuda")
            tensors = [gpu.zeros((n, 4)) for _ in range(3)]
            gpu.cuda.get_current_stream().synchronize()
            with gpu.cuda.Stream(non_blocking=True) as side:
                for one in tensors:
                    one.fill(wire.rank + 1)  # not even begun when the calls are made
                summed = wire.allreduce("tp", tensors[0])
                shifted = wire.shift("tp", tensors[1])
                exchanged = wire.alltoall("tp", tensors[2])
                wire.finish()
                if n > 1:  # else the result is the same array
                    tensors[0].fill(0)
                results = [one.get(stream=side) for one in (summed, shifted, exchanged)]
            left = (wire.rank - 1) % n + 1
            everyone = np.repeat(np.arange(1.0, n + 1)[:, None], 4, axis=1)
            np.testing.assert_array_equal(results[0], np.full((n, 4), n * (n + 1) / 2))
            np.testing.assert_array_equal(results[1], np.full((n, 4), float(left)))
            np.testing.assert_array_equal(results[2], everyone)


def test_command_runs_on_the_device(comm, standin, tmp_path):
    folder = comm.bcast(str(tmp_path))
    assert audit.main(["--strategy", "tensor,pipeline", "--device", "cuda", "--output", folder]) == 0
    assert standin.machine.counts["kernels"]
    comm.Barrier()


def test_a_gpu_that_is_not_there_is_one_sentence_and_status_2(comm, standin, monkeypatch, capsys):
    monkeypatch.setattr(standin.machine, "visible", [])
    assert audit.main(["--device", "cuda"]) == 2
    written = capsys.readouterr().err
    if comm.Get_rank() == 0:
        assert written.count("\n") == 1
        assert "cannot use 'cuda' for --device (rank 0: no GPU is visible" in written
    else:
        assert written == ""
