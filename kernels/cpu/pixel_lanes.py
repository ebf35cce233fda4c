"""fprop on planes: the pixels of an output row are the lanes of a vector.

    y[k, p, q : q + lanes] = sum over e = (c, r, s) of w[k, e] * x[c, p + r, q + s : ...]

The GEMM transposed: filters, read where they lie and broadcast one float at a time, are the rows,
and shifted views of buffered image rows the columns. Nothing is packed, and in NCHW nothing is
transposed, which pays where there are few channels or filters; planes that a 1x1 filter meets are
read where they lie, as one long row. In NHWC pixels are transposed on their way in and
sums on their way out, which pays where filters would not fill vectors.

One work item is a load tile and a chunk of filter panels:

    execute the tile's loads of every channel into this thread's buffer  (or read x where it lies)
    for each panel of the chunk:
        for each register tile of a few output rows:
            microkernel: sums over shifted views of the buffer -> y, or the staging tile
        staging tile -> residual, activation, layout -> y
"""

import functools
from typing import NamedTuple

from numba import types

from implicit_conv.kernels.cpu import transpose
from implicit_conv.kernels.cpu.cache import kernel
from implicit_conv.kernels.cpu.compiled import schedule
from implicit_conv.kernels.cpu.launch import ENTRY, fields, next_item
from implicit_conv.kernels.cpu.microkernel import PIXELS_PER_BASE
from implicit_conv.kernels.cpu.plane_loads import load_plane, phase_bytes
from implicit_conv.kernels.cpu.planes import is_staged
from implicit_conv.kernels.cpu.table import (
    LOAD_PLANES,
    LOAD_TILE,
    STORE_TILE,
    WRITE_LOADS,
    compile_emitted,
    compile_part,
    pixel_lanes_slot,
    run_part,
)
from implicit_conv.kernels.cpu.vector import BYTES, I64, Emitter, i64
from implicit_conv.kernels.cpu.work import bounds, tile_and_panels

ARGUMENTS = (
    "w",  # addresses: first filter, buffer, offset of each element's view, initial sums, output
    "b",
    "views",
    "sums",
    "out",
    "elements",
    "w_filter",  # strides in bytes: between filters, views of two output rows, what is written
    "b_row",
    "out_filter",  # in NHWC between pixels
    "out_row",
    "columns",
)
SIGNATURE = types.void(*[types.int64] * len(ARGUMENTS), types.float64, types.float64)


class Register(NamedTuple):
    """A register tile: `filters` x `height` vectors of pixels, one of each of as many output rows.

    In place they lie one behind the other in a plane that is one long row; `height` 0 is the tail
    of such a row, fewer pixels than fill a vector. `together`: filters are, in the output.
    """

    filters: int
    height: int
    together: bool
    in_place: bool

    @property
    def rows(self):
        """Vectors of pixels."""
        return max(1, self.height)


def emit(tile, e, *values):
    """The sums of `columns` pixels, by one register tile after another."""
    *integers, low, high = values
    at = dict(zip(ARGUMENTS, integers, strict=True))
    builder = e.builder
    w, b, views, sums, out = (builder.inttoptr(at[name], BYTES) for name in ARGUMENTS[:5])
    limits = [e.splat(e.narrow(bound)) for bound in (low, high)]
    bounded = builder.zext(e.bounded(low, high), I64)
    filters, height, whole = tile.filters, tile.rows, tile.height > 0
    step = e.lanes * (height if tile.in_place else 1)
    places = [(k, p) for k in range(filters) for p in range(height)]
    bases = [
        e.at(w, builder.mul(at["w_filter"], i64(k))) for k in range(0, filters, PIXELS_PER_BASE)
    ]

    def vector(column, _):
        offset = builder.mul(column, i64(e.itemsize))
        source = e.at(b, offset)
        left = builder.sub(at["columns"], column)
        inside = None if whole else e.below(left)

        def element(index, carried):
            moving, total = carried[: len(bases)], list(carried[len(bases) :])
            moving = [e.opaque(base) for base in moving]
            view = e.at(
                source, builder.load(e.pointer(e.at(views, builder.mul(index, i64(8))), I64))
            )
            rows = [e.at(view, builder.mul(at["b_row"], i64(p))) for p in range(height)]
            pixels = [e.load(row) if whole else e.load_masked(row, inside) for row in rows]
            if tile.in_place and whole:  # the next tile's: of more planes than prefetchers follow
                for row in rows:
                    e.prefetch(e.at(row, step * e.itemsize), 3)
            for i, (k, p) in enumerate(places):
                if p == 0:
                    base, further = divmod(k, PIXELS_PER_BASE)
                    moved = builder.mul(at["w_filter"], i64(further))
                    weight = e.broadcast(e.at(moving[base], moved))
                total[i] = e.multiply_add(weight, pixels[p], total[i])
            return [*(e.at(base, e.itemsize) for base in moving), *total]

        first = [e.broadcast(e.at(sums, k * e.itemsize)) for k, _ in places]
        total = e.loop(at["elements"], 1, [*bases, *first], element)[len(bases) :]
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


def store_pixels(e, sums, first, pixel, count):
    """Store the sums of `count` pixels, `pixel` bytes apart, at most as many as there are lanes."""
    builder = e.builder
    for k in range(0, len(sums), e.lanes):
        filters = sums[k : k + e.lanes]
        mask = e.below(i64(len(filters)))
        nothing = [e.constant(0.0)] * (e.lanes - len(filters))
        for i, value in enumerate(transpose.butterfly(e, filters + nothing)):
            with builder.if_then(builder.icmp_signed("<", i64(i), count)):
                place = e.at(e.at(first, builder.mul(pixel, i64(i))), k * e.itemsize)
                e.store_masked(value, place, mask)


def microkernel(
    w, b, views, sums, out, elements, w_filter, b_row, out_filter, out_row, columns, low, high
):
    """Template of the microkernels."""
    body(  # noqa: F821, bound
        w, b, views, sums, out, elements, w_filter, b_row, out_filter, out_row, columns, low, high
    )


@functools.cache
def compile_microkernel(tile, lanes, itemsize, fma):
    """The compiled microkernel of a register tile."""

    def emit_part(builder, values):
        emit(tile, Emitter(builder, lanes, itemsize, fma), *values)

    name = f"pixel_lanes_{tile.filters}x{tile.height}_{lanes}x{itemsize}"
    name += "_together" * tile.together + "_in_place" * tile.in_place
    return compile_emitted(SIGNATURE, microkernel, name, emit_part)


@kernel()
def load(blob, group, origin, buffer):
    """(address, bytes between rows) of the tile's input rows, loaded into the buffer; or of its
    vectors of pixels, which are read where they lie.
    """
    call, g = fields(blob).call, fields(blob).geometry
    n, p, q = origin
    c, table = group * g.C, buffer + call.loads
    if call.in_place:
        run_part(call.kernels, LOAD_TILE, blob, buffer, n, p, q, c, g.C)
        return call.x + n * call.x_n + q * call.x_w + c * call.x_c, call.lanes * call.itemsize
    pitch = g.phases_w * phase_bytes(call, g)
    plane = schedule.image_rows(g) * pitch
    run_part(call.kernels, WRITE_LOADS, blob, n, p, q, c, c + g.C, g.C, table)
    if call.filters_together and call.x_c == call.itemsize:
        run_part(call.kernels, LOAD_PLANES, blob, table, c, buffer, plane)
    else:
        for i in range(g.C):
            load_plane(call, g, table, c + i, buffer + i * plane)
    return buffer, pitch


@kernel()
def run_item(blob, group, origin, first_panel, end_panel, scratch):
    """One load tile of one image and the panels first_panel .. end_panel - 1."""
    call, g = fields(blob).call, fields(blob).geometry
    n, p, q = origin
    _, rows, columns = schedule.tile_extent(g, n, p, q)
    low, high = bounds(call)
    together = call.filters_together
    staged = call.staged if together else is_staged(call)
    elements, step = g.C * g.R * g.S, schedule.pixel_rows(g)
    filter_bytes = call.w_k if call.w else elements * call.itemsize
    a, pitch = load(blob, group, origin, scratch)
    for panel in range(first_panel, end_panel):
        first = panel * g.tile_k
        filters = min(g.tile_k, g.K - first)
        k = group * g.K + first
        w = (call.w if call.w else call.panels) + k * filter_bytes
        sums = call.bias + (group * schedule.panel_count(g) + panel) * call.bias_panel
        out, out_row = call.y + n * call.y_n + k * call.y_k, call.y_p
        out += p * call.y_p + q * call.y_q
        out_filter = call.y_q if together else call.y_k
        if staged:
            out, out_row = scratch + call.staging, columns * call.itemsize
            out_filter = rows * out_row
            if together:
                out_filter = filters * call.itemsize
                out_row = columns * out_filter
        if call.in_place:
            out_row = call.lanes * call.itemsize
        done, end = 0, columns // call.lanes if call.in_place else rows  # vectors, or rows
        while done < end:
            height = min(step, end - done)
            following = (end - done) // height * height
            pixels = following * call.lanes if call.in_place else columns
            run_part(
                call.kernels, pixel_lanes_slot(filters, height), w, a + done * pitch, call.views,
                sums, out + done * out_row, elements, filter_bytes, pitch, out_filter, out_row,
                pixels, low, high,
            )  # fmt: skip
            done += following if call.in_place else height
        if call.in_place and columns % call.lanes:
            run_part(
                call.kernels, pixel_lanes_slot(filters, 0), w, a + done * pitch, call.views, sums,
                out + done * out_row, elements, filter_bytes, pitch, out_filter, out_row,
                columns % call.lanes, low, high,
            )  # fmt: skip
        if staged and together:
            run_part(call.kernels, STORE_TILE, blob, out, filters, n, p, q, k, filters)
        elif staged:
            for i in range(filters):
                staging = out + i * out_filter
                run_part(call.kernels, STORE_TILE, blob, staging, 1, n, p, q, k + i, 1)


def pixel_lanes(blob, thread):
    """The launchable operator: items are (group, load tile, chunk of panels)."""
    call, g = fields(blob).call, fields(blob).geometry
    scratch = call.scratch + thread * call.scratch_bytes
    item = next_item(blob)
    while item < call.items:
        group, origin, first, end = tile_and_panels(call, g, item)
        run_item(blob, group, origin, first, end, scratch)
        item = next_item(blob)


@functools.cache
def compile_pixel_lanes():
    """The compiled operator."""
    return compile_part(ENTRY, pixel_lanes, "pixel_lanes")
