"""Depthwise convolution: a filter sees one channel, so channels are the lanes of every vector.

    y[pixel, k] = sum over taps of x[pixel + tap, k] * w[tap, k]

Groups of a few channels and filters are computed in the same way, several groups in a vector: lane
k takes each channel of its own group in turn, out of a vector that begins with the first group.

    y[pixel, k] = sum over c, taps of x[pixel + tap, first channel of k's group + c] * w[c, tap, k]

Every thread packs a small filter for itself. One work item is a load tile and a block of channels:

    execute the tile's loads into this thread's buffer             (or read x in place)
    for each register tile (pixels of a row, or of two rows):
        microkernel: sums over shifted views of the buffer -> y, or the staging tile
    staging tile -> residual, activation, layout -> y

Filters are packed as ``[block][c][tap][filter]``; the filters of a block are rounded up to vectors.
"""

from __future__ import annotations

from typing import NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.depthwise.compiled.microkernel import sum_channels
from implicit_conv.kernels.cpu.depthwise.layout import ALIGNED_VECTORS, FAR_BYTES
from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.runtime.call import Call
from implicit_conv.kernels.cpu.runtime.compiled.entry import Blob, fields, next_item
from implicit_conv.kernels.cpu.runtime.compiled.part import declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, entry, translated
from implicit_conv.kernels.cpu.runtime.table import (
    DEPTHWISE,
    DEPTHWISE_ROW,
    DEPTHWISE_ROWS,
    PACK_BLOCK,
    TRANSPOSE_FILTERS,
)
from implicit_conv.kernels.cpu.tile import storage
from implicit_conv.kernels.cpu.tile.compiled import convert
from implicit_conv.kernels.cpu.tile.compiled.epilogue import store_at
from implicit_conv.kernels.cpu.tile.compiled.filters import row_offset, taps_follow
from implicit_conv.kernels.cpu.tile.compiled.load import load_at
from implicit_conv.kernels.cpu.tile.compiled.transpose import make_transpose_block
from implicit_conv.kernels.cpu.tile.compiled.work import bounds
from implicit_conv.kernels.cpu.tile.storage import Format
from implicit_conv.kernels.geometry import ZEROS, Geometry, Place

pack_channels = declare(PACK_BLOCK, "pack_channels", "blob block panels")


def make_pack_channels(lanes: int, form: Format) -> Source:
    """The part that packs filters whose elements have the formats `form`."""
    element_bytes = storage.SIZES[form.w]
    transpose_block = make_transpose_block(TRANSPOSE_FILTERS, lanes)
    move_element = convert.make_move_element(form.w, form.panel)

    def packed_channels(blob: Blob, block: int, panels: int) -> None:
        """Pack one block of filters; lanes past the last one are
        zero.
        """
        call, g = fields(blob).call, fields(blob).geometry
        size = element_bytes
        filters = min(g.tile_k, g.K - block * g.tile_k)
        pitch = schedule.ceil_div(filters, call.lanes) * call.lanes * call.itemsize
        target = panels + block * call.panels.group
        source = call.w.address + block * g.tile_k * call.w.k
        taps = schedule.taps(g)
        elements = call.group_channels * taps
        memory.zero(target, elements * pitch)
        channels_follow = call.group_channels == 1 or call.w.c == taps * size
        if channels_follow and taps_follow(call, g, size):
            for k in range(0, filters, call.lanes):
                for element in range(0, elements, call.lanes):
                    rows, columns = (
                        min(call.lanes, filters - k),
                        min(call.lanes, elements - element),
                    )
                    at, to = k * call.w.k + element * size, element * pitch + k * call.itemsize
                    transpose_block(
                        call.kernels, 1, source + at, call.w.k, target + to, pitch, rows, columns
                    )
            return
        for element in range(elements):
            c, tap = divmod(element, taps)
            at = source + c * call.w.c + row_offset(call, g, tap // g.S) + tap % g.S * call.w.s
            for k in range(filters):
                to = target + element * pitch + k * call.itemsize
                move_element(to, at + k * call.w.k)

    return translated(pack_channels, packed_channels)


class FilterRows(NamedTuple):
    """Filter rows first .. end - 1 of the filter planes first_plane .. end_plane - 1.

    Where they are read from x in place and meet padding that repeats pixels, (d, h) is the position
    of row 0 of plane 0; otherwise it is (0, 0).
    """

    first_plane: int
    end_plane: int
    first: int
    end: int
    d: int
    h: int


def rows_in_place(g: Geometry, n: int, p: int) -> FilterRows:
    """The filter rows that output row p of plane n reads from x in place."""
    t, t_end = schedule.valid_planes(g, n, 1)
    r, r_end = schedule.valid_rows(g, p, 1)
    d, h = schedule.input_plane(g, n, 0), p * g.stride_h - g.pad_h
    inside = d >= 0 and d + (g.T - 1) * g.dilation_d < g.D
    inside = inside and h >= 0 and h + (g.R - 1) * g.dilation_h < g.H
    if inside or g.padding_mode == ZEROS:
        d, h = 0, 0
    return FilterRows(t, t_end, r, r_end, d, h)


def row_in_place(call: Call, g: Geometry, rows: FilterRows, t: int, r: int) -> int:
    """Byte offset of the row of x that filter row r of plane t reads, from that of the first."""
    down, below = t * g.dilation_d, r * g.dilation_h
    if g.padding_mode != ZEROS:
        down = schedule.source_plane(g, rows.d + down) - rows.d
        below = schedule.source_row(g, rows.h + below, call.p_end) - rows.h
    return down * call.x.d + below * call.x.h


def x_row(call: Call, g: Geometry, n: int, p: int) -> int:
    """The address in x of what output row p of plane n reads first, for output column 0."""
    a = call.x.address + n // g.Z * call.x.n - g.pad_w * call.x.w
    a += schedule.input_plane(g, n, 0) * call.x.d
    return a + (p * g.stride_h - g.pad_h) * call.x.h


def row_count(rows: FilterRows) -> int:
    """The number of these filter rows."""
    return (rows.end_plane - rows.first_plane) * (rows.end - rows.first)


def write_taps(
    call: Call, g: Geometry, pixel: int, w_tap: int, rows: FilterRows, address: int
) -> None:
    """Write two tap tables of the filter rows `rows`: all taps, column by column (so that the taps
    of neighbouring columns are contiguous), then the first tap of each row. Kernels that take a
    filter row of x in place need the second table alone.

    `pixel` is the size of a buffered pixel in bytes, `w_tap` that of the filters of a tap.
    """
    pitch = schedule.row_pitch(g) * pixel
    row_taps = address + 16 * schedule.taps(g)
    for s in range(1 if call.in_place and call.depthwise.row_kernels else g.S):
        for t in range(rows.first_plane, rows.end_plane):
            for r in range(rows.first, rows.end):
                j = t * g.R + r
                if call.in_place:
                    offset = row_in_place(call, g, rows, t, r) + s * g.dilation_w * call.x.w
                else:
                    offset = schedule.tap_row(g, j) * pitch + schedule.tap_column(g, s) * pixel
                weights = (j * g.S + s) * w_tap
                memory.write(address, offset)
                memory.write(address + 8, weights)
                address += 16
                if s == 0:
                    memory.write(row_taps, offset)
                    memory.write(row_taps + 8, weights)
                    row_taps += 16


def write_image_rows(call: Call, g: Geometry, n: int, p: int, table: int) -> int:
    """Write the table of the image rows that the output rows p, p + 1, ... of a register tile read
    in plane n; see `Rows`. Returns how many filter rows these output rows multiply, in all.
    """
    d, h = schedule.input_plane(g, n, 0), p * g.stride_h - g.pad_h
    rows, met = call.depthwise.rows, 0
    for t in range(g.T):
        plane = schedule.source_plane(g, d + t * g.dilation_d)
        for i in range((rows - 1) * g.stride_h + g.R):
            row = schedule.source_row(g, h + i, call.p_end)
            read = plane >= 0 and row >= 0
            memory.write(table, (plane - d) * call.x.d + (row - h) * call.x.h)
            memory.write(table + 8, 1 if read else 0)
            table += 16
            if read:
                first = max(0, schedule.ceil_div(i + 1 - g.R, g.stride_h))
                met += min(i // g.stride_h + 1, rows) - first
    return met


def edge_table(g: Geometry, table: int, index: int) -> int:
    """Address of the tap table of a tile's output column number `index` among those whose windows
    meet padding that repeats pixels; these tables follow the two of `write_taps`.
    """
    return table + 16 * (schedule.filter_rows(g) + schedule.taps(g) * (index + 1))


def write_edge_taps(
    call: Call, g: Geometry, w_tap: int, rows: FilterRows, columns: Columns, table: int
) -> None:
    """Write a tap table for each output column whose window meets padding that repeats pixels."""
    q, first, last, end = columns
    for index in range(first - q + end - last):
        address = edge_table(g, table, index)
        column = q + index if q + index < first else q + index + last - first
        begin = column * g.stride_w - g.pad_w
        for s in range(g.S):
            position = begin + s * g.dilation_w
            across = (schedule.source_column(g, position, call.q_end) - begin) * call.x.w
            for j in range(schedule.filter_rows(g)):
                offset = row_in_place(call, g, rows, j // g.R, j % g.R)
                memory.write(address, offset + across)
                memory.write(address + 8, (j * g.S + s) * w_tap)
                address += 16


class Columns(NamedTuple):
    """The output columns first .. end - 1 of a tile, of which the windows of inner .. outer - 1
    meet no padding.
    """

    first: int
    inner: int
    outer: int
    end: int


class Span(NamedTuple):
    """What the microkernels of one tile and block of channels share; see `sum_channels`."""

    weights: int  # addresses of the packed filters, the initial sums and the tap tables
    sums: int
    taps: int
    vectors: int
    last: int
    back: int
    ahead: int
    rounds: int
    w_tap: int
    w_channel: int
    out_pixel: int
    out_row: int
    turn: int
    low: float  # the sums are clamped to low .. high
    high: float


class Taps(NamedTuple):
    """A tap table, and how its taps are read."""

    table: int
    entries: int  # of the table
    step: int  # bytes between the windows of neighbouring output pixels
    pixel: int  # bytes between the pixels that a microkernel reads


def sum_tiles(call: Call, span: Span, taps: Taps, slot: int, a: int, out: int, tiles: int) -> None:
    """Contiguous register tiles, by the microkernel at `slot`."""
    sum_channels(
        call.kernels,
        slot=slot,
        a=a,
        a_pixel=taps.pixel,
        w=span.weights,
        w_tap=span.w_tap,
        w_channel=span.w_channel,
        taps=taps.table,
        tap_count=taps.entries,
        sums=span.sums,
        out=out,
        out_pixel=span.out_pixel,
        out_row=span.out_row,
        vectors=span.vectors,
        last=span.last,
        back=span.back,
        tiles=tiles,
        ahead=span.ahead,
        rounds=span.rounds,
        turn=span.turn,
        low=span.low,
        high=span.high,
    )


def sum_pixels(
    call: Call, g: Geometry, span: Span, taps: Taps, slot: int, a: int, out: int, count: int
) -> None:
    """`count` neighbouring pixels of a row; the microkernel of h pixels is at `slot` + h."""
    done = 0
    while done < count:
        pixels = min(g.tile_m, count - done)
        tiles = (count - done) // pixels
        at, to = a + done * taps.step, out + done * span.out_pixel
        sum_tiles(call, span, taps, slot + pixels, at, to, tiles)
        done += tiles * pixels


def inner_columns(g: Geometry, q: int, end: int) -> tuple[int, int]:
    """(first, end) of the output columns among q .. end - 1 whose windows meet no padding."""
    first = min(end, max(q, schedule.ceil_div(g.pad_w, g.stride_w)))
    last = g.W - 1 - (g.S - 1) * g.dilation_w + g.pad_w  # input column of tap 0, unpadded
    return first, max(first, min(end, last // g.stride_w + 1))


def sum_pieces(
    call: Call, g: Geometry, span: Span, taps: Taps, slot: int, a: int, q: int, out: int
) -> None:
    """One output row, one filter row per step, or several output rows: precomputed segments of
    columns, whose register tiles have microkernels of their own, from `slot` on.
    """
    tile, tiles = q // g.tile_q, schedule.ceil_div(g.Q, g.tile_q)
    first, end = (
        memory.read(call.depthwise.pieces + 8 * tile),
        memory.read(call.depthwise.pieces + 8 * tile + 8),
    )
    for index in range(first, end):
        piece = call.depthwise.pieces + 8 * (tiles + 1) + 24 * index
        column, count, shape = memory.read(piece), memory.read(piece + 8), memory.read(piece + 16)
        at, to = a + column * taps.step, out + column * span.out_pixel
        sum_tiles(call, span, taps, slot + shape, at, to, count)


def sum_row_in_place(
    call: Call, g: Geometry, span: Span, rows: int, a: int, out: int, columns: Columns
) -> None:
    """The output columns of a row, read from x in place; taps that meet padding are
    skipped, or read the pixels that it repeats.

    `rows` counts the filter rows in the tables; `a` and `out` belong to column 0.
    """
    q, first, last, end = columns
    step = g.stride_w * call.x.w
    if call.depthwise.row_kernels:
        taps = Taps(span.taps + 16 * schedule.taps(g), rows, step, call.x.w)
        sum_pieces(call, g, span, taps, DEPTHWISE_ROW, a, q, out)
        return
    for border in (q, first), (last, end):
        for column in range(border[0], border[1]):
            s, s_end = schedule.valid_columns(g, column)
            table = span.taps + 16 * s * rows
            if g.padding_mode != ZEROS:
                skipped = 0 if column < first else last - first
                table = edge_table(g, span.taps, column - q - skipped)
            taps = Taps(table, (s_end - s) * rows, step, step)
            at, to = a + column * step, out + column * span.out_pixel
            sum_pixels(call, g, span, taps, DEPTHWISE, at, to, 1)
    taps = Taps(span.taps, rows * g.S, step, step)
    at, to = a + first * step, out + first * span.out_pixel
    sum_pixels(call, g, span, taps, DEPTHWISE, at, to, last - first)


def is_far(call: Call, g: Geometry) -> bool:
    """Whether x is read in place and prefetched, since x and y fill more than the near caches."""
    pixels = g.N * (g.D * g.H * g.W + g.Z * g.P * g.Q)
    return call.in_place != 0 and pixels * g.C * call.itemsize > FAR_BYTES


def misaligned_bytes(call: Call, g: Geometry, x: int, filters: int) -> int:
    """Bytes among sums by which vectors of x that is read in place begin late for aligned loads;
    0 where one more vector of channels would cost more than loads that cross lines.

    `x` is the address of the first of `filters` channels; numpy's large arrays begin amid a line.
    """
    vector = call.lanes * call.x.c
    plain = call.in_place and call.group_channels == 1 and g.C == g.K
    if not plain or filters < ALIGNED_VECTORS * call.lanes or call.x.w % vector != 0:
        return 0
    return x % vector // call.x.c * call.itemsize


def run_item(blob: Blob, origin: Place, block: int, panels: int, scratch: int) -> None:
    """One work item: a load tile, a block of channels, and the filters of these channels."""
    call, g = fields(blob).call, fields(blob).geometry
    n, p, q = origin
    planes, rows, columns = schedule.tile_extent(g, n, p, q)
    c, k = block * g.tile_c, block * g.tile_k
    channels, filters = min(g.tile_c, g.C - c), min(g.tile_k, g.K - k)
    width = schedule.ceil_div(filters, call.lanes) * call.lanes
    load_at(blob, origin, buffer=scratch, c=c, channels=channels)
    pixel = channels * call.itemsize
    pitch = schedule.row_pitch(g) * pixel
    a_step = schedule.column_step(g) * pixel
    low, high = bounds(call)
    staged = call.stores.staged or filters < call.lanes
    staging, step = scratch + call.scratch.staging, width * call.itemsize
    out = (staging, rows * columns * step, columns * step, step)  # address, byte strides
    if not staged:
        y = call.y.address + schedule.plane_offset(g, n, call.y.n, call.y.z)
        y += p * call.y.p + q * call.y.q + k * call.y.k
        out = (y, schedule.plane_step(g, call.y.n, call.y.z), call.y.p, call.y.q)
    weights = panels + block * call.panels.group
    sums, table = call.bias.address + block * call.bias.panel, scratch + call.scratch.runs
    back = misaligned_bytes(call, g, call.x.address + c * call.x.c, filters)
    vectors = schedule.ceil_div(filters * call.itemsize + back, call.lanes * call.itemsize)
    last = max(0, filters - call.lanes) * call.itemsize
    ahead = ((g.R - 1) * g.dilation_h + g.stride_h) * call.x.h if is_far(call, g) else 0
    rounds = 1 if call.stores.rounds and not staged else 0
    w_channel, turn = schedule.taps(g) * step, schedule.columns_in_turn(g) * call.x.w
    span = Span(
        weights,
        sums,
        table,
        vectors,
        last,
        back,
        ahead,
        rounds,
        step,
        w_channel,
        out[3],
        out[2],
        turn,
        low,
        high,
    )
    by_row = (
        call.depthwise.row_kernels and g.phases_w == 1
    )  # else neighbouring pixels are in several buffers
    slot, taps = DEPTHWISE, Taps(table, schedule.taps(g), a_step, a_step)
    if by_row:
        row_taps = table + 16 * schedule.taps(g)
        slot, taps = DEPTHWISE_ROW, Taps(row_taps, schedule.filter_rows(g), a_step, pixel)
    inner, outer = inner_columns(g, q, q + columns)
    parts = Columns(q, inner, outer, q + columns)
    repeats = call.in_place and not call.depthwise.row_kernels and g.padding_mode != ZEROS
    filter_rows = FilterRows(0, g.T, 0, g.R, 0, 0)
    write_taps(call, g, pixel, step, filter_rows, table)
    if repeats:
        write_edge_taps(call, g, step, filter_rows, parts, table)
    for plane in range(planes):
        row = 0
        while row < rows:
            together = call.depthwise.rows if rows - row >= call.depthwise.rows else 1
            to = out[0] + plane * out[1] + row * out[2]
            if call.in_place:
                a = x_row(call, g, n + plane, p + row) + c * call.x.c
                to -= q * span.out_pixel
                if together > 1:
                    image_rows = edge_table(g, table, 0)
                    met = write_image_rows(call, g, n + plane, p + row, image_rows)
                    taps = Taps(image_rows, met, g.stride_w * call.x.w, call.x.w)
                    sum_pieces(call, g, span, taps, DEPTHWISE_ROWS, a, q, to)
                else:
                    needed = rows_in_place(g, n + plane, p + row)
                    if needed != filter_rows:
                        filter_rows = needed
                        write_taps(call, g, pixel, step, filter_rows, table)
                        if repeats:
                            write_edge_taps(call, g, step, filter_rows, parts, table)
                    sum_row_in_place(call, g, span, row_count(filter_rows), a, to, parts)
            else:
                a = scratch + (plane * schedule.output_plane_rows(g) + row) * pitch
                sum_pixels(call, g, span, taps, slot, a, to, columns)
            row += together
    if staged:
        store_at(blob, origin, staging=staging, width=width, k=k, filters=filters)


def depthwise(blob: Blob, thread: int) -> None:
    """The launchable operator: items are (load tile, channel block)."""
    call, g = fields(blob).call, fields(blob).geometry
    scratch = call.scratch.address + thread * call.scratch.bytes
    blocks = schedule.block_count(g)
    panels = call.panels.address
    item = next_item(blob, thread)
    if call.w.address and item < call.items:
        panels = scratch + call.scratch.panel
        for block in range(blocks):
            pack_channels(call.kernels, blob=blob, block=block, panels=panels)
    while item < call.items:
        run_item(blob, schedule.tile_origin(g, item // blocks), item % blocks, panels, scratch)
        item = next_item(blob, thread)


def pack(blob: Blob, thread: int) -> None:
    """The launchable packer: items are channel blocks."""
    call = fields(blob).call
    item = next_item(blob, thread)
    while item < call.items:
        pack_channels(call.kernels, blob=blob, block=item, panels=call.panels.address)
        item = next_item(blob, thread)


FPROP = entry(depthwise)  # the entry that convolves
PACK = entry(pack)  # the entry that packs a filter
