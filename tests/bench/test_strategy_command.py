"""The strategy part of a sweep as people run it: a command under mpirun, with its exit status and its files."""

import math
from collections import defaultdict

import pytest

from bench.pattern_rows import BEST, STRATEGIES_FILE, WHOLE, PatternRow, read_patterns
from bench.rows import RowsError, RowWriter
from strategies.cases import STRATEGIES
from strategies.mesh import Mesh
from strategies.models import MODELS
from strategies.traffic import Job, merge
from tests.bench.test_sweep_command import BROKEN

pytestmark = pytest.mark.launch

QUICK = ("--scale-bytes", "1/64", "--max-seconds", "0.02", "-n", "5", "-w", "1", "-q")


def replay(launch, nranks, folder, *words):
    result = launch(nranks, "-m", "bench.sweep", *words, *QUICK, "-o", folder)
    assert result.status == 0, result.err
    rows, notices = read_patterns(folder / STRATEGIES_FILE)
    assert notices == []
    return rows


def test_every_strategy_is_replayed_and_calls_are_those_of_its_traffic(launch, tmp_path):
    rows = replay(launch, 2, tmp_path / "run", "--strategy", "all", "-a", "ring,pairwise", "--micro-batches", "2")
    assert {row["strategy"] for row in rows} == set(STRATEGIES)
    assert all(row["status"] == "ok" or row["reason"] for row in rows)
    assert all(row["wrong"] == 0 for row in rows if row["status"] == "ok")
    by_strategy = defaultdict(list)
    for row in rows:
        by_strategy[row["strategy"]].append(row)
    (hybrid,) = by_strategy.pop("hybrid")
    assert (hybrid["status"], "--mesh" in hybrid["reason"]) == ("skipped", True)  # which of its axes, on two ranks?
    for strategy, found in by_strategy.items():
        mesh = Mesh(found[0]["mesh"])
        job = Job(MODELS["tiny"], micro_batches=2)
        told = defaultdict(int)
        for call in merge(STRATEGIES[strategy].traffic(job, mesh, 0)):
            if call.phase != "setup" and call.primitive != "sendrecv":
                told[call.phase, call.primitive] += call.times
        seen = defaultdict(int)
        for row in found:
            if row["primitive"] not in (WHOLE, "sendrecv") and row["algorithm"] == "native":
                # Other stages have other weights; what only they send is no call of rank 0.
                if strategy == "pipeline" and row["phase"] in ("step", "backward"):
                    continue
                seen[row["phase"], row["primitive"]] += row["calls"]
        assert all(seen[key] == told[key] for key in seen), strategy
        whole = [row for row in found if row["primitive"] == WHOLE]
        assert {"native", BEST} <= {row["algorithm"] for row in whole}
        assert all(row["step_us"] > 0 and row["alone_us"] > 0 for row in whole)
    for pictured in ("strategies_steps", "strategies_calls"):
        assert (tmp_path / "run" / "plots" / f"{pictured}.png").stat().st_size > 1000


def test_shares_of_a_step_add_up_to_one_natively_and_at_best(launch, tmp_path):
    rows = replay(launch, 2, tmp_path / "run", "--strategy", "sequence", "--no-plots")
    for chosen in (lambda row: row["algorithm"] == "native", lambda row: row["best"]):
        shares = [row["share"] for row in rows if chosen(row) and row["primitive"] != WHOLE]
        assert math.isclose(sum(shares), 1, rel_tol=1e-6)
    assert {row["scale"] for row in rows} == {"1/64"}


def test_all_groups_are_at_work_at_once_and_named_in_the_rows(launch, tmp_path):
    rows = replay(
        launch, 4, tmp_path / "run", "--strategy", "tensor", "--mesh", "tp=2,dp=2", "-a", "ring", "--no-plots"
    )
    groups = {row["axis"]: (row["group_nranks"], row["stride"], row["ngroups"]) for row in rows if row["axis"]}
    assert groups == {"tp": (2, 1, 2), "dp": (2, 2, 2)}
    assert {row["slowest_group"] for row in rows if row["axis"] == "tp" and row["status"] == "ok"} <= {0, 1}
    assert any(row["algorithm"] == "ring, else native" for row in rows)


def test_computing_beside_calls_tells_what_is_exposed_with_and_without_polling(launch, tmp_path):
    rows = replay(launch, 2, tmp_path / "run", "--strategy", "context", "--overlap", "--no-plots")
    beside = [row for row in rows if row["progress"]]
    assert {row["progress"] for row in beside} == {"none", "polled"}
    assert {row["primitive"] for row in beside} == {"sendrecv", "allreduce"}
    for row in beside:
        assert row["exposed_us"] < row["time_us_p50"]
        assert math.isclose(row["step_us"], row["calls"] * row["exposed_us"], rel_tol=1e-6)


def test_buckets_of_gradients_are_under_way_beside_tensor_parallel_calls(launch, tmp_path):
    words = ("--strategy", "hybrid", "--mesh", "tp=2,dp=2", "-a", "ring", "--overlap", "--no-plots")
    rows = replay(launch, 4, tmp_path / "run", *words)
    whole = {(row["algorithm"], row["progress"]): row for row in rows if row["primitive"] == WHOLE}
    buckets = [row for row in rows if row["axis"] == "dp" and row["algorithm"] == "native" and not row["progress"]]
    assert {row["phase"] for row in buckets} == {"backward"}
    for way in ("native", BEST):
        left_out = whole[f"{way}, without buckets", ""]
        assert left_out["calls"] == whole[way, ""]["calls"] - sum(row["calls"] for row in buckets)
        for progress in ("none", "polled"):
            beside = whole[f"{way}, buckets beside", progress]
            assert (beside["calls"], beside["wrong"]) == (whole[way, ""]["calls"], 0)
            assert math.isclose(beside["exposed_us"], beside["step_us"] - left_out["step_us"], abs_tol=0.1)


def test_too_large_a_step_is_skipped_with_the_reason(launch, tmp_path):
    rows = replay(launch, 2, tmp_path / "run", "--strategy", "tensor", "--memory-limit", "4K", "--no-plots")
    (row,) = rows
    assert row["status"] == "skipped"
    assert "MiB" in row["reason"]


def test_a_strategy_that_cannot_be_is_refused_before_there_is_a_folder(launch, tmp_path):
    result = launch(2, "-m", "bench.sweep", "--strategy", "tensor", "--mesh", "tp=3", "-o", tmp_path / "run")
    (message,) = [line for line in result.err.splitlines() if line.startswith("bench.sweep:")]
    assert result.status == 2
    assert "'tp=3' for --mesh" in message
    assert "Traceback" not in result.err
    assert not (tmp_path / "run").exists()


def test_a_file_of_other_rows_is_refused(tmp_path):
    path = tmp_path / "rows.csv"
    with RowWriter(path):
        pass
    with pytest.raises(RowsError, match="lacks the column"):
        read_patterns(path)
    with RowWriter(tmp_path / STRATEGIES_FILE, PatternRow) as writer:
        writer.write(
            PatternRow(
                run="r", strategy="tensor", mesh="tp=2", order="tp", model="tiny", batch=1, seq=8, micro_batches=1,
                nranks=2, primitive=WHOLE, algorithm="native",
            )
        )  # fmt: skip
    (row,) = read_patterns(tmp_path / STRATEGIES_FILE).rows
    assert (row["strategy"], row["calls"], row["best"]) == ("tensor", None, False)


def test_a_wrong_result_is_marked_gives_status_1_and_is_no_best(launch, tmp_path):
    words = ("--strategy", "tensor", "-a", "forgetful", *QUICK, "--no-plots", "-o", tmp_path / "run")
    result = launch(2, "-c", BROKEN, *words)
    assert result.status == 1, result.err
    rows, _ = read_patterns(tmp_path / "run" / STRATEGIES_FILE)
    wrong = [row for row in rows if row["algorithm"] == "forgetful"]
    assert wrong
    assert all(row["status"] == "wrong" and row["wrong"] > 0 and not row["best"] for row in wrong)
    assert not any("forgetful, else" in row["algorithm"] for row in rows)
