"""How the axes of an image become rows and planes, and how rows are cut into tiles.

The last axis that is filtered is the row, with all axes behind it, or these alone are the row if
they are long enough. The filtered axis before it counts the rows of windows, others their planes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.engines.image_tables import runs_of
from implicit_conv.kernels.cpu.images.layout import BLOCK_BYTES, CONSTANT, Order

LONG_ROW = 32  # elements of a row behind the last filtered axis, at least
PITCH_BYTES = 8 << 10  # of a row of a tile, about
BATCH_BYTES = 192 << 10  # of the rows that the middle pass writes at once, at most
LEAST_BATCH = 8
LONGEST_BYTES = 1 << 16  # of such a row
SHORT = 8  # elements of a run that are copied within the row rather than loaded


@dataclass(frozen=True, eq=False)
class Pass:
    """Sums over the taps of a window.

    Attributes
    ----------
    order : Order
    weights : array of shape (taps,)
    places : array of shape (taps, 2, axes)
        The positions in a window of a tap's element, and of the one that is joined with it.
    axes : tuple of int
        Those that are filtered, in rising order.
    kernel : tuple of int
        The extents of the window, by axis.
    sources : tuple of arrays
        For each axis the pixels that the positions repeat, from the first one that is read on;
        CONSTANT is outside the image.
    """

    order: Order
    weights: Array
    places: Array
    axes: tuple[int, ...]
    kernel: tuple[int, ...]
    sources: tuple[Array, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the result."""
        pairs = zip(self.sources, self.kernel, strict=True)
        return tuple(len(source) - size + 1 for source, size in pairs)


class Format(NamedTuple):
    """The strides of x and y in bytes, their dtypes and that of sums, whether products may be added
    without rounding, and whether results are the nearest integers.
    """

    x_strides: tuple[int, ...]
    y_strides: tuple[int, ...]
    x: str
    y: str
    sums: str
    fma: bool
    nearest: bool = False


class Layout(NamedTuple):
    """How the axes of an image become rows, and the passes over them.

    Attributes
    ----------
    start : int
        The first axis of rows.
    inner : int
        Elements of a pixel of a row along which there is a pass.
    before, middle, after : Pass or None
    row : Pass or None
        The pass along rows, if there is one.
    rows_axis : int or None
        The axis that counts rows.
    plane_axes : list of int
        Other axes along which windows have more than one row.
    """

    start: int
    inner: int
    before: Pass | None
    middle: Pass
    after: Pass | None
    row: Pass | None
    rows_axis: int | None
    plane_axes: list[int]

    @classmethod
    def of(cls, passes: Sequence[Pass], form: Format) -> Layout:
        """The layout of one pass, or of two of which one is along rows.

        Raises
        ------
        ValueError
            Rows are not contiguous in x or y, or two passes are not of this kind.
        """
        shape = passes[0].shape
        last = max(each.axes[-1] for each in passes)
        inner = math.prod(shape[last + 1 :])
        start = last + 1 if len(passes) == 1 and inner >= LONG_ROW else last
        _check_rows(shape, form, start)
        before, middle, after = _roles(passes, start)
        row = (before or after or middle) if start == last else None
        filtered = [axis for axis in middle.axes if axis < start]
        rows_axis = filtered[-1] if filtered else start - 1 if start else None
        planes = filtered[:-1]
        return cls(start, inner if row else 1, before, middle, after, row, rows_axis, planes)

    @property
    def runs_along(self) -> bool:
        """Whether rows have running means."""
        return self.row is not None and self.row.order is Order.RUNNING

    @property
    def columns(self) -> int:
        """The elements of a row."""
        return math.prod(self.middle.shape[self.start :])

    @property
    def sources(self) -> Array:
        """The pixels of rows that positions along them repeat."""
        return np.arange(self.columns) if self.row is None else self.row.sources[self.start]

    @property
    def lines(self) -> int:
        """The pixels that loaded rows have more than results."""
        return 0 if self.row is None else self.row.kernel[self.start] - 1

    def order(self, each: Pass | None) -> Order | None:
        """The order of the sums of a pass, as parts know it."""
        if each is None:
            return None
        return Order.ALONG if each is self.row and self.runs_along else each.order

    def offsets(self, each: Pass, size: int, pitch: int, plane: int) -> Array:
        """The offsets of the elements of each tap in bytes, with rows and planes so far apart."""
        places, found = each.places, np.zeros(each.places.shape[:2], np.int64)
        if each is self.middle:
            for axis in self.plane_axes:
                found = found * each.kernel[axis] + places[..., axis]
            found *= plane
            if self.rows_axis is not None:
                found += places[..., self.rows_axis] * pitch
        if self.row is not None:
            found += places[..., self.start] * self.inner * size
        return found


class Cut(NamedTuple):
    """How rows are cut.

    Attributes
    ----------
    tile, halo : int
        Columns of a tile, and those that its loaded rows have more.
    pitch : int
        Bytes from row to row in scratch memory.
    window, batch : int
        Rows of a window, and rows that the middle pass writes at once.
    in_place : bool
        Whether results may be written over x.
    """

    tile: int
    halo: int
    pitch: int
    window: int
    batch: int
    in_place: bool

    @classmethod
    def of(cls, layout: Layout, size: int, in_place: bool) -> Cut:
        """The cut of rows of elements of `size` bytes.

        Raises
        ------
        ValueError
            Rows of running means are too long, or have pixels of several elements.
        """
        columns, halo = layout.columns, layout.lines * layout.inner
        tile = _tile(columns, layout.inner, size)
        if layout.runs_along:
            tile = columns
            if layout.inner > 1 or layout.before is not None or columns * size > LONGEST_BYTES:
                raise ValueError(
                    "running means along rows are those of whole lines without colours"
                )
        pitch = -(-((tile + halo) * size) // BLOCK_BYTES) * BLOCK_BYTES + BLOCK_BYTES
        axis = layout.rows_axis
        window = 1 if axis is None else layout.middle.kernel[axis]
        rows = 1 if axis is None else layout.middle.shape[axis]
        in_place = in_place and (tile == columns or halo == 0)
        least = max(LEAST_BATCH, window) if in_place else LEAST_BATCH
        batch = min(rows, max(least, BATCH_BYTES // pitch))
        return cls(tile, halo, pitch, window, batch, in_place)


def _check_rows(shape: Sequence[int], form: Format, start: int) -> None:
    """Refuse rows that are not contiguous."""
    for strides, dtype in ((form.x_strides, form.x), (form.y_strides, form.y)):
        step = np.dtype(dtype).itemsize
        for axis in reversed(range(start, len(shape))):
            if shape[axis] > 1 and strides[axis] != step:
                raise ValueError("rows are not contiguous")
            step *= shape[axis]


def _roles(passes: Sequence[Pass], start: int) -> tuple[Pass | None, Pass, Pass | None]:
    """The passes before the middle one, the middle one, and that after it."""
    if len(passes) == 1:
        return None, passes[0], None
    first, second = passes
    if (start,) == second.axes and start not in first.axes:
        return None, first, second
    if (start,) == first.axes and start not in second.axes:
        return first, second, None
    raise ValueError("two passes are joined where one of them is along rows")


def _tile(columns: int, inner: int, size: int) -> int:
    """Columns of a tile: whole pixels."""
    pieces = max(1, round(columns * size / PITCH_BYTES))
    tile = -(-columns // pieces)
    step = math.lcm(inner, 64 // size)
    return min(columns, -(-tile // step) * step)


def border(sources: Array, first: int, columns: int, layout: Layout) -> Array:
    """The table of a tile of columns from the column `first` on; see `compiled.rows`."""
    inner = layout.inner
    read = sources[first // inner : (first + columns) // inner + layout.lines]
    pieces = runs_of(read)
    longest = max(pieces, key=lambda piece: (piece[1] != CONSTANT, piece[2]))
    runs, copies = list[tuple[int, int, int]](), list[tuple[int, int]]()
    for piece in pieces:
        begin, source, count = piece
        shift = source - longest[1]
        inside = longest[1] != CONSTANT and 0 <= shift and shift + count <= longest[2]
        if piece == longest or source == CONSTANT or count * inner > SHORT or not inside:
            origin = CONSTANT if source == CONSTANT else source * inner
            runs.append((begin * inner, origin, count * inner))
        else:
            at = longest[0] + shift
            copies += [(begin * inner + i, at * inner + i) for i in range(count * inner)]
    present = np.flatnonzero(read != CONSTANT)
    low, high = (present[0], len(read) - 1 - present[-1]) if len(present) else (len(read), 0)
    flat = [len(runs), len(copies), low * inner, high * inner]
    return np.array([*flat, *itertools.chain(*runs), *itertools.chain(*copies)], np.int64)
