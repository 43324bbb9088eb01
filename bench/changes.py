"""Draw what changed between runs: time now over time before, against size, a panel for each primitive."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from bench.compare import Change
from bench.plots import GREY, STYLE
from bench.sizes import format_size

LOOKS = {"slower": ("#D55E00", "^"), "faster": ("#0072B2", "v"), "no difference shown": ("#b0b0b0", ".")}
COLUMNS = 3  # of panels


def draw(changes: Sequence[Change], folder: Path, stem: str) -> list[Path]:
    """Save the picture as PNG and SVG in `folder`; return both."""
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        canvas = FigureCanvasAgg(figure(changes))
        paths = [folder / f"{stem}.png", folder / f"{stem}.svg"]
        canvas.print_figure(paths[0], dpi=144, bbox_inches="tight")
        canvas.print_figure(paths[1], metadata={"Date": None}, bbox_inches="tight")
    return paths


def figure(changes: Sequence[Change]) -> Figure:
    """Return the figure; the scale is the same in all panels."""
    primitives = list(dict.fromkeys(one.primitive for one in changes))
    ncolumns = min(COLUMNS, len(primitives))
    nrows = -(-len(primitives) // ncolumns)
    made = Figure(figsize=(3.4 * ncolumns + 0.6, 2.3 * nrows + 0.9))
    panels = made.subplots(nrows, ncolumns, sharey=True, squeeze=False)
    sizes = sorted({one.nbytes for one in changes})
    reach = max([1.25, *(max(one.ratio, 1 / one.ratio) for one in changes)]) * 1.1
    for panel, primitive in zip(panels.flat, primitives, strict=False):
        for verdict, (colour, marker) in LOOKS.items():
            own = [one for one in changes if one.primitive == primitive and one.verdict == verdict]
            places = [sizes.index(one.nbytes) for one in own]
            panel.plot(places, [one.ratio for one in own], marker, color=colour, markersize=6, alpha=0.8, label=verdict)
        panel.axhline(1, color=GREY, linewidth=0.8)
        panel.set_title(primitive, loc="left", fontsize=10, weight="bold")
        panel.set_yscale("log", base=2)
        panel.set_ylim(1 / reach, reach)
        panel.yaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.set_xlim(-0.5, len(sizes) - 0.5)
        every = -(-len(sizes) // 6)
        panel.set_xticks(range(0, len(sizes), every), [format_size(nbytes) for nbytes in sizes[::every]])
        panel.grid(axis="y")
        panel.tick_params(length=0)
    for panel in panels.flat[len(primitives) :]:
        panel.set_axis_off()
    made.supylabel("time now / time before", fontsize=9.5)
    made.supxlabel("message size (bytes, K = 1024); above 1: slower", fontsize=9.5)
    made.legend(*panels[0][0].get_legend_handles_labels(), loc="upper right", ncols=3, frameon=False, fontsize=8.5)
    made.tight_layout(rect=(0, 0, 1, 0.96))
    return made
