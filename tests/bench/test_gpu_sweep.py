"""The sweep on GPUs, as people run it, on the stand-in; and what it says where there is none."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpus import Gpu, check_transport, mps_runs, too_large
from bench.pattern_rows import STRATEGIES_FILE, WHOLE, read_patterns
from bench.rows import ROWS_FILE, read_rows, read_run
from bench.usage import UsageError
from strategies.cases import STRATEGIES

STANDIN = str(Path(__file__).parents[1] / "standin")
CUDA = ("--device", "cuda", "-n", "5", "--no-plots")
GPU = Gpu(0, "ab", "stand-in", 1 << 30, 1 << 30)


def sweep(launch, nranks, *words, **environment):
    return launch(nranks, "-m", "bench.sweep", *words, **environment)


def on_standin(launch, nranks, *words, **environment):
    return sweep(launch, nranks, *CUDA, *words, PYTHONPATH=STANDIN, **environment)


@pytest.mark.launch
@pytest.mark.usefixtures("c_compiler")
def test_a_sweep_on_gpus_is_checked_and_says_which(launch, tmp_path):
    folder = tmp_path / "run"
    words = ("allreduce", "broadcast", "alltoall", "-b", "64", "-e", "2M", "-f", "32768")
    result = on_standin(launch, 3, *words, "-o", folder, STANDIN_GPUS="2")
    assert result.status == 0, result.err
    rows, _ = read_rows(folder / ROWS_FILE)
    measured = [row for row in rows if row["status"] == "ok"]
    assert {row["primitive"] for row in measured} == {"allreduce", "broadcast", "alltoall"}
    assert {"native", "native_persistent", "ring", "bruck"} & {row["algorithm"] for row in measured}
    assert all(row["wrong"] == 0 for row in measured)
    assert {(row["device"], row["ranks_per_gpu"]) for row in rows} == {("cuda", 2)}
    windowed = {row["algorithm"] for row in measured if row["transport"] == "window"}
    assert windowed
    assert all(name.startswith("window") for name in windowed)
    assert {row["transport"] for row in measured if row["algorithm"] in ("native", "ring")} == {"staged"}
    assert all("shared_gpu" in row["cautions"] for row in measured)
    gpus = read_run(folder)["gpus"]
    assert [one["ordinal"] for one in gpus] == [0, 1, 0]
    assert [one["ranks"] for one in gpus] == [2, 1, 2]
    assert gpus[0]["identity"] == gpus[2]["identity"] != gpus[1]["identity"]
    assert {one["name"] for one in gpus} == {"stand-in"}


@pytest.mark.launch
def test_every_strategy_is_replayed_on_gpus(launch, tmp_path):
    words = ("--strategy", "all", "-a", "ring,pairwise,window,nccl", "--scale-bytes", "1/64", "--max-seconds", "0.02")
    result = on_standin(launch, 2, *words, "-o", tmp_path / "run", STANDIN_GPUS="2")
    assert result.status == 0, result.err
    rows, _ = read_patterns(tmp_path / "run" / STRATEGIES_FILE)
    assert {row["strategy"] for row in rows} == set(STRATEGIES)
    assert {(row["device"], row["ranks_per_gpu"]) for row in rows} == {("cuda", 1)}
    assert all(row["status"] == "ok" or row["reason"] for row in rows)
    measured = [row for row in rows if row["status"] == "ok"]
    assert all(row["wrong"] == 0 for row in measured)
    whole = {row["strategy"] for row in measured if row["primitive"] == WHOLE}
    assert whole == set(STRATEGIES) - {"hybrid"}  # which of its axes, on two ranks?
    assert {"native", "ring", "pairwise", "window", "direct", "nccl"} <= {row["algorithm"] for row in measured}
    by_nccl = {row["strategy"] for row in measured if row["algorithm"] == "nccl, else native"}
    assert by_nccl == whole - {"pipeline"}  # whose messages go between neighbours


@pytest.mark.launch
def test_a_step_that_finds_no_room_is_skipped_and_the_next_goes_on(launch, tmp_path):
    words = ("--strategy", "tensor,data", "-a", "ring,nccl", "--overlap", "--max-seconds", "0.02")
    limits = {"STANDIN_NBYTES": str(8 << 20), "STANDIN_CLAIMS_NBYTES": str(1 << 30)}
    result = on_standin(launch, 2, *words, "-o", tmp_path / "run", NCCL_MULTI_RANK_GPU_ENABLE="0", **limits)
    assert result.status == 0, result.err
    assert "note: nothing is computed beside calls on GPUs: --overlap is left out" in result.err
    rows, _ = read_patterns(tmp_path / "run" / STRATEGIES_FILE)
    told = {row["strategy"]: (row["status"], row["reason"]) for row in rows if row["primitive"] == WHOLE}
    assert told["data"][0] == "skipped"
    assert "out of memory: Out of memory allocating" in told["data"][1]
    assert told["tensor"][0] == "ok"
    reasons = {row["reason"] for row in rows if row["algorithm"] == "nccl"}
    assert len(reasons) == 1
    assert reasons.pop().startswith("ranks share a GPU, and NCCL ended with status")


@pytest.mark.launch
def test_one_result_for_all_ranks_of_a_node_on_gpus(launch, tmp_path):
    words = (
        "allreduce",
        "allgather",
        "broadcast",
        "-a",
        "ring,window,window_pull,window_one_shot",
        "-b",
        "64K",
        "-e",
        "64K",
    )
    result = on_standin(launch, 4, *words, "--memory", "shared,registered,plain", "-o", tmp_path / "run")
    assert result.status == 0, result.err
    rows, _ = read_rows(tmp_path / "run" / ROWS_FILE)
    assert {row["memory"] for row in rows} == {"shared", "registered", "plain"}
    measured = {(row["memory"], row["primitive"], row["algorithm"]) for row in rows if row["status"] == "ok"}
    assert all(row["wrong"] == 0 for row in rows if row["status"] == "ok")
    for primitive in ("allreduce", "allgather", "broadcast"):
        assert ("shared", primitive, "window") in measured
        assert ("shared", primitive, "ring") not in measured
        assert ("registered", primitive, "window_pull") in measured
    reasons = {row["algorithm"]: row["reason"] for row in rows if row["memory"] == "shared" and row["reason"]}
    assert "writes every rank's result apart" in reasons["native"]
    assert "would both write to the receive buffer that they share" in reasons["window_one_shot"]


@pytest.mark.launch
@pytest.mark.parametrize(("chosen", "shared"), [((0, 1, 2, 3), 1), ((0, 1, 0, 1), 2)])
def test_gpus_are_told_apart_by_their_uuids_where_each_rank_sees_one(launch, tmp_path, chosen, shared):
    """As launchers set CUDA_VISIBLE_DEVICES for each rank, every rank's GPU has the ordinal 0."""
    (tmp_path / "as_launched.py").write_text(
        "import os, runpy, sys\n"
        "local = int(os.environ.get('OMPI_COMM_WORLD_LOCAL_RANK') or os.environ.get('MPI_LOCALRANKID'))\n"
        f"os.environ['CUDA_VISIBLE_DEVICES'] = str({chosen!r}[local])\n"
        "sys.argv = ['bench.sweep', *sys.argv[1:]]\n"
        "sys.path.insert(0, os.getcwd())\n"
        "runpy.run_module('bench.sweep', run_name='__main__')\n"
    )
    words = ("allreduce", "-a", "ring", "-b", "64", "-e", "64", *CUDA, "-o", tmp_path / "run")
    result = launch(4, tmp_path / "as_launched.py", *words, PYTHONPATH=STANDIN, STANDIN_GPUS="4")
    assert result.status == 0, result.err
    gpus = read_run(tmp_path / "run")["gpus"]
    assert [one["ordinal"] for one in gpus] == [0, 0, 0, 0]
    assert len({one["identity"] for one in gpus}) == len(set(chosen))
    assert [one["ranks"] for one in gpus] == [chosen.count(one) for one in chosen]
    rows, _ = read_rows(tmp_path / "run" / ROWS_FILE)
    assert {row["ranks_per_gpu"] for row in rows} == {shared}
    assert all(("shared_gpu" in row["cautions"]) == (shared > 1) for row in rows)
    assert {one["allocator"] for one in gpus} == {"MemoryPool"}


@pytest.mark.launch
@pytest.mark.usefixtures("c_compiler")
def test_floats_that_cupy_does_not_know_are_combined_and_moved_on_gpus(launch, tmp_path):
    words = ("allreduce", "allgather", "-a", "native,ring,window", "-b", "999", "-e", "999")
    result = on_standin(launch, 3, *words, "-d", "bfloat16,float8_e4m3fn,float8_e5m2", "-o", tmp_path / "run")
    assert result.status == 0, result.err
    rows, _ = read_rows(tmp_path / "run" / ROWS_FILE)
    told = {(row["primitive"], row["dtype"], row["algorithm"]): row for row in rows}
    assert len(told) == 2 * 3 * 3
    for (primitive, dtype, algorithm), row in told.items():
        if (primitive, algorithm) == ("allreduce", "native"):
            assert row["reason"] == f"this MPI library has no type for {dtype}"
        else:
            assert (row["status"], row["wrong"], row["device"]) == ("ok", 0, "cuda")


@pytest.mark.launch
@pytest.mark.usefixtures("c_compiler")
def test_a_gpu_out_of_memory_skips_the_point_and_goes_on(launch, tmp_path):
    folder = tmp_path / "run"
    # Twice, so that after a point that finds no room the next finds what that one took.
    words = ("allreduce", "-a", "ring,reduce_broadcast", "-b", "1K", "-e", "4M", "-f", "64", "-o", folder)
    words += ("-d", "float32,int32")
    result = on_standin(launch, 2, *words, STANDIN_NBYTES=str(10 << 20), STANDIN_CLAIMS_NBYTES=str(1 << 30))
    assert result.status == 0, result.err
    rows, _ = read_rows(folder / ROWS_FILE)
    small = [row for row in rows if row["nbytes"] < 4 << 20]
    large = [row for row in rows if row["nbytes"] == 4 << 20]
    assert {row["status"] for row in small} == {"ok"}
    assert {row["dtype"] for row in large} == {"float32", "int32"}
    assert {row["status"] for row in large if row["algorithm"] == "native"} == {"ok"}
    lacking = [row for row in large if row["status"] == "skipped"]
    assert {row["dtype"] for row in lacking} == {"float32", "int32"}
    assert all("out of memory" in row["reason"] for row in lacking)


@pytest.mark.launch
def test_a_point_whose_buffers_find_no_room_is_skipped_and_frees_what_it_took(launch, tmp_path):
    folder = tmp_path / "run"
    words = ("allreduce", "-a", "ring,window", "-b", "4K", "-e", "4M", "-f", "1024", "-d", "float32,int32")
    for memory, limit in (("plain", 7), ("registered", 9), ("shared", 9)):
        limits = {"STANDIN_NBYTES": str(limit << 20), "STANDIN_CLAIMS_NBYTES": str(1 << 30)}
        result = on_standin(launch, 2, *words, "--memory", memory, "-o", folder / memory, **limits)
        assert result.status == 0, result.err
        rows, _ = read_rows(folder / memory / ROWS_FILE)
        told = {(row["dtype"], row["nbytes"], row["status"]) for row in rows}
        # The second small point comes after the first large one.
        assert {(dtype, 4 << 20, "skipped") for dtype in ("float32", "int32")} <= told
        assert {(dtype, 4 << 20, "ok") for dtype in ("float32", "int32")}.isdisjoint(told)
        assert {(dtype, 4 << 10, "ok") for dtype in ("float32", "int32")} <= told
        reasons = {row["reason"] for row in rows if row["nbytes"] == 4 << 20}
        says = "out of memory: Out of memory allocating" if memory == "plain" else "the GPU has no"
        assert all(says in reason for reason in reasons), reasons


@pytest.mark.launch
def test_a_point_that_cannot_fit_on_the_gpu_is_skipped_before_it_is_tried(launch, tmp_path):
    folder = tmp_path / "run"
    words = ("allreduce", "-a", "ring", "-b", "1K", "-e", "4M", "-f", "4096", "-o", folder)
    result = on_standin(launch, 2, *words, STANDIN_NBYTES=str(10 << 20))
    assert result.status == 0, result.err
    rows, _ = read_rows(folder / ROWS_FILE)
    reasons = {row["reason"] for row in rows if row["nbytes"] == 4 << 20}
    assert reasons == {"rank 0: needs 32 MiB on the GPU, of which 9 MiB may be used"}


@pytest.mark.launch
@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"PYTHONPATH": STANDIN, "STANDIN_GPUS": "0"}, "no GPU is visible: see nvidia-smi and CUDA_VISIBLE_DEVICES"),
        ({"PYTHONPATH": STANDIN, "STANDIN_FAILS": "cudaErrorInsufficientDriver: too old"}, "there is no NVIDIA driver"),
        (
            {"PYTHONPATH": STANDIN, "STANDIN_FAILS": "libnvrtc.so.13 not found"},
            "install the CuPy of your driver's CUDA",
        ),
    ],
    ids=["no gpu", "no driver", "wrong cuda"],
)
def test_a_gpu_that_cannot_be_used_is_one_sentence_and_status_2(launch, tmp_path, environment, says):
    result = sweep(launch, 2, *CUDA, "-o", tmp_path / "run", **environment)
    assert result.status == 2
    (message,) = [line for line in result.err.splitlines() if line.startswith("bench.sweep:")]
    assert message.startswith("bench.sweep: cannot use 'cuda' for --device (")
    assert says in message
    assert not (tmp_path / "run").exists()


@pytest.mark.launch
@pytest.mark.parametrize(
    ("missing", "says"),
    [("cupy", "CuPy is not installed: make venv CUDA=12"), ("numba", "CuPy cannot be loaded")],
)
def test_a_missing_cupy_is_one_sentence_and_status_2(launch, tmp_path, missing, says):
    (tmp_path / "cupy.py").write_text(f"raise ModuleNotFoundError('No module named {missing}', name={missing!r})")
    result = sweep(launch, 2, *CUDA, "-o", tmp_path / "run", PYTHONPATH=str(tmp_path))
    assert result.status == 2
    (message,) = [line for line in result.err.splitlines() if line.startswith("bench.sweep:")]
    assert says in message


@pytest.mark.launch
def test_without_a_gpu_nothing_loads_cupy(tmp_path):
    words = f"""
import sys
sys.argv = ["sweep", *"allreduce -a ring -e 64 -n 2 --no-plots -q".split(), "-o", {str(tmp_path / "run")!r}]
from bench.sweep import main
try:
    main()
except SystemExit as end:
    assert end.code == 0, end.code
print([name for name in sys.modules if name.startswith("cupy")])
"""
    if any(Path(one).exists() for one in ("/dev/nvidiactl", "/dev/dxg")):
        words = words.replace("-q", "-q --device cpu")
    root = Path(__file__).parents[2]
    ended = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, cwd=root)
    assert ended.stdout.strip() == "[]", ended.stderr


@pytest.mark.launch
@pytest.mark.usefixtures("c_compiler")
@pytest.mark.parametrize(
    ("transport", "lacks", "shared_by", "peers"),
    [
        ("window", "", "window", "opened"),
        ("staged", "", "staged", None),
        ("auto", "ipc", "staged", "cannot open memory of rank"),
        ("auto", "ipc,register", "", "cannot open memory of rank"),
    ],
)
def test_what_ranks_share_lies_where_it_is_asked_for_or_where_it_can(
    launch, tmp_path, transport, lacks, shared_by, peers
):
    words = ("allgather", "-a", "ring,window_pull", "-b", "64", "-e", "64", "--transport", transport)
    result = on_standin(launch, 2, *words, "--memory", "plain,shared", "-o", tmp_path / "run", STANDIN_LACKS=lacks)
    assert result.status == 0, result.err
    rows, _ = read_rows(tmp_path / "run" / ROWS_FILE)
    told, common = (
        {row["algorithm"]: (row["status"], row["transport"], row["reason"]) for row in rows if row["memory"] == memory}
        for memory in ("plain", "shared")
    )
    assert told["native"][:2] == ("ok", "staged")  # the baseline, whatever was asked for
    if shared_by:
        assert told["window_pull"] == ("ok", shared_by, "")
    else:
        assert told["window_pull"][:2] == ("skipped", "staged")
        assert "cannot register shared memory with CUDA" in told["window_pull"][2]
    assert common["window_pull"][0] == "skipped"  # it would write that result twice, or cannot reach it
    says = {"window": "would both write", "staged": "not with staged", "auto": "cannot open memory of rank"}[transport]
    assert says in common["window_pull"][2]
    left_out = transport == "window"
    assert told["ring"] == ("skipped" if left_out else "ok", "staged", "its transport is staged" if left_out else "")
    said = read_run(tmp_path / "run").get("gpu_memory_for_peers")
    assert said is None if peers is None else peers in said


@pytest.mark.launch
def test_gpu_memory_is_handed_to_an_mpi_that_was_seen_to_take_it(launch, tmp_path):
    words = ("allreduce", "-a", "ring", "-b", "64", "-e", "64K", "-f", "1024", "-o", tmp_path / "run")
    result = on_standin(launch, 4, *words, STANDIN_CUDA_AWARE="1")
    assert result.status == 0, result.err
    rows, _ = read_rows(tmp_path / "run" / ROWS_FILE)
    assert {(row["algorithm"], row["transport"], row["status"]) for row in rows} == {
        ("native", "direct", "ok"),
        ("ring", "direct", "ok"),
    }
    assert all(row["wrong"] == 0 for row in rows)
    facts = read_run(tmp_path / "run")["gpu_memory_for_mpi"]
    assert facts["says_it_takes_it"] is False  # these libraries were built without CUDA, and the stand-in has none
    assert set(facts["tried"].values()) == {"works"}
    assert len(facts["tried"]) == 4


@pytest.mark.launch
def test_an_mpi_that_was_not_seen_to_take_gpu_memory_is_not_given_any(launch, tmp_path):
    words = ("allreduce", "-a", "ring", "-b", "64", "-e", "64")
    named = on_standin(launch, 2, *words, "--transport", "direct", "-o", tmp_path / "named")
    assert named.status == 0, named.err
    rows, _ = read_rows(tmp_path / "named" / ROWS_FILE)
    assert [(row["algorithm"], row["transport"], row["status"]) for row in rows] == [
        ("native", "direct", "skipped"),
        ("ring", "direct", "skipped"),
    ]
    assert all(row["reason"].startswith("MPI was not seen to take GPU memory: ") for row in rows)
    auto = on_standin(launch, 2, *words, "-o", tmp_path / "auto")
    assert auto.status == 0, auto.err
    rows, _ = read_rows(tmp_path / "auto" / ROWS_FILE)
    assert {(row["transport"], row["status"]) for row in rows} == {("staged", "ok")}
    tried = read_run(tmp_path / "auto")["gpu_memory_for_mpi"]["tried"]
    assert "ended with status" in tried["sendrecv_exchange direct of 8 bytes"]


@pytest.mark.launch
@pytest.mark.parametrize("nranks", [1, 4])
def test_nccl_competes_where_every_rank_has_a_gpu(launch, tmp_path, nranks):
    words = ("allreduce", "alltoall", "scan", "-a", "nccl,nccl:tree", "-b", "256", "-e", "256", "-d", "int32,int16")
    more = {"STANDIN_GPUS": str(nranks)}
    result = on_standin(launch, nranks, *words, "-o", tmp_path / "run", **more)
    assert result.status == 0, result.err
    rows, _ = read_rows(tmp_path / "run" / ROWS_FILE)
    told = {(row["primitive"], row["algorithm"], row["dtype"]): row for row in rows if row["algorithm"] != "native"}
    assert {row["transport"] for row in told.values()} == {"nccl"}
    own, grouped = told["allreduce", "nccl", "int32"], told["alltoall", "nccl", "int16"]
    assert (own["status"], own["form"], own["wrong"]) == ("ok", "its own collective", 0)
    assert (grouped["status"], grouped["form"], grouped["wrong"]) == ("ok", "grouped sends and receives", 0)
    assert own["baseline"] == "native"
    tree = told["allreduce", "nccl:tree", "int32"]
    assert (tree["status"], tree["forced_with"], tree["proved"]) == ("ok", "NCCL_ALGO=tree", False)
    assert "unproven" in tree["cautions"]
    reasons = {key: row["reason"] for key, row in told.items() if row["status"] == "skipped"}
    assert reasons["allreduce", "nccl", "int16"] == "NCCL does not combine int16"
    assert reasons["scan", "nccl", "int32"] == "NCCL has no scan"
    assert "in one way only" in reasons["alltoall", "nccl:tree", "int32"]
    assert read_run(tmp_path / "run")["nccl"] == "allowed"


@pytest.mark.launch
@pytest.mark.parametrize(
    ("environment", "status", "says"),
    [
        ({}, "ok", ""),
        ({"STANDIN_NCCL": "missing"}, "skipped", "this CuPy has no NCCL: install nvidia-nccl-cu12 or -cu13"),
        ({"NCCL_MULTI_RANK_GPU_ENABLE": "0"}, "skipped", "ranks share a GPU, and NCCL ended with status"),
    ],
    ids=["allowed", "missing", "refused"],
)
def test_nccl_competes_on_a_gpu_that_ranks_share_only_if_it_was_seen_to_work(
    launch, tmp_path, environment, status, says
):
    words = ("allreduce", "-a", "nccl", "-b", "64", "-e", "64", "-o", tmp_path / "run")
    result = on_standin(launch, 2, *words, **environment)
    assert result.status == 0, result.err
    rows, _ = read_rows(tmp_path / "run" / ROWS_FILE)
    (row,) = [row for row in rows if row["algorithm"] == "nccl"]
    assert row["status"] == status
    assert says in row["reason"]
    assert row["ranks_per_gpu"] == 2


@pytest.mark.launch
@pytest.mark.parametrize("aware", ["0", "1"])
def test_the_librarys_own_algorithms_compete_on_gpus(launch, tmp_path, aware):
    words = ("allreduce", "-a", "native:recursive_doubling", "-b", "64", "-e", "64", "-o", tmp_path / "run")
    result = on_standin(launch, 2, *words, STANDIN_CUDA_AWARE=aware)
    assert result.status == 0, result.err
    rows, _ = read_rows(tmp_path / "run" / ROWS_FILE)
    (row,) = [row for row in rows if row["requested"]]
    assert (row["algorithm"], row["status"], row["wrong"]) == ("native:recursive_doubling", "ok", 0)
    assert row["transport"] == ("direct" if aware == "1" else "staged")
    assert row["forced_with"]


def test_a_transport_between_gpus_is_refused_for_buffers_on_the_host():
    for transport in ("auto", "staged", "direct", "window"):
        check_transport(transport, GPU)
    check_transport("auto", None)
    with pytest.raises(UsageError, match="'staged' for --transport"):
        check_transport("staged", None)


def test_what_fits_depends_on_how_many_share_the_gpu():
    assert too_large(GPU, 200 << 20, 1) is None
    shared = Gpu(0, "ab", "stand-in", 1 << 30, 1 << 30, 2)
    assert too_large(shared, 200 << 20, 1) == "needs 1600 MiB on the GPU, of which 922 MiB may be used"
    assert too_large(GPU, 200 << 20, 2) == "needs 1200 MiB on the GPU, of which 922 MiB may be used"


def test_mps_is_seen_by_its_pipe(tmp_path):
    assert not mps_runs({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)})
    (tmp_path / "control").touch()
    assert mps_runs({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)})
