from dataclasses import asdict

import pytest

from bench import report
from bench.pattern_plots import calls, draw_patterns, steps
from bench.pattern_rows import BEST, STRATEGIES_FILE, WHOLE, PatternRow
from bench.rows import ROWS_FILE, RowWriter


def row(**columns):
    given = {
        "run": "run", "strategy": "tensor", "mesh": "tp=4", "order": "tp", "model": "tiny", "batch": 1, "seq": 64,
        "micro_batches": 1, "nranks": 4, "phase": "forward", "axis": "tp", "primitive": "allreduce",
        "algorithm": "native", "calls": 4, "nbytes": 1024, "time_us_p50": 10.0, "step_us": 40.0,
        "native_ratio": 1.0, "native_ratio_low": 1.0, "native_ratio_high": 1.0,
    }  # fmt: skip
    return PatternRow(**{**given, **columns})


ROWS = [
    row(),
    row(algorithm="ring", best=True, step_us=20.0, native_ratio=2.0, native_ratio_low=1.5, native_ratio_high=2.5),
    row(phase="backward", primitive="allgather"),
    row(phase="backward", primitive="allgather", algorithm="bruck", best=True, step_us=30.0, native_ratio=1.3,
        native_ratio_low=0.8, native_ratio_high=1.9),
    row(phase="backward", primitive="allgather", algorithm="bruck", best=True, progress="none", exposed=0.5),
    row(phase="", axis="", primitive=WHOLE, step_us=85.0),
    row(phase="", axis="", primitive=WHOLE, algorithm=BEST, best=True, step_us=55.0),
    row(strategy="expert", mesh="ep=4", status="skipped", reason="not here", step_us=None, time_us_p50=None),
]  # fmt: skip


def as_read(rows):
    return [asdict(one) for one in rows]


def good():
    return [one for one in as_read(ROWS) if one["status"] == "ok"]


def test_bars_are_as_long_as_the_calls_of_a_step_take():
    (axes,) = steps(good()).axes
    widths = sorted((round(bar.get_y() + bar.get_height() / 2, 2), bar.get_width()) for bar in axes.patches)
    native, best = [(y, [width for at, width in widths if at == y]) for y in sorted({y for y, _ in widths})]
    assert sum(native[1]) == pytest.approx(0.08)
    assert sum(best[1]) == pytest.approx(0.05)
    marks = sorted(float(line.get_xdata()[0]) for line in axes.lines)
    assert marks == pytest.approx([0.055, 0.085])
    assert {text.get_text() for text in axes.get_legend().get_texts()} == {
        "allreduce", "allgather", "whole step, replayed",
    }  # fmt: skip


def test_each_call_has_a_line_with_its_best_algorithm_and_overlap_none():
    (axes,) = calls(good()).axes
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert labels == ["tensor, tp=4", "forward allreduce tp, 4 × 1K", "backward allgather tp, 4 × 1K"]
    written = [text.get_text() for text in axes.texts]
    assert [text for text in written if "ring" in text or "bruck" in text] == ["2.00  ring", "1.30  bruck"]


def test_without_rows_nothing_is_drawn(tmp_path):
    assert draw_patterns([], tmp_path) == []
    assert steps([]) is None
    assert calls([]) is None


def test_a_run_of_training_steps_alone_has_its_report(tmp_path):
    with RowWriter(tmp_path / ROWS_FILE):
        pass
    with RowWriter(tmp_path / STRATEGIES_FILE, PatternRow) as writer:
        for one in ROWS:
            writer.write(one)
    text = report.write(tmp_path).read_text()
    assert "## Training steps" in text
    assert "plots/strategies_steps" in text
    assert (tmp_path / "plots" / "strategies_calls.svg").exists()
