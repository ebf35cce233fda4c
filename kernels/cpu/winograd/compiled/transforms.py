"""Winograd's transforms, emitted for vectors of channels or filters: B^T d B of an input box,
G g G^T of a filter and A^T M A of a box of products.

The matrices are Cook's and Toom's, from interpolation points (Winograd 1980; Lavin and Gray 2015).
At stride 2 the taps have two phases: F(2, 2) for the outer two, plain products for the middle one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.emit.vector import BYTES, Builder, Emitter, Value, Values, i64
from implicit_conv.kernels.cpu.runtime.compiled.part import LIMITS, declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, emitted
from implicit_conv.kernels.cpu.runtime.table import WINOGRAD_FILTER, WINOGRAD_INPUT, WINOGRAD_OUTPUT

# Addresses are those of first elements; strides are in bytes, and `xi_stride` is that between the
# matrices of two products. `count` counts vectors of channels or filters.
#
# A row of boxes: strides between rows of one phase, between the first rows of two phases, and the
# same of columns; U, its strides between matrices and between boxes.
transform_input = declare(
    WINOGRAD_INPUT,
    "transform_input",
    "source row row_phase column column_phase target xi_stride box boxes count",
)
# Packed taps, their strides between rows and columns; V.
transform_filters = declare(
    WINOGRAD_FILTER, "transform_filters", "source row column target xi_stride count"
)
# M; the output, its strides between rows and columns; the initial sums.
transform_output = declare(
    WINOGRAD_OUTPUT,
    "transform_output",
    "source xi_stride target row column bias boxes count",
    "low high",
)
Matrix: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"
Factors: TypeAlias = tuple[Matrix, Matrix]  # whose product is a matrix; see `butterflies`

# Finite interpolation points by their number, which is m + taps - 2. Those of F2, of filters with
# at most 3 taps along an axis, keep small integers exact. Of all sets of 0 and pairs a, -a, with a
# from 31 values between 0.3 and 3, those of F6 have the smallest rounding error and those of F4 at
# most 5 % more: root mean squares in float32 over 64 channels, of normally distributed and of
# uniform positive data, multiplied. Factors on the rows of the matrices change no rounding if they
# are powers of two; others, which were drawn at random, made it worse.
POINTS = {
    2: (0.0, 1.0),
    3: (0.0, 1.0, -1.0),
    5: (0.0, 0.5**0.5, -(0.5**0.5), 2.0**0.5, -(2.0**0.5)),
    7: (0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0),
}
# (A^T, G, B^T) of two outputs at stride 2.
TWO_AT_STRIDE_2 = (
    [[1, 1, 0, 1, 0], [0, 1, 1, 0, 1]],
    [[1, 0, 0], [1, 0, 1], [0, 0, 1], [0, 1, 0], [0, 1, 0]],
    [[1, 0, -1, 0, 0], [0, 0, 1, 0, 0], [0, 0, -1, 0, 1], [0, 1, 0, 0, 0], [0, 0, 0, 1, 0]],
)


def matrices(m: int, taps: int, stride: int) -> tuple[Matrix, ...]:
    """(A^T, G, B^T) of m outputs in one dimension, float64; infinity is one more point. A single
    tap is multiplied as it is.
    """
    if taps == 1:
        return (np.eye(1),) * 3
    if (m, taps, stride) == (2, 3, 2):
        return tuple(np.array(matrix, float) for matrix in TWO_AT_STRIDE_2)
    assert stride == 1
    points = np.array(POINTS[m + taps - 2])
    size = m + taps - 1
    powers = np.vander(points, size, increasing=True)
    scale = np.array([np.prod(p - np.delete(points, i)) for i, p in enumerate(points)])
    output = np.zeros((m, size))
    output[:, :-1] = powers[:, :m].T
    output[-1, -1] = 1
    filters = np.zeros((size, taps))
    filters[:-1] = powers[:, :taps] / scale[:, None]
    filters[-1, -1] = 1
    inputs = np.zeros((size, size))
    for i in range(size - 1):
        inputs[i, :-1] = np.poly(np.delete(points, i))[::-1]
    inputs[-1] = np.poly(points)[::-1]
    return output, filters, inputs


def butterflies(matrix: Matrix) -> Factors:
    """(pairs, shared) whose product is `matrix`: two rows that differ in signs alone, as those of
    the points a and -a do, are the sum and the difference of two shared sums.
    """
    pairs, shared = np.eye(len(matrix)), matrix.copy()
    for i, j in itertools.combinations(range(len(matrix)), 2):
        same = np.isclose(matrix[i], matrix[j])
        opposite = np.isclose(matrix[i], -matrix[j])
        if not (same | opposite).all() or same.all() or opposite.all():
            continue
        shared[i], shared[j] = np.where(same, matrix[i], 0), np.where(same, 0, matrix[i])
        pairs[i, j], pairs[j, i], pairs[j, j] = 1, 1, -1
    return pairs, shared


def _combine(e: Emitter, coefficients: Matrix, vectors: Values) -> Value:
    """Sum of coefficient x vector: first the vectors with coefficient 1; zeros cost nothing."""
    terms = [(c, v) for c, v in zip(coefficients, vectors, strict=True) if c != 0]
    terms.sort(key=lambda term: term[0] != 1)
    coefficient, total = terms[0]
    if coefficient != 1:
        total = e.builder.fmul(e.constant(coefficient), total)
    for coefficient, vector in terms[1:]:
        if coefficient == 1:
            total = e.builder.fadd(total, vector)
        elif coefficient == -1:
            total = e.builder.fsub(total, vector)
        else:
            total = e.multiply_add(e.constant(coefficient), vector, total)
    return total


def _product(e: Emitter, factors: Sequence[Matrix], vectors: Values) -> Values:
    """The vectors, multiplied by the last of the factors, then by the one before it."""
    for matrix in reversed(factors):
        vectors = [_combine(e, row, vectors) for row in matrix]
    return vectors


def _transform(
    e: Emitter,
    left: Sequence[Matrix],
    right: Sequence[Matrix],
    scratch: Value,
    load: Callable[[Value], Values],
    store: Callable[[Value, Values], None],
) -> None:
    """Multiply a matrix of vectors by one from the left, and by another's transpose from the right.

    Parameters
    ----------
    left, right : matrices whose products are the matrix on the left, and that on the right
    scratch : address of memory for the product from the left, row by row. It does not fit in the
        registers, so that LLVM would keep parts of it in memory, at worse times.
    load : function of a column's index that emits loads of its vectors
    store : function of a row's index and its vectors that emits their stores
    """
    rows, columns = len(left[0]), right[-1].shape[1]
    size = e.lanes * e.itemsize

    def at(row: Value, column: Value) -> Value:
        index = e.builder.add(e.builder.mul(row, i64(columns)), column)
        return e.at(scratch, e.builder.mul(index, i64(size)))

    def one_column(column: Value, _: object) -> list[Value]:
        for row, vector in enumerate(_product(e, left, load(column))):
            e.store(vector, at(i64(row), column), size)
        return []

    def one_row(row: Value, _: object) -> list[Value]:
        line = [e.load(at(row, i64(column)), size) for column in range(columns)]
        store(row, _product(e, right, line))
        return []

    e.loop(i64(columns), 1, [], one_column)
    e.loop(i64(rows), 1, [], one_row)


class Side(NamedTuple):
    """What a box has along an axis: outputs, taps of the filter, and their stride."""

    m: int
    taps: int
    stride: int

    def factors(self, which: int) -> Factors:
        """The factors of A^T, G or B^T, by its index."""
        matrix = matrices(*self)[which]
        if which > 0:
            return butterflies(matrix)
        pairs, shared = butterflies(matrix.T)
        return shared.T, pairs.T

    @property
    def size(self) -> int:
        """Inputs and products."""
        return (self.m - 1) * self.stride + self.taps


class Axis(NamedTuple):
    """Byte strides: between neighbours of one phase, and between the first ones of two phases."""

    step: object
    phase: object

    def offset(self, e: Emitter, index: Value, stride: int) -> Value:
        """Byte offset of neighbour `index`, where neighbours are stored as `stride` phases."""
        mul = e.builder.mul
        if stride == 1:
            return mul(self.step, index)
        return e.builder.add(
            mul(self.step, e.builder.sdiv(index, i64(stride))),
            mul(self.phase, e.builder.srem(index, i64(stride))),
        )


def _scratch(e: Emitter, vectors: int) -> Value:
    """Address of memory on the stack for so many vectors; it lasts until the kernel returns."""
    memory = e.builder.alloca(e.vector, vectors)
    memory.align = e.lanes * e.itemsize
    return e.builder.bitcast(memory, BYTES)


def _loader(
    e: Emitter, source: Value, rows: Values, columns: Callable[[Value], Value]
) -> Callable[[Value], Values]:
    """The function that loads a column of vectors; `rows` are byte offsets, and `columns` is a
    function that gives that of an index.
    """

    def load(column: Value) -> list[Value]:
        first = e.at(source, columns(column))
        return [e.load(e.at(first, row)) for row in rows]

    return load


def _scatter(
    e: Emitter, size: int, target: Value, xi_stride: Value
) -> Callable[[Value, Values], None]:
    """The function that stores the vectors of a row into one matrix each."""

    def store(row: Value, vectors: Values) -> None:
        first = e.at(target, e.builder.mul(xi_stride, e.builder.mul(row, i64(size))))
        for xi, vector in enumerate(vectors):
            e.store(vector, e.at(first, e.builder.mul(xi_stride, i64(xi))))

    return store


def emit_input(row: Side, column: Side, e: Emitter, at: dict[str, Value]) -> None:
    """Emit B^T d B of a row of boxes, each of `count` vectors of channels."""
    left, right = row.factors(2), column.factors(2)
    row_axis, column_axis = (Axis(at[name], at[f"{name}_phase"]) for name in ("row", "column"))
    rows = [row_axis.offset(e, i64(i), row.stride) for i in range(row.size)]
    step = e.builder.mul(at["column"], i64(column.m))
    scratch = _scratch(e, row.size * column.size)

    def one_vector(_: object, carried: Values) -> list[Value]:
        source, target = carried
        load = _loader(e, source, rows, lambda i: column_axis.offset(e, i, column.stride))
        _transform(e, left, right, scratch, load, _scatter(e, column.size, target, at["xi_stride"]))
        return [e.at(pointer, e.lanes * e.itemsize) for pointer in carried]

    def one_box(_: object, carried: Values) -> list[Value]:
        source, target = carried
        e.loop(at["count"], 1, carried, one_vector)
        return [e.at(source, step), e.at(target, at["box"])]

    e.loop(at["boxes"], 1, _pointers(e, at, "source", "target"), one_box)


def emit_filter(row: Side, column: Side, e: Emitter, at: dict[str, Value]) -> None:
    """Emit G g G^T of `count` vectors of filters, whose columns are stored phase by phase."""
    left, right = row.factors(1), column.factors(1)
    even = i64(-(-column.taps // column.stride))  # taps of the first phase
    column_axis = Axis(at["column"], e.builder.mul(at["column"], even))
    rows = [e.builder.mul(at["row"], i64(i)) for i in range(row.taps)]
    scratch = _scratch(e, row.size * column.taps)

    def one_vector(_: object, carried: Values) -> list[Value]:
        source, target = carried
        load = _loader(e, source, rows, lambda i: column_axis.offset(e, i, column.stride))
        _transform(e, left, right, scratch, load, _scatter(e, column.size, target, at["xi_stride"]))
        return [e.at(pointer, e.lanes * e.itemsize) for pointer in carried]

    e.loop(at["count"], 1, _pointers(e, at, "source", "target"), one_vector)


def emit_output(row: Side, column: Side, e: Emitter, at: dict[str, Value]) -> None:
    """Emit clamp(A^T M A + bias) of a row of boxes, each of `count` vectors of filters."""
    left, right = row.factors(0), column.factors(0)
    mul, xi = e.builder.mul, at["xi_stride"]
    rows = [mul(xi, i64(i * column.size)) for i in range(row.size)]
    scratch = _scratch(e, row.m * column.size)
    low, high = (e.splat(e.narrow(at[name])) for name in LIMITS)

    def one_vector(_: object, carried: Values) -> list[Value]:
        source, target, bias = carried
        start = e.load(bias)

        def store(line: Value, vectors: Values) -> None:
            first = e.at(target, mul(at["row"], line))
            for i, vector in enumerate(vectors):
                place = e.at(first, mul(at["column"], i64(i)))
                e.store(e.clamp(e.builder.fadd(vector, start), low, high), place)

        load = _loader(e, source, rows, lambda i: mul(xi, i))
        _transform(e, left, right, scratch, load, store)
        return [e.at(pointer, e.lanes * e.itemsize) for pointer in carried]

    def one_box(_: object, carried: Values) -> list[Value]:
        source, target = carried
        source, *_ = e.loop(at["count"], 1, [source, target, bias], one_vector)
        return [source, e.at(target, mul(at["column"], i64(column.m)))]

    source, target, bias = _pointers(e, at, "source", "target", "bias")
    e.loop(at["boxes"], 1, [source, target], one_box)


def _pointers(e: Emitter, at: dict[str, Value], *names: str) -> list[Value]:
    """The arguments `names`, which are addresses, as byte pointers."""
    return [e.builder.inttoptr(at[name], BYTES) for name in names]


PARTS = {
    "input": (transform_input, emit_input),
    "filter": (transform_filters, emit_filter),
    "output": (transform_output, emit_output),
}


def make_transform(
    name: str, m: int, taps: tuple[int, int], stride: int, lanes: int, itemsize: int, fma: bool
) -> Source:
    """A part of F(m x m, R x S), by its name in PARTS; `taps` are (R, S)."""
    declared, emit = PARTS[name]
    row, column = (Side(schedule.box_extent(along, m), along, stride) for along in taps)

    def emit_part(builder: Builder, at: dict[str, Value]) -> None:
        emit(row, column, Emitter(builder, lanes, itemsize, fma), at)

    return emitted(declared, emit_part)
