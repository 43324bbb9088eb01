"""Pictures of a run, drawn from its rows and nothing else.

Per primitive: time and bus bandwidth against message size, and the library's own algorithms with its default. For the
run: a map of the best hand-written algorithm against the library. Figures are made without pyplot, on the Agg canvas,
so no display, backend setting or global figure is ever involved.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from bench.regret import own_rows
from bench.rows import is_forced, is_handwritten
from bench.sizes import format_size
from bench.tables import best_handwritten, drawable, measured, shared_settings, sweeps

PLOTS_FOLDER = "plots"
HEATMAP = "native_ratio"

# Okabe and Ito's colours, told apart with any colour vision, without black (the library's) and yellow (too pale).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
LINES = ("-", "--", ":")  # one round of colours each
LIBRARY_LINES = ("-", (0, (4, 1.5)), (0, (1, 1)))
TEXT_LINE = 0.062  # of the height of the axes
INK, GREY, PALE = "#222222", "#6b6b6b", "#e4e4e4"

STYLE: Any = {  # matplotlib types its keys, differently in each version
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": PALE,
    "grid.linewidth": 0.8,
    "svg.hashsalt": "collbench",  # the same rows give the same file
}


@dataclass(frozen=True)
class Measure:
    """A quantity to draw against message size."""

    name: str  # of the file
    title: str
    axis: str  # label with the unit
    column: str
    logarithmic: bool


TIME = Measure("time", "time", "time per call, median (µs)", "time_us_p50", True)
LIBRARY = Measure(
    "library", "the library's own algorithms and its default", "time over that of the fastest of them", "over", True
)
BUSBW = Measure("busbw", "bus bandwidth", "bus bandwidth at the median time (GB/s)", "busbw_GBps", False)


def draw(rows: Sequence[dict[str, Any]], folder: Path) -> dict[str, list[Path]]:
    """Draw all pictures of `rows` into `folder`/plots, each as PNG and as SVG.

    Returns the PNG files of each sweep by its name, and under "" those of the run. Only rows whose status is ok are
    drawn, and values that are blank, zero or negative never; a figure of which nothing is left is not made.
    """
    table = measured(rows)
    pictures = {}
    with mpl.rc_context(STYLE):
        pictures[""] = save({HEATMAP: heatmap(table)}, folder / PLOTS_FOLDER)
        for name, sweep in sweeps(table):
            stem = name.replace(", ", "_").replace(" ", "-").replace("/", "-")
            others = sweep[~sweep["algorithm"].map(is_forced)]
            figures = {f"{stem}_{measure.name}": against_size(name, others, measure) for measure in (TIME, BUSBW)}
            figures[f"{stem}_{LIBRARY.name}"] = library(name, sweep)
            pictures[name] = save(figures, folder / PLOTS_FOLDER)
    return pictures


def against_size(name: str, rows: pd.DataFrame, measure: Measure) -> Figure | None:
    """Return the figure of one sweep, called `name`, or None when no row has this measure."""
    drawn = drawable(rows, measure.column)
    if drawn.empty:
        return None
    masked = int((rows[measure.column].notna()).sum()) - len(drawn)
    several = drawn["nbytes"].nunique() > 1
    figure = Figure(figsize=(7.2, 4.3 if several else 1.2 + 0.36 * len(drawn)))
    axes = figure.subplots()
    axes.tick_params(length=0)
    axes.grid(axis="both" if several else "x")
    (_lines if several else _dots)(axes, drawn, measure)
    title(axes, f"{name}: {measure.title}", shared_settings(rows))
    notes = ["band: 5th to 95th percentile"]
    if measure is LIBRARY:
        notes = ["band: native's 5th to 95th percentile", "where native leaves 1, the library has something faster"]
    if masked:
        notes.append(f"{masked} value{'s' * (masked > 1)} of 0 or below not drawn")
    footnote(axes, "; ".join(notes))
    return figure


def library(name: str, rows: pd.DataFrame) -> Figure | None:
    """Return the figure of the library's own algorithms and its default over them, or None where none was measured.

    Drawn is how many times the fastest of them each takes: where the default leaves 1, another choice was better.
    """
    drawn = drawable(pd.concat([rows[rows["algorithm"] == "native"], own_rows(rows)]), "time_us_p50")
    if drawn["contender"].nunique() < 2:
        return None
    fastest = drawn.groupby("nbytes")["time_us_p50"].transform("min")
    names = drawn["contender"].str.removeprefix("native:")
    drawn = drawn.assign(**{LIBRARY.column: drawn["time_us_p50"] / fastest, "contender": names})
    return against_size(name, drawn, LIBRARY)


def heatmap(table: pd.DataFrame) -> Figure | None:
    """Return the map primitive x size of the best hand-written algorithm, or None when nothing has a native ratio."""
    best = best_handwritten(table)
    if best.empty:
        return None
    names = list(dict.fromkeys(best["sweep"]))
    sizes = sorted(best["nbytes"].unique().tolist())
    figure = Figure(figsize=(1.6 + 1.02 * len(sizes), 1.5 + 0.62 * len(names)))
    axes = figure.subplots()
    # Symmetric in the logarithm: half and twice the library's speed are equally strong. Beyond 4x no one needs shades.
    reach = min(2.0, max(1.0, float(np.abs(np.log2(best["native_ratio"])).max())))
    shades, norm = mpl.colormaps["RdBu"], Normalize(-reach, reach)
    axes.set_facecolor("#f3f3f3")
    for cell in best.to_dict("records"):
        x, y = sizes.index(cell["nbytes"]), names.index(cell["sweep"])
        colour = shades(norm(np.log2(cell["native_ratio"])))
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white", linewidth=2))
        ink = "white" if np.dot(colour[:3], (0.299, 0.587, 0.114)) < 0.55 else INK
        decided = cell["native_ratio_low"] > 1 or cell["native_ratio_high"] < 1
        middle: Any = {"ha": "center", "va": "center", "color": ink}
        axes.text(
            x, y - 0.2, f"{cell['native_ratio']:.2f}", weight="bold" if decided else "normal", size=10.5, **middle
        )
        axes.text(x, y + 0.2, _wrapped(cell["contender"]), size=7.4, linespacing=1.05, **middle)
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xticks(range(len(sizes)), [format_size(nbytes) for nbytes in sizes])
    axes.set_yticks(range(len(names)), [name.replace(", ", "\n", 1) for name in names])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("message size (bytes)")
    title(axes, "Best hand-written algorithm against the MPI library", shared_settings(table))
    bar = figure.colorbar(ScalarMappable(norm, shades), ax=axes, pad=0.02, fraction=0.03, aspect=18)
    bar.outline.set_visible(False)
    bar.set_label("native time / its time")
    levels = range(-int(reach), int(reach) + 1)
    bar.set_ticks(list(levels), labels=[f"{2.0**level:g}" for level in levels])
    bar.ax.tick_params(length=0)
    footnote(axes, "above 1: faster than native; bold: the 95% interval excludes 1")
    return figure


def _band(rows: pd.DataFrame, measure: Measure) -> tuple[pd.Series, pd.Series]:
    """Return the measure at the 5th and the 95th percentile of time; both are the value itself where one is blank."""
    middle = rows["time_us_p50"]
    ends = []
    for column in ("time_us_p5", "time_us_p95"):
        part = rows[column] / middle
        part = part.where((part > 0) & np.isfinite(part), 1.0)
        ends.append(rows[measure.column] * (1 / part if measure is BUSBW else part))
    return np.minimum(*ends), np.maximum(*ends)


def _looks(contenders: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return how each contender is drawn: the library black and thick, the others in colours."""
    looks: dict[str, dict[str, Any]] = {}
    ours = sorted(name for name in contenders if is_handwritten(name))
    libraries = sorted(name for name in contenders if not is_handwritten(name))
    for index, name in enumerate(libraries):
        width = 3.2 if index == 0 else 2.4
        looks[name] = {
            "color": "black" if index == 0 else "#777777",
            "linewidth": width,
            "linestyle": LIBRARY_LINES[index % len(LIBRARY_LINES)],
            "marker": "o",
            "markersize": width - 1,  # with its edge as wide as the line: seen only where a point stands alone
            "zorder": 2.5 - 0.1 * index,
        }
    for index, name in enumerate(ours):
        turn, place = divmod(index, len(COLOURS))
        looks[name] = {
            "color": COLOURS[place],
            "linewidth": 1.6,
            "linestyle": LINES[turn % len(LINES)],
            "marker": MARKERS[place],
            "markersize": 5,
            "zorder": 3,
        }
    return looks


def _lines(axes: Axes, rows: pd.DataFrame, measure: Measure) -> None:
    """Draw a line a contender over the sizes; size 0 stands apart, left of all others."""
    looks = _looks(list(rows["contender"].unique()))
    if measure is LIBRARY and "native" in looks:
        looks["native"]["zorder"] = 4  # over all others
    sizes = sorted(rows["nbytes"].unique().tolist())
    positive = [nbytes for nbytes in sizes if nbytes > 0]
    slot = {0: positive[0] / (positive[1] / positive[0] if len(positive) > 1 else 2)}
    ends = {}
    for name, part in rows.sort_values("nbytes").groupby("contender"):
        look = looks[str(name)]
        low, high = _band(part, measure)
        where = part["nbytes"].map(lambda nbytes: slot.get(nbytes, nbytes)).astype(float)
        values = part[measure.column]
        for joined in (part["nbytes"] > 0, part["nbytes"] == 0):  # no line leads to size 0, nor a band
            if not joined.any():
                continue
            axes.plot(where[joined], values[joined], **look)
            if measure is LIBRARY and name != "native":  # bands of what only surrounds the default would hide it
                continue
            axes.fill_between(where[joined], low[joined], high[joined], color=look["color"], alpha=0.13, linewidth=0)
            if joined.sum() == 1:  # a band of one point has no width
                axes.vlines(where[joined], low[joined], high[joined], color=look["color"], alpha=0.25, linewidth=5)
        ends[str(name)] = (float(where.iloc[-1]), float(values.iloc[-1]))
    axes.set_xscale("log", base=2)
    every = -(-len(sizes) // 12)  # more labels than this touch each other
    ticks = positive[::-1][::every] + [0] * (sizes[0] == 0)
    axes.set_xticks([slot.get(nbytes, nbytes) for nbytes in ticks], [format_size(nbytes) for nbytes in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("message size (bytes, K = 1024)")
    if measure.logarithmic:
        axes.set_yscale("log")
        bottom, top = axes.get_ylim()
        # Powers of ten alone would leave a narrow range with one tick or none.
        marks = (1,) if top / bottom > 300 else (1, 2, 5) if top / bottom > 8 else (1, 1.5, 2, 3, 5, 7)
        axes.yaxis.set_major_locator(LogLocator(subs=marks))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    else:
        axes.set_ylim(bottom=0)
    axes.set_ylabel(measure.axis)
    _label_ends(axes, ends, looks)


def _label_ends(axes: Axes, ends: dict[str, tuple[float, float]], looks: dict[str, dict[str, Any]]) -> None:
    """Write each contender's name to the right of the end of its line, pushed apart where ends are close."""
    to_axes = axes.transData + axes.transAxes.inverted()
    corners = {name: to_axes.transform(end) for name, end in ends.items()}
    names = sorted(corners, key=lambda name: float(corners[name][1]))
    places = _spread([float(corners[name][1]) for name in names], TEXT_LINE)
    beside: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}
    for name, place in zip(names, places, strict=True):
        x, y = corners[name]
        axes.plot([x + 0.012, 1.03], [y, place], color=looks[name]["color"], linewidth=0.8, alpha=0.5, **beside)
        axes.plot([1.035, 1.06, 1.085], [place] * 3, markevery=[1], **{**looks[name], **beside})
        weight = "bold" if name == "native" else "normal"
        axes.text(1.1, place, name, va="center_baseline", color=INK, weight=weight, **beside)


def _spread(heights: Sequence[float], gap: float) -> list[float]:
    """Return rising heights at least `gap` apart and within 0 to 1, crowded ones spread around their mean."""
    groups: list[list[float]] = []
    for height in heights:
        groups.append([height])
        while len(groups) > 1 and _bottom(groups[-1], gap) < _bottom(groups[-2], gap) + gap * len(groups[-2]):
            last = groups.pop()
            groups[-1].extend(last)
    places = [_bottom(group, gap) + gap * index for group in groups for index in range(len(group))]
    above = range(len(places) - 1, -1, -1)  # how many labels are above each
    return [
        max(min(place, 1 - gap * n), gap * index) for index, (place, n) in enumerate(zip(places, above, strict=True))
    ]


def _bottom(group: Sequence[float], gap: float) -> float:
    return sum(group) / len(group) - gap * (len(group) - 1) / 2


def _dots(axes: Axes, rows: pd.DataFrame, measure: Measure) -> None:
    """Draw one size: a contender a line, the best on top, with its value written beside it."""
    ordered = rows.sort_values(measure.column, ascending=measure is not BUSBW, kind="stable")
    looks = _looks(list(ordered["contender"].unique()))
    lows, highs = _band(ordered, measure)
    end = float(highs.max())
    for place, (name, value, low, high) in enumerate(
        zip(ordered["contender"], ordered[measure.column], lows, highs, strict=True)
    ):
        colour = looks[name]["color"]
        axes.hlines(place, low, high, color=colour, alpha=0.3, linewidth=6)
        axes.plot(value, place, color=colour, marker=looks[name]["marker"], markersize=8)
        axes.text(high + 0.02 * end, place, f"{value:.4g}", va="center_baseline", color=INK)
    axes.set_yticks(range(len(ordered)), list(ordered["contender"]))
    axes.set_ylim(len(ordered) - 0.5, -0.5)
    axes.set_xlim(0, 1.12 * end)
    nbytes = int(rows["nbytes"].iloc[0])
    axes.set_xlabel(measure.axis + (f", at {format_size(nbytes)} bytes" if nbytes else ""))


def title(axes: Axes, title: str, subtitle: str) -> None:
    """Write a title and what is common to all that is drawn above the axes."""
    axes.annotate(
        title, (0, 1), (0, 22), "axes fraction", "offset points", weight="bold", size=12, annotation_clip=False
    )
    axes.annotate(
        subtitle, (0, 1), (0, 8), "axes fraction", "offset points", color=GREY, size=8.5, annotation_clip=False
    )


def footnote(axes: Axes, text: str) -> None:
    """Write below the axes how to read them."""
    axes.annotate(text, (0, 0), (0, -46), "axes fraction", "offset points", color=GREY, size=8, annotation_clip=False)


def _wrapped(name: str) -> str:
    """Return a long algorithm name in two lines, cut where its words end nearest to the middle."""
    cuts = [index for index, letter in enumerate(name) if letter in "_:"]
    if len(name) <= 14 or not cuts:
        return name
    cut = min(cuts, key=lambda index: abs(index - len(name) / 2))
    return f"{name[: cut + 1]}\n{name[cut + 1 :]}"


def save(figures: Mapping[str, Figure | None], folder: Path) -> list[Path]:
    """Save the figures that there are under their names; return the PNG files."""
    pictures = []
    folder.mkdir(parents=True, exist_ok=True)
    for stem, figure in figures.items():
        if figure is None:
            continue
        canvas = FigureCanvasAgg(figure)
        whole: Any = {"bbox_inches": "tight", "pad_inches": 0.15}
        canvas.print_figure(folder / f"{stem}.png", dpi=144, **whole)
        canvas.print_figure(folder / f"{stem}.svg", metadata={"Date": None}, **whole)
        pictures.append(folder / f"{stem}.png")
    return pictures
