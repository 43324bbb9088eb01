"""Pictures of training steps, drawn from the rows of `strategies.csv` and nothing else.

How long a step communicates, by strategy and primitive; and the best algorithm for each call against the library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

from bench.pattern_rows import BEST, WHOLE
from bench.plots import COLOURS, GREY, INK, PLOTS_FOLDER, STYLE, footnote, save, title
from bench.sizes import format_size
from collectives.names import NATIVE

STEPS, CALLS = "strategies_steps", "strategies_calls"
RATIOS = (0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32)

PatternRows = Sequence[Mapping[str, Any]]

AREAS = (*COLOURS, "#F0E442", GREY, "#b0b0b0")
"""Colours of the primitives of a step; areas may be paler than lines."""


def draw_patterns(rows: PatternRows, folder: Path) -> list[Path]:
    """Draw both pictures into `folder`/plots, as PNG and SVG; return the PNG files. What has no rows is not drawn."""
    good = [row for row in rows if row["status"] == "ok"]
    with mpl.rc_context(STYLE):
        return save({STEPS: steps(good), CALLS: calls(good)}, folder / PLOTS_FOLDER)


def steps(rows: PatternRows) -> Figure | None:
    """Return stacked bars of the communication time of a step, native and best, by strategy and primitive."""
    parts = [row for row in rows if row["primitive"] != WHOLE and row["step_us"] and not row["progress"]]
    names = list(dict.fromkeys(map(_step, parts)))
    if not names:
        return None
    primitives = list(dict.fromkeys(row["primitive"] for row in parts))
    colours = {primitive: AREAS[place % len(AREAS)] for place, primitive in enumerate(primitives)}
    figure = Figure(figsize=(8.2, 1.6 + 0.78 * len(names)))
    axes = figure.subplots()
    axes.tick_params(length=0)
    axes.grid(axis="x")
    ticks, drawn = [], set()
    for place, name in enumerate(names):
        for offset, way in ((-0.19, NATIVE), (0.19, BEST)):
            y = place + offset
            ticks.append((y, way))
            end = 0.0
            for primitive in primitives:
                width = sum(
                    row["step_us"] / 1e3
                    for row in parts
                    if _step(row) == name and row["primitive"] == primitive and _goes(row, way)
                )
                if width:
                    label = None if primitive in drawn else primitive
                    drawn.add(primitive)
                    axes.barh(y, width, 0.34, end, color=colours[primitive], edgecolor="white", label=label)
                    end += width
            whole = [
                row for row in rows if row["primitive"] == WHOLE and _step(row) == name and row["algorithm"] == way
            ]
            if whole:
                label = None if "whole" in drawn else "whole step, replayed"
                drawn.add("whole")
                line: Any = {"color": INK, "linewidth": 1.6, "label": label}
                axes.plot([whole[-1]["step_us"] / 1e3] * 2, [y - 0.2, y + 0.2], **line)
    axes.set_yticks([y for y, _ in ticks], [way for _, way in ticks], size=8)
    for place, name in enumerate(names):
        axes.annotate(name, (0, place), (-46, 0), ("axes fraction", "data"), "offset points", ha="right", va="center")
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("communication time per step (ms)")
    title(axes, "What a training step communicates", _about(parts))
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, handlelength=1.2)
    footnote(axes, "bars: calls times the time of a call measured alone; best: the fastest algorithm for each call")
    return figure


def calls(rows: PatternRows) -> Figure | None:
    """Return the best algorithm for each call against the native call, one line each, by strategy."""
    best = [
        row
        for row in rows
        if row["best"] and row["primitive"] != WHOLE and not row["progress"] and row["native_ratio"] is not None
    ]
    if not best:
        return None
    names = list(dict.fromkeys(map(_step, best)))
    figure = Figure(figsize=(8.6, 1.3 + 0.27 * (len(best) + len(names))))
    axes = figure.subplots()
    axes.tick_params(length=0)
    axes.grid(axis="x")
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=1.6)
    place, ticks = 0, []
    low = min(0.9, *(row["native_ratio_low"] for row in best))
    high = max(1.1, *(row["native_ratio_high"] for row in best))
    for name in names:
        ticks.append((place, name.replace("\n", ", "), "bold"))
        place += 1
        for row in (row for row in best if _step(row) == name):
            faster = row["native_ratio_low"] > 1
            slower = row["native_ratio_high"] < 1
            colour = COLOURS[0] if faster else COLOURS[1] if slower else GREY
            axes.hlines(place, row["native_ratio_low"], row["native_ratio_high"], color=colour, alpha=0.35, linewidth=5)
            axes.plot(row["native_ratio"], place, "o", color=colour, markersize=6)
            text = f"{row['native_ratio']:.2f}  {row['algorithm']}"
            axes.annotate(
                text, (row["native_ratio_high"], place), (6, 0), textcoords="offset points", va="center", size=8
            )
            words = f"{row['phase']} {row['primitive']} {row['axis']}, {row['calls']} × {format_size(row['nbytes'])}"
            ticks.append((place, words, "normal"))
            place += 1
    axes.set_yticks([y for y, _, _ in ticks], [text for _, text, _ in ticks], size=8.5)
    for label, (_, _, weight) in zip(axes.get_yticklabels(), ticks, strict=True):
        label.set_fontweight(weight)
    axes.set_ylim(place - 0.5, -0.5)
    axes.set_xlim(low / 1.1, high * np.sqrt(high / low) * 1.6)
    axes.xaxis.set_major_locator(FixedLocator([one for one in RATIOS if low / 1.1 <= one <= high * 1.6]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("native time / its time")
    title(axes, "Best algorithm for each call against the MPI library", _about(best))
    footnote(axes, "bands: 95% interval; grey: it includes 1")
    return figure


def _step(row: Mapping[str, Any]) -> str:
    words = [row["strategy"], *([row["variant"]] if row["variant"] else [])]
    return f"{' '.join(words)}\n{row['mesh']}".strip()


def _goes(row: Mapping[str, Any], way: str) -> bool:
    return bool(row["best"]) if way == BEST else row["algorithm"] == NATIVE


def _about(rows: PatternRows) -> str:
    models = dict.fromkeys(f"{row['model']}, {row['batch']} × {row['seq']} tokens" for row in rows)
    words = [" and ".join(models), f"{rows[0]['nranks']} ranks"]
    if rows[0]["scale"] != "1":
        words.append(f"all messages × {rows[0]['scale']}")
    if any(row["oversubscribed"] for row in rows):
        words.append("more ranks than CPUs")
    return " · ".join([*words, rows[0]["run"]])
