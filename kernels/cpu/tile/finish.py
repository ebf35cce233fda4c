"""The last step of every sum: residual, activation, rounding; row by row, vector by vector.

    y[row, i] = round(activation(sums[row, i] + residual[row, i]))

A row is a run of numbers that lie one behind the other in all three: the filters of a pixel, or the
pixels of a filter. There is a part for each activation, with a residual and without, compiled where
a launch needs it. sigmoid, silu, tanh and gelu of float64 are libm's, number by number.
"""

import functools
import math
from typing import NamedTuple

from numba import types

from implicit_conv.kernels.activation import (
    CLAMP,
    GELU,
    HARDSWISH,
    LEAKY_RELU,
    SIGMOID,
    SILU,
    TANH,
)
from implicit_conv.kernels.cpu.emit import elementary
from implicit_conv.kernels.cpu.emit.vector import BYTES, Emitter, i64
from implicit_conv.kernels.cpu.runtime.cache import kernel
from implicit_conv.kernels.cpu.runtime.table import (
    BOUND,
    FINISH,
    LIMITS,
    compile_emitted,
    compile_part,
)
from implicit_conv.kernels.cpu.tile import storage

ARGUMENTS = (
    "sums",  # addresses, and bytes between rows
    "sums_row",
    "residual",
    "residual_row",
    "y",
    "y_row",
    "rows",
    "columns",
    "ahead",  # bytes from a number of the residual to one that is wanted soon
)
SIGNATURE = types.void(*[types.int64] * len(ARGUMENTS), types.float64, types.float64)


class Finish(NamedTuple):
    """What a part is compiled for."""

    kind: int  # of activation
    added: bool  # whether there is a residual
    form: storage.Format
    lanes: int
    fma: bool

    @property
    def slot(self):
        """Its place in the kernel table."""
        return FINISH + 2 * self.kind + self.added

    @property
    def name(self):
        """Its name, and its like in the cache."""
        x, _, sums, y = self.form
        residual = f"{x}_" if self.added else ""
        return f"finish_{self.kind}_{residual}{sums}_{y}_{self.lanes}{'_fma' * self.fma}"


def leaky_relu(e, x, low, high):
    """`low` is the slope."""
    negative = e.builder.fcmp_ordered("<", x, e.constant(0))
    return e.builder.select(negative, e.builder.fmul(x, low), x)


def hardswish(e, x, low, high):
    """x min(max(x + 3, 0), 6) / 6: x itself from 3 on, and zero from -3 down, -inf too."""
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


@kernel()
def sigmoid(x):
    """1 / (1 + exp(-x)) without overflow."""
    if x >= 0:
        return 1.0 / (1.0 + math.exp(-x))
    e = math.exp(x)
    return e / (1.0 + e)


@kernel()
def silu(x):
    return 0.0 if x == -math.inf else x * sigmoid(x)


@kernel()
def gelu(x):
    return 0.0 if x == -math.inf else 0.5 * x * math.erfc(-x * math.sqrt(0.5))


@kernel()
def tanh(x):
    return math.tanh(x)


FLOAT64_NUMBERS = {SIGMOID: sigmoid, SILU: silu, TANH: tanh, GELU: gelu}


def emit(variant, builder, at):
    """Whole vectors of a row, then what is left of it."""
    x, _, sums, y = variant.form
    e = Emitter(builder, variant.lanes, storage.SIZES[sums], variant.fma)
    bounds = [e.splat(e.narrow(at[name])) for name in LIMITS]
    rest = builder.and_(at["columns"], i64(variant.lanes - 1))
    whole = builder.sub(at["columns"], rest)
    some_left, mask = builder.icmp_signed("<", i64(0), rest), e.below(rest)

    def vector(rows, column, mask=None):
        sums_row, residual_row, y_row = rows

        def place(row, dtype):
            return e.at(row, builder.mul(column, i64(storage.SIZES[dtype])))

        value = storage.load(e, sums, place(sums_row, sums), mask)
        if variant.added:
            added = place(residual_row, x)
            e.prefetch(e.at(added, at["ahead"]), 3)
            value = builder.fadd(value, storage.load(e, x, added, mask))
        storage.store(e, y, activation(value), place(y_row, y), mask)
        return []

    def activation(value):
        if variant.kind in VECTORS:
            return VECTORS[variant.kind](e, value, *bounds)
        return FLOAT32_VECTORS[variant.kind](e, value)

    def row(_, rows):
        e.loop(whole, e.lanes, [], lambda column, _: vector(rows, column))
        with builder.if_then(some_left):
            vector(rows, whole, mask)
        return [e.at(row, at[f"{name}_row"]) for row, name in zip(rows, arrays, strict=True)]

    arrays = ("sums", "residual", "y")
    e.loop(at["rows"], 1, [builder.inttoptr(at[name], BYTES) for name in arrays], row)


DOUBLE = storage.SIZES["float64"]  # bytes
read_double, write_double = storage.make_read("float64"), storage.make_write("float64")
added = activate = BOUND  # by compile_finish


def finish_numbers(
    sums, sums_row, residual, residual_row, y, y_row, rows, columns, ahead, low, high
):
    """Template of the parts that take one number after another."""
    for row in range(rows):
        for column in range(columns):
            value = read_double(sums + row * sums_row + column * DOUBLE)
            if added:
                value += read_double(residual + row * residual_row + column * DOUBLE)
            write_double(y + row * y_row + column * DOUBLE, activate(value))


@functools.cache
def compile_finish(variant):
    """The compiled part of one variant."""
    if variant.form.sums == "float64" and variant.kind in FLOAT64_NUMBERS:
        activate = FLOAT64_NUMBERS[variant.kind]
        return compile_part(
            SIGNATURE, finish_numbers, variant.name, added=variant.added, activate=activate
        )
    return compile_emitted(variant.name, ARGUMENTS, LIMITS, functools.partial(emit, variant))
