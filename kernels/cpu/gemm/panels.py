"""Pack filters into panels: ``[group][panel][channel block][tap][channel][filters of the panel]``.

Taps are in the order in which the microkernel sums them: filter rows, then phase buffers, then the
taps of a buffer. A panel is tile_k filters wide; the last panel is one vector wide if that holds
the rest. Filters past K are zero.
"""

import functools

from numba import types

from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.gemm import pairs
from implicit_conv.kernels.cpu.runtime.cache import kernel
from implicit_conv.kernels.cpu.runtime.compiled import schedule
from implicit_conv.kernels.cpu.runtime.entry import BLOB_POINTER, ENTRY, fields, next_item
from implicit_conv.kernels.cpu.runtime.parts import BOUND, compile_part
from implicit_conv.kernels.cpu.runtime.record import FILTER, recorder
from implicit_conv.kernels.cpu.runtime.table import (
    PACK_BLOCK,
    TRANSPOSE_IN,
    TRANSPOSE_TAPS,
    run_part,
)
from implicit_conv.kernels.cpu.tile import convert, storage
from implicit_conv.kernels.cpu.tile.transpose import make_transpose_block


@functools.cache
def make_pack_taps(lanes, form):
    """Make pack_taps(), which packs all taps of filters, whatever the strides of `w`.

    `places` is a table of each tap's byte offset in the panel; it is followed by the scratch that
    `packing_bytes` counts.
    """
    size, itemsize = storage.SIZES[form.x], storage.SIZES[form.buffer]  # of w, and of panels
    transpose_block = make_transpose_block(TRANSPOSE_IN, lanes)
    scatter_block = make_transpose_block(TRANSPOSE_TAPS, lanes)
    move = convert.make_move(form.x, form.buffer, lanes)
    move_element = convert.make_move_element(form.x, form.buffer)

    @kernel()
    def transpose_taps(call, target, source, filters, channels, taps, pitch, places):
        """All taps of filters with contiguous taps: element e of a filter is of channel
        e // taps.
        """
        for k in range(0, filters, lanes):
            rows = min(lanes, filters - k)
            for c in range(0, channels, lanes):
                elements = min(lanes, channels - c) * taps
                to = target + c * pitch + k * itemsize
                at = source + k * call.w_k + c * taps * size
                for e in range(0, elements, lanes):
                    columns, first = min(lanes, elements - e), at + e * size
                    offsets = places + 8 * e
                    scatter_block(call.kernels, 1, first, call.w_k, to, offsets, rows, columns)

    @kernel()
    def transpose_filters(call, target, source, filters, channels, pitch):
        """One tap of filters with contiguous channels."""
        for k in range(0, filters, lanes):
            rows = min(lanes, filters - k)
            for c in range(0, channels, lanes):
                at, to = source + k * call.w_k + c * size, target + c * pitch + k * itemsize
                columns = min(lanes, channels - c)
                transpose_block(call.kernels, 1, at, call.w_k, to, pitch, rows, columns)

    @kernel()
    def gather_filters(call, target, source, filters, channels, pitch):
        """One tap, element by element, for any strides of `w`."""
        for c in range(channels):
            for k in range(filters):
                at = source + c * call.w_c + k * call.w_k
                move_element(target + c * pitch + k * itemsize, at)

    @kernel()
    def pack_taps(call, g, target, source, filters, channels, pitch, places):
        """All taps of `filters` filters and `channels` channels, by the fastest way for `w`."""
        taps = g.R * g.S
        rows_follow = g.R == 1 or call.w_r == g.S * size
        taps_follow = rows_follow and (g.S == 1 or call.w_s == size)
        if taps_follow and call.w_c == taps * size:
            for e in range(taps, min(lanes, channels) * taps):
                memory.write(places + 8 * e, memory.read(places + 8 * (e - taps)) + pitch)
            transpose_taps(call, target, source, filters, channels, taps, pitch, places)
            return
        for tap in range(taps):
            at = source + tap // g.S * call.w_r + tap % g.S * call.w_s
            to = target + memory.read(places + 8 * tap)
            if call.w_k == size:
                for i in range(channels):
                    row = at + i * call.w_c
                    memory.prefetch(row + filters * size)  # the next panel
                    memory.prefetch(row + 2 * filters * size - 1)
                    move(to + i * pitch, row, filters)
            elif call.w_c == size:
                transpose_filters(call, to, at, filters, channels, pitch)
            else:
                gather_filters(call, to, at, filters, channels, pitch)

    return pack_taps


record = element_channels = pack_taps = BOUND  # bound by compile_pack_block


def pack_block(blob, target, group, panel, c, channels, scratch):
    """Template of the part that packs the channels c, c + 1, ... of one panel to `target`.

    All of them are in one channel block; the block's load is recorded with its first channel.
    """
    call, g = fields(blob).call, fields(blob).geometry
    filters = min(g.tile_k, g.K - panel * g.tile_k)
    width = schedule.ceil_div(filters, call.lanes) * call.lanes
    pitch = width * call.itemsize
    k = group * g.K + panel * g.tile_k
    if filters < width:
        memory.zero(target, channels * g.R * g.S * pitch)
    count = min(channels * element_channels, call.channels // g.groups - c * element_channels)
    source = call.w + k * call.w_k + c * element_channels * call.w_c
    places = scratch  # byte offset in the panel of each tap of the filter
    for r in range(g.R):
        for i in range(g.S):
            s = schedule.column_tap(g, i)
            memory.write(places + 8 * (r * g.S + s), (r * g.S + i) * channels * pitch)
            if c % g.tile_c == 0:
                block, where = min(g.tile_c, g.C - c), (k, r, s, c)
                size = filters * block * call.itemsize
                record(call.record, FILTER, where, 0, 0, panel, block, size)
    pack_taps(call, g, target, source, filters, count, pitch, places)


SIGNATURE = types.void(BLOB_POINTER, *[types.int64] * 6)


@functools.cache
def compile_pack_block(lanes, form, recording=False):
    """The part that packs channel blocks of panels whose elements have the formats `form`."""
    name = f"pack_block_{lanes}x{form.x}_{form.buffer}{'_recording' if recording else ''}"
    paired = form.channels > 1
    return compile_part(
        SIGNATURE,
        pack_block,
        name,
        record=recorder(recording),
        element_channels=form.channels,
        pack_taps=pairs.make_pack_taps(lanes) if paired else make_pack_taps(lanes, form),
    )


def pack(blob, thread):
    """The launchable packer: items are the panels of all groups."""
    call, g = fields(blob).call, fields(blob).geometry
    panels = schedule.panel_count(g)
    scratch = call.scratch + thread * call.scratch_bytes + call.packing
    item = next_item(blob)
    while item < call.items:
        group, panel = item // panels, item % panels
        for block in range(schedule.block_count(g)):
            offset = schedule.panel_offset(g, panel, block, call.lanes) * call.itemsize
            target = call.panels + group * call.panel_group + offset
            c = block * g.tile_c
            channels = min(g.tile_c, g.C - c)
            run_part(call.kernels, PACK_BLOCK, blob, target, group, panel, c, channels, scratch)
        item = next_item(blob)


@functools.cache
def compile_pack():
    """The compiled packer; it calls what depends on the element type through the kernel table."""
    return compile_part(ENTRY, pack, "pack")
