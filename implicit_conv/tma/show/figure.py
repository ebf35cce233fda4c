"""A picture of tensor copies as SVG, PNG or PDF, by matplotlib.

The colours are those of Okabe and Ito, which colour-blind readers can tell apart; an SVG also has
dark ones, for readers who prefer them. Lengths are inches; y grows downwards. A drawing is at most
WIDTH wide, so that its numbers stay legible on a page of 800 pixels: what does not fit is elided.
"""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle

from implicit_conv.tma.show.picture import Box, Buffer, Mark, Picture, Plane, Row

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK, FAINT, PIXEL, LINE, PAPER = "#222222", "#666666", "#f3f3f3", "#d0d0d0", "#ffffff"
CANVASES = {".svg": FigureCanvasSVG, ".png": FigureCanvasAgg, ".pdf": FigureCanvasPdf}
STYLE: Any = {
    "svg.fonttype": "none",  # text stays text, so that files are small and searchable
    "svg.hashsalt": "implicit_conv",  # equal pictures give equal files
    "font.family": "DejaVu Sans",  # it comes with matplotlib
    "hatch.linewidth": 0.6,
}
WIDTH = 8.3  # most inches of a drawing: 800 pixels at 96 a inch
CELL = 0.34  # side of a pixel cell
ROW_WIDTH, ROW_HEIGHT = 1.52, 0.185  # of a row of shared memory
DIGITS = 8.6  # points: 11 pixels at 96 a inch
MARGIN, GAP = 0.2, 0.35
ROWS_DOWN, ROWS_ACROSS = 14, 20  # pixels of a plane that are drawn at most
COLUMN_ROWS = 34  # rows of shared memory in a column
DARK = {INK: "#e6edf3", FAINT: "#9aa4b2", PIXEL: "#21262d", LINE: "#3d444d", PAPER: "#0d1117"}


def save(picture: Picture, path: str | Path) -> None:
    """Write the picture to a file whose suffix names the format."""
    path = Path(path)
    if path.suffix not in CANVASES:
        raise ValueError(f"{path.name}: the name must end in one of {', '.join(CANVASES)}")
    with matplotlib.rc_context(STYLE):
        write(Drawing(picture).figure, path, digest(picture))


def write(figure: Figure, path: Path, description: str) -> None:
    """Write a figure whose axes cover it; equal figures give equal files."""
    canvas = CANVASES[path.suffix](figure)
    key = "Subject" if path.suffix == ".pdf" else "Description"
    undated: dict[str, Any] = {"Date": None} if path.suffix == ".svg" else {}
    metadata = {key: f"digest {description}", **undated}
    canvas.print_figure(path, dpi=150, metadata=metadata)
    if path.suffix == ".svg":
        path.write_text(with_dark_colors(path.read_text(encoding="utf-8")), encoding="utf-8")


def with_dark_colors(svg: str) -> str:
    """The SVG with a style sheet for readers who prefer a dark page."""
    dark = {**DARK, **{tint(color): shade(color) for color in COLORS}}
    rules = "".join(
        f'[style*="{kind}: {light}"]{{{kind}:{color}!important}}'
        for light, color in dark.items()
        for kind in ("fill", "stroke")
        if f"{kind}: {light}" in svg
    )
    if "<pattern" in svg:  # of hatches, whose paper is an attribute instead of a style
        rules += f"pattern rect{{fill:{DARK[PAPER]}!important}}"
    return re.sub(
        "</metadata>",
        f"</metadata>\n <style>@media (prefers-color-scheme:dark){{{rules}}}</style>",
        svg,
        count=1,
    )


def digest(picture: object, *files: str) -> str:
    """A hash of a picture and of the files that draw it, by which a drawing tells its own age."""
    sources = (Path(file).read_bytes() for file in (__file__, *files))
    return hashlib.sha256(b"".join([*sources, repr(picture).encode()])).hexdigest()[:16]


class Places:
    """Where the positions of an axis are drawn: all, or the first, the last and those to keep."""

    def __init__(self, positions: Sequence[int], most: int, keep: Iterable[int] = ()):
        shown = set(positions)
        if len(positions) > most:
            kept = set(sorted(keep)[: most // 2])
            room = most - 2 * len(kept)  # each may be between two gaps
            half = (room + 1) // 2
            shown = {*positions[:half], *positions[len(positions) - room + half :], *kept}
        self.gaps: list[int] = []  # places where positions are elided
        self._places: list[tuple[int, int]] = []
        for position in sorted(shown):
            if self._places and position - self._places[-1][1] > 1:
                self.gaps.append(len(self))
            self._places.append((len(self), position))

    def __len__(self) -> int:
        return len(self._places) + len(self.gaps)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(place, position) of what is drawn."""
        return iter(self._places)

    def edge(self, position: int) -> int:
        """The place of the lower edge of a position; the gap's if it is elided."""
        return next((place for place, shown in self if shown >= position), len(self))


def kept(plane: Plane, axis: int) -> set[int]:
    """The positions of halos and of the last pixel, which are not elided."""
    marked = [(cell[axis], mark) for cell, marks in plane.marks.items() for mark in marks]
    last = max((mark.order for _, mark in marked if not mark.halo), default=-1)
    return {position for position, mark in marked if mark.halo or mark.order == last}


class Canvas:
    """A figure whose axes cover it, in inches from its upper left corner."""

    def __init__(self) -> None:
        self.figure = Figure(layout=None, facecolor=PAPER)
        self.axes: Axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()

    def resize(self, width: float, height: float) -> None:
        """Give the figure its size."""
        self.figure.set_size_inches(width, height)
        self.axes.set_xlim(0, width)
        self.axes.set_ylim(height, 0)

    def text(self, x: float, y: float, text: str, points: float = DIGITS, **more: Any) -> None:
        """Add text, vertically centred on y."""
        style = {"fontsize": points, "va": "center", "ha": "left", "color": INK, **more}
        self.axes.text(x, y, text, **style)

    def rectangle(self, x: float, y: float, width: float, height: float, **style: Any) -> None:
        """Add a rectangle with its upper left corner at (x, y)."""
        self.axes.add_patch(Rectangle((x, y), width, height, clip_on=False, **style))


class Drawing(Canvas):
    """Lays out planes and shared memory on one figure."""

    def __init__(self, picture: Picture):
        super().__init__()
        self.picture, self.right = picture, 0.0
        top = self._title()
        ends = self._planes(top)
        self.right = max(self.right, ends[0])
        beside = len(picture.buffers) == 1 and len(picture.buffers[0].rows) <= COLUMN_ROWS
        if beside and ends[0] + GAP + ROW_WIDTH + MARGIN <= WIDTH:
            end = self._memory(ends[0] + GAP, top)
        else:
            end = self._memory(MARGIN, ends[1] + GAP)
        bottom = self._legend(max(ends[1], end) + 0.3)
        self.resize(max(self.right + MARGIN, 5.0), bottom)

    def _title(self) -> float:
        self.text(MARGIN, 0.3, self.picture.title, 13, weight="bold")
        y = 0.58
        for line in textwrap.wrap(self.picture.subtitle, 108) + self.picture.notes:
            self.text(MARGIN, y, line, 9, color=FAINT)
            self.right = max(self.right, MARGIN + len(line) * 0.068)
            y += 0.18
        return y + 0.15

    def _planes(self, top: float) -> tuple[float, float]:
        """Draw the planes below each other; returns their right and lower ends."""
        right = 0.0
        for plane in self.picture.planes:
            end, bottom = self._plane(plane, MARGIN + 0.53, top)
            right, top = max(right, end), bottom + GAP
        return right, top - GAP

    def _plane(self, plane: Plane, left: float, top: float) -> tuple[float, float]:
        """Draw one grid; returns its right and lower ends."""
        self.text(MARGIN, top, plane.title, 10, weight="bold")
        top += 0.48
        down = Places(plane.down, ROWS_DOWN, kept(plane, 0))
        across = Places(plane.across, ROWS_ACROSS, kept(plane, 1))
        corner = " \\ ".join(plane.letters.strip())
        self.text(left - 0.12, top - 0.15, corner, ha="right", color=FAINT)
        for i, x in across:
            self.text(left + (i + 0.5) * CELL, top - 0.15, str(x), ha="center", color=FAINT)
        for j, y in down:
            middle = top + (j + 0.5) * CELL
            self.text(left - 0.12, middle, str(y), ha="right", color=FAINT)
            for i, x in across:
                self._pixel(plane, (y, x), left + i * CELL, top + j * CELL)
            if any(cell[0] == y for cell in plane.wraps):
                self.text(left + len(across) * CELL + 0.08, middle, "↵")
        right, bottom = left + len(across) * CELL, top + len(down) * CELL
        for gap in across.gaps:
            self._gap(left + (gap + 0.5) * CELL, (top + bottom) / 2, 0)
        for gap in down.gaps:
            self._gap((left + right) / 2, top + (gap + 0.5) * CELL, 90)
        if plane.shifted is not None:
            self._box(0, plane.shifted, 1, (left, top), (down, across), FAINT)
        for i, box in enumerate(plane.boxes):
            self._box(i, box, len(plane.boxes), (left, top), (down, across))
        return right + 0.25, bottom

    def _gap(self, x: float, y: float, angle: int) -> None:
        self.text(x, y, "···", 13, ha="center", color=FAINT, rotation=angle)

    def _pixel(self, plane: Plane, cell: tuple[int, int], x: float, y: float) -> None:
        marks = plane.marks.get(cell, [])
        if all(0 <= i < size for i, size in zip(cell, plane.size, strict=True)):
            self.rectangle(x, y, CELL, CELL, facecolor=PIXEL, edgecolor=LINE, linewidth=0.5)
        buffers = sorted({mark.buffer for mark in marks})
        share = CELL / max(1, len(buffers))
        for i, buffer in enumerate(buffers):
            own = [mark for mark in marks if mark.buffer == buffer]
            self._mark(own, x + i * share, y, share)

    def _mark(self, marks: list[Mark], x: float, y: float, width: float) -> None:
        """Draw the visits of one pixel by one buffer."""
        b, edge = marks[0].buffer, 0.014
        color = _color(b, marks[0].group)
        self._tile(x + edge, y + edge, width - 2 * edge, CELL - 2 * edge, color, marks[0].filled)
        halo = next((mark for mark in marks if mark.halo), None)
        if halo is not None:
            inner = (x + 2 * edge, y + 2 * edge, width - 4 * edge, CELL - 4 * edge)
            self._halo(*inner, _color(b, halo.group) if halo.group >= 0 else INK)
        orders = sorted({mark.order for mark in marks})
        label = str(orders[0]) if len(orders) == 1 else f"{orders[0]}+"
        points = DIGITS if width == CELL and len(label) < 4 else DIGITS - 2.2
        self._label(x + width / 2, y + CELL / 2, label, points, marks[0].filled, ha="center")

    def _label(
        self, x: float, y: float, label: str, points: float, filled: bool, **more: Any
    ) -> None:
        """A label, on paper where hatching would hide it."""
        plain = {"boxstyle": "square,pad=0.05", "facecolor": PAPER, "edgecolor": "none"}
        self.text(x, y, label, points, bbox=plain if filled else None, **more)

    def _tile(
        self, x: float, y: float, width: float, height: float, color: str, filled: bool
    ) -> None:
        """Draw a cell in its colour, hatched if the copy fills it."""
        inside = {"facecolor": PAPER, "hatch": "/////"} if filled else {"facecolor": tint(color)}
        self.rectangle(x, y, width, height, **inside, edgecolor=color, linewidth=0.5)

    def _halo(self, x: float, y: float, width: float, height: float, color: str = INK) -> None:
        self.rectangle(x, y, width, height, facecolor="none", edgecolor=color, linewidth=1.8)

    def _box(
        self,
        index: int,
        box: Box,
        count: int,
        origin: tuple[float, float],
        places: tuple[Places, Places],
        single: str = INK,
    ) -> None:
        """Draw a bounding box and mark its corners; several boxes are inset, so that all show."""
        color = single if count == 1 else _color(box.buffer)
        inset = 0.03 * index - 0.016
        (left, top), (down, across) = origin, places
        x0, x1 = (left + across.edge(x) * CELL for x in (box.first[1], box.last[1] + 1))
        y0, y1 = (top + down.edge(y) * CELL for y in (box.first[0], box.last[0] + 1))
        x0, y0, x1, y1 = x0 + inset, y0 + inset, x1 - inset, y1 - inset
        style = {"facecolor": "none", "edgecolor": color, "linestyle": (0, (5, 2))}
        self.rectangle(x0, y0, x1 - x0, y1 - y0, linewidth=2 if single == INK else 1, **style)
        if box.corners:
            self._corner(x0, y0, 0.11)
            self._corner(x1, y1, -0.11)

    def _corner(self, x: float, y: float, size: float) -> None:
        """A triangle in a corner of a box, pointing outwards."""
        corners = [(x, y), (x + size, y), (x, y + size)]
        self.axes.add_patch(Polygon(corners, facecolor=INK, edgecolor="none"))

    def _memory(self, left: float, top: float) -> float:
        """Draw all buffers next to each other; returns the lower end of the longest."""
        buffers, end = self.picture.buffers, top
        columns = int((WIDTH - MARGIN - left + 0.05) / (ROW_WIDTH + 0.08))
        share = max(1, columns // len(buffers))
        for b, buffer in enumerate(buffers):
            if b * share + share > columns and b:  # no room: below the ones before
                left, top = MARGIN, end + GAP
            end = max(end, self._buffer(b, buffer, left, top, share))
            left += share * (ROW_WIDTH + 0.08)
        return end

    def _buffer(self, b: int, buffer: Buffer, left: float, top: float, columns: int) -> float:
        color, many = _color(b), len(self.picture.buffers) > 1
        words = textwrap.wrap(buffer.title, int(columns * (ROW_WIDTH + 0.08) / 0.094))
        for part in words:
            self.text(left, top, part, 10, weight="bold", color=color if many else INK)
            top += 0.19
        head = f"row  ({', '.join(self.picture.letters)})"
        count, room = len(buffer.rows), COLUMN_ROWS * columns
        rows = Places(range(count), room if count <= room else room - 1)
        per_column = -(-len(rows) // columns) if len(rows) > 16 else len(rows)
        top += 0.1
        lefts = [left + n * (ROW_WIDTH + 0.08) for n in range(-(-len(rows) // per_column) + 1)]
        for x in lefts[:-1]:
            self.text(x, top, head, color=FAINT)
        top += 0.12
        for place, number in rows:
            column, line = divmod(place, per_column)
            self._row(buffer.rows[number], lefts[column], top + line * ROW_HEIGHT, b)
        for gap in rows.gaps:
            column, line = divmod(gap, per_column)
            self._gap(lefts[column] + ROW_WIDTH / 2, top + (line + 0.5) * ROW_HEIGHT, 90)
        self.right = max(self.right, lefts[-1], left + len(words[0]) * 0.085)
        return top + per_column * ROW_HEIGHT

    def _row(self, row: Row, x: float, y: float, buffer: int) -> None:
        color = _color(buffer, row.group)
        number, middle = 0.33, y + ROW_HEIGHT / 2
        tile = (x + number, y, ROW_WIDTH - number, ROW_HEIGHT)
        self._tile(*tile, color, row.filled)
        if row.halo:
            self._halo(*tile)
        self.text(x + number - 0.05, middle, str(row.index), ha="right", color=FAINT)
        label = f"({', '.join(map(str, row.coordinates))})"
        self._label(x + number + 0.07, middle, label, DIGITS, row.filled)

    def _legend(self, y: float) -> float:
        """Draw the legend of the signs that occur; returns the lower end of the drawing."""
        rows = [row for buffer in self.picture.buffers for row in buffer.rows]
        box = next((b for plane in self.picture.planes for b in plane.boxes), None)
        corners = box.corners if box is not None else ()
        shifted = any(plane.shifted is not None for plane in self.picture.planes)
        entries = [
            ("tile", "loaded; the number is its order", any(not row.filled for row in rows)),
            ("fill", "outside the tensor: filled", any(row.filled for row in rows)),
            ("halo", "halo", any(row.halo for row in rows)),
            ("pixel", "pixel not visited", True),
            ("box", self.picture.box_name, True),
            ("shifted", "the same, shifted by the offsets", shifted),
            ("wrap", "the walk wraps", any(plane.wraps for plane in self.picture.planes)),
            *(("corner" if i == 0 else "end", text, True) for i, text in enumerate(corners)),
        ]
        unit, x = 0.2, MARGIN
        for kind, label, occurs in entries:
            if not occurs:
                continue
            advance = unit + 0.1 + len(label) * 0.066 + 0.2
            if x + advance > max(self.right, 5.0) and x > MARGIN:
                x, y = MARGIN, y + 0.26
            self._sign(kind, x, y - unit / 2, unit)
            self.text(x + unit + 0.08, y, label)
            x += advance
        return y + 0.3

    def _sign(self, kind: str, x: float, y: float, unit: float) -> None:
        box = {"facecolor": "none", "edgecolor": INK, "linestyle": (0, (3, 1.5)), "linewidth": 1.6}
        plain = {
            "pixel": {"facecolor": PIXEL, "edgecolor": LINE, "linewidth": 0.8},
            "box": box,
            "shifted": {**box, "edgecolor": FAINT, "linewidth": 1},
        }
        if kind in plain:
            self.rectangle(x, y, unit, unit, **plain[kind])
        elif kind == "wrap":
            self.text(x, y + unit / 2, "↵", 11)
        elif kind == "corner":
            self._corner(x, y, unit * 0.7)
        elif kind == "end":
            self._corner(x + unit, y + unit, -unit * 0.7)
        else:
            self._tile(x, y, unit, unit, COLORS[0], kind == "fill")
            if kind == "halo":
                self._halo(x + 0.02, y + 0.02, unit - 0.04, unit - 0.04)


def _color(buffer: int, group: int = -1) -> str:
    """The colour of a visit: that of its group of im2col::w::128, or of its buffer."""
    return COLORS[(buffer if group < 0 else group) % len(COLORS)]


def tint(color: str) -> str:
    """The colour mixed with white, so that dark text on it is legible."""
    return _mixed(color, PAPER, 0.3)


def shade(color: str) -> str:
    """The colour mixed with the dark paper, so that light text on it is legible."""
    return _mixed(color, DARK[PAPER], 0.45)


def _mixed(color: str, paper: str, strength: float) -> str:
    parts = zip(to_rgb(color), to_rgb(paper), strict=True)
    red, green, blue = (strength * part + (1 - strength) * other for part, other in parts)
    return str(to_hex((red, green, blue)))
