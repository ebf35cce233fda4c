"""Filters of images as launches."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from implicit_conv.cpu.engines.image_rows import Cut, Format, Layout, Pass, border
from implicit_conv.cpu.engines.image_tables import Tables, has_short_rows, offsets_of_planes
from implicit_conv.kernels.cpu.images.layout import CONSTANT, NOWHERE, Filter, Order, Taps
from implicit_conv.kernels.cpu.images.operator import ImageLaunch, Kinds
from implicit_conv.kernels.preparation import prepare

__all__ = ["CONSTANT", "Format", "ImageLaunch", "Order", "Pass", "launch_of"]

TOGETHER = 8  # rows along which running means are computed at once
PRODUCTS_PER_THREAD = 1 << 18  # that pay for another thread
ITEMS_PER_THREAD = 4


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
        Rows are not contiguous in x or y, or too short, or passes cannot be computed along them.
    """
    layout, size = Layout.of(passes, form), np.dtype(form.sums).itemsize
    cut, axis = Cut.of(layout, size, in_place), layout.rows_axis
    middle, columns, sources = layout.middle, layout.columns, layout.sources
    axes = [other for other in range(layout.start) if other != axis]
    strides = form.x_strides, form.y_strides
    outer = offsets_of_planes(axes, middle.shape, strides, middle.kernel, middle.sources, NOWHERE)
    planes, tables = outer.shape[1] - 1, Tables()
    rows = 1 if axis is None else middle.shape[axis]
    if has_short_rows(rows, outer, columns):
        raise ValueError("rows are too short for tables that say where they begin")
    plane = (cut.window - 1 + cut.batch) * cut.pitch

    def taps(each: Pass | None) -> Taps:
        if each is None:
            return Taps()
        offsets = layout.offsets(each, size, cut.pitch, plane)
        count = int(each.weights[0]) if each.order is Order.RUNNING else len(offsets)
        return Taps(count, tables(offsets), tables(each.weights, form.sums))

    borders = [
        tables(border(sources, first, min(cut.tile, columns - first), layout))
        for first in range(0, columns, cut.tile)
    ]
    products = math.prod(middle.shape) * sum(len(each.weights) for each in passes)
    threads = max(1, min(threads, products // PRODUCTS_PER_THREAD))
    whole = cut.in_place or any(each.order is Order.RUNNING for each in passes)
    strip = rows if whole else _strip(rows, cut.window, len(outer) * len(borders), threads)
    strips = -(-rows // strip)
    fields = Filter(
        outer=tables(outer),
        tiles=len(borders),
        tile=cut.tile,
        columns=columns,
        borders=tables(borders),
        strips=strips,
        strip=strip,
        rows=rows,
        sources=tables([0] if axis is None else middle.sources[axis]),
        x_row=0 if axis is None else form.x_strides[axis],
        y_row=0 if axis is None else form.y_strides[axis],
        x_size=np.dtype(form.x).itemsize,
        y_size=np.dtype(form.y).itemsize,
        size=size,
        planes=planes,
        window=cut.window,
        batch=cut.batch,
        pitch=cut.pitch,
        constant=tables(np.full(cut.pitch // size, constant), form.sums),
        halo=cut.halo,
        together=TOGETHER if layout.runs_along and layout.after is not None else 1,
        rounds=int(rounds and len(passes) == 2),
        outside=int(layout.after is not None and bool((sources == CONSTANT).any())),
        before=taps(layout.before),
        middle=taps(middle),
        after=taps(layout.after),
    )
    orders = [layout.order(each) for each in (layout.before, middle, layout.after)]
    kinds = Kinds(form.x, form.sums, form.y, form.fma, form.nearest, *orders)
    # A loaded row, a row that running means keep, rows of windows and of sums, and finished ones.
    scratch = (2 + planes * (cut.window - 1 + cut.batch) + cut.batch + TOGETHER) * cut.pitch
    items = len(outer) * strips * len(borders)
    threads, kept = min(threads, items), tables.arrays
    return prepare(ImageLaunch, kinds, fields, items, scratch, threads, kept, cut.in_place)


def _strip(rows: int, window: int, others: int, threads: int) -> int:
    """Rows of a strip, so that all threads have work."""
    if threads == 1:
        return rows
    strips = -(-ITEMS_PER_THREAD * threads // others)
    return min(rows, max(-(-rows // strips), 4 * window))
