"""Draw what tensor copies load, as text for a terminal or into a file; colour only helps."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path

from implicit_conv.errors import install
from implicit_conv.tma.maps.maps import TensorMap
from implicit_conv.tma.run.simulate import HALO_ORDER
from implicit_conv.tma.show.picture import Buffer, Cell, Mark, Picture, Plane, Row, picture

RESET, BOLD, DIM = "\x1b[0m", "\x1b[1m", "\x1b[2m"
COLORS = ("\x1b[34m", "\x1b[31m", "\x1b[32m", "\x1b[35m", "\x1b[33m", "\x1b[36m")
LEGEND = "12 order of the walk   (12) fill   [12] halo   . not visited   | box   < the walk wraps"
Painter = Callable[[str, str], str]
COLUMN_ROWS = 32  # rows of shared memory in one column of a table
WIDTH = 100  # most characters in a line of a table


def render(picture: Picture, color: bool = False) -> str:
    """The picture as lines of text; `color` adds an ANSI colour for each buffer."""
    paint = _paint if color else _plain
    lines = [paint(picture.title, BOLD), picture.subtitle, ""]
    for plane in picture.planes:
        lines += [*_plane(plane, paint), ""]
    tables = [_table(picture.letters, buffer, len(picture.buffers)) for buffer in picture.buffers]
    for b in range(0, len(tables), 3):  # three tables fit side by side
        lines += [*_side_by_side(tables[b : b + 3], b, paint), ""]
    if len(picture.buffers) > 1:
        lines.append("a, b, c before a number: buffer 1, 2, 3")
    return "\n".join([*lines, LEGEND])


def _side_by_side(tables: list[list[str]], first: int, paint: Painter) -> list[str]:
    """Tables next to each other, with titles in the colours of their buffers."""
    widths = [max(map(len, table)) + 3 for table in tables]
    lines = []
    for i, parts in enumerate(zip_longest(*tables, fillvalue="")):
        line = ""
        for b, (part, width) in enumerate(zip(parts, widths, strict=True)):
            style = COLORS[(first + b) % len(COLORS)] + BOLD
            line += (paint(part, style) if i == 0 else part) + " " * (width - len(part))
        lines.append(line.rstrip())
    return lines


def _plain(text: str, style: str) -> str:
    return text


def _paint(text: str, style: str) -> str:
    return f"{style}{text}{RESET}"


def _label(marks: list[Mark], letters: bool) -> str:
    """The text of a cell: its first visit, and a + if several buffers visit it."""
    mark = marks[0]
    halo = any(m.halo for m in marks)
    name = "abcdefghij"[mark.buffer % 10] if letters else ""
    text = f"{name}{mark.order}{'+' if len({m.buffer for m in marks}) > 1 else ''}"
    if mark.filled:
        text = f"({text})"
    return f"[{text}]" if halo else text


def _plane(plane: Plane, paint: Painter) -> list[str]:
    letters = len({m.buffer for marks in plane.marks.values() for m in marks}) > 1
    labels = {cell: _label(marks, letters) for cell, marks in plane.marks.items()}
    width = max([3, *(len(label) for label in labels.values())])
    head = " ".join(str(x).rjust(width) for x in plane.across)
    lines = [plane.title, f"{plane.letters[0]:>4} {plane.letters[1]:<1} {head}"]
    for y in plane.down:
        line = f"{y:>4}   "
        for x in plane.across:
            line += _bars(plane, y, x)
            line += _cell(plane, labels, (y, x), width, paint)
        line += _bars(plane, y, plane.across.stop)
        lines.append(line.rstrip())
    return lines


def _bars(plane: Plane, y: int, x: int) -> str:
    """The separator before a cell: < after a wrap of the walk, | at an edge of the box."""
    if (y, x - 1) in plane.wraps:
        return "<"
    if len(plane.boxes) > 1:  # the edges of overlapping boxes could not be told apart
        return " "
    (box,) = plane.boxes
    inside = box.first[0] <= y <= box.last[0]
    return "|" if inside and x in (box.first[1], box.last[1] + 1) else " "


def _cell(plane: Plane, labels: dict[Cell, str], cell: Cell, width: int, paint: Painter) -> str:
    if cell in labels:
        color = COLORS[plane.marks[cell][0].buffer % len(COLORS)]
        return paint(labels[cell].rjust(width), color)
    exists = all(0 <= x < size for x, size in zip(cell, plane.size, strict=True))
    return paint(("." if exists else " ").rjust(width), DIM)


def _table(letters: str, buffer: Buffer, tables: int) -> list[str]:
    """The rows of a buffer; a single buffer is split into columns."""
    rows = buffer.rows
    head = f"row <- ({', '.join(letters)})"
    texts = [_row(row) for row in rows]
    width = max(len(head), *(len(text) for text in texts)) + 3
    columns = 1 if tables > 1 else max(1, min(WIDTH // width, -(-len(texts) // COLUMN_ROWS)))
    height = -(-len(texts) // columns)
    lines = [buffer.title, (head.ljust(width) * columns).rstrip()]
    for i in range(height):
        lines.append("".join(text.ljust(width) for text in texts[i::height]).rstrip())
    return lines


def _row(row: Row) -> str:
    """The pixel of a row, and whether the row is filled or belongs to the halo."""
    text = f"{row.index:>3} <- ({', '.join(map(str, row.coordinates))})"
    return text + (" fill" if row.filled else "") + (" halo" if row.halo else "")


def draw(
    map: TensorMap,
    coords: Sequence[int],
    offsets: Sequence[int] | None = None,
    w_halo: int = 0,
    w_offset: int = 0,
    *,
    buffers: Sequence[tuple[int, int]] | None = None,
    halo_order: str = HALO_ORDER,
    path: str | Path | None = None,
    title: str = "",
    color: bool | None = None,
) -> str:
    """Draw one copy, or several copies that fill one buffer each.

    Parameters
    ----------
    map, coords, offsets, w_halo, w_offset
        As in `walk`.
    buffers : sequence of (w_halo, w_offset), optional
        One copy from the same start for each pair; replaces `w_halo` and `w_offset`.
    halo_order : {"interleaved", "grouped", "inline"}
        As in `walk`.
    path : path-like, optional
        A file to write: .svg, .png or .pdf, by matplotlib (extra ``plot``); .svg if its name
        has no ending.
    title : str
        Replaces the sizes of the map.
    color : bool, optional
        Whether the text has ANSI colours; by default, if standard output is a terminal and
        neither NO_COLOR nor TERM=dumb forbids them.

    Returns
    -------
    str
        The picture as text, or the name of the file that was written.

    Raises
    ------
    TensorMapError
        The map or the load breaks rules; the message lists all (a ValueError).
    ValueError
        There are no buffers, or too many pixels to draw.
    TypeError
        A coordinate, an offset, or an entry of `buffers` is not an integer.
    ImportError
        `path` is given, but matplotlib is not installed.

    Examples
    --------
    >>> from implicit_conv import tma
    >>> m = tma.Im2colMap(
    ...     shape=(1, 3, 4, 4), dtype="float32", lower_corner=(0, 0),
    ...     upper_corner=(0, 0), pixels_per_column=6, channels_per_pixel=4
    ... )
    >>> for line in tma.draw(m, (0, 0, 0, 0)).splitlines()[4:8]:
    ...     print(line)
       h w   0   1   2   3
       0   |  0   1   2   3<
       1   |  4   5   .   .|
       2   |  .   .   .   .|
    """
    copies = [(w_halo, w_offset)] if buffers is None else _pairs(buffers)
    return show(picture(map, coords, offsets, copies, title, halo_order), path, color)


def _pairs(buffers: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """`buffers` as pairs of ints."""
    try:
        return [(operator.index(halo), operator.index(offset)) for halo, offset in buffers]
    except (TypeError, ValueError):
        raise TypeError(
            f"buffers = {buffers!r} must be a sequence of integer pairs (w_halo, w_offset)"
        ) from None


def show(what: Picture, path: str | Path | None = None, color: bool | None = None) -> str:
    """Write a picture to a file and return its name, or return the picture as text."""
    if path is None:
        return render(what, wants_color() if color is None else color)
    try:
        from implicit_conv.tma.show.figure import save
    except ImportError as missing:
        raise ImportError(
            f"drawing into a file needs matplotlib: {install('matplotlib>=3.8')}"
        ) from missing
    path = Path(path)
    path = path if path.suffix else path.with_suffix(".svg")
    save(what, path)
    return str(path)


def wants_color() -> bool:
    """Whether standard output is a terminal, and neither NO_COLOR nor TERM=dumb forbids colour."""
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain
