"""Sums of windows of rows, whose lanes are columns: vectors change the order of no sum.

    y[row, column] = sum over taps t, in order, of w[t] * x[row, column + offset[t]]

Rows have room for whole blocks of BLOCK_BYTES, and what a block computes too much is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from implicit_conv.kernels.cpu.emit.vector import (
    BYTES,
    I64,
    Builder,
    Emitter,
    Integers,
    Value,
    Values,
    i64,
)
from implicit_conv.kernels.cpu.images.compiled.running import RUNNING
from implicit_conv.kernels.cpu.images.layout import BLOCK_BYTES, SUMS, Order
from implicit_conv.kernels.cpu.runtime.compiled.part import Part, body, declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, emitted, translated

PARTS = range(0, BLOCK_BYTES, 64)  # byte offsets of vectors
PAIRS = Order.MIRRORED, Order.OPPOSED

sum_rows = declare(SUMS, "sum_rows", "out out_row x x_row offsets weights taps rows width begins")


def emitter(builder: Builder, itemsize: int, fma: bool = False) -> Emitter:
    """Vectors of 64 bytes, of which LLVM makes several where registers are narrower: of floats, or
    of integers of 16 bits, whose sums wrap.
    """
    if itemsize == 2:
        return Integers(builder, 32, 2)
    return Emitter(builder, 64 // itemsize, itemsize, fma)


def mean(e: Emitter, total: Value, factor: Value) -> Value:
    """A sum over the number of its elements, as `Order.MEAN` says."""
    if e.itemsize != 2:
        return (e.builder.fdiv if e.itemsize == 8 else e.builder.fmul)(total, factor)
    product = e.builder.mul(e.builder.zext(total, e.words), e.builder.zext(factor, e.words))
    return e.builder.trunc(e.builder.lshr(product, e.word(16)), e.vector)


def make_block(order: Order, itemsize: int, fma: bool) -> Any:
    """block(out, x, offsets, weights, taps): the sums of a block; `fma` says whether products may
    be added without rounding.
    """

    def emit(builder: Builder, at: dict[str, Value]) -> None:
        e = emitter(builder, itemsize, fma)
        whole = itemsize == 2
        plus, minus, times = (
            (builder.add, builder.sub, builder.mul)
            if whole
            else (builder.fadd, builder.fsub, builder.fmul)
        )
        join = plus if order is Order.MIRRORED else minus
        base, table, factors, target = (
            builder.inttoptr(at[name], BYTES) for name in ("x", "offsets", "weights", "out")
        )

        def joined(operation: Callable[..., Value], *blocks: Values) -> list[Value]:
            return [operation(*values) for values in zip(*blocks, strict=True)]

        def elements(tap: Value, side: int) -> list[Value]:
            entry = e.at(table, builder.add(builder.mul(tap, i64(16)), i64(8 * side)))
            address = e.at(base, builder.load(e.pointer(entry, I64)))
            return [e.load(e.at(address, part)) for part in PARTS]

        def weight(tap: Value) -> Value:
            return e.broadcast(e.at(factors, builder.mul(tap, i64(itemsize))))

        def add(tap: Value, sums: Values) -> list[Value]:
            tap = builder.add(tap, first)
            values = elements(tap, 0)
            if order is Order.MEAN:
                return joined(plus, sums, values)
            if order in PAIRS:
                values = joined(join, values, elements(tap, 1))
            factor = weight(tap)
            return joined(lambda value, sum: e.multiply_add(value, factor, sum), values, sums)

        first, sums = i64(1), [e.constant(0.0)] * len(PARTS)
        if order is Order.TAPS:
            first = i64(0)
        elif order is Order.MEAN:
            sums = elements(i64(0), 0)
        else:
            factor = weight(i64(0))
            sums = [times(value, factor) for value in elements(i64(0), 0)]
        sums = e.loop(builder.sub(at["taps"], first), 1, sums, add)
        if order is Order.MEAN:
            factor = weight(i64(0))
            sums = [mean(e, value, factor) for value in sums]
        for value, part in zip(sums, PARTS, strict=True):
            e.store(value, e.at(target, part))

    return body(Part(0, "sum_block", ("out", "x", "offsets", "weights", "taps"), ()), emit)


def make_sum_rows(order: Order, itemsize: int, fma: bool) -> Source:
    """The part that computes rows of sums, which are `width` bytes wide.

    `offsets` are in bytes, two for each tap: the second is that of the element which is joined with
    the first one. `out_row` and `x_row` are the byte strides of rows. `begins` says that no row was
    computed before them.
    """
    if order in RUNNING:
        return emitted(sum_rows, RUNNING[order])
    block = make_block(order, itemsize, fma)

    def summed_rows(
        out: int,
        out_row: int,
        x: int,
        x_row: int,
        offsets: int,
        weights: int,
        taps: int,
        rows: int,
        width: int,
        begins: int,
    ) -> None:
        for column in range(0, width, BLOCK_BYTES):
            for row in range(rows):  # the rows of a window stay in L1
                target = out + row * out_row + column
                block(target, x + row * x_row + column, offsets, weights, taps)

    return translated(sum_rows, summed_rows)
