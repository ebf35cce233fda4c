"""Microkernels whose lanes are pixels: filters x output rows, a vector of pixels of each.

For each element of the sum the pixels of every row are loaded, and one element of every filter is
read in place and broadcast. The pixels are a shifted view of rows; or those of a long row, which
the microkernel of the first panel copies, so that those of other panels read them in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.emit.chains import sum_in_chains
from implicit_conv.kernels.cpu.emit.vector import (
    BYTES,
    I64,
    PIXELS_PER_BASE,
    Builder,
    Emitter,
    Value,
    Values,
    i64,
)
from implicit_conv.kernels.cpu.planar_gemm.layout import Pixels, RegisterTile
from implicit_conv.kernels.cpu.runtime.compiled.part import LIMITS, declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, emitted, microkernel
from implicit_conv.kernels.cpu.runtime.table import PLANAR_GEMM
from implicit_conv.kernels.cpu.tile.compiled import transpose

# Addresses of the first filter, the buffer, the table of views, the initial sums and the output.
# The table of views has the byte offset of the view of each of the `elements` of a sum. Byte
# strides of filters, of the views of neighbouring output rows, of output filters (in NHWC of output
# pixels) and of output rows.
sum_rows = declare(
    PLANAR_GEMM,
    "sum_rows",
    "w b views sums out elements w_filter b_row out_filter out_row columns",
    "low high",
)
# Addresses of the first filter, of the pixels of the first element that are read or prefetched, of
# their copy, of the initial sums and the output. Byte strides of filters, of the pixels of
# neighbouring elements and of output filters.
sum_long_row = declare(
    PLANAR_GEMM,
    "sum_long_row",
    "w b plane kept sums out elements w_filter out_filter columns",
    "low high",
)


class Reader(NamedTuple):
    """How the pixels of a register tile are read: values that elements hand on, and a function that
    emits the vectors of element `index` and the values for the next one.
    """

    start: Values
    read: Callable[[Value, Values], tuple[Values, Values]]


def emit(tile: RegisterTile, e: Emitter, at: dict[str, Value]) -> None:
    """Emit the sums of `columns` pixels, one register tile at a time."""
    builder = e.builder
    w, sums, out = (builder.inttoptr(at[name], BYTES) for name in ("w", "sums", "out"))
    bounds = [at[name] for name in LIMITS]
    limits = [e.splat(e.narrow(bound)) for bound in bounds]
    bounded = builder.zext(e.bounded(*bounds), I64)
    filters, height = tile.filters, tile.rows
    step = e.lanes * (height if tile.long_row else 1)
    places = [(k, p) for k in range(filters) for p in range(height)]
    bases = [
        e.at(w, builder.mul(at["w_filter"], i64(k))) for k in range(0, filters, PIXELS_PER_BASE)
    ]
    reader_of = {Pixels.VIEWS: viewed, Pixels.COPIED: copied, Pixels.KEPT: kept}[tile.pixels]

    def vector(column: Value, _: object) -> list[Value]:
        offset = builder.mul(column, i64(e.itemsize))
        left = builder.sub(at["columns"], column)
        reader = reader_of(tile, e, at, column)
        others, own = [*reader.start, *bases], len(reader.start)

        def element(index: Value, carried: Values) -> list[Value]:
            """The products of one element of the sum."""
            moving, total = carried[own : len(others)], list(carried[len(others) :])
            moving = [e.opaque(base) for base in moving]
            pixels, following = reader.read(index, carried[:own])
            for i, (k, p) in enumerate(places):
                if p == 0:
                    base, further = divmod(k, PIXELS_PER_BASE)
                    moved = builder.mul(at["w_filter"], i64(further))
                    weight = e.broadcast(e.at(moving[base], moved))
                total[i] = e.multiply_add(weight, pixels[p], total[i])
            return [*following, *(e.at(base, e.itemsize) for base in moving), *total]

        def elements(first: Value, count: Value, carried: Values) -> list[Value]:
            return e.loop(
                count, 1, carried, lambda i, carried: element(builder.add(first, i), carried)
            )

        start = [e.broadcast(e.at(sums, k * e.itemsize)) for k, _ in places]
        if tile.chained:
            total = sum_in_chains(e, at["elements"], schedule.CHAIN, others, start, elements)
        else:
            total = elements(i64(0), at["elements"], [*others, *start])
        total = total[len(others) :]
        total = e.loop(bounded, 1, total, lambda _, sums: [e.clamp(v, *limits) for v in sums])
        rows = [e.at(out, builder.mul(at["out_row"], i64(p))) for p in range(height)]
        if tile.together:
            for p, row in enumerate(rows):
                first = e.at(row, builder.mul(column, at["out_filter"]))
                store_pixels(e, total[p::height], first, at["out_filter"], left)
            return []
        outputs = [
            e.at(e.at(rows[p], offset), builder.mul(at["out_filter"], i64(k))) for k, p in places
        ]
        e.store_first(total, outputs, left)
        return []

    e.loop(at["columns"], step, [], vector)


def viewed(tile: RegisterTile, e: Emitter, at: dict[str, Value], column: Value) -> Reader:
    """The pixels at the offsets of the table of views."""
    builder = e.builder
    table = builder.inttoptr(at["views"], BYTES)
    source, load = in_planes(tile, e, at, column)
    step = e.lanes * (tile.rows if tile.long_row else 1)

    def read(index: Value, _: Values) -> tuple[Values, Values]:
        offset = builder.load(e.pointer(e.at(table, builder.mul(index, i64(8))), I64))
        pixels, rows = load(e.at(source, offset))
        for row in rows if tile.ahead and tile.height > 0 else ():
            e.prefetch(e.at(row, step * e.itemsize), 3)
        return pixels, []

    return Reader([], read)


def copied(tile: RegisterTile, e: Emitter, at: dict[str, Value], column: Value) -> Reader:
    """The pixels of a long row, which are copied for other microkernels."""
    source, load = in_planes(tile, e, at, column)

    def read(_: Value, carried: Values) -> tuple[Values, Values]:
        source, copy = carried
        pixels, _rows = load(source)
        for p, value in enumerate(pixels):
            e.store(value, e.at(copy, p * e.lanes * e.itemsize))
        return pixels, [e.at(source, at["plane"]), e.at(copy, _element(tile, e))]

    return Reader([source, _copy(e, at, column)], read)


def kept(tile: RegisterTile, e: Emitter, at: dict[str, Value], column: Value) -> Reader:
    """The copies of pixels; a line of each element of the next load tile is prefetched."""
    ahead, _ = in_planes(tile, e, at, column)

    def read(_: Value, carried: Values) -> tuple[Values, Values]:
        ahead, copy = carried
        e.prefetch(ahead, 2)
        pixels = [e.load(e.at(copy, p * e.lanes * e.itemsize)) for p in range(tile.rows)]
        return pixels, [e.at(ahead, at["plane"]), e.at(copy, _element(tile, e))]

    return Reader([ahead, _copy(e, at, column)], read)


def in_planes(
    tile: RegisterTile, e: Emitter, at: dict[str, Value], column: Value
) -> tuple[Value, Callable[[Value], tuple[Values, Values]]]:
    """The address of the first pixel, and what emits the vectors of pixels at an address, and their
    own addresses.
    """
    builder, whole = e.builder, tile.height > 0
    inside = None if whole else e.below(builder.sub(at["columns"], column))

    def load(first: Value) -> tuple[Values, Values]:
        rows = [e.at(first, builder.mul(at["b_row"], i64(p))) for p in range(tile.rows)]
        return [e.load(row) if whole else e.load_masked(row, inside) for row in rows], rows

    return e.at(builder.inttoptr(at["b"], BYTES), builder.mul(column, i64(e.itemsize))), load


def _copy(e: Emitter, at: dict[str, Value], column: Value) -> Value:
    """The address of the copies of a register tile's pixels."""
    before = e.builder.mul(column, e.builder.mul(at["elements"], i64(e.itemsize)))
    return e.at(e.builder.inttoptr(at["kept"], BYTES), before)


def _element(tile: RegisterTile, e: Emitter) -> int:
    """Bytes of the copies of an element's pixels."""
    return tile.rows * e.lanes * e.itemsize


def store_pixels(e: Emitter, sums: list[Value], first: Value, pixel: Value, count: Value) -> None:
    """Store the sums of at most a vector of `count` pixels, whose stride is `pixel` bytes."""
    builder = e.builder
    for k in range(0, len(sums), e.lanes):
        filters = sums[k : k + e.lanes]
        mask = e.below(i64(len(filters)))
        nothing = [e.constant(0.0)] * (e.lanes - len(filters))
        for i, value in enumerate(transpose.butterfly(e, filters + nothing)):
            with builder.if_then(builder.icmp_signed("<", i64(i), count)):
                place = e.at(e.at(first, builder.mul(pixel, i64(i))), k * e.itemsize)
                e.store_masked(value, place, mask)


def make_microkernel(tile: RegisterTile, lanes: int, itemsize: int, fma: bool) -> Source:
    """The microkernel of a register tile."""
    return microkernel(sum_rows, emit, tile, lanes, itemsize, fma)


def make_long_row_microkernel(tile: RegisterTile, lanes: int, itemsize: int, fma: bool) -> Source:
    """The microkernel of a register tile of a long row that the first panel copies."""

    def emit_part(builder: Builder, at: dict[str, Value]) -> None:
        e, vector = Emitter(builder, lanes, itemsize, fma), i64(lanes * itemsize)
        emit(tile, e, {**at, "b_row": vector, "out_row": vector})

    return emitted(sum_long_row, emit_part)
