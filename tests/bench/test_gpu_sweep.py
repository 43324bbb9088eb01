"""The sweep on GPUs, as people run it, on the stand-in; and what it says where there is none."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpus import Gpu, check_transport, mps_runs, too_large, undefined_for
from bench.rows import ROWS_FILE, read_rows, read_run
from bench.usage import UsageError

STANDIN = str(Path(__file__).parents[1] / "standin")
CUDA = ("--device", "cuda", "-n", "5", "--no-plots")
GPU = Gpu(0, "ab", "stand-in", 1 << 30, 1 << 30)


def sweep(launch, nranks, *words, **environment):
    return launch(nranks, "-m", "bench.sweep", *words, **environment)


def on_standin(launch, nranks, *words, **environment):
    return sweep(launch, nranks, *CUDA, *words, PYTHONPATH=STANDIN, **environment)


@pytest.mark.launch
def test_a_sweep_on_gpus_is_checked_and_says_which(launch, tmp_path):
    folder = tmp_path / "run"
    words = ("allreduce", "broadcast", "alltoall", "-b", "64", "-e", "2M", "-f", "32768", "-d", "float32,bfloat16")
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
    assert {row["reason"] for row in rows if row["dtype"] == "bfloat16"} == {"rank 0: CuPy has no bfloat16"}
    gpus = read_run(folder)["gpus"]
    assert [one["ordinal"] for one in gpus] == [0, 1, 0]
    assert [one["ranks"] for one in gpus] == [2, 1, 2]
    assert gpus[0]["identity"] == gpus[2]["identity"] != gpus[1]["identity"]
    assert {one["name"] for one in gpus} == {"stand-in"}


@pytest.mark.launch
def test_a_gpu_out_of_memory_skips_the_point_and_goes_on(launch, tmp_path):
    folder = tmp_path / "run"
    words = ("allreduce", "-a", "ring,reduce_broadcast", "-b", "1K", "-e", "4M", "-f", "64", "-o", folder)
    result = on_standin(launch, 2, *words, STANDIN_NBYTES=str(10 << 20), STANDIN_CLAIMS_NBYTES=str(1 << 30))
    assert result.status == 0, result.err
    rows, _ = read_rows(folder / ROWS_FILE)
    small = [row for row in rows if row["nbytes"] < 4 << 20]
    large = [row for row in rows if row["nbytes"] == 4 << 20]
    assert {row["status"] for row in small} == {"ok"}
    assert {row["algorithm"]: row["status"] for row in large}["native"] == "ok"
    lacking = [row for row in large if row["status"] == "skipped"]
    assert lacking
    assert all("out of memory" in row["reason"] for row in lacking)


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
def test_a_transport_that_is_asked_for_leaves_others_out_but_the_baseline(launch, tmp_path):
    words = ("allgather", "-a", "ring,window_pull", "-b", "64", "-e", "64", "--transport", "window")
    result = on_standin(launch, 2, *words, "-o", tmp_path / "run")
    assert result.status == 0, result.err
    rows, _ = read_rows(tmp_path / "run" / ROWS_FILE)
    told = {row["algorithm"]: (row["status"], row["transport"], row["reason"]) for row in rows}
    assert told["native"][:2] == ("ok", "staged")
    assert told["window_pull"][:2] == ("ok", "window")
    assert told["ring"] == ("skipped", "staged", "its transport is staged")


def test_a_transport_between_gpus_is_refused_for_buffers_on_the_host():
    for transport in ("auto", "staged", "window"):
        check_transport(transport, GPU)
    check_transport("auto", None)
    with pytest.raises(UsageError, match="'staged' for --transport"):
        check_transport("staged", None)


def test_what_fits_depends_on_how_many_share_the_gpu():
    assert too_large(GPU, 200 << 20, 1) is None
    shared = Gpu(0, "ab", "stand-in", 1 << 30, 1 << 30, 2)
    assert too_large(shared, 200 << 20, 1) == "needs 1600 MiB on the GPU, of which 922 MiB may be used"
    assert too_large(GPU, 200 << 20, 2) == "needs 1200 MiB on the GPU, of which 922 MiB may be used"


def test_cupy_lacks_bfloat16():
    assert undefined_for("float16") is None
    assert undefined_for("bfloat16") == "CuPy has no bfloat16"


def test_mps_is_seen_by_its_pipe(tmp_path):
    assert not mps_runs({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)})
    (tmp_path / "control").touch()
    assert mps_runs({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)})
