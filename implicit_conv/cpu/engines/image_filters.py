"""Filters of images as launches: how axes become rows and planes, and how rows are cut into tiles.

The last axis that is filtered is the row, with all axes behind it, or these alone are the row if
they are long enough. The filtered axis before it counts the rows of windows, others their planes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.kernels.cpu.images.layout import BLOCK_BYTES, CONSTANT, Filter, Order, Taps
from implicit_conv.kernels.cpu.images.operator import ImageLaunch, Kinds
from implicit_conv.kernels.preparation import prepare

__all__ = ["CONSTANT", "Format", "ImageLaunch", "Order", "Pass", "launch_of"]

LONG_ROW = 32  # elements of a row behind the last filtered axis, at least
PITCH_BYTES = 8 << 10  # of a row of a tile, about
BATCH_BYTES = 192 << 10  # of the rows that the middle pass writes at once, at most
LEAST_BATCH = 8
SHORT = 8  # elements of a run that are copied within the row rather than loaded
PRODUCTS_PER_THREAD = 1 << 18  # that pay for another thread
ITEMS_PER_THREAD = 4


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


class _Tables:
    """Arrays that a launch reads by their addresses."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []

    def __call__(self, values: Any, dtype: Any = np.int64) -> int:
        """The address of a contiguous array with these values."""
        found = np.ascontiguousarray(values)
        if np.dtype(dtype) == np.int16:  # it wraps
            found = found.astype(np.int64)
        self.arrays.append(found.astype(dtype))
        return int(self.arrays[-1].ctypes.data)


def launch_of(
    passes: Sequence[Pass],
    form: Format,
    constant: float,
    rounds: bool,
    threads: int,
    *,
    in_place: bool = False,
) -> ImageLaunch:
    """The launch of one pass, or of two of which one is along rows.

    With `in_place` it can write its results over x, if rows need not be cut into tiles, and if no
    position before the first row repeats one of the last rows, or the other way round.

    Raises
    ------
    ValueError
        Rows are not contiguous in x or y, or two passes are not of this kind.
    """
    shape, size = passes[0].shape, np.dtype(form.sums).itemsize
    last = max(each.axes[-1] for each in passes)
    inner = math.prod(shape[last + 1 :])
    start = last + 1 if len(passes) == 1 and inner >= LONG_ROW else last
    _check_rows(shape, form, start)
    before, middle, after = _roles(passes, start)
    columns = math.prod(shape[start:])
    if start == last:
        row = before or after or middle
        along, lines = row.sources[start], row.kernel[start] - 1
    else:
        along, lines, inner = np.arange(columns), 0, 1
    rows_axis = _rows_axis(middle, start)
    halo = lines * inner
    tables = _Tables()
    tile = _tile(columns, inner, size)
    pitch = -(-((tile + halo) * size) // BLOCK_BYTES) * BLOCK_BYTES + BLOCK_BYTES
    window = 1 if rows_axis is None else middle.kernel[rows_axis]
    rows = 1 if rows_axis is None else shape[rows_axis]
    in_place = in_place and (tile == columns or lines == 0)
    least = max(LEAST_BATCH, window) if in_place else LEAST_BATCH
    batch = min(rows, max(least, BATCH_BYTES // pitch))
    plane_axes = [axis for axis in middle.axes if axis not in (rows_axis, start)]
    outer, planes = _outer(shape, form, middle, start, rows_axis, plane_axes)
    plane = (window - 1 + batch) * pitch

    def table_of(each: Pass | None) -> Taps:
        if each is None:
            return Taps()
        places, offsets = each.places, np.zeros(each.places.shape[:2], np.int64)
        if each is middle:
            index = np.zeros_like(offsets)
            for axis in plane_axes:
                index = index * each.kernel[axis] + places[..., axis]
            offsets += index * plane
            if rows_axis is not None:
                offsets += places[..., rows_axis] * pitch
        if start == last:
            offsets += places[..., start] * inner * size
        return Taps(len(offsets), tables(offsets), tables(each.weights, form.sums))

    tiles = -(-columns // tile)
    borders = [
        tables(_border(along, first // inner, min(tile, columns - first) // inner, lines, inner))
        for first in range(0, columns, tile)
    ]
    products = math.prod(shape) * sum(len(each.weights) for each in passes)
    threads = max(1, min(threads, products // PRODUCTS_PER_THREAD))
    strip = rows if in_place else _strip(rows, window, len(outer) * tiles, threads)
    strips = -(-rows // strip)
    fields = Filter(
        outer=tables(outer),
        tiles=tiles,
        tile=tile,
        columns=columns,
        borders=tables(borders),
        strips=strips,
        strip=strip,
        rows=rows,
        sources=tables([0] if rows_axis is None else middle.sources[rows_axis]),
        x_row=0 if rows_axis is None else form.x_strides[rows_axis],
        y_row=0 if rows_axis is None else form.y_strides[rows_axis],
        x_size=np.dtype(form.x).itemsize,
        y_size=np.dtype(form.y).itemsize,
        size=size,
        planes=planes,
        window=window,
        batch=batch,
        pitch=pitch,
        constant=tables(np.full(pitch // size, constant), form.sums),
        halo=halo,
        rounds=int(rounds and len(passes) == 2),
        outside=int(after is not None and bool((along == CONSTANT).any())),
        before=table_of(before),
        middle=table_of(middle),
        after=table_of(after),
    )
    orders = [None if each is None else each.order for each in (before, after)]
    kinds = Kinds(
        form.x,
        form.sums,
        form.y,
        form.fma,
        form.nearest,
        orders[0],
        middle.order,
        orders[1],
    )
    scratch = (2 + planes * (window - 1 + batch) + batch) * pitch
    items = len(outer) * strips * tiles
    threads = min(threads, items)
    return prepare(ImageLaunch, kinds, fields, items, scratch, threads, tables.arrays, in_place)


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


def _rows_axis(middle: Pass, start: int) -> int | None:
    """The axis that counts rows: the last one before rows that is filtered, or else the last."""
    filtered = [axis for axis in middle.axes if axis < start]
    if filtered:
        return filtered[-1]
    return start - 1 if start else None


def _outer(
    shape: Sequence[int],
    form: Format,
    middle: Pass,
    start: int,
    rows_axis: int | None,
    plane_axes: Sequence[int],
) -> tuple[Array, int]:
    """For each index of the other axes the byte offset in y, then those of all planes in x."""
    axes = [axis for axis in range(start) if axis != rows_axis]
    places = np.zeros(1, np.int64)
    for axis in axes:
        step = np.arange(shape[axis]) * form.y_strides[axis]
        places = (places[:, None] + step).ravel()
    found = [places]
    for offsets in itertools.product(*(range(middle.kernel[axis]) for axis in plane_axes)):
        at = dict(zip(plane_axes, offsets, strict=True))
        offset, outside = np.zeros(1, np.int64), np.zeros(1, bool)
        for axis in axes:
            first = at.get(axis, 0)
            read = middle.sources[axis][first : first + shape[axis]]
            offset = (offset[:, None] + read * form.x_strides[axis]).ravel()
            outside = (outside[:, None] | (read == CONSTANT)).ravel()
        found.append(np.where(outside, CONSTANT, offset))
    return np.stack(found, axis=1), len(found) - 1


def _tile(columns: int, inner: int, size: int) -> int:
    """Columns of a tile: whole pixels."""
    pieces = max(1, round(columns * size / PITCH_BYTES))
    tile = -(-columns // pieces)
    step = math.lcm(inner, 64 // size)
    return min(columns, -(-tile // step) * step)


def _strip(rows: int, window: int, others: int, threads: int) -> int:
    """Rows of a strip, so that all threads have work."""
    if threads == 1:
        return rows
    strips = -(-ITEMS_PER_THREAD * threads // others)
    return min(rows, max(-(-rows // strips), 4 * window))


def _border(along: Array, first: int, pixels: int, lines: int, inner: int) -> Array:
    """The table of a tile that begins with output pixel `first`; see `compiled.rows`."""
    read = along[first : first + pixels + lines]
    absent, step = read == CONSTANT, np.diff(read)
    follows = np.where(absent[:-1] | absent[1:], step == 0, step == 1)
    cuts = [0, *(np.flatnonzero(~follows) + 1).tolist(), len(read)]
    pieces = [(begin, int(read[begin]), end - begin) for begin, end in itertools.pairwise(cuts)]
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
    present = np.flatnonzero(~absent)
    low, high = (present[0], len(read) - 1 - present[-1]) if len(present) else (len(read), 0)
    flat = [len(runs), len(copies), low * inner, high * inner]
    return np.array([*flat, *itertools.chain(*runs), *itertools.chain(*copies)], np.int64)
