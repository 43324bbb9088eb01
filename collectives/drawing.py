"""Draw a replay as SVG: ranks across, rounds down, an arrow a message.

Between the rounds stand the ranks' chunks as cells. A cell is filled by the share of contributions that it holds, so
a moved block is full at once and a sum fills up; what a round changed is outlined in the colour of what changed it.
The two colours (Okabe and Ito's blue and vermilion) and the two arrow ends differ for any colour vision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap

from collectives.replay import Delivery, Replay
from collectives.rounds import Chunk, Combine, Fence
from collectives.vector import Chunks

MOVED, COMBINED = "#0072B2", "#D55E00"
TINT = "#C5DFF0"
INK, GREY, PALE, LANE = "#222222", "#6b6b6b", "#c9c9c9", "#f6f6f6"

STYLE = (
    f"text{{fill:{INK};text-anchor:middle}} .left{{text-anchor:start}} .right{{text-anchor:end}} "
    f".bold{{font-weight:bold}} .title{{font-size:15px}} .summary{{font-size:12px}} "
    f".grey{{fill:{GREY}}} .pale{{fill:{PALE}}} "
    f".cell,.full{{fill:white;stroke:{PALE}}} .full,.share{{fill:{TINT}}} "
    f".line{{fill:none;stroke-width:1.4}} .crowd{{stroke-width:.8;stroke-opacity:.6}} .head{{fill:{MOVED}}} "
    f".moved{{stroke:{MOVED}}} .combined{{stroke:{COMBINED}}} .plus{{fill:white;stroke-width:1.2}} "
    f".fence{{stroke:{GREY};stroke-dasharray:5 3}} "
    ".changed{stroke-width:1.8} .ground{fill:white;fill-opacity:.88}"
)
TEXT = 10.5
CHARACTER = 0.7 * TEXT
"""About how wide a capital or a digit is in the widest of the usual fonts."""
CELL_HEIGHT = 20
LANE_GAP = 22
LEFT = 74
RIGHT = 24
TOP = 24
LINE = 16
FLIGHT = 44
"""How far down a message flies before it falls straight to its end, past its label."""
FALL = 30
FENCE = 12
LABEL_STEP = 13
MOST_LEVELS = 3
"""On how many heights the labels of one rank's arriving messages may stand."""
WIDEST = 1180
"""How wide a picture may get before values are shortened to the parts of the vector that they are of."""


def draw(told: Replay) -> str:
    """Return the SVG picture of a replay."""
    return _Drawing(told).svg()


@dataclass(frozen=True)
class _Cells:
    """How a rank's chunks are set out: so many columns of cells so wide; whether values are written out in them."""

    columns: int
    rows: int
    width: float
    values: bool


def _wide(text: str) -> float:
    return len(text) * CHARACTER


class _Drawing:
    def __init__(self, told: Replay) -> None:
        self.told = told
        self.nranks = told.problem.nranks
        self.combines = told.problem.primitive.combines
        ranks = range(self.nranks)
        later = [told.places(rank) for rank in ranks]
        # Where there are more chunks than places, a rank's places are what it needs, but at first what it has.
        shared = all(set(told.inputs(rank)) <= set(later[rank]) for rank in ranks)
        first = later if shared else [told.inputs(rank) for rank in ranks]
        self.places: list[list[Chunks]] = [first, *[later] * len(told.numbers)]
        self.cells = self._set_out()
        self.grid = self.cells.columns * self.cells.width
        self.carried = any(
            told.carried(position, rank) for position in range(len(told.states)) for rank in range(self.nranks)
        )
        self.high = self.cells.rows * CELL_HEIGHT + (LINE if self.carried else 0)
        self.parts: list[str] = []

    # Setting out

    def _set_out(self) -> _Cells:
        """Choose as many columns as the picture has room for; write values out if they fit."""
        most = max(1, *(len(chunks) for places in self.places for chunks in places))
        labels = (
            self.told.label(chunk, state[chunk])
            for states, places in zip(self.told.states, self.places, strict=True)
            for state, chunks in zip(states, places, strict=True)
            for chunk in chunks
            if chunk in state
        )
        longest = max(map(len, labels), default=1)
        width = max(26.0, longest * CHARACTER + 11)
        for columns in range(min(most, 8), 0, -1):
            rows = -(-most // columns)
            if rows <= 4 and LEFT + self.nranks * (columns * width + LANE_GAP) <= WIDEST:
                return _Cells(-(-most // rows), rows, width, True)
        width = 26.0 if self.combines else max(22.0, longest * CHARACTER + 5)
        columns = min(most, 4) if most <= 16 else 8
        return _Cells(columns, -(-most // columns), width, not self.combines)

    def _left(self, rank: int) -> float:
        return LEFT + rank * (self.grid + LANE_GAP)

    def _label(self, chunk: Chunk, value: tuple[object, ...]) -> str:
        return self.told.label(chunk, value) if self.cells.values else self.told.part(chunk)

    # The picture

    def svg(self) -> str:
        told = self.told
        across = max(LEFT + self.nranks * (self.grid + LANE_GAP) - LANE_GAP + RIGHT, 520)
        head = [told.title, *wrap(told.algorithm.summary, int((across - LEFT - RIGHT) / 6.9))]
        for number, line in enumerate(head):
            self._text(LEFT, TOP + 6 + number * (LINE + 2), line, "left summary grey" if number else "left title bold")
        top: float = TOP + len(head) * (LINE + 2)
        for x, base, part in self._legend(across, top):
            self.parts.append(f'<g transform="translate({_n(x)},{_n(base)})">{part}</g>')
            top = max(top, base)
        top += 36
        lanes = len(self.parts)
        for rank in range(self.nranks):
            self._text(self._left(rank) + self.grid / 2, top - 8, f"rank {rank}", "bold")
        y = top
        self._state(0, y, {})
        for position in range(len(told.numbers)):
            y = self._round(position, y + self.high)
        bottom = y + self.high
        self.parts[lanes:lanes] = [
            f'<rect x="{_n(self._left(rank) - 5)}" y="{_n(top - 22)}" width="{_n(self.grid + 10)}" '
            f'height="{_n(bottom - top + 28)}" rx="5" fill="{LANE}"/>'
            for rank in range(self.nranks)
        ]
        width, height = round(across), round(bottom + 22)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                f'viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, DejaVu Sans, sans-serif" '
                f'font-size="{TEXT}">',
                f"<title>{escape(told.title)}</title>",
                f"<style>{STYLE}</style>",
                '<rect width="100%" height="100%" fill="white"/>',
                *self.parts,
                "</svg>\n",
            ]
        )

    def _legend(self, across: float, top: float) -> Iterator[tuple[float, float, str]]:
        """Yield the samples that say what is what, with their places."""
        arrow = _line("M0,-4 H26", "moved") + _head(30, -4, -90)
        samples = [("a message", arrow, 36)]
        if any(one.combined for deliveries in self.told.deliveries for one in deliveries):
            plus = _line("M0,-4 H22", "combined") + _plus(26, -4, 4.5)
            samples.append(("a message that is combined with the own value", plus, 36))
        if self.combines:
            samples.append(("filled by the share of contributions", _cell(0, -12, 26, 15, 0.5), 32))
        if any(isinstance(one, Combine) for local in self.told.local for _, one in local):
            samples.append(("combined on the rank", _cell(0, -12, 26, 15, 1, "changed combined"), 32))
        samples.append(("changed by the round", _cell(0, -12, 26, 15, 1, "changed moved"), 32))
        if self.told.problem.primitive.synchronises:
            samples.append(("a letter: that rank is known to have entered", "", 0))
        x, y = float(LEFT), top + 8.0
        for words, sample, indent in samples:
            wide = indent + _wide(words)
            if x + wide > across - RIGHT and x > LEFT:
                x, y = float(LEFT), y + LINE + 4
            yield x, y, f'{sample}<text x="{indent}" class="left grey">{escape(words)}</text>'
            x += wide + 22

    def _round(self, position: int, y: float) -> float:
        """Draw the messages of a round from `y` on, and the state that it leads to; return where that begins."""
        deliveries = self.told.deliveries[position]
        leaving, arriving = self._ports(deliveries, True), self._ports(deliveries, False)
        labels = [self._words(position, one) for one in deliveries]
        levels = self._levels(deliveries, labels, arriving)
        local = self.told.local[position]
        crowd = len(deliveries) / self.nranks
        turn = y + FLIGHT + min(6 * crowd, FLIGHT)
        end = turn + (FALL + LABEL_STEP * max(levels) if max(levels, default=-1) >= 0 else FALL / 2)
        fences = {operation.group for _, operation in local if isinstance(operation, Fence)}
        below = end + (FENCE if fences else 0)
        self._text(LEFT - 16, y + (below - y) / 2 + 4, f"round {self.told.numbers[position]}", "right grey")
        for index, one in enumerate(deliveries):
            x0, x1, middle = leaving[index], arriving[index], (y + turn) / 2
            way = (
                f"M{_n(x0)},{_n(y + 1)} C{_n(x0)},{_n(middle + 6)} {_n(x1)},{_n(middle - 6)} {_n(x1)},{_n(turn)} "
                f"V{_n(end - 7)}"
            )
            told = f"rank {one.source} to rank {one.target}: {', '.join(self.told.sent(position, one)) or 'signal'}"
            self.parts.append(_line(way, f"{_kind(one)} crowd" if crowd > 3 else _kind(one), told))
        spacing = self._spacing(deliveries)
        for index, one in enumerate(deliveries):
            x1 = arriving[index]
            if one.combined:
                self.parts.append(_plus(x1, end - 6, min(4.5, spacing[index] / 2)))
            else:
                self.parts.append(_head(x1, end - 1.5, scale=min(1.0, spacing[index] / 8)))
            if levels[index] >= 0 and labels[index]:
                self._chip(x1, end - 16 - LABEL_STEP * levels[index], labels[index])
        for group in fences:
            first, last = self._left(min(group)) - 5, self._left(max(group)) + self.grid + 5
            self.parts.append(f'<path d="M{_n(first)},{_n(end + 6)} H{_n(last)}" class="line fence"/>')
            self._text(LEFT - 16, end + 10, "fence", "right grey")
        changed = {
            (rank, chunk): "moved"
            for rank, (before, after) in enumerate(zip(*self.told.states[position : position + 2], strict=True))
            for chunk in after
            if before.get(chunk) != after[chunk]
        }
        changed.update(((rank, one.into), "combined") for rank, one in local if isinstance(one, Combine))
        changed.update(((one.target, chunk), _kind(one)) for one in deliveries for chunk in one.chunks)
        self._state(position + 1, below, changed)
        return below

    def _ports(self, deliveries: Sequence[Delivery], leaving: bool) -> list[float]:
        """Return where each message leaves or arrives: side by side, in the order of where the other end is."""
        ports = [0.0] * len(deliveries)
        for rank in range(self.nranks):
            mine = [index for index, one in enumerate(deliveries) if (one.source if leaving else one.target) == rank]
            mine.sort(key=lambda index: deliveries[index].target if leaving else deliveries[index].source)
            for place, index in enumerate(mine, start=1):
                ports[index] = self._left(rank) + self.grid * place / (len(mine) + 1)
        return ports

    def _spacing(self, deliveries: Sequence[Delivery]) -> list[float]:
        arrivals = [sum(other.target == one.target for other in deliveries) for one in deliveries]
        return [self.grid / (number + 1) for number in arrivals]

    def _words(self, position: int, delivery: Delivery) -> str:
        """Return what a message carries in as many words as there is room for at its end."""
        state = self.told.states[position + (delivery.memory == "written")][delivery.source]
        chunks = [chunk for chunk in delivery.chunks if chunk in state]
        values = [self._label(chunk, state[chunk]) for chunk in chunks]
        parts = [self.told.part(chunk) or value for chunk, value in zip(chunks, values, strict=True)]
        forms = (", ".join(values), f"chunks {', '.join(parts)}", f"{len(values)} chunks")
        return next((form for form in forms if _wide(form) <= self.grid + LANE_GAP), forms[-1])

    def _levels(self, deliveries: Sequence[Delivery], labels: Sequence[str], arriving: Sequence[float]) -> list[int]:
        """Return on which height each label stands so that none covers another; -1 for all if there is no room."""
        levels = [-1] * len(deliveries)
        for rank in range(self.nranks):
            mine = [index for index, one in enumerate(deliveries) if one.target == rank]
            mine.sort(key=arriving.__getitem__)
            spacing = self.grid / (len(mine) + 1)
            widest = max((_wide(labels[index]) + 4 for index in mine), default=0.0)
            needed = max(1, min(int(-(-widest // spacing)), len(mine)))
            if needed > MOST_LEVELS:
                return [-1] * len(deliveries)
            for place, index in enumerate(mine):
                levels[index] = place % needed
        return levels

    def _state(self, position: int, y: float, changed: dict[tuple[int, Chunk], str]) -> None:
        """Draw what each rank has before round `position`."""
        last = position == len(self.told.states) - 1
        if position == 0 or last:
            middle = y + self.cells.rows * CELL_HEIGHT / 2 + 4
            self._text(LEFT - 16, middle, "after" if last and position else "before", "right grey")
        for rank, state in enumerate(self.told.states[position]):
            wanted = set(self.told.outputs(rank))
            for place, chunk in enumerate(self.places[position][rank]):
                row, column = divmod(place, self.cells.columns)
                x, top = self._left(rank) + column * self.cells.width, y + row * CELL_HEIGHT
                box = (x + 1, top + 1, self.cells.width - 2, CELL_HEIGHT - 2)
                spent = last and chunk not in wanted
                share = 0.0
                if chunk in state and not spent:
                    share = len(state[chunk]) / self.nranks if self.combines else 1.0
                kind = None if spent else changed.get((rank, chunk))
                self.parts.append(_cell(*box, share, f"changed {kind}" if kind else ""))
                if chunk in state:
                    words, look = self._label(chunk, state[chunk]), "pale" if spent else ""
                    self._text(x + self.cells.width / 2, top + 14, words, look)
            carried = [self._label(chunk, state[chunk]) for chunk in self.told.carried(position, rank)]
            if carried:
                words = "+ " + ", ".join(carried)
                if _wide(words) > self.grid + LANE_GAP - 4:
                    words = f"+ {len(carried)} to pass on"
                self._text(self._left(rank) + self.grid / 2, y + self.high - 4, words, "grey")

    def _text(self, x: float, y: float, words: str, look: str = "") -> None:
        self.parts.append(f'<text x="{_n(x)}" y="{_n(y)}"{_class(look)}>{escape(words)}</text>')

    def _chip(self, x: float, y: float, words: str) -> None:
        """Write on a white ground, so that lines behind the words do not disturb."""
        wide = _wide(words) + 3
        box = f'x="{_n(x - wide / 2)}" y="{_n(y - 9)}" width="{_n(wide)}" height="12"'
        self.parts.append(f'<rect {box} rx="3" class="ground"/>')
        self._text(x, y, words)


def _kind(delivery: Delivery) -> str:
    return "combined" if delivery.combined else "moved"


def _n(number: float) -> str:
    """Return a coordinate in as few characters as a tenth of a pixel needs."""
    return f"{round(number, 1):g}"


def _class(look: str) -> str:
    return f' class="{look}"' if look else ""


def _cell(x: float, y: float, width: float, height: float, share: float, look: str = "") -> str:
    """Draw a cell that is filled from the left by `share`."""
    kind = " ".join(["full" if share == 1 else "cell", *look.split()])
    box = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" rx="2"'
    parts = [f"<rect {box}{_class(kind)}/>"]
    if 0 < share < 1:
        box = f'x="{_n(x + 1)}" y="{_n(y + 1)}" width="{_n((width - 2) * share)}" height="{_n(height - 2)}"'
        parts.append(f'<rect {box} class="share"/>')
    return "".join(parts)


def _line(way: str, look: str, told: str = "") -> str:
    """Draw a line; what is told of it appears under the pointer."""
    end = f"><title>{escape(told)}</title></path>" if told else "/>"
    return f'<path d="{way}" class="line {look}"{end}'


def _head(x: float, y: float, turn: float = 0, scale: float = 1) -> str:
    """Draw an arrow head whose point is at (x, y), downwards unless turned."""
    moves = f"translate({_n(x)},{_n(y)})" + (f" rotate({turn:g})" if turn else "")
    moves += f" scale({scale:.2g})" if scale != 1 else ""
    return f'<path transform="{moves}" d="M0,0 L-3.6,-8 L0,-6.2 L3.6,-8 Z" class="head"/>'


def _plus(x: float, y: float, radius: float) -> str:
    """Draw a plus in a circle."""
    arm = radius * 0.6
    way = f"M{_n(x - arm)},{_n(y)} h{_n(2 * arm)} M{_n(x)},{_n(y - arm)} v{_n(2 * arm)}"
    circle = f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}" class="plus combined"/>'
    return f"{circle}{_line(way, 'plus combined')}"
