import os

import pytest

from bench.cloop import build, find_wrapper
from bench.rows import read_run

SWEEP = ("-m", "bench.sweep", "barrier", "-a", "native", "-n", "5", "--no-plots", "-q", "-o")


@pytest.fixture
def wrapped(tmp_path):
    """Make an environment whose mpicc is a script with this body, and a cache of its own."""

    def make(body):
        wrapper = tmp_path / "bin" / "mpicc"
        wrapper.parent.mkdir(exist_ok=True)
        wrapper.write_text(f"#!/bin/sh\n{body}\n")
        wrapper.chmod(0o755)
        return {"PATH": f"{wrapper.parent}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path / "cache")}

    return make


@pytest.fixture
def nothing_beside(monkeypatch):
    monkeypatch.setattr("sys.executable", "/nowhere/python")


def test_without_a_wrapper_the_reason_is_told(nothing_beside):
    assert build({"PATH": "/nowhere"}).reason == "there is no mpicc beside this Python nor in the PATH"


def test_a_wrapper_that_fails_is_told_with_what_it_said(nothing_beside, wrapped, tmp_path):
    built = build(wrapped("echo no headers >&2; exit 1"))
    assert built.path is None
    assert built.reason.endswith("mpicc failed: no headers")
    assert [path.name for path in (tmp_path / "cache").rglob("*")] == ["collbench"]


def test_what_was_built_is_built_once_and_again_for_another_wrapper(nothing_beside, wrapped, tmp_path):
    log = tmp_path / "log"
    body = f'echo built >>{log}; for word; do last=$word; done; : >"$last"'
    first = build(wrapped(body))
    assert build(wrapped(body + " # rewritten")).path != first.path
    assert first.path.exists()
    environment = {**wrapped(body), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    again = build(environment)
    assert build(environment) == again
    assert log.read_text().count("built") == 3


def test_a_folder_that_cannot_be_written_is_told(nothing_beside, wrapped):
    environment = {**wrapped("exit 0"), "XDG_CACHE_HOME": "/proc/none"}
    assert "/proc/none" in build(environment).reason


@pytest.mark.launch
def test_a_run_knows_what_mpi4py_adds_or_why_not(launch, tmp_path):
    result = launch(2, *SWEEP, tmp_path / "run", XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert result.status == 0, result.err
    overhead = read_run(tmp_path / "run")["overhead"]
    if find_wrapper(os.environ) is None:
        assert overhead["mpi4py_us"] is None
        assert "no mpicc" in overhead["mpi4py_unknown"]
    else:
        assert overhead["mpi4py_us"] is not None
        assert overhead["c_call_us"] > 0


@pytest.mark.launch
def test_without_a_compiler_a_run_goes_on_and_says_what_it_does_not_know(launch, tmp_path):
    # The cache cannot be written, so nothing is built, whatever there is.
    result = launch(2, *SWEEP, tmp_path / "run", XDG_CACHE_HOME="/proc/none")
    assert result.status == 0, result.err
    overhead = read_run(tmp_path / "run")["overhead"]
    assert (overhead["mpi4py_us"], overhead["c_call_us"]) == (None, None)
    assert overhead["mpi4py_unknown"]
