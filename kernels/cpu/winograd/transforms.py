"""Winograd's transforms, emitted for vectors of channels or filters: B^T d B of an input box,
G g G^T of a filter and A^T M A of a box of products.

The matrices are Cook's and Toom's, from interpolation points (Winograd 1980; Lavin and Gray 2015).
At stride 2 the taps have two phases: F(2, 2) for the outer two, plain products for the middle one.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from implicit_conv.kernels.cpu.emit.vector import BYTES, Emitter, i64, vectors_name
from implicit_conv.kernels.cpu.runtime.parts import LIMITS, compile_emitted
from implicit_conv.kernels.cpu.runtime.table import WINOGRAD_FILTER, WINOGRAD_INPUT, WINOGRAD_OUTPUT

# Addresses are those of the first element; strides are in bytes, "xi" is the matrix of one product.
INPUT_ARGUMENTS = (
    "source",  # address of the first box of a row of boxes
    "row",  # stride between rows of one phase, and between the first rows of two phases
    "row_phase",
    "column",  # stride between columns of one phase, and between the first columns of two phases
    "column_phase",
    "target",  # address of U, its strides between matrices and between boxes
    "xi_stride",
    "box",
    "boxes",
    "count",  # vectors of channels
)
FILTER_ARGUMENTS = (
    "source",  # address of packed taps, their strides between rows and columns
    "row",
    "column",
    "target",  # address of V, its stride between matrices
    "xi_stride",
    "count",  # vectors of filters
)
OUTPUT_ARGUMENTS = (
    "source",  # address of M, its stride between matrices
    "xi_stride",
    "target",  # address of the output, its strides between rows and columns
    "row",
    "column",
    "bias",  # address of the initial sums
    "boxes",
    "count",  # vectors of filters
)
TAPS = 3  # taps of a filter along an axis
# Interpolation points by m: their matrices have entries of similar size, and the smallest rounding
# error of all sets of points that were tried.
POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 0.5**0.5, -(0.5**0.5), 2.0**0.5, -(2.0**0.5))}
# (A^T, G, B^T) of two outputs at stride 2.
TWO_AT_STRIDE_2 = (
    [[1, 1, 0, 1, 0], [0, 1, 1, 0, 1]],
    [[1, 0, 0], [1, 0, 1], [0, 0, 1], [0, 1, 0], [0, 1, 0]],
    [[1, 0, -1, 0, 0], [0, 0, 1, 0, 0], [0, 0, -1, 0, 1], [0, 1, 0, 0, 0], [0, 0, 0, 1, 0]],
)


def matrices(m, stride):
    """(A^T, G, B^T) of m outputs in one dimension, float64; infinity is one more point."""
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


def _transform(e, matrix, square):
    """matrix @ square @ matrix.T for a square (list of rows) of vectors."""
    columns = list(zip(*square, strict=True))
    half = [[_combine(e, row, column) for column in columns] for row in matrix]
    return [[_combine(e, row, line) for row in matrix] for line in half]


def _vectors(e, base, rows, columns):
    """The vectors at base + row + column, for all byte offsets in `rows` and `columns`."""
    return [[e.load(e.at(base, e.builder.add(row, column))) for column in columns] for row in rows]


def _multiples(e, step, count):
    """0, step, 2 * step, ..."""
    return [e.builder.mul(step, i64(i)) for i in range(count)]


class Axis(NamedTuple):
    """Byte strides: between neighbours of one phase, and between the first ones of two phases."""

    step: object
    phase: object

    def offsets(self, e, size, stride):
        """Byte offsets of `size` neighbours, which are stored as `stride` phases."""
        mul = e.builder.mul
        return [
            e.builder.add(mul(self.step, i64(i // stride)), mul(self.phase, i64(i % stride)))
            for i in range(size)
        ]


def _emit_scatter(e, vectors, target, xi_stride):
    """Store one vector into each matrix."""
    flat = [vector for row in vectors for vector in row]
    for xi, vector in enumerate(flat):
        e.store(vector, e.at(target, e.builder.mul(xi_stride, i64(xi))))


def emit_input(m, stride, e, at):
    """Emit B^T d B of a row of boxes, each of `count` vectors of channels."""
    inputs = matrices(m, stride)[2]
    rows = Axis(at["row"], at["row_phase"]).offsets(e, len(inputs), stride)
    columns = Axis(at["column"], at["column_phase"]).offsets(e, len(inputs), stride)
    step = e.builder.mul(at["column"], i64(m))

    def one_vector(_, carried):
        source, target = carried
        square = _vectors(e, source, rows, columns)
        _emit_scatter(e, _transform(e, inputs, square), target, at["xi_stride"])
        return [e.at(pointer, e.lanes * e.itemsize) for pointer in carried]

    def one_box(_, carried):
        source, target = carried
        e.loop(at["count"], 1, carried, one_vector)
        return [e.at(source, step), e.at(target, at["box"])]

    e.loop(at["boxes"], 1, _pointers(e, at, "source", "target"), one_box)


def emit_filter(m, stride, e, at):
    """Emit G g G^T of `count` vectors of filters, whose columns are stored phase by phase."""
    filters = matrices(m, stride)[1]
    phase = e.builder.mul(at["column"], i64(-(-TAPS // stride)))
    rows = _multiples(e, at["row"], TAPS)
    columns = Axis(at["column"], phase).offsets(e, TAPS, stride)

    def one_vector(_, carried):
        source, target = carried
        square = _vectors(e, source, rows, columns)
        _emit_scatter(e, _transform(e, filters, square), target, at["xi_stride"])
        return [e.at(pointer, e.lanes * e.itemsize) for pointer in carried]

    e.loop(at["count"], 1, _pointers(e, at, "source", "target"), one_vector)


def emit_output(m, stride, e, at):
    """Emit clamp(A^T M A + bias) of a row of boxes, each of `count` vectors of filters."""
    outputs = matrices(m, stride)[0]
    size = outputs.shape[1]
    columns = _multiples(e, at["xi_stride"], size)
    rows = _multiples(e, e.builder.mul(at["xi_stride"], i64(size)), size)
    rows_out, columns_out = _multiples(e, at["row"], m), _multiples(e, at["column"], m)
    box = e.builder.mul(at["column"], i64(m))
    low, high = (e.splat(e.narrow(at[name])) for name in LIMITS)
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
        source, *_ = e.loop(at["count"], 1, [source, target, bias], one_vector)
        return [source, e.at(target, box)]

    source, target, bias = _pointers(e, at, "source", "target", "bias")
    e.loop(at["boxes"], 1, [source, target], one_box)


def _pointers(e, at, *names):
    """The arguments `names`, which are addresses, as byte pointers."""
    return [e.builder.inttoptr(at[name], BYTES) for name in names]


@functools.cache
def compile_transforms(m, stride, lanes, itemsize, fma) -> dict[int, Any]:
    """The input, filter and output parts of F(m x m, 3x3), by their slots in the kernel table."""

    def part(name, arguments, floats, emit):
        def emit_part(builder, at):
            emit(m, stride, Emitter(builder, lanes, itemsize, fma), at)

        name = f"winograd_{name}_f{m}_stride{stride}_{vectors_name(lanes, itemsize, fma)}"
        return compile_emitted(name, arguments, floats, emit_part)

    return {
        WINOGRAD_INPUT: part("input", INPUT_ARGUMENTS, (), emit_input),
        WINOGRAD_FILTER: part("filter", FILTER_ARGUMENTS, (), emit_filter),
        WINOGRAD_OUTPUT: part("output", OUTPUT_ARGUMENTS, LIMITS, emit_output),
    }
