"""The microkernel of depthwise weight gradients that reads x and dy in place: lanes are channels.

    for plane, row, column of the pixels:
        for each tap i of a filter row:
            acc[i] += x[pixel + i] * dy[pixel]              unless the tap is outside the image row
    C += acc, or C = acc

The order of a sum is that of `microkernel`, whose x has zeros where taps are outside.
"""

from __future__ import annotations

import functools

from implicit_conv.kernels.cpu.emit.internals import ir
from implicit_conv.kernels.cpu.emit.vector import BYTES, Builder, Emitter, Value, Values, i64
from implicit_conv.kernels.cpu.runtime.compiled.part import declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, emitted
from implicit_conv.kernels.cpu.runtime.table import microkernel_slot
from implicit_conv.kernels.cpu.wgrad.layout import RegisterTile

# Addresses of the pixel of x that tap 0 of the first output pixel reads, which may be outside the
# image, of dy there, and of the sums; pixels along three nested axes, and the byte strides of these
# axes. Taps have the byte stride `a_tap` and, in columns of x, `dilation`; the first output column
# reads column `before` of the `width` columns of x, and the next one reads it `stride` further on.
# `adds` is 1 to add to the sums in memory, and 0 to overwrite them.
multiply_windows = declare(
    microkernel_slot(1, 0, 0),
    "multiply_windows",
    "a b c planes rows columns a_plane a_row a_column b_plane b_row b_column c_row a_tap dilation "
    "before stride width adds",
)


def emit(tile: RegisterTile, builder: Builder, at: dict[str, Value]) -> None:
    """Emit the microkernel of `tile`, whose rows are taps."""
    e = Emitter(builder, tile.lanes, tile.itemsize, tile.fma)
    a, b, c = (builder.inttoptr(at[name], BYTES) for name in ("a", "b", "c"))
    taps, vectors = range(tile.rows), range(tile.vectors)
    moves = [builder.mul(at["a_tap"], i64(i)) for i in taps]
    columns = [builder.mul(at["dilation"], i64(i)) for i in taps]

    def inside(x: Value, i: int) -> Value:
        position = builder.add(x, columns[i])
        above = builder.icmp_signed(">=", position, i64(0))
        return builder.and_(above, builder.icmp_signed("<", position, at["width"]))

    def column(_: object, carried: Values) -> list[Value]:
        a, b, x, *acc = carried
        filters = [e.load(e.at(b, v * tile.vector_bytes)) for v in vectors]

        def products(known: bool) -> list[Value]:
            found = []
            for i in taps:
                place, meets = e.at(a, moves[i]), None
                if not known:
                    meets = inside(x, i)
                    place = builder.select(meets, place, b)
                for v in vectors:
                    before = acc[i * tile.vectors + v]
                    value = e.load(e.at(place, v * tile.vector_bytes))
                    total = e.multiply_add(value, filters[v], before)
                    found.append(total if meets is None else builder.select(meets, total, before))
            return found

        whole = builder.and_(inside(x, 0), inside(x, tile.rows - 1))
        acc = e.either(whole, lambda: products(True), lambda: products(False))
        moved = [e.at(a, at["a_column"]), e.at(b, at["b_column"]), builder.add(x, at["stride"])]
        return [*moved, *acc]

    def row(_: object, carried: Values) -> list[Value]:
        a, b, *acc = carried
        _, _, _, *acc = e.loop(at["columns"], 1, [a, b, at["before"], *acc], column)
        return [e.at(a, at["a_row"]), e.at(b, at["b_row"]), *acc]

    def plane(_: object, carried: Values) -> list[Value]:
        a, b, *acc = carried
        _, _, *acc = e.loop(at["rows"], 1, [a, b, *acc], row)
        return [e.at(a, at["a_plane"]), e.at(b, at["b_plane"]), *acc]

    zeros = [e.constant(0.0)] * (tile.rows * tile.vectors)
    _, _, *acc = e.loop(at["planes"], 1, [a, b, *zeros], plane)
    places = [
        e.at(e.at(c, builder.mul(at["c_row"], i64(i))), v * tile.vector_bytes)
        for i in taps
        for v in vectors
    ]

    def added() -> list[ir.Value]:
        return [e.add(e.load(place), value) for place, value in zip(places, acc, strict=True)]

    total = e.either(builder.icmp_signed("!=", at["adds"], i64(0)), added, lambda: acc)
    for value, place in zip(total, places, strict=True):
        e.store(value, place)


def make_microkernel(tile: RegisterTile) -> Source:
    """The microkernel of `tile`."""
    return emitted(multiply_windows, functools.partial(emit, tile))
