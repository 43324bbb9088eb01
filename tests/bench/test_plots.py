import itertools
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from bench.plots import BUSBW, COLOURS, LIBRARY, STYLE, TIME, _spread, against_size, draw, heatmap, library
from bench.tables import measured, sweeps
from tests.waiting import HANG_S

ROOT = Path(__file__).parents[2]
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def figure(as_read):
    """Draw one figure of some rows: the first sweep's time or bandwidth, or the run's map."""

    def make(rows, measure):
        table = measured(as_read(rows))
        with mpl.rc_context(STYLE):
            if measure is None:
                return heatmap(table)
            if measure is LIBRARY:
                return library(*next(sweeps(table)))
            return against_size(*next(sweeps(table)), measure)

    return make


def texts(figure):
    """All texts that are seen, with the boxes they take."""
    with mpl.rc_context(STYLE):
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        renderer = canvas.get_renderer()
        shown = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
        return [(text.get_text(), text.get_window_extent(renderer)) for text in shown]


def words(figure):
    return {text for text, _ in texts(figure)}


def lines(figure):
    """The drawn lines by colour, without the labels' samples and leaders."""
    axes = figure.axes[0]
    return {line.get_color(): line for line in axes.lines if line.get_transform() == axes.transData}


def test_a_run_gives_a_map_and_two_figures_a_primitive_each_as_png_and_svg(tmp_path, stored, as_read):
    pictures = draw(as_read(stored(["allreduce", "broadcast", "barrier"])), tmp_path)
    assert {name: [path.name for path in paths] for name, paths in pictures.items()} == {
        "": ["native_ratio.png"],
        "allreduce": ["allreduce_time.png", "allreduce_busbw.png"],
        "broadcast": ["broadcast_time.png", "broadcast_busbw.png"],
        "barrier": ["barrier_time.png"],  # moves nothing, has no bandwidth
    }
    for path in itertools.chain(*pictures.values()):
        assert path.parent == tmp_path / "plots"
        assert path.read_bytes().startswith(PNG)
        assert ElementTree.parse(path.with_suffix(".svg")).getroot().tag.endswith("svg")


def test_the_same_rows_give_the_same_svg(tmp_path, stored, as_read):
    rows = as_read(stored(["broadcast"]))
    svgs = [draw(rows, tmp_path / name)["broadcast"][0].with_suffix(".svg").read_bytes() for name in "ab"]
    assert svgs[0] == svgs[1]


def test_a_figure_of_each_setting(tmp_path, stored, as_read):
    rows = stored(["allreduce"], sizes=(8, 64)) + stored(["allreduce"], sizes=(8, 64), dtype="float64", nranks=2)
    pictures = draw(as_read(rows), tmp_path)
    assert [path.name for path in pictures["allreduce, 2 ranks, float64"]] == [
        "allreduce_2-ranks_float64_time.png",
        "allreduce_2-ranks_float64_busbw.png",
    ]


@pytest.mark.parametrize("measure", [TIME, BUSBW, None])
@pytest.mark.parametrize(
    "run",
    [
        {"primitives": ["allreduce"]},
        {"primitives": ["broadcast"]},
        {"primitives": ["allreduce"], "sizes": (4096,)},
        {"primitives": ["allreduce"], "sizes": tuple(2**k for k in range(3, 28))},
        {"primitives": ["allreduce"], "sizes": (0, 8, 64, 512)},
        {"primitives": ["allgather"], "algorithms": ["native", "ring"]},
    ],
)
def test_no_two_texts_touch(figure, stored, run, measure):
    boxes = texts(figure(stored(**run), measure))
    for (one, here), (other, there) in itertools.combinations(boxes, 2):
        assert not here.overlaps(there), f"{one!r} touches {other!r}"


def test_axes_have_units_and_sizes_are_ticks(figure, stored):
    seen = words(figure(stored(["allreduce"]), TIME))
    assert {"time per call, median (µs)", "message size (bytes, K = 1024)"} <= seen
    assert {"8", "64", "512", "4K", "32K", "256K", "2M", "16M"} <= seen
    assert "bus bandwidth at the median time (GB/s)" in words(figure(stored(["allreduce"]), BUSBW))


def test_a_time_range_within_a_decade_still_has_ticks(figure, row):
    rows = [row(nbytes=nbytes, time_us_p50=time) for nbytes, time in ((8, 11.0), (64, 48.0))]
    assert {"20"} <= words(figure(rows, TIME))


def test_native_is_black_and_thicker_than_any_other(figure, stored):
    drawn = lines(figure(stored(["allreduce"]), TIME))
    others = [line for colour, line in drawn.items() if colour in COLOURS]
    assert len(others) == 5
    assert drawn["black"].get_linewidth() > 1.5 * max(line.get_linewidth() for line in others)


def test_contenders_differ_in_more_than_colour(figure, row):
    names = [f"algorithm_{number}" for number in range(15)]
    rows = [row(algorithm=name, nbytes=nbytes, time_us_p50=9.0) for name in names for nbytes in (8, 64)]
    axes = figure(rows, TIME).axes[0]
    looks = {
        (line.get_color(), line.get_marker(), line.get_linestyle())
        for line in axes.lines
        if line.get_transform() == axes.transData
    }
    assert len(looks) == 15


def test_the_band_lies_between_the_5th_and_95th_percentile(figure, row):
    rows = [
        row(nbytes=nbytes, time_us_p50=10.0, time_us_p5=8.0, time_us_p95=20.0, busbw_GBps=4.0) for nbytes in (8, 64)
    ]
    for measure, ends in ((TIME, (8.0, 20.0)), (BUSBW, (2.0, 5.0))):
        (band, *_) = figure(rows, measure).axes[0].collections
        heights = band.get_paths()[0].vertices[:, 1]
        assert (heights.min(), heights.max()) == pytest.approx(ends)


def test_what_is_not_ok_is_not_drawn(figure, stored, row):
    bad = [row(status=status, reason="x", nbytes=8, time_us_p50=1e9) for status in ("wrong", "skipped", "failed")]
    drawn = lines(figure([*stored(["allreduce"]), *bad], TIME))
    assert all(line.get_ydata().max() < 1e6 for line in drawn.values())


def test_zero_negative_and_blank_values_are_masked_and_said(figure, row):
    times = {8: 5.0, 64: 0.0, 512: -1.0, 4096: None, 32768: 9.0}
    drawn = figure([row(nbytes=nbytes, time_us_p50=time) for nbytes, time in times.items()], TIME)
    (line,) = lines(drawn).values()
    assert list(line.get_xdata()) == [8, 32768]
    assert "band: 5th to 95th percentile; 2 values of 0 or below not drawn" in words(drawn)


def test_size_0_stands_apart(figure, stored):
    drawn = figure(stored(["allreduce"], sizes=(0, 8, 64)), TIME)
    assert {"0", "8", "64"} <= words(drawn)
    axes = drawn.axes[0]
    lengths = {len(line.get_xdata()) for line in axes.lines if line.get_transform() == axes.transData}
    assert lengths == {1, 2}  # no line joins it to the others


def test_bandwidth_of_one_rank_is_no_figure(figure, stored):
    assert figure(stored(["allreduce"], nranks=1), BUSBW) is None


def test_one_size_is_drawn_with_values_the_best_on_top(figure, stored):
    for measure in (TIME, BUSBW):
        labels = [
            label.get_text()
            for label in figure(stored(["allreduce"], sizes=(4096,)), measure).axes[0].get_yticklabels()
        ]
        assert (labels[0], labels[-1]) == ("native_persistent", "ring")


def test_the_map_names_the_winner_and_its_ratio(figure, row):
    ratios = {"native": 1.0, "ring": 0.5, "recursive_doubling": 2.0}
    rows = [
        row(algorithm=name, native_ratio=ratio, native_ratio_low=ratio * 0.9, native_ratio_high=ratio * 1.1)
        for name, ratio in ratios.items()
    ]
    drawn = figure(rows, None)
    assert {"2.00", "recursive_\ndoubling", "4K", "allreduce", "native time / its time"} <= words(drawn)


def test_the_map_is_white_at_1_and_equally_strong_at_half_and_double(figure, row):
    rows = [row(nbytes=8**place, native_ratio=ratio) for place, ratio in enumerate((0.5, 1.0, 2.0), start=1)]
    slow, even, fast = (patch.get_facecolor() for patch in figure(rows, None).axes[0].patches)
    assert min(even[:3]) > 0.95
    assert slow[0] > slow[2] and fast[2] > fast[0]


def test_no_native_is_no_map(figure, stored):
    assert figure(stored(["allreduce"], native=False), None) is None


@pytest.mark.parametrize("rows", [[], ["skipped"]])
def test_nothing_measured_is_no_picture(tmp_path, row, as_read, rows):
    assert draw(as_read([row(status=status, reason="x") for status in rows]), tmp_path) == {"": []}


@pytest.mark.parametrize(
    "heights", [[0.5], [0.5, 0.5, 0.5], [0.0, 0.01, 1.0], [0.97, 0.98, 0.99, 1.0], [0.1, 0.12, 0.3, 0.31]]
)
def test_labels_are_spread_within_the_axes(heights):
    places = _spread(heights, 0.1)
    assert all(above - below >= 0.1 - 1e-9 for below, above in itertools.pairwise(places))
    assert places[0] >= 0 and places[-1] <= 1


def test_no_display_is_needed_whatever_backend_is_set_up(tmp_path, stored, as_read):
    program = f"""if True:
        import sys
        from pathlib import Path
        from bench.plots import draw
        draw({as_read(stored(["barrier"]))!r}, Path(sys.argv[1]))
        print([name for name in ("mpi4py", "tkinter", "matplotlib.pyplot") if name in sys.modules])
    """
    environment = {**os.environ, "MPLBACKEND": "TkAgg"}
    environment.pop("DISPLAY", None)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, tmp_path],
        capture_output=True, text=True, cwd=ROOT, env=environment, timeout=HANG_S,
    )  # fmt: skip
    assert done.stdout == "[]\n", done.stderr
    assert (tmp_path / "plots" / "barrier_time.png").exists()


# ---------------------------------------------------------------------------------------------------------------
# The library's own algorithms and its default


def test_the_librarys_own_have_a_figure_of_their_own_and_are_in_no_other(tmp_path, with_own, as_read):
    pictures = draw(as_read(with_own()), tmp_path)
    names = [path.name for path in pictures["allreduce"]]
    assert names == ["allreduce_time.png", "allreduce_busbw.png", "allreduce_library.png"]
    assert "native:ring" not in (tmp_path / "plots" / "allreduce_time.svg").read_text()


def test_without_them_there_is_no_such_figure(figure, stored, row):
    assert figure(stored(["allreduce"]), LIBRARY) is None
    assert figure([row(algorithm="native", time_us_p50=9.0)], LIBRARY) is None


def test_the_default_is_drawn_over_the_others_and_alone_has_a_band(figure, with_own):
    axes = figure(with_own(), LIBRARY).axes[0]
    drawn = [line for line in axes.lines if line.get_transform() == axes.transData]
    black = [line for line in drawn if line.get_color() == "black"]
    assert len(drawn) == 4
    assert min(line.get_zorder() for line in black) > max(line.get_zorder() for line in drawn if line not in black)
    assert len(axes.collections) == 1


def test_what_is_drawn_is_time_over_that_of_the_fastest(figure, row):
    times = {"native": (20.0, 30.0), "native:ring": (10.0, 90.0), "native:bruck": (40.0, 15.0), "ring": (1.0, 1.0)}
    rows = [
        row(algorithm=name, requested=name if ":" in name else "", nbytes=nbytes, time_us_p50=time)
        for name, both in times.items()
        for nbytes, time in zip((8, 64), both, strict=True)
    ]
    drawn = figure(rows, LIBRARY)
    assert [list(line.get_ydata()) for line in lines(drawn).values()] == [[4.0, 1.0], [2.0, 2.0], [1.0, 6.0]]
    assert {"bruck", "native", "ring", "time over that of the fastest of them"} <= words(drawn)


@pytest.mark.parametrize("sizes", [(8, 64, 512), (4096,), tuple(2**k for k in range(3, 28))])
def test_no_two_texts_of_it_touch(figure, with_own, sizes):
    boxes = texts(figure(with_own(sizes=sizes), LIBRARY))
    for (one, here), (other, there) in itertools.combinations(boxes, 2):
        assert not here.overlaps(there), f"{one!r} touches {other!r}"
