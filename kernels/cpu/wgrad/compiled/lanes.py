"""wgrad of groups with few channels and filters: a vector has filters of several groups.

    dw[k, c, tap] = sum over pixels of dy[pixel, k] * x[pixel + tap, first channel of k's group + c]

Lane k multiplies a channel of its own group. If groups have several channels or filters, the pixels
of x are first expanded: for each channel of a group, to ``[pixel][filter]``.

Depthwise filters read x and dy in place where all vectors are whole; see `windows`. Otherwise one
work item is a part of the load tiles and a panel of filters of several groups:

    for each load tile of the part:
        load the panel of dy: [pixel][filter]
        execute the tile's loads of the channels of the panel's groups into this thread's buffer
        for each channel of a group:
            expand the channel                                 (unless each group has one filter)
            for each filter row: microkernel over shifted views -> sums
        after every 64 tiles: add the sums to the level above
    levels -> sums -> dw, or memory, if there are several parts
"""

from __future__ import annotations

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.runtime.call import Call
from implicit_conv.kernels.cpu.runtime.compiled.entry import Blob, fields
from implicit_conv.kernels.cpu.runtime.compiled.part import declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, translated
from implicit_conv.kernels.cpu.runtime.table import EXPAND, microkernel_slot
from implicit_conv.kernels.cpu.tile.compiled.load import load_at
from implicit_conv.kernels.cpu.wgrad.compiled.addresses import dy_address
from implicit_conv.kernels.cpu.wgrad.compiled.microkernel import multiply_pixels
from implicit_conv.kernels.cpu.wgrad.compiled.panels import load_panels
from implicit_conv.kernels.cpu.wgrad.compiled.sums import carry, is_fresh, store_sums, total
from implicit_conv.kernels.cpu.wgrad.compiled.windows import multiply_windows
from implicit_conv.kernels.cpu.wgrad.compiled.work import adder, operator
from implicit_conv.kernels.cpu.wgrad.layout import LANE_TAPS
from implicit_conv.kernels.geometry import Geometry, Place

OFFSETS_BYTES = 8 * LANE_TAPS  # bytes of a table of the offsets of taps

expand = declare(
    EXPAND,
    "expand",
    "target source pixels pitch width before filters group_filters group_channels",
)


def make_expand(itemsize: int) -> Source:
    """The part that expands a channel of each group; elements have `itemsize` bytes."""
    copy_element = memory.copy_bytes(itemsize)
    element_bytes = itemsize

    def expanded_channel(
        target: int,
        source: int,
        pixels: int,
        pitch: int,
        width: int,
        before: int,
        filters: int,
        group_filters: int,
        group_channels: int,
    ) -> None:
        """Repeat a channel of each group for the group's filters.

        `source` is that channel of the first group, whose first `before` filters are left out;
        `pitch` and `width` are the byte strides of pixels there and at `target`.
        """
        for i in range(filters):
            group = (before + i) // group_filters
            at, to = source + group * group_channels * element_bytes, target + i * element_bytes
            for pixel in range(pixels):
                copy_element(to + pixel * width, at + pixel * pitch)

    return translated(expand, expanded_channel)


def multiply(
    call: Call,
    g: Geometry,
    extent: Place,
    a: int,
    pixel: int,
    b: int,
    width: int,
    vectors: int,
    sums: int,
    adds: int,
) -> None:
    """All taps of a tile for one panel and one channel of each group: `a` is the address of the
    buffered pixels, whose byte stride is `pixel`.
    """
    planes, rows, columns = extent
    tap_sums = g.tile_k * call.itemsize * (1 if call.gradient.taps_inside else call.group_channels)
    row = schedule.row_pitch(g) * pixel
    offsets = memory.stack(OFFSETS_BYTES)
    for j in range(schedule.filter_rows(g)):
        for first in range(0, g.S, LANE_TAPS):
            taps = min(LANE_TAPS, g.S - first)
            for i in range(taps):
                memory.write(offsets + 8 * i, schedule.tap_column(g, first + i) * pixel)
            multiply_pixels(
                call.kernels,
                slot=microkernel_slot(vectors, 1, taps),
                a=a + schedule.tap_row(g, j) * row,
                a_plane=schedule.output_plane_rows(g) * row,
                a_row=row,
                a_column=schedule.column_step(g) * pixel,
                b=b,
                b_plane=rows * columns * width,
                b_row=columns * width,
                b_column=width,
                c=sums + (j * g.S + first) * tap_sums,
                c_row=tap_sums,
                planes=planes,
                rows=rows,
                columns=columns,
                tiles=1,
                offsets=offsets,
                ahead=sums,
                adds=adds,
            )


def multiply_in_place(
    call: Call,
    g: Geometry,
    origin: Place,
    extent: Place,
    k: int,
    vectors: int,
    sums: int,
    adds: int,
) -> None:
    """All taps of a tile for one panel of depthwise filters, from x and dy themselves."""
    (n, p, q), (planes, rows, columns) = origin, extent
    tap_sums = g.tile_k * call.itemsize
    x_plane = schedule.plane_step(g, call.x.n, g.stride_d * call.x.d)
    y_plane = schedule.plane_step(g, call.y.n, call.y.z)
    column = q * g.stride_w - g.pad_w
    source = call.x.address + n // g.Z * call.x.n + k * call.x.c
    source += schedule.input_plane(g, n, 0) * call.x.d
    source += (p * g.stride_h - g.pad_h) * call.x.h + column * call.x.w
    dy = dy_address(call, g, origin, k)
    for j in range(schedule.filter_rows(g)):
        first_plane, end_plane = schedule.used_planes(g, n, planes, j // g.R)
        first_row, end_row = schedule.used_rows(g, p, rows, j % g.R)
        a = source + j // g.R * g.dilation_d * call.x.d + j % g.R * g.dilation_h * call.x.h
        for first in range(0, g.S, LANE_TAPS):
            taps = min(LANE_TAPS, g.S - first)
            multiply_windows(
                call.kernels,
                slot=microkernel_slot(1, vectors, taps),
                a=a
                + first_plane * x_plane
                + first_row * g.stride_h * call.x.h
                + first * g.dilation_w * call.x.w,
                a_plane=x_plane,
                a_row=g.stride_h * call.x.h,
                a_column=g.stride_w * call.x.w,
                a_tap=g.dilation_w * call.x.w,
                b=dy + first_plane * y_plane + first_row * call.y.p,
                b_plane=y_plane,
                b_row=call.y.p,
                b_column=call.y.q,
                c=sums + (j * g.S + first) * tap_sums,
                c_row=tap_sums,
                planes=max(0, end_plane - first_plane),
                rows=max(0, end_row - first_row),
                columns=columns,
                dilation=g.dilation_w,
                before=column + first * g.dilation_w,
                stride=g.stride_w,
                width=g.W,
                adds=adds,
            )


def sum_item(blob: Blob, panel: int, first_tile: int, end_tile: int, scratch: int) -> None:
    """The sums of a panel over a range of load tiles."""
    call, g = fields(blob).call, fields(blob).geometry
    group_filters = g.K // (g.C // call.group_channels)
    k = panel * g.tile_k
    filters = min(g.tile_k, g.K - k)
    vectors = schedule.ceil_div(filters, call.lanes)
    width = vectors * call.lanes * call.itemsize
    first_group, end_group = k // group_filters, (k + filters - 1) // group_filters + 1
    channels = (end_group - first_group) * call.group_channels
    pixel, c = channels * call.itemsize, first_group * call.group_channels
    sums, dy, expanded = (
        scratch + call.scratch.staging,
        scratch + call.scratch.panel,
        scratch + call.scratch.boxes,
    )
    channel_sums = g.tile_k * call.itemsize * (schedule.taps(g) if call.gradient.taps_inside else 1)
    buffered = schedule.tile_rows(g) * schedule.row_pitch(g)
    single = call.group_channels == 1 and group_filters == 1
    # See Layout.reads_unloaded: the last lanes read these.
    if not call.in_place and filters * call.itemsize < width:
        memory.zero(scratch, buffered * pixel + width)
        if not single:
            memory.zero(expanded, buffered * width)
    if first_tile >= end_tile:
        memory.zero(sums, call.gradient.item_sums)
    for tile in range(first_tile, end_tile):
        done = tile - first_tile
        if done > 0:
            carry(call, sums, done)
        adds = not is_fresh(done)
        origin = n, p, q = schedule.tile_origin(g, tile)
        planes, rows, columns = schedule.tile_extent(g, n, p, q)
        if call.in_place:
            extent = planes, rows, columns
            multiply_in_place(call, g, origin, extent, k, vectors, sums, adds)
            continue
        load_panels(
            call.kernels,
            blob=blob,
            target=dy,
            source=dy_address(call, g, origin, k),
            planes=planes,
            rows=rows,
            columns=columns,
            filters=filters,
        )
        load_at(blob, origin, buffer=scratch, c=c, channels=channels)
        if single:
            extent = planes, rows, columns
            multiply(call, g, extent, scratch, pixel, dy, width, vectors, sums, adds)
            continue
        for i in range(call.group_channels):
            expand(
                call.kernels,
                target=expanded,
                source=scratch + i * call.itemsize,
                pixels=buffered,
                pitch=pixel,
                width=width,
                before=k - first_group * group_filters,
                filters=filters,
                group_filters=group_filters,
                group_channels=call.group_channels,
            )
            to = sums + i * channel_sums
            multiply(
                call, g, (planes, rows, columns), expanded, width, dy, width, vectors, to, adds
            )
    total(call, sums, end_tile - first_tile)


def store_item(blob: Blob, panel: int, sums: int) -> None:
    """Store the sums of a panel into dw: [channel][tap][filter]."""
    call, g = fields(blob).call, fields(blob).geometry
    k = panel * g.tile_k
    filters = min(g.tile_k, g.K - k)
    store_sums(
        call.kernels,
        blob=blob,
        sums=sums,
        k=k,
        filters=filters,
        c=0,
        channels=call.group_channels,
    )


LANES = operator(sum_item, store_item)  # the entry that sums
ADD_PARTS = adder(store_item)  # the entry that adds the sums of parts
