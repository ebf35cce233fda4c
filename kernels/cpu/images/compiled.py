"""Sums of floats in a fixed order, which has the same bits as a plain loop over the taps.

    y[row, column] = sum over taps t, in order, of w[t] * x[row, column + offset[t]]

The lanes of a vector are columns, so that vectors change the order of no sum. A product is rounded
before it is added: compilers of C make no fused multiply-adds for x86-64, unless they are asked to.
Rows have room for whole blocks of BLOCK_BYTES, and what a block computes too much is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from implicit_conv.kernels.cpu.emit.internals import types
from implicit_conv.kernels.cpu.emit.vector import BYTES, I64, Builder, Emitter, Value, Values, i64
from implicit_conv.kernels.cpu.images.layout import BLOCK_BYTES, Order
from implicit_conv.kernels.cpu.runtime.compiled.part import Part, body
from implicit_conv.kernels.cpu.runtime.compiled.source import INT, Source, for_python

PARTS = range(0, BLOCK_BYTES, 64)  # byte offsets of vectors


def emitter(builder: Builder, itemsize: int) -> Emitter:
    """Vectors of 64 bytes, of which LLVM makes several where registers are narrower."""
    return Emitter(builder, 64 // itemsize, itemsize, fma=False)


def loads(e: Emitter, address: Value) -> list[Value]:
    """The vectors of a block."""
    return [e.load(e.at(address, part)) for part in PARTS]


def joined(operation: Callable[..., Value], first: Values, second: Values) -> list[Value]:
    """The operation on the vectors of two blocks."""
    return [operation(*pair) for pair in zip(first, second, strict=True)]


def make_block(order: Order, itemsize: int) -> Any:
    """block(out, x, offsets, weights, taps): the sums of a block."""
    pairs = order in (Order.MIRRORED, Order.OPPOSED)

    def emit(builder: Builder, at: dict[str, Value]) -> None:
        e = emitter(builder, itemsize)
        join = builder.fadd if order is Order.MIRRORED else builder.fsub
        base, table, factors, target = (
            builder.inttoptr(at[name], BYTES) for name in ("x", "offsets", "weights", "out")
        )

        def elements(tap: Value, side: int) -> list[Value]:
            entry = e.at(table, builder.add(builder.mul(tap, i64(16)), i64(8 * side)))
            return loads(e, e.at(base, builder.load(e.pointer(entry, I64))))

        def products(tap: Value, values: Values) -> list[Value]:
            weight = e.broadcast(e.at(factors, builder.mul(tap, i64(itemsize))))
            return [builder.fmul(value, weight) for value in values]

        def add(tap: Value, sums: Values) -> list[Value]:
            tap = builder.add(tap, first)
            values = elements(tap, 0)
            if pairs:
                values = joined(join, values, elements(tap, 1))
            return joined(builder.fadd, sums, products(tap, values))

        first, sums = i64(0), [e.constant(0.0)] * len(PARTS)
        if order is not Order.TAPS:
            first, sums = i64(1), products(i64(0), elements(i64(0), 0))
        sums = e.loop(builder.sub(at["taps"], first), 1, sums, add)
        for value, part in zip(sums, PARTS, strict=True):
            e.store(value, e.at(target, part))

    return body(Part(0, "sum_block", ("out", "x", "offsets", "weights", "taps"), ()), emit)


def make_correlate(order: Order, itemsize: int) -> Source:
    """correlate(out, out_row, x, x_row, offsets, weights, taps, rows, width): rows of sums, which
    are `width` bytes wide.

    `offsets` are in bytes, two for each tap: the second is that of the element which is joined with
    the first one. `out_row` and `x_row` are the byte strides of rows.
    """
    block = make_block(order, itemsize)

    def correlate(
        out: int,
        out_row: int,
        x: int,
        x_row: int,
        offsets: int,
        weights: int,
        taps: int,
        rows: int,
        width: int,
    ) -> None:
        for column in range(0, width, BLOCK_BYTES):
            for row in range(rows):  # the rows of a window stay in L1
                target = out + row * out_row + column
                block(target, x + row * x_row + column, offsets, weights, taps)

    return for_python(types.void(*[INT] * 9), correlate)


def emit_means(builder: Builder, at: dict[str, Value]) -> None:
    """Emit running means of `size` rows of a block."""
    e, row, size = emitter(builder, 8), at["row"], at["size"]
    first, target = (builder.inttoptr(at[name], BYTES) for name in ("x", "out"))
    divisor = e.splat(builder.sitofp(size, e.scalar))

    def values(index: Value) -> list[Value]:
        return loads(e, e.at(first, builder.mul(index, row)))

    def store(sums: Values, index: Value) -> None:
        place = e.at(target, builder.mul(index, row))
        for value, part in zip(sums, PARTS, strict=True):
            e.store(builder.fdiv(value, divisor), e.at(place, part))

    def add(index: Value, sums: Values) -> list[Value]:
        return joined(builder.fadd, sums, values(index))

    def move(index: Value, sums: Values) -> list[Value]:
        steps = joined(builder.fsub, values(builder.add(index, size)), values(index))
        sums = joined(builder.fadd, sums, steps)
        store(sums, builder.add(index, i64(1)))
        return sums

    sums = e.loop(size, 1, [e.constant(0.0)] * len(PARTS), add)
    store(sums, i64(0))
    e.loop(builder.sub(at["length"], i64(1)), 1, sums, move)


def make_mean() -> Source:
    """mean(out, x, row, size, length): float64 means of `size` rows below each of `length` rows of
    `row` bytes.
    """
    block = body(Part(0, "mean_block", ("out", "x", "row", "size", "length"), ()), emit_means)

    def mean(out: int, x: int, row: int, size: int, length: int) -> None:
        for column in range(0, row, BLOCK_BYTES):
            block(out + column, x + column, row, size, length)

    return for_python(types.void(*[INT] * 5), mean)
