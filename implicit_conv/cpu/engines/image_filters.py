"""Filters of images as launches."""

from __future__ import annotations

import math
from collections.abc import Sequence

from implicit_conv.cpu.engines.image_passes import Format, Layout, Pass
from implicit_conv.cpu.engines.image_rows import Tables
from implicit_conv.kernels.cpu.images.layout import CONSTANT, Filter, Order, Taps
from implicit_conv.kernels.cpu.images.operator import FILTER, ImageLaunch, parts_of
from implicit_conv.process.preparation import prepare

__all__ = ["CONSTANT", "ImageLaunch", "Order", "launch_of"]

TOGETHER = 8  # rows along which running means are computed at once
PRODUCTS_PER_THREAD = 1 << 18  # that pay for another thread


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
    layout = Layout(passes, form, constant, in_place)
    rows, middle, tables = layout.rows, layout.middle, Tables()

    def taps(each: Pass | None) -> Taps:
        if each is None:
            return Taps()
        offsets = layout.offsets(each)
        count = int(each.weights[0]) if each.order is Order.RUNNING else len(offsets)
        return Taps(count, tables(offsets), tables(each.weights, form.sums))

    products = math.prod(middle.shape) * sum(len(each.weights) for each in passes)
    threads = max(1, min(threads, products // PRODUCTS_PER_THREAD))
    strip = rows.rows
    if not (layout.in_place or any(each.order is Order.RUNNING for each in passes)):
        strip = min(strip, max(rows.strip(layout.tile, threads), 4 * rows.window))
    cut, items = rows.cut(tables, layout.tile, strip)
    fields = Filter(
        cut=cut,
        batch=layout.batch,
        together=TOGETHER if layout.runs_along and layout.after is not None else 1,
        rounds=int(rounds and len(passes) == 2),
        outside=int(layout.after is not None and rows.read_constant),
        before=taps(layout.before),
        middle=taps(middle),
        after=taps(layout.after),
    )
    orders = [layout.order(each) for each in (layout.before, middle, layout.after)]
    dtypes = form.x, form.sums, form.y
    parts = parts_of(dtypes, form.fma, form.nearest, orders, bool(fields.rounds))
    # A loaded row, a row that running means keep, rows of windows and of sums, and finished ones.
    scratch = rows.planes * layout.plane + (2 + layout.batch + TOGETHER) * layout.pitch
    given = FILTER, parts, fields, items, scratch, min(threads, items)
    return prepare(ImageLaunch, *given, tables.arrays, in_place=layout.in_place)
