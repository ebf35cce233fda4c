"""A picture of tensor copies as SVG, PNG or PDF, by matplotlib.

The colours are those of Okabe and Ito, which colour-blind readers can tell apart. The unit of
length is one pixel cell; y grows downwards.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from implicit_conv.tma.picture import Buffer, Mark, Picture, Plane, Row

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK, FAINT, PIXEL, LINE = "#222222", "#767676", "#f3f3f3", "#d0d0d0"
CANVASES = {".svg": FigureCanvasSVG, ".png": FigureCanvasAgg, ".pdf": FigureCanvasPdf}
STYLE: Any = {
    "svg.fonttype": "none",  # text stays text, so that files are small and searchable
    "svg.hashsalt": "implicit_conv",  # equal pictures give equal files
    "font.family": "DejaVu Sans",  # it comes with matplotlib
    "hatch.linewidth": 0.6,
}
CELL = 0.34  # side of a pixel cell, inches
CELL_SMALL = 0.24  # side of a pixel cell in a wide plane, inches
WIDE_PLANE = 30  # cells; a plane at least this wide is drawn above shared memory, not next to it
ROW_WIDTH, ROW_HEIGHT = 1.22, 0.165  # size of a row of shared memory, inches
GAP = 1.6  # space between two planes, cells


def save(picture: Picture, path: str | Path) -> None:
    """Write the picture to a file whose suffix names the format."""
    path = Path(path)
    if path.suffix not in CANVASES:
        raise ValueError(f"{path.name}: the name must end in one of {', '.join(CANVASES)}")
    with matplotlib.rc_context(STYLE):
        figure = Drawing(picture).figure
        canvas = CANVASES[path.suffix](figure)
        keys = {"svg": "Description", "png": "Description", "pdf": "Subject"}
        metadata: dict[str, Any] = {keys[path.suffix[1:]]: f"digest {digest(picture)}"}
        if path.suffix == ".svg":
            metadata["Date"] = None
        canvas.print_figure(path, dpi=150, metadata=metadata)


def digest(picture: Picture) -> str:
    """A hash of the picture and of this file, stored in a drawing to tell whether it is current."""
    source = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    return hashlib.sha256((source + picture.digest).encode()).hexdigest()[:16]


class Drawing:
    """Lays out planes and shared memory on one figure."""

    def __init__(self, picture: Picture):
        self.picture = picture
        across = max(len(plane.across) for plane in picture.planes)
        self.below = across >= WIDE_PLANE
        self.cell = CELL_SMALL if self.below else CELL
        self.figure = Figure(layout=None)
        self.axes: Axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()
        self.right = self.bottom = 0.0
        top = self._title()
        plane_bottom = self._planes(top)
        if self.below:
            end = self._memory(0.5, plane_bottom + 1, columns_in=self.right)
        else:
            rows = plane_bottom - top
            end = self._memory(self.right + 1.5, top, height=rows)
        self._legend(max(plane_bottom, end) + 1.2)
        self.figure.set_size_inches((self.right + 0.8) * self.cell, self.bottom * self.cell)
        self.axes.set_xlim(0, self.right + 0.8)
        self.axes.set_ylim(self.bottom, 0)

    def text(self, x: float, y: float, text: str, points: float, **more: Any) -> None:
        """Add text, vertically centred on y."""
        style = {"fontsize": points, "va": "center", "ha": "left", "color": INK, **more}
        self.axes.text(x, y, text, **style)

    def rectangle(self, x: float, y: float, width: float, height: float, **style: Any) -> None:
        """Add a rectangle with its upper left corner at (x, y)."""
        self.axes.add_patch(Rectangle((x, y), width, height, clip_on=False, **style))

    def _inches(self, inches: float) -> float:
        return inches / self.cell

    def _title(self) -> float:
        self.text(0.5, 1.0, self.picture.title, 13, weight="bold")
        parts, y = self.picture.subtitle, 2.0
        self.text(0.5, y + 0.2, parts, 9, color=FAINT)
        points = max(len(parts) * 9 * 0.58, len(self.picture.title) * 13 * 0.62)
        self.right = 0.5 + points / 72 / self.cell
        self.least = self.right
        self.right = 0.0
        return y + 1.4

    def _planes(self, top: float) -> float:
        y = top
        for plane in self.picture.planes:
            y = self._plane(plane, 2.2, y) + GAP
        return y - GAP

    def _plane(self, plane: Plane, left: float, top: float) -> float:
        """Draw one grid and return its lower end."""
        points = self.cell * 72 * 0.36
        self.text(left, top, plane.title, 10, weight="bold")
        top += 1.7
        for x in plane.across:
            self.text(
                left + x - plane.across[0] + 0.5,
                top - 0.45,
                str(x),
                points,
                ha="center",
                color=FAINT,
            )
        corner = f"{plane.letters[0]} \\ {plane.letters[1]}"
        self.text(left - 0.4, top - 0.45, corner, points, ha="right", color=FAINT)
        for y in plane.down:
            row = top + y - plane.down[0]
            self.text(left - 0.4, row + 0.5, str(y), points, ha="right", color=FAINT)
            for x in plane.across:
                self._pixel(plane, (y, x), left + x - plane.across[0], row)
            if any(cell[0] == y for cell in plane.wraps):
                self.text(left + len(plane.across) + 0.25, row + 0.5, "↵", points, color=INK)
        self._boxes(plane, left - plane.across[0], top - plane.down[0])
        self.right = max(self.right, left + len(plane.across) + 0.9)
        return top + len(plane.down)

    def _pixel(self, plane: Plane, cell: tuple[int, int], x: float, y: float) -> None:
        marks = plane.marks.get(cell, [])
        exists = all(0 <= i < size for i, size in zip(cell, plane.size, strict=True))
        if exists:
            self.rectangle(x, y, 1, 1, facecolor=PIXEL, edgecolor=LINE, linewidth=0.5)
        share = 1 / max(1, len({mark.buffer for mark in marks}))
        for i, buffer in enumerate(sorted({mark.buffer for mark in marks})):
            own = [mark for mark in marks if mark.buffer == buffer]
            self._mark(own, x + i * share, y, share)

    def _mark(self, marks: list[Mark], x: float, y: float, width: float) -> None:
        """Draw the visits of one pixel by one buffer."""
        color = COLORS[marks[0].buffer % len(COLORS)]
        self._tile(x + 0.04, y + 0.04, width - 0.08, 0.92, color, marks[0].filled)
        if any(mark.halo for mark in marks):
            self._halo(x + 0.08, y + 0.08, width - 0.16, 0.84)
        orders = sorted({mark.order for mark in marks})
        label = str(orders[0]) if len(orders) == 1 else f"{orders[0]}+"
        points = self.cell * 72 * (0.36 if width == 1 else 0.24)
        plain = {"boxstyle": "square,pad=0.05", "facecolor": "white", "edgecolor": "none"}
        box = plain if marks[0].filled else None
        self.text(x + width / 2, y + 0.5, label, points, ha="center", bbox=box)

    def _tile(
        self, x: float, y: float, width: float, height: float, color: str, filled: bool
    ) -> None:
        """Draw a cell in the colour of its buffer, hatched if the copy fills it."""
        if filled:
            style = {"facecolor": "white", "edgecolor": color, "hatch": "/////", "linewidth": 0.5}
        else:
            style = {"facecolor": tint(color), "edgecolor": color, "linewidth": 0.5}
        self.rectangle(x, y, width, height, **style)

    def _halo(self, x: float, y: float, width: float, height: float) -> None:
        self.rectangle(x, y, width, height, facecolor="none", edgecolor=INK, linewidth=1.3)

    def _boxes(self, plane: Plane, left: float, top: float) -> None:
        """Draw the bounding boxes; several are inset, so that all can be seen."""
        for i, box in enumerate(plane.boxes):
            color = INK if len(plane.boxes) == 1 else COLORS[box.buffer % len(COLORS)]
            inset = 0.09 * i - 0.05
            (y0, x0), (y1, x1) = box.first, box.last
            self.rectangle(
                left + x0 + inset,
                top + y0 + inset,
                x1 - x0 + 1 - 2 * inset,
                y1 - y0 + 1 - 2 * inset,
                facecolor="none",
                edgecolor=color,
                linewidth=2,
                linestyle=(0, (5, 2)),
            )

    def _memory(self, left: float, top: float, height: float = 0, columns_in: float = 0) -> float:
        """Draw all buffers in columns and return the lower end of the last."""
        width, row = self._inches(ROW_WIDTH), self._inches(ROW_HEIGHT)
        end = top
        for b, buffer in enumerate(self.picture.buffers):
            if columns_in:
                columns = max(1, int((columns_in - left) / width))
                per_column = -(-len(buffer.rows) // columns)
            else:
                per_column = max(16, int((height - 3) / row))
                if len(buffer.rows) <= per_column * 1.15:
                    per_column = len(buffer.rows)
            ended = self._buffer(b, buffer, left, top, per_column)
            end = max(end, ended)
            if columns_in:
                top = ended + 1.5
            else:
                left = self.right + 1.2
        return end

    def _buffer(self, b: int, buffer: Buffer, left: float, top: float, per_column: int) -> float:
        width, height = self._inches(ROW_WIDTH), self._inches(ROW_HEIGHT)
        color = COLORS[b % len(COLORS)]
        self.text(left, top, buffer.title, 10, weight="bold", color=color)
        head = f"row  ({', '.join(self.picture.letters)})"
        top += 1.7
        columns = -(-len(buffer.rows) // per_column)
        for column in range(columns):
            self.text(left + column * width, top - 0.45, head, 7, color=FAINT)
        for i, row in enumerate(buffer.rows):
            column, line = divmod(i, per_column)
            self._row(row, left + column * width, top + line * height, color)
        title = self._inches(len(buffer.title) * 10 * 0.62 / 72)
        self.right = max(self.right, left + max(columns * width, title))
        return top + per_column * height

    def _row(self, row: Row, x: float, y: float, color: str) -> None:
        width, height = self._inches(ROW_WIDTH) * 0.94, self._inches(ROW_HEIGHT)
        number = self._inches(0.3)
        self._tile(x + number, y, width - number, height, color, row.filled)
        if row.halo:
            self._halo(x + number, y, width - number, height)
        self.text(x + number * 0.85, y + height / 2, str(row.index), 7, ha="right", color=FAINT)
        plain = {"boxstyle": "square,pad=0.05", "facecolor": "white", "edgecolor": "none"}
        label = f"({', '.join(map(str, row.coordinates))})"
        self.text(x + number * 1.25, y + height / 2, label, 7, bbox=plain if row.filled else None)

    def _legend(self, y: float) -> None:
        """Draw the legend of colours and signs."""
        color, x = COLORS[0], 0.5
        walks_planes = self.picture.planes[0].letters == "hw"
        unit = self._inches(0.22)
        entries = [
            ("tile", "loaded; the number is the walk's order"),
            ("fill", "outside the tensor: filled"),
            ("halo", "halo"),
            ("pixel", "pixel not visited"),
            ("box", "bounding box, before the offsets" if walks_planes else "bounding box"),
            ("wrap", "the walk wraps to the box's lower corner"),
        ]
        self.right = max(self.right, self.least)
        for kind, label in entries:
            advance = unit + 0.4 + self._inches(len(label) * 8 * 0.6 / 72) + 0.6
            if x + advance > self.right and x > 0.5:
                x, y = 0.5, y + self._inches(0.28)
            self._sign(kind, x, y - unit / 2, unit, color)
            self.text(x + unit + 0.35, y, label, 8)
            x += advance
        self.bottom = y + 1.2

    def _sign(self, kind: str, x: float, y: float, unit: float, color: str) -> None:
        if kind == "wrap":
            self.text(x, y + unit / 2, "↵", 11)
        elif kind == "pixel":
            self.rectangle(x, y, unit, unit, facecolor=PIXEL, edgecolor=LINE, linewidth=0.8)
        elif kind == "box":
            style = {"facecolor": "none", "edgecolor": INK, "linestyle": (0, (3, 1.5))}
            self.rectangle(x, y, unit, unit, linewidth=1.6, **style)
        else:
            self._tile(x, y, unit, unit, color, kind == "fill")
            if kind == "halo":
                self._halo(x + 0.04, y + 0.04, unit - 0.08, unit - 0.08)


def tint(color: str, strength: float = 0.3) -> tuple[float, ...]:
    """The colour mixed with white, so that dark text on it is legible."""
    return tuple(1 - strength + strength * part for part in to_rgb(color))
