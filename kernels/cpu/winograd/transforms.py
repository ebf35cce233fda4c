"""Winograd's transforms, emitted for vectors of channels or filters: B^T d B of an input box,
G g G^T of a filter and A^T M A of a box of products.

Matrices: Cook and Toom, from interpolation points (Winograd 1980; Lavin and Gray 2015). At stride 2
the taps fall into two phases: F(2, 2) for the outer two, plain products for the middle one.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import types

from implicit_conv.kernels.cpu.emit.vector import BYTES, Emitter, i64, vectors_name
from implicit_conv.kernels.cpu.runtime.table import (
    WINOGRAD_FILTER,
    WINOGRAD_INPUT,
    WINOGRAD_OUTPUT,
    compile_emitted,
)

TAPS = 3
# Points whose matrices have small entries of like size: least error among those tried.
POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 0.5**0.5, -(0.5**0.5), 2.0**0.5, -(2.0**0.5))}
# (A^T, G, B^T) of two outputs at stride 2.
TWO_AT_STRIDE_2 = (
    [[1, 1, 0, 1, 0], [0, 1, 1, 0, 1]],
    [[1, 0, 0], [1, 0, 1], [0, 0, 1], [0, 1, 0], [0, 1, 0]],
    [[1, 0, -1, 0, 0], [0, 0, 1, 0, 0], [0, 0, -1, 0, 1], [0, 1, 0, 0, 0], [0, 0, 0, 1, 0]],
)


def matrices(m, stride):
    """(A^T, G, B^T) of m outputs in one dimension, float64; the last of POINTS is infinity."""
    if (m, stride) == (2, 2):
        return tuple(np.array(matrix, float) for matrix in TWO_AT_STRIDE_2)
    assert stride == 1
    points = np.array(POINTS[m])
    size = m + TAPS - 1
    powers = np.vander(points, size, increasing=True)
    scale = np.array([np.prod(p - np.delete(points, i)) for i, p in enumerate(points)])
    output = np.zeros((m, size))
    output[:, :-1] = powers[:, :m].T
    output[-1, -1] = 1
    filters = np.zeros((size, TAPS))
    filters[:-1] = powers[:, :TAPS] / scale[:, None]
    filters[-1, -1] = 1
    inputs = np.zeros((size, size))
    for i in range(size - 1):
        inputs[i, :-1] = np.poly(np.delete(points, i))[::-1]
    inputs[-1] = np.poly(points)[::-1]
    return output, filters, inputs


def _combine(e, coefficients, vectors):
    """Sum of coefficient x vector; those of coefficient 1 come first, zeros cost nothing."""
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


def _transform(e, matrix, square):
    """matrix @ square @ matrix.T for a square (list of rows) of vectors."""
    columns = list(zip(*square, strict=True))
    half = [[_combine(e, row, column) for column in columns] for row in matrix]
    return [[_combine(e, row, line) for row in matrix] for line in half]


def _vectors(e, base, rows, columns):
    """Vectors at base + row + column, for all byte offsets of rows and columns."""
    return [[e.load(e.at(base, e.builder.add(row, column))) for column in columns] for row in rows]


def _multiples(e, step, count):
    """0, step, 2 * step, ..."""
    return [e.builder.mul(step, i64(i)) for i in range(count)]


class Axis(NamedTuple):
    """Bytes between neighbours of one phase, and between the first ones of two phases."""

    step: object
    phase: object

    def offsets(self, e, size, stride):
        """Where `size` neighbours lie that come in `stride` phases."""
        mul = e.builder.mul
        return [
            e.builder.add(mul(self.step, i64(i // stride)), mul(self.phase, i64(i % stride)))
            for i in range(size)
        ]


def _emit_scatter(e, vectors, target, xi_stride):
    flat = [vector for row in vectors for vector in row]
    for xi, vector in enumerate(flat):
        e.store(vector, e.at(target, e.builder.mul(xi_stride, i64(xi))))


def emit_input(m, stride, e, source, *values):
    """B^T d B of a row of boxes, for `count` vectors of channels each."""
    row, row_phase, column, column_phase, target, xi_stride, box, boxes, count = values
    inputs = matrices(m, stride)[2]
    rows = Axis(row, row_phase).offsets(e, len(inputs), stride)
    columns = Axis(column, column_phase).offsets(e, len(inputs), stride)
    step = e.builder.mul(column, i64(m))

    def one_vector(_, carried):
        source, target = carried
        square = _vectors(e, source, rows, columns)
        _emit_scatter(e, _transform(e, inputs, square), target, xi_stride)
        return [e.at(pointer, e.lanes * e.itemsize) for pointer in carried]

    def one_box(_, carried):
        source, target = carried
        e.loop(count, 1, carried, one_vector)
        return [e.at(source, step), e.at(target, box)]

    e.loop(boxes, 1, [source, target], one_box)


def emit_filter(m, stride, e, source, row_stride, column_stride, target, xi_stride, count):
    """G g G^T for `count` vectors of filters, whose columns stand phase by phase."""
    filters = matrices(m, stride)[1]
    phase = e.builder.mul(column_stride, i64(-(-TAPS // stride)))
    rows = _multiples(e, row_stride, TAPS)
    columns = Axis(column_stride, phase).offsets(e, TAPS, stride)

    def one_vector(_, carried):
        source, target = carried
        square = _vectors(e, source, rows, columns)
        _emit_scatter(e, _transform(e, filters, square), target, xi_stride)
        return [e.at(pointer, e.lanes * e.itemsize) for pointer in carried]

    e.loop(count, 1, [source, target], one_vector)


def emit_output(m, stride, e, source, *values):
    """clamp(A^T M A + bias) of a row of boxes, for `count` vectors of filters each."""
    xi_stride, target, row_stride, column_stride, bias, boxes, count, low, high = values
    outputs = matrices(m, stride)[0]
    size = outputs.shape[1]
    columns = _multiples(e, xi_stride, size)
    rows = _multiples(e, e.builder.mul(xi_stride, i64(size)), size)
    rows_out, columns_out = _multiples(e, row_stride, m), _multiples(e, column_stride, m)
    box = e.builder.mul(column_stride, i64(m))
    low, high = (e.splat(e.narrow(bound)) for bound in (low, high))
    vector_bytes = e.lanes * e.itemsize

    def one_vector(_, carried):
        source, target, bias = carried
        square = _vectors(e, source, rows, columns)
        start = e.load(bias)
        for down, line in zip(rows_out, _transform(e, outputs, square), strict=True):
            for across, vector in zip(columns_out, line, strict=True):
                place = e.at(target, e.builder.add(down, across))
                e.store(e.clamp(e.builder.fadd(vector, start), low, high), place)
        return [e.at(pointer, vector_bytes) for pointer in carried]

    def one_box(_, carried):
        source, target = carried
        source, *_ = e.loop(count, 1, [source, target, bias], one_vector)
        return [source, e.at(target, box)]

    e.loop(boxes, 1, [source, target], one_box)


def transform_input(
    source, rows, row_phase, columns, column_phase, target, xi_stride, box, boxes, count
):  # fmt: skip
    """Template of the input part."""
    body(  # noqa: F821, bound
        source, rows, row_phase, columns, column_phase, target, xi_stride, box, boxes, count
    )


def transform_filter(source, row_stride, column_stride, target, xi_stride, count):
    """Template of the filter part."""
    body(source, row_stride, column_stride, target, xi_stride, count)  # noqa: F821, bound


def untransform(
    source, xi_stride, target, row_stride, column_stride, bias, boxes, count, low, high
):  # fmt: skip
    """Template of the output part."""
    body(  # noqa: F821, bound
        source, xi_stride, target, row_stride, column_stride, bias, boxes, count, low, high
    )


TRANSFORM_INPUT = types.void(*[types.int64] * 10)
TRANSFORM_FILTER = types.void(*[types.int64] * 6)
UNTRANSFORM = types.void(*[types.int64] * 8, types.float64, types.float64)


def _pointers(builder, values, names):
    """`values` with those at positions `names` as byte pointers."""
    return [
        builder.inttoptr(value, BYTES) if at in names else value for at, value in enumerate(values)
    ]


@functools.cache
def compile_transforms(m, stride, lanes, itemsize, fma):
    """(input, filter, output) parts of F(m x m, 3x3), by their slots in the kernel table."""

    def emitter(emit, addresses):
        def emit_part(builder, values):
            e = Emitter(builder, lanes, itemsize, fma)
            emit(m, stride, e, *_pointers(builder, values, addresses))

        return emit_part

    suffix = f"f{m}_stride{stride}_{vectors_name(lanes, itemsize, fma)}"
    return {
        WINOGRAD_INPUT: compile_emitted(
            TRANSFORM_INPUT, transform_input, f"winograd_input_{suffix}",
            emitter(emit_input, (0, 5)),
        ),
        WINOGRAD_FILTER: compile_emitted(
            TRANSFORM_FILTER, transform_filter, f"winograd_filter_{suffix}",
            emitter(emit_filter, (0, 3)),
        ),
        WINOGRAD_OUTPUT: compile_emitted(
            UNTRANSFORM, untransform, f"winograd_output_{suffix}", emitter(emit_output, (0, 2, 5))
        ),
    }  # fmt: skip
