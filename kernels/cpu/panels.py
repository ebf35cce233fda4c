"""Pack filters into panels: ``[group][panel][channel block][tap][channel][filters of the panel]``.

Taps stand in the order in which the microkernel sums them: filter rows, then phase buffers, then
the taps of a buffer. A panel is tile_k filters wide, the last one a single vector where that holds
the rest; filters past K are zero.
"""

import functools

from numba import carray

from implicit_conv.kernels.cpu import memory
from implicit_conv.kernels.cpu.cache import kernel
from implicit_conv.kernels.cpu.compiled import schedule
from implicit_conv.kernels.cpu.launch import ENTRY, next_item
from implicit_conv.kernels.cpu.record import FILTER, record_load
from implicit_conv.kernels.cpu.table import compile_variant
from implicit_conv.kernels.cpu.transpose import make_transpose_block


@functools.cache
def make_pack_panel(lanes, itemsize, record=False):
    """pack_panel for elements of `itemsize` bytes and vectors of `lanes`."""
    vector = lanes * itemsize
    transpose_block = make_transpose_block(lanes)
    copy_vector = memory.copy_bytes(vector)
    copy_element = memory.copy_bytes(itemsize)

    @kernel()
    def transpose_filters(
        kernels, source, k_stride, filters, elements, taps, tap_bytes, pitch, target, block
    ):
        """Filters whose elements lie contiguous; element e is channel ``e // taps``, tap ``e %
        taps``.
        """
        for k in range(0, filters, lanes):
            rows = min(lanes, filters - k)
            if rows < lanes:
                memory.zero(block, lanes * vector)
            for e in range(0, elements, lanes):
                columns = min(lanes, elements - e)
                src = source + k * k_stride + e * itemsize
                transpose_block(kernels, 1, src, k_stride, block, vector, rows, columns)
                c, tap = e // taps, e % taps
                for i in range(columns):
                    to = memory.read(tap_bytes + 8 * tap) + c * pitch + k * itemsize
                    copy_vector(target + to, block + i * vector)
                    tap += 1
                    if tap == taps:
                        tap = 0
                        c += 1

    @kernel()
    def pack_block(call, g, source, filters, channels, pitch, target, scratch):
        """One channel block of one panel; `pitch` bytes hold the panel's filters of one channel."""
        taps = g.R * g.S
        tap_bytes, block = scratch, scratch + 8 * taps
        for r in range(g.R):
            for i in range(g.S):
                place = 8 * (r * g.S + schedule.column_tap(g, i))
                memory.write(tap_bytes + place, (r * g.S + i) * channels * pitch)
        rows_contiguous = g.R == 1 or call.w_r == g.S * itemsize
        taps_contiguous = (g.S == 1 or call.w_s == itemsize) and rows_contiguous
        if call.w_k == itemsize:
            for t in range(taps):
                at = source + t // g.S * call.w_r + t % g.S * call.w_s
                to = target + memory.read(tap_bytes + 8 * t)
                for c in range(channels):
                    memory.copy(to + c * pitch, at + c * call.w_c, filters * itemsize)
        elif taps_contiguous and call.w_c == taps * itemsize:
            transpose_filters(
                call.kernels,
                source,
                call.w_k,
                filters,
                channels * taps,
                taps,
                tap_bytes,
                pitch,
                target,
                block,
            )
        elif call.w_c == itemsize:
            for t in range(taps):
                at = source + t // g.S * call.w_r + t % g.S * call.w_s
                transpose_filters(
                    call.kernels,
                    at,
                    call.w_k,
                    filters,
                    channels,
                    1,
                    tap_bytes + 8 * t,
                    pitch,
                    target,
                    block,
                )
        else:
            for t in range(taps):
                at = source + t // g.S * call.w_r + t % g.S * call.w_s
                to = target + memory.read(tap_bytes + 8 * t)
                for c in range(channels):
                    for k in range(filters):
                        copy_element(
                            to + c * pitch + k * itemsize, at + c * call.w_c + k * call.w_k
                        )

    @kernel()
    def pack_panel(call, g, group, panel, target, scratch):
        """Pack one panel of one group to `target`, 64-byte aligned; all its channel blocks."""
        filters = min(g.tile_k, g.K - panel * g.tile_k)
        width = lanes if filters <= lanes else g.tile_k
        pitch = width * itemsize
        if filters < width:
            memory.zero(target, g.C * g.R * g.S * pitch)
        first = group * g.K + panel * g.tile_k
        for c in range(0, g.C, g.tile_c):
            channels = min(g.tile_c, g.C - c)
            source = call.w + first * call.w_k + c * call.w_c
            to = target + c * g.R * g.S * pitch
            pack_block(call, g, source, filters, channels, pitch, to, scratch)
            if record:
                for r in range(g.R):
                    for i in range(g.S):
                        s = schedule.column_tap(g, i)
                        size = filters * channels * itemsize
                        record_load(
                            call.record, FILTER, first, r, s, c, 0, 0, panel, channels, size
                        )

    return pack_panel


def pack(blob, thread):
    """Template of the launchable packers: items are the panels of all groups."""
    words = carray(blob, 1)[0]
    call, g = words.call, words.geometry
    panels = schedule.panel_count(g)
    scratch = call.scratch + thread * call.scratch_bytes
    item = next_item(blob)
    while item < call.items:
        group, panel = item // panels, item % panels
        target = call.panels + group * call.panel_group
        target += panel * g.tile_k * g.C * g.R * g.S * itemsize  # noqa: F821, bound
        pack_panel(call, g, group, panel, target, scratch)  # noqa: F821, bound
        item = next_item(blob)


@functools.cache
def compile_pack(lanes, itemsize, record=False):
    """The launchable packer for elements of `itemsize` bytes and vectors of `lanes`."""
    pack_panel = make_pack_panel(lanes, itemsize, record)
    name = f"pack_{lanes}x{itemsize}{'_record' if record else ''}"
    return compile_variant(ENTRY, pack, name, itemsize=itemsize, pack_panel=pack_panel)
