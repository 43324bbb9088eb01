"""Confirm on a machine with a GPU what is tested elsewhere on a stand-in, and measure what must be reached there.

python -m bench.gpu_check [--part ipc|figures|tests|sweep ...]

Each part takes at most 3 minutes, and each result is in `results/gpu-NAME/` as soon as it is known; at the end all of
it is in one tar file too. The status is 0 if all passed, 1 if something failed or was missed, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import gpus
from bench.gpu_figures import LARGE_NBYTES, over_floor, over_library, share_of_bound, windowed
from bench.probes import NCCL_SECONDS, probe
from bench.targets import EIGHT, Figure, Sweeper, best
from bench.usage import UsageError
from bench.windows import BOUNDED
from collectives.communicators import ALLOW_SHARING, unavailable

PART_SECONDS = 180
NRANKS = (1, 2, 4, 8)
SHARING = (2, 4, 8)
MIB = 1 << 20
TESTS = (
    *(f"tests/collectives/test_mpi_{name}.py" for name in ("devices", "gpu_windows", "streams", "nccl")),
    "tests/strategies/test_mpi_devices.py",
)


class Report:
    """What was found, in the folder line by line as it comes, and whether all of it is as it must be."""

    def __init__(self, folder: Path, mpirun: str, nbytes: int, sharing: Sequence[int] = SHARING) -> None:
        self.folder, self.mpirun, self.nbytes, self.sharing = folder, mpirun, nbytes, sharing
        self.failed: list[str] = []
        folder.mkdir(parents=True, exist_ok=True)

    def say(self, part: str, line: object, good: bool = True) -> None:
        """Print a line, keep it in the part's file, and remember what is not good."""
        print(line, flush=True)
        with (self.folder / f"{part}.txt").open("a") as file:
            file.write(f"{line}\n")
        if not good:
            self.failed.append(f"{part}: {line}")

    def note(self, name: str, facts: Any) -> None:
        """Append facts to a file of JSON lines."""
        with (self.folder / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps(facts) + "\n")

    def run(self, nranks: int, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `python WORDS` on some ranks."""
        command = [self.mpirun, "-n", str(nranks), sys.executable, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=PART_SECONDS, env=os.environ)


def ipc(report: Report) -> None:
    """Say what ranks can do with each other's GPU memory, and MPI and NCCL with any: it is told, and not needed."""
    why = probe(report.mpirun, "ipc")
    report.say("ipc", f"CUDA IPC between two ranks: {why or 'works'}")
    report.note("ipc", {"ipc": why or "works"})
    for primitive in EIGHT:
        why = probe(report.mpirun, "direct", primitive)
        report.say("ipc", f"{primitive} on GPU memory handed to MPI: {why or 'works'}")
        report.note("ipc", {"direct": primitive, "found": why or "works"})
    allowed = dict([ALLOW_SHARING]) | dict(os.environ)  # the two may have one GPU, which a user may forbid
    why = unavailable() or probe(report.mpirun, "nccl", limit=NCCL_SECONDS, environ=allowed)
    report.say("ipc", f"NCCL between two ranks: {why or 'works'}")
    report.note("ipc", {"nccl": why or "works"})


def figures(report: Report) -> None:
    """Measure the ceilings, and what must be reached of them, with several ranks on what GPUs there are."""
    for figure in _figures(report):
        report.say("figures", figure, figure.reached)


def _figures(report: Report) -> Iterator[Figure]:
    for nranks in report.sharing:
        ended = report.run(nranks, "-m", "bench.ceilings", str(report.nbytes // nranks))
        if ended.returncode:
            report.say("figures", f"ceilings with {nranks} ranks failed: {ended.stderr[-500:]}", good=False)
            continue
        ceiling = json.loads(ended.stdout.splitlines()[-1])
        report.note("ceilings", ceiling)
        report.say("figures", " ".join(f"{name}={value:.4g}" for name, value in ceiling.items()))
        yield from _staged(report, nranks, ceiling)
        yield from _windowed(report, nranks, ceiling)


def _staged(report: Report, nranks: int, ceiling: dict[str, float]) -> Iterator[Figure]:
    """Compare staged all-reduce with the library's call staged the plain way, and with what link and host allow."""
    sweeper, nbytes = Sweeper(report.mpirun, False), str(report.nbytes)
    words = ["allreduce", "-a", "native,ring,rabenseifner,spread,window_pull", "-b", nbytes, "-e", nbytes]
    words += ["-n", "15", "--max-seconds", "8"]
    rows = sweeper.rows(nranks, *words, "--device", "cuda", "--transport", "staged")
    row = next(iter(best(rows).values()), None)
    if row is None:
        reasons = ", ".join(dict.fromkeys(one["reason"] for one in rows if one["reason"]))
        report.say("figures", f"allreduce, {nranks} ranks, staged: nothing was measured ({reasons})", good=False)
        return
    what = f"allreduce of {report.nbytes // MIB} MiB, {nranks} ranks, staged"
    interval = f"{row['algorithm']} {row['native_ratio_low']:.2f} to {row['native_ratio_high']:.2f}"
    yield Figure(f"{what}: over native staged the plain way", row["native_ratio"], 1.5, unit="x", interval=interval)
    on_host = {one["algorithm"]: one for one in sweeper.rows(nranks, *words, "--device", "cpu")}
    rounds = on_host[row["algorithm"]]["time_us_p50"] / 1e6
    # Out goes the vector once, in goes what others have reduced: see collectives.staging for the ring.
    out = nranks * report.nbytes / ceiling["to_host_GBps"] / 1e9
    back = 2 * (nranks - 1) * report.nbytes / ceiling["from_host_GBps"] / 1e9
    bound = max(out, back, rounds)
    report.note("bounds", {"nranks": nranks, "out_s": out, "in_s": back, "rounds_s": rounds, **_told(row)})
    share = bound / (row["time_us_p50"] / 1e6)
    yield Figure(f"{what}: share of the slower of link and rounds on the host", share, 0.6)


def _windowed(report: Report, nranks: int, ceiling: dict[str, float]) -> Iterator[Figure]:
    """Compare algorithms on shared GPU memory with what the GPU can do, and with the library's staged calls."""
    sweeper = Sweeper(report.mpirun, False)
    words = ["-a", "native,window,window_pull,window_one_shot", "--memory", "registered", "--device", "cuda"]
    sizes = ["-b", str(min(LARGE_NBYTES, report.nbytes)), "-e", str(report.nbytes), "-f", "16"]
    rows = sweeper.rows(nranks, *BOUNDED, *sizes, *words, "-n", "10", "--max-seconds", "1.5")
    small = sweeper.rows(nranks, "allreduce", "-b", "8", "-e", "8", *words, "-n", "300", "--max-seconds", "2")
    large, tiny = windowed(rows, "allreduce", report.nbytes), windowed(small, "allreduce", 8)
    if large is None or tiny is None:
        reasons = ", ".join(dict.fromkeys(one["reason"] for one in (*rows, *small) if one["reason"]))
        report.say("figures", f"allreduce, {nranks} ranks, window: nothing was measured ({reasons})", good=False)
        return
    for row in (large, tiny):
        report.note("windows", {"nranks": nranks, "nbytes": row["nbytes"], **_told(row)})
    if large["ranks_per_gpu"] == nranks:
        yield share_of_bound(large, ceiling["device_copy_GBps"])
    else:
        report.say("figures", f"{nranks} ranks, window: on several GPUs the bound is that of their links, not measured")
    yield over_floor(tiny, ceiling["floor_us"])
    through = {row["transport"] for row in rows if row["algorithm"] == "native" and row["status"] == "ok"}
    if through == {"staged"}:
        yield from over_library(rows, nranks)
    else:
        ways = " and ".join(sorted(through)) or "not at all"
        report.say("figures", f"{nranks} ranks: the library takes device buffers {ways}, so it is not compared")


def _told(row: Any) -> dict[str, Any]:
    return {name: row[name] for name in ("algorithm", "time_us_p50", "native_ratio", "ranks_per_gpu")}


def tests(report: Report) -> None:
    """Run the tests of device buffers with each number of ranks."""
    for nranks in NRANKS:
        ended = report.run(nranks, "-m", "pytest", "-q", "-m", "mpi", *TESTS)
        (report.folder / f"tests-n{nranks}.txt").write_text(ended.stdout + ended.stderr)
        last = next((line for line in reversed(ended.stdout.splitlines()) if " in " in line), "no summary")
        report.say("tests", f"device tests, {nranks} ranks: {last}", ended.returncode == 0)


def sweep(report: Report) -> None:
    """Measure all primitives over sizes, draw the pictures, and count what is wrong."""
    output = report.folder / "sweep"
    words = ["-b", "8", "-e", str(min(64 * MIB, report.nbytes)), "-f", "128", "-n", "20", "--max-seconds", "0.5"]
    if output.exists():
        words += ["--resume", str(output)]
    else:
        words += ["--output", str(output)]
    ended = report.run(4, "-m", "bench.sweep", *words, "--device", "cuda")
    last = next((line for line in reversed(ended.stdout.splitlines()) if line.startswith("# ")), ended.stderr[-500:])
    report.say("sweep", f"sweep of all primitives, 4 ranks: {last}", ended.returncode == 0)


PARTS: dict[str, Callable[[Report], None]] = {"ipc": ipc, "figures": figures, "tests": tests, "sweep": sweep}


def main(argv: Sequence[str] | None = None) -> int:
    """Check what is asked for; see the module for the status."""
    parser = argparse.ArgumentParser(prog="bench.gpu_check", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--part", action="append", choices=list(PARTS), help="only this part (may be repeated)")
    parser.add_argument("--mpirun", default="mpirun", help="the launcher")
    parser.add_argument("--nbytes", type=int, default=256 * MIB, help="of the large vector (default: 256 MiB)")
    many = f"with which figures are measured (may be repeated; default: {', '.join(map(str, SHARING))})"
    parser.add_argument("--ranks", type=int, action="append", help=many)
    parser.add_argument("--results", type=Path, default=Path("results"), help="where the folder is made")
    options = parser.parse_args(argv)
    try:
        gpu = gpus.find(0)
    except gpus.Unusable as reason:
        print(f"bench.gpu_check: {UsageError('the check', 'gpu', str(reason), 'cannot use')}", file=sys.stderr)
        return 2
    name = re.sub("[^a-z0-9]+", "-", gpu.name.lower()).strip("-")
    report = Report(options.results / f"gpu-{name}", options.mpirun, options.nbytes, options.ranks or SHARING)
    (report.folder / "gpu.json").write_text(json.dumps(gpus.facts(gpu), indent=2) + "\n")
    for part in options.part or PARTS:
        try:
            PARTS[part](report)
        except subprocess.SubprocessError as error:  # noqa: PERF203 -- a part takes minutes
            report.say(part, f"{part} did not end well: {error}", good=False)
    with tarfile.open(f"{report.folder}.tar", "w") as file:
        file.add(report.folder, report.folder.name)
    print(f"# {'FAILED' if report.failed else 'PASS'}: {report.folder}/ and {report.folder}.tar")
    for line in report.failed:
        print(f"#   {line}")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
