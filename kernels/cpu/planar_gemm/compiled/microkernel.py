"""Microkernels whose lanes are pixels: filters x output rows, a vector of pixels of each.

For each element of the sum a shifted view of every row is loaded, and one element of every filter
is read in place and broadcast.
"""

from __future__ import annotations

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
from implicit_conv.kernels.cpu.planar_gemm.layout import RegisterTile
from implicit_conv.kernels.cpu.runtime.compiled.part import LIMITS, declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, emitted
from implicit_conv.kernels.cpu.runtime.table import PLANAR_GEMM
from implicit_conv.kernels.cpu.tile.compiled import transpose

ADDRESSES = ("w", "b", "views", "sums", "out")
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


def emit(tile: RegisterTile, e: Emitter, at: dict[str, Value]) -> None:
    """Emit the sums of `columns` pixels, one register tile at a time."""
    builder = e.builder
    w, b, views, sums, out = (builder.inttoptr(at[name], BYTES) for name in ADDRESSES)
    bounds = [at[name] for name in LIMITS]
    limits = [e.splat(e.narrow(bound)) for bound in bounds]
    bounded = builder.zext(e.bounded(*bounds), I64)
    filters, height, whole = tile.filters, tile.rows, tile.height > 0
    step = e.lanes * (height if tile.long_row else 1)
    places = [(k, p) for k in range(filters) for p in range(height)]
    bases = [
        e.at(w, builder.mul(at["w_filter"], i64(k))) for k in range(0, filters, PIXELS_PER_BASE)
    ]

    def vector(column: Value, _: object) -> list[Value]:
        offset = builder.mul(column, i64(e.itemsize))
        source = e.at(b, offset)
        left = builder.sub(at["columns"], column)
        inside = None if whole else e.below(left)

        def element(index: Value, carried: Values) -> list[Value]:
            """The products of one element of the sum."""
            moving, total = carried[: len(bases)], list(carried[len(bases) :])
            moving = [e.opaque(base) for base in moving]
            view = e.at(
                source, builder.load(e.pointer(e.at(views, builder.mul(index, i64(8))), I64))
            )
            rows = [e.at(view, builder.mul(at["b_row"], i64(p))) for p in range(height)]
            pixels = [e.load(row) if whole else e.load_masked(row, inside) for row in rows]
            for row in rows if tile.ahead and whole else ():
                e.prefetch(e.at(row, step * e.itemsize), 3)
            for i, (k, p) in enumerate(places):
                if p == 0:
                    base, further = divmod(k, PIXELS_PER_BASE)
                    moved = builder.mul(at["w_filter"], i64(further))
                    weight = e.broadcast(e.at(moving[base], moved))
                total[i] = e.multiply_add(weight, pixels[p], total[i])
            return [*(e.at(base, e.itemsize) for base in moving), *total]

        def elements(first: Value, count: Value, carried: Values) -> list[Value]:
            return e.loop(
                count, 1, carried, lambda i, carried: element(builder.add(first, i), carried)
            )

        start = [e.broadcast(e.at(sums, k * e.itemsize)) for k, _ in places]
        if tile.chained:
            total = sum_in_chains(e, at["elements"], schedule.CHAIN, bases, start, elements)
        else:
            total = elements(i64(0), at["elements"], [*bases, *start])
        total = total[len(bases) :]
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

    def emit_part(builder: Builder, at: dict[str, Value]) -> None:
        emit(tile, Emitter(builder, lanes, itemsize, fma), at)

    return emitted(sum_rows, emit_part)
