"""Winograd F(m x m, 3x3): m*m outputs from (m+2)*(m+2) products instead of 9*m*m.

    y = A^T [ (G g G^T) * (B^T d B) ] A,   d an (m+2) x (m+2) box of the input, g a 3x3 filter

At stride 2 four outputs take a 5x5 box of the input and 25 products instead of 36.

One work item is a load tile whose rows and columns come in boxes of m x m outputs:

    execute the tile's loads into this thread's buffer            (the loads of fprop)
    input part: every box, transformed             -> U[xi][box][channel]
    for each panel of the chunk:
        pack the panel and transform it            -> V[xi][channel][filter] (unless it came so)
        for each xi: microkernel, boxes x filters over channels  -> M[xi][box][filter]
        output part: every box, transformed        -> staging tile -> residual, activation -> y

Matrices: Cook and Toom, from interpolation points (Winograd 1980; Lavin and Gray 2015). At stride 2
the taps fall into two phases: F(2, 2) for the outer two, plain products for the middle one.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import types

from implicit_conv.kernels.cpu import memory
from implicit_conv.kernels.cpu.cache import kernel
from implicit_conv.kernels.cpu.compiled import schedule
from implicit_conv.kernels.cpu.launch import ENTRY, fields, next_item
from implicit_conv.kernels.cpu.sizes import LINE
from implicit_conv.kernels.cpu.table import (
    LOAD_TILE,
    PACK_BLOCK,
    STORE_TILE,
    WINOGRAD_FILTER,
    WINOGRAD_INPUT,
    WINOGRAD_OUTPUT,
    compile_emitted,
    compile_part,
    microkernel_slot,
    run_part,
)
from implicit_conv.kernels.cpu.vector import BYTES, Emitter, i64

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


def _square(e, size, base, row_stride, column_stride):
    """Vectors at base + i * row_stride + j * column_stride."""
    rows, columns = (
        [e.builder.mul(stride, i64(i)) for i in range(size)]
        for stride in (row_stride, column_stride)
    )
    return _vectors(e, base, rows, columns)


def _vectors(e, base, rows, columns):
    """Vectors at base + row + column, for all byte offsets of rows and columns."""
    return [[e.load(e.at(base, e.builder.add(row, column))) for column in columns] for row in rows]


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


def _emit_blockwise(e, count, source, target, block):
    """Run `block(source, target)` for `count` vectors, one behind the other in both."""
    step = e.lanes * e.itemsize

    def body(_, carried):
        block(*carried)
        return [e.at(pointer, step) for pointer in carried]

    e.loop(count, 1, [source, target], body)


def _emit_scatter(e, vectors, target, xi_stride):
    flat = [vector for row in vectors for vector in row]
    for xi, vector in enumerate(flat):
        e.store(vector, e.at(target, e.builder.mul(xi_stride, i64(xi))))


def emit_input(m, stride, e, source, *values):
    """B^T d B of one box, for `count` vectors of channels."""
    row, row_phase, column, column_phase, target, xi_stride, count = values
    inputs = matrices(m, stride)[2]
    rows = Axis(row, row_phase).offsets(e, len(inputs), stride)
    columns = Axis(column, column_phase).offsets(e, len(inputs), stride)

    def block(source, target):
        square = _vectors(e, source, rows, columns)
        _emit_scatter(e, _transform(e, inputs, square), target, xi_stride)

    _emit_blockwise(e, count, source, target, block)


def emit_filter(m, stride, e, source, row_stride, column_stride, target, xi_stride, count):
    """G g G^T for `count` vectors of filters, whose columns stand phase by phase."""
    filters = matrices(m, stride)[1]
    phase = e.builder.mul(column_stride, i64(-(-TAPS // stride)))
    rows = [e.builder.mul(row_stride, i64(i)) for i in range(TAPS)]
    columns = Axis(column_stride, phase).offsets(e, TAPS, stride)

    def block(source, target):
        square = _vectors(e, source, rows, columns)
        _emit_scatter(e, _transform(e, filters, square), target, xi_stride)

    _emit_blockwise(e, count, source, target, block)


def emit_output(
    m, stride, e, source, xi_stride, target, row_stride, column_stride, bias, count, low, high
):
    """clamp(A^T M A + bias) of one box, for `count` vectors of filters."""
    outputs = matrices(m, stride)[0]
    size = outputs.shape[1]
    row_of_source = e.builder.mul(xi_stride, i64(size))
    low, high = (e.splat(e.narrow(bound)) for bound in (low, high))
    step = e.lanes * e.itemsize

    def body(_, carried):
        source, target, bias = carried
        square = _square(e, size, source, row_of_source, xi_stride)
        start = e.load(bias)
        for i, row in enumerate(_transform(e, outputs, square)):
            for j, vector in enumerate(row):
                offset = e.builder.add(
                    e.builder.mul(row_stride, i64(i)), e.builder.mul(column_stride, i64(j))
                )
                e.store(e.clamp(e.builder.fadd(vector, start), low, high), e.at(target, offset))
        return [e.at(pointer, step) for pointer in carried]

    e.loop(count, 1, [source, target, bias], body)


def transform_input(source, rows, row_phase, columns, column_phase, target, xi_stride, count):
    """Template of the input part."""
    body(  # noqa: F821, bound
        source, rows, row_phase, columns, column_phase, target, xi_stride, count
    )


def transform_filter(source, row_stride, column_stride, target, xi_stride, count):
    """Template of the filter part."""
    body(source, row_stride, column_stride, target, xi_stride, count)  # noqa: F821, bound


def untransform(
    source, xi_stride, target, row_stride, column_stride, bias, count, low, high
):  # fmt: skip
    """Template of the output part."""
    body(  # noqa: F821, bound
        source, xi_stride, target, row_stride, column_stride, bias, count, low, high
    )


TRANSFORM_INPUT = types.void(*[types.int64] * 8)
TRANSFORM_FILTER = types.void(*[types.int64] * 6)
UNTRANSFORM = types.void(*[types.int64] * 7, types.float64, types.float64)


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

    suffix = f"f{m}_stride{stride}_{lanes}x{itemsize}"
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


@kernel()
def panel_offset(call, g, panel, size):
    """Byte at which V of a panel begins; a line sets its products apart, or they would meet in the
    same few sets of a cache.
    """
    return panel * size * (g.tile_k * g.C * call.itemsize + LINE)


@kernel()
def pack_filters(blob, target, group, panel, scratch):
    """V of one panel: packed as for fprop, then transformed."""
    call, g = fields(blob).call, fields(blob).geometry
    filters = min(g.tile_k, g.K - panel * g.tile_k)
    vectors = schedule.ceil_div(filters, call.lanes)
    tap = g.C * vectors * call.lanes * call.itemsize
    plain = scratch + call.panel
    run_part(call.kernels, PACK_BLOCK, blob, plain, group, panel, 0, scratch + call.packing)
    run_part(
        call.kernels, WINOGRAD_FILTER, plain, TAPS * tap, tap, target, tap + LINE, g.C * vectors
    )


@kernel()
def transform_boxes(call, g, extent, buffer, target, pitch, xi_stride):
    """U of a load tile: every box of its images, rows and columns."""
    m = call.winograd
    pixel = g.C * call.itemsize
    row = schedule.row_pitch(g) * pixel
    row_phase = (schedule.tap_row(g, 1) - schedule.tap_row(g, 0)) * row
    column_phase = (schedule.tap_column(g, 1) - schedule.tap_column(g, 0)) * pixel
    count = schedule.ceil_div(g.C, call.lanes)
    for image in range(extent[0]):
        for i in range(0, extent[1], m):
            for j in range(0, extent[2], m):
                at = buffer + (image * schedule.image_rows(g) + i) * row + j * pixel
                run_part(
                    call.kernels, WINOGRAD_INPUT, at, row, row_phase, pixel, column_phase,
                    target, xi_stride, count,
                )  # fmt: skip
                target += pitch


@kernel()
def untransform_boxes(call, extent, products, xi_stride, staging, bias, vectors, low, high):
    """The staging tile of a load tile: every box of its images, rows and columns."""
    m = call.winograd
    _, rows, columns = extent
    pixel = vectors * call.lanes * call.itemsize
    for image in range(extent[0]):
        for i in range(0, rows, m):
            for j in range(0, columns, m):
                at = staging + ((image * rows + i) * columns + j) * pixel
                run_part(
                    call.kernels, WINOGRAD_OUTPUT, products, xi_stride, at, columns * pixel,
                    pixel, bias, vectors, low, high,
                )  # fmt: skip
                products += pixel


@kernel()
def multiply_boxes(call, g, boxes, u, u_pitch, u_xi, v, v_xi, products, xi_count, vectors, runs):
    """M: for every xi, boxes x filters, summed over channels; a run table of one run serves all."""
    width = vectors * call.lanes * call.itemsize
    parts = schedule.ceil_div(boxes, g.tile_m)
    height, higher = boxes // parts, boxes % parts  # register tiles, and how many have one more
    for xi in range(xi_count):
        begin = 0
        for count, tiles in (height + 1, higher), (height, parts - higher):
            if tiles == 0:
                continue
            run_part(
                call.kernels, microkernel_slot(vectors, 1, count),
                u + xi * u_xi + begin * u_pitch, v + xi * v_xi, runs, call.zeros,
                products + (xi * boxes + begin) * width, 1,
                u_pitch, 0, 0, 0, width, 0, tiles, 0, -np.inf, np.inf,
            )  # fmt: skip
            begin += tiles * count


@kernel()
def run_item(blob, group, origin, first_panel, end_panel, scratch):
    """One load tile and the panels first_panel .. end_panel - 1."""
    call, g = fields(blob).call, fields(blob).geometry
    m, (n, p, q) = call.winograd, origin
    size = schedule.box_products(g, m)
    extent = schedule.tile_extent(g, n, p, q)
    boxes = extent[0] * extent[1] * extent[2] // (m * m)
    run_part(call.kernels, LOAD_TILE, blob, scratch, n, p, q, group * g.C, g.C)
    u_pitch = schedule.ceil_div(g.C, call.lanes) * call.lanes * call.itemsize
    u, u_xi = scratch + call.boxes, boxes * u_pitch + LINE
    transform_boxes(call, g, extent, scratch, u, u_pitch, u_xi)
    runs = scratch + call.runs
    memory.write(runs, 0)
    memory.write(runs + 8, g.C)
    low, high = -np.inf, np.inf
    if call.clamps:
        low, high = memory.read_float(call.activation + 8), memory.read_float(call.activation + 16)
    for panel in range(first_panel, end_panel):
        k = panel * g.tile_k
        filters = min(g.tile_k, g.K - k)
        vectors = schedule.ceil_div(filters, call.lanes)
        width = vectors * call.lanes
        pixel = width * call.itemsize
        v = call.panels + group * call.panel_group + panel_offset(call, g, panel, size)
        if call.w:
            v = scratch + call.transformed
            pack_filters(blob, v, group, panel, scratch)
        products = scratch + call.products
        multiply_boxes(
            call, g, boxes, u, u_pitch, u_xi, v, g.C * pixel + LINE, products, size, vectors, runs
        )
        staging = scratch + call.staging
        bias = call.bias + (group * schedule.panel_count(g) + panel) * call.bias_panel
        untransform_boxes(call, extent, products, boxes * pixel, staging, bias, vectors, low, high)
        first = group * g.K + k
        run_part(call.kernels, STORE_TILE, blob, staging, width, n, p, q, first, filters)


def winograd(blob, thread):
    """The launchable operator: items are (group, load tile, chunk of panels)."""
    call, g = fields(blob).call, fields(blob).geometry
    scratch = call.scratch + thread * call.scratch_bytes
    panels, tiles = schedule.panel_count(g), schedule.tile_count(g)
    chunks = schedule.ceil_div(panels, call.chunk)
    item = next_item(blob)
    while item < call.items:
        first = item % chunks * call.chunk
        tile, group = item // chunks % tiles, item // (chunks * tiles)
        origin = schedule.tile_origin(g, tile)
        run_item(blob, group, origin, first, min(first + call.chunk, panels), scratch)
        item = next_item(blob)


def pack(blob, thread):
    """The launchable packer: items are the panels of all groups."""
    call, g = fields(blob).call, fields(blob).geometry
    panels = schedule.panel_count(g)
    scratch = call.scratch + thread * call.scratch_bytes
    size = schedule.box_products(g, call.winograd)
    item = next_item(blob)
    while item < call.items:
        group, panel = item // panels, item % panels
        target = call.panels + group * call.panel_group + panel_offset(call, g, panel, size)
        pack_filters(blob, target, group, panel, scratch)
        item = next_item(blob)


@functools.cache
def compile_winograd():
    """The compiled operator."""
    return compile_part(ENTRY, winograd, "winograd")


@functools.cache
def compile_pack():
    """The compiled packer."""
    return compile_part(ENTRY, pack, "winograd_pack")
