"""The check of a machine's GPU, on the stand-in, and without any."""

import json
import os
import sys
from pathlib import Path

import pytest

from bench.gpu_check import PARTS, Report
from bench.probes import probe
from tests.waiting import HANG_S

STANDIN = str(Path(__file__).parents[1] / "standin")
ALLOWED = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

pytestmark = pytest.mark.launch


def check(alone, mpirun, results, *words, **environment):
    return alone("-m", "bench.gpu_check", "--mpirun", mpirun, "--results", results, *words, **environment)


def test_without_a_gpu_it_is_one_sentence_and_status_2(alone, mpirun, tmp_path):
    ended = check(alone, mpirun, tmp_path, PYTHONPATH=STANDIN, STANDIN_GPUS="0")
    assert ended.status == 2
    (line,) = ended.err.splitlines()
    assert line.startswith("bench.gpu_check: cannot use 'gpu' for the check (no GPU is visible")
    assert list(tmp_path.iterdir()) == []


def test_probes_see_what_works_and_survive_what_crashes(alone, mpirun, tmp_path):
    ended = check(alone, mpirun, tmp_path, "--part", "ipc", PYTHONPATH=STANDIN)
    assert ended.status == 0, ended.err
    lines = (tmp_path / "gpu-stand-in" / "ipc.txt").read_text().splitlines()
    assert lines[0] == "CUDA IPC between two ranks: works"
    assert len(lines) == 10
    # The stand-in's memory faults when MPI touches it, as a GPU's does under an MPI that knows nothing of GPUs.
    assert all("handed to MPI: ended with status" in line for line in lines[1:9])
    assert lines[9] == "NCCL between two ranks: works"
    assert (tmp_path / "gpu-stand-in.tar").exists()
    assert json.loads((tmp_path / "gpu-stand-in" / "gpu.json").read_text())["name"] == "stand-in"


@pytest.mark.usefixtures("c_compiler")
def test_figures_are_measured_against_the_ceilings_of_the_same_machine(alone, mpirun, tmp_path):
    # Times of the stand-in mean nothing, so what is reached is of no interest here.
    words = ("--part", "figures", "--nbytes", "65536", "--ranks", "3")
    ended = check(alone, mpirun, tmp_path, *words, PYTHONPATH=STANDIN)
    assert ended.status in (0, 1), ended.err
    folder = tmp_path / "gpu-stand-in"
    ceilings = [json.loads(line) for line in (folder / "ceilings.jsonl").read_text().splitlines()]
    assert [one["nranks"] for one in ceilings] == [3]
    assert all(value > 0 for one in ceilings for value in one.values())
    told = (folder / "figures.txt").read_text()
    assert told.count("over native staged the plain way") == 1
    assert told.count("share of the slower of link and rounds on the host") == 1
    assert told.count("window: share of the bound of its memory") == 1
    assert told.count("window: over the floor") == 1
    assert told.count("window: over the library's call, staged") == 5
    kept = [json.loads(line) for line in (folder / "windows.jsonl").read_text().splitlines()]
    assert [(one["nranks"], one["nbytes"]) for one in kept] == [(3, 65536), (3, 8)]
    assert (ended.status == 1) == ("MISSED" in told)


def test_what_fails_is_told_in_the_end(tmp_path, capsys):
    report = Report(tmp_path / "gpu-x", "mpirun", 1)
    report.say("tests", "all right")
    report.say("tests", "something failed", good=False)
    assert report.failed == ["tests: something failed"]
    assert (tmp_path / "gpu-x" / "tests.txt").read_text() == "all right\nsomething failed\n"
    assert capsys.readouterr().out == "all right\nsomething failed\n"
    assert list(PARTS) == ["ipc", "figures", "tests", "sweep"]


def test_a_probe_that_does_not_end_is_ended(tmp_path):
    sleeper = tmp_path / "mpirun"
    sleeper.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    sleeper.chmod(0o755)
    assert probe(str(sleeper), "ipc", limit=0.5) == "did not end within 0.5 s"


def test_an_nccl_that_hangs_is_told(mpirun):
    environ = {**os.environ, **ALLOWED, "PYTHONPATH": STANDIN, "STANDIN_NCCL": "hangs", "STANDIN_GPUS": "2"}
    assert probe(mpirun, "nccl", limit=3, environ=environ) == "did not end within 3 s"
    assert probe(mpirun, "nccl", limit=HANG_S, environ={**environ, "STANDIN_NCCL": ""}) == ""


def test_a_launcher_that_is_not_there_is_told():
    assert probe("/nowhere/mpirun", "ipc") == "/nowhere/mpirun cannot be started: No such file or directory"
