"""Finish sums: residual, activation, rounding; row by row, vector by vector.

    y[row, i] = round(activation(scale[k] * sums[row, i] + shift[k] + residual[row, i]))

k is the filter: i if a row has the filters of a pixel, else the row. Integers that become floats
are converted first: scale, residual and activation are then those of floats.

A row is contiguous in all three arrays: the filters of a pixel, or the pixels of a filter. There is
a part for each activation, with and without a scale and a residual, compiled when a launch needs
it. sigmoid, silu, tanh and gelu of float64 call libm, element by element.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from implicit_conv.kernels.cpu.emit import elementary
from implicit_conv.kernels.cpu.emit.vector import BYTES, Builder, Emitter, Value, Values, i64
from implicit_conv.kernels.cpu.runtime.compiled.part import LIMITS, declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, emitted, translated
from implicit_conv.kernels.cpu.runtime.table import FINISH
from implicit_conv.kernels.cpu.tile import storage
from implicit_conv.kernels.cpu.tile.compiled import convert
from implicit_conv.kernels.cpu.tile.storage import Stored
from implicit_conv.kernels.cpu.tile.variants import SCALED_ROWS, Finish
from implicit_conv.kernels.geometry import (
    CLAMP,
    GELU,
    HARDSWISH,
    LEAKY_RELU,
    SIGMOID,
    SILU,
    TANH,
)

# Address and byte stride of the rows of each array; the residual is prefetched `ahead` bytes
# further on; `scale` and `shift` are addresses of those of the first filter.
finish = declare(
    FINISH,
    "finish",
    "sums sums_row residual residual_row y y_row rows columns ahead scale shift",
    "low high",
)


def leaky_relu(e: Emitter, x: Value, low: Value, high: Value) -> Value:
    """x, or `low` times x where x is negative: the field `low` holds the slope."""
    negative = e.builder.fcmp_ordered("<", x, e.constant(0))
    return e.builder.select(negative, e.builder.fmul(x, low), x)


def hardswish(e: Emitter, x: Value, low: Value, high: Value) -> Value:
    """x min(max(x + 3, 0), 6) / 6: x itself from 3 on, and zero up to -3, for -inf too."""
    x = e.at_least(x, e.constant(-3))
    share = e.at_most(e.builder.fadd(x, e.constant(3)), e.constant(6))
    return e.builder.fmul(x, e.builder.fmul(share, e.constant(1 / 6)))


VECTORS = {CLAMP: Emitter.clamp, LEAKY_RELU: leaky_relu, HARDSWISH: hardswish}
FLOAT32_VECTORS = {
    SIGMOID: elementary.sigmoid,
    SILU: elementary.silu,
    TANH: elementary.tanh,
    GELU: elementary.gelu,
}


def sigmoid(x: float) -> float:
    """1 / (1 + exp(-x)) without overflow."""
    if x >= 0:
        return 1.0 / (1.0 + math.exp(-x))
    e = math.exp(x)
    return e / (1.0 + e)


def silu(x: float) -> float:
    """x sigmoid(x), with the limit 0 at -inf."""
    return 0.0 if x == -math.inf else x * sigmoid(x)


def gelu(x: float) -> float:
    """x erfc(-x / sqrt 2) / 2, with the limit 0 at -inf."""
    return 0.0 if x == -math.inf else 0.5 * x * math.erfc(-x * math.sqrt(0.5))


def tanh(x: float) -> float:
    """The hyperbolic tangent."""
    return math.tanh(x)


FLOAT64_FUNCTIONS = {SIGMOID: sigmoid, SILU: silu, TANH: tanh, GELU: gelu}


def emit(variant: Finish, builder: Builder, at: dict[str, Value]) -> None:
    """Emit the loop over rows: whole vectors of a row, then the rest under a mask."""
    form = variant.form
    e = convert.emitter(builder, variant.lanes, form.finished, variant.fma)
    loads = convert.emitter(builder, variant.lanes, form.sums, variant.fma)
    bounds = [e.splat(e.narrow(at[name])) for name in LIMITS]
    rest = builder.and_(at["columns"], i64(variant.lanes - 1))
    whole = builder.sub(at["columns"], rest)
    some_left, mask = builder.icmp_signed("<", i64(0), rest), e.below(rest)

    def scaled(value: Value, factors: Any, column: Value, mask: Value | None) -> Value:
        """A vector of sums, scaled and shifted."""
        if variant.scaled == SCALED_ROWS:
            scale, shift = (e.broadcast(address) for address in factors)
        else:
            offset = builder.mul(column, i64(e.itemsize))
            places = [e.at(address, offset) for address in factors]
            if mask is None:
                scale, shift = map(e.load, places)
            else:
                scale, shift = (e.load_masked(place, mask) for place in places)
        return e.multiply_add(value, scale, shift)

    def vector(rows: Values, column: Value, mask: Value | None = None) -> list[Value]:
        sums_row, residual_row, y_row, *factors = rows

        def place(row: Value, dtype: Stored) -> Value:
            return e.at(row, builder.mul(column, i64(storage.SIZES[dtype])))

        value = convert.load(loads, form.sums, place(sums_row, form.sums), mask)
        if value.type != e.vector:
            value = builder.sitofp(value, e.vector)
        if variant.scaled:
            value = scaled(value, factors, column, mask)
        if variant.added:
            added = place(residual_row, form.residual)
            e.prefetch(e.at(added, at["ahead"]), 3)
            value = e.add(value, convert.load(e, form.residual, added, mask))
        convert.store(e, form.y, activation(value), place(y_row, form.y), mask)
        return []

    def activation(value: Value) -> Value:
        if variant.kind in VECTORS:
            return VECTORS[variant.kind](e, value, *bounds)
        return FLOAT32_VECTORS[variant.kind](e, value)

    def row(_: object, rows: Values) -> list[Value]:
        e.loop(whole, e.lanes, [], lambda column, _: vector(rows, column))
        with builder.if_then(some_left):
            vector(rows, whole, mask)
        step = e.itemsize if variant.scaled == SCALED_ROWS else 0
        steps = [*(at[f"{name}_row"] for name in arrays), *[i64(step)] * 2]
        return [e.at(row, step) for row, step in zip(rows, steps, strict=True)]

    arrays = ("sums", "residual", "y")
    first = [builder.inttoptr(at[name], BYTES) for name in (*arrays, "scale", "shift")]
    e.loop(at["rows"], 1, first, row)


DOUBLE = storage.SIZES["float64"]  # bytes of a float64


def make_finish(variant: Finish) -> Source:
    """The part of one `variants.Finish`."""
    if variant.form.finished == "float64" and variant.kind in FLOAT64_FUNCTIONS:
        return _make_finish_elements(variant)
    return emitted(finish, functools.partial(emit, variant))


def _make_finish_elements(variant: Finish) -> Source:
    """The part that finishes one element of 64 bits at a time."""
    added, scaled, activate = variant.added, variant.scaled, FLOAT64_FUNCTIONS[variant.kind]
    read_sum = convert.make_read(variant.form.sums)
    read_double, write_double = convert.make_read("float64"), convert.make_write("float64")

    def finish_elements(
        sums: int,
        sums_row: int,
        residual: int,
        residual_row: int,
        y: int,
        y_row: int,
        rows: int,
        columns: int,
        ahead: int,
        scale: int,
        shift: int,
        low: float,
        high: float,
    ) -> None:
        for row in range(rows):
            for column in range(columns):
                value = read_sum(sums + row * sums_row + column * DOUBLE)
                if scaled:
                    k = DOUBLE * (row if scaled == SCALED_ROWS else column)
                    value = value * read_double(scale + k) + read_double(shift + k)
                if added:
                    value += read_double(residual + row * residual_row + column * DOUBLE)
                write_double(y + row * y_row + column * DOUBLE, activate(value))

    return translated(finish, finish_elements)
