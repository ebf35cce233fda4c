"""Pack filters into panels: ``[group][panel][channel block][tap][channel][filters of the panel]``.

Taps are in the order in which the microkernel sums them: filter rows, then phase buffers, then the
taps of a buffer. A panel is tile_k filters wide; the last panel is one vector wide if that holds
the rest. Filters past K are zero. Where `dots` inverts the signs of x, a row of sums, its head, is
in front of each channel block of a panel.
"""

import functools

from numba import types

from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.emit.vector import BYTES, Integers
from implicit_conv.kernels.cpu.gemm import dots, words
from implicit_conv.kernels.cpu.gemm.layout import SPAN
from implicit_conv.kernels.cpu.runtime.cache import kernel
from implicit_conv.kernels.cpu.runtime.compiled import schedule
from implicit_conv.kernels.cpu.runtime.entry import BLOB_POINTER, ENTRY, fields, next_item
from implicit_conv.kernels.cpu.runtime.parts import BOUND, compile_part
from implicit_conv.kernels.cpu.runtime.record import FILTER, recorder
from implicit_conv.kernels.cpu.runtime.table import (
    FEW_COLUMNS,
    PACK_BLOCK,
    TRANSPOSE_FILTERS,
    TRANSPOSE_TAPS,
    run_part,
)
from implicit_conv.kernels.cpu.tile import convert, storage
from implicit_conv.kernels.cpu.tile.few_columns import FEW
from implicit_conv.kernels.cpu.tile.filters import (
    lowest_tap,
    lowest_tap_of_row,
    row_offset,
    row_span,
    tap_span,
    taps_follow,
)
from implicit_conv.kernels.cpu.tile.transpose import make_transpose_block

CHANNELS_AHEAD = 2  # channels between the one that is packed and the one that is prefetched
CACHE_LINE = 64  # bytes
WORD_BYTES = 4  # bytes of a word of several channels


@functools.cache
def make_pack_taps(lanes, form):
    """Make pack_taps(), which packs all taps of filters, whatever the strides of `w`.

    `places` is a table of each tap's byte offset in the panel; it is followed by the scratch that
    `packing_bytes` counts.
    """
    size, itemsize = storage.SIZES[form.w], storage.SIZES[form.panel]  # of w, and of panels
    transpose_block = make_transpose_block(TRANSPOSE_FILTERS, lanes)
    scatter_block = make_transpose_block(TRANSPOSE_TAPS, lanes)
    move = convert.make_move(form.w, form.panel, lanes)
    move_element = convert.make_move_element(form.w, form.panel)

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
    def write_places(call, g, places, first_row, end_row, first, span, table):
        """Write the byte offset in the panel of each of the `span` elements from byte offset
        `first` on among which the taps of filter rows are. An element that is no tap has the place
        of the next tap, which overwrites it.

        Returns whether each tap has an element of its own, as in any filter with own memory.
        """
        for e in range(span):
            memory.write(table + 8 * e, -1)
        for tap in range(first_row * g.S, end_row * g.S):
            at = row_offset(call, g, tap // g.S) + tap % g.S * call.w_s - first
            entry = table + 8 * (at // size)
            if memory.read(entry) >= 0:
                return False
            memory.write(entry, memory.read(places + 8 * tap))
        for e in range(span - 2, -1, -1):
            if memory.read(table + 8 * e) < 0:
                memory.write(table + 8 * e, memory.read(table + 8 * e + 8))
        return True

    @kernel()
    def prefetch_filters(call, at, filters):
        """Prefetch a channel of filters that are apart by a few elements."""
        for line in range(0, filters * call.w_k, CACHE_LINE):
            memory.prefetch(at + line)

    @kernel()
    def transpose_rows(call, g, target, source, filters, channels, pitch, places):
        """All taps where a channel's filters are apart by a few elements, filter row by filter row,
        of which each has its few taps among FEW elements.

        Returns whether it packed them: two taps may share an element, as in a broadcast filter.
        """
        rows, span = schedule.filter_rows(g), row_span(call, g, size)
        table = places + 8 * schedule.taps(g)
        for j in range(rows):
            first = row_offset(call, g, j) + lowest_tap_of_row(call, g)
            if not write_places(call, g, places, j, j + 1, first, span, table + 8 * j * span):
                return False
        for c in range(channels):
            at = source + c * call.w_c
            prefetch_filters(call, at + CHANNELS_AHEAD * call.w_c, filters)
            for k in range(0, filters, lanes):
                count = min(lanes, filters - k)
                to = target + c * pitch + k * itemsize
                slot = FEW_COLUMNS + (count < lanes)
                for j in range(rows):
                    row = at + k * call.w_k + row_offset(call, g, j) + lowest_tap_of_row(call, g)
                    offsets = table + 8 * j * span
                    run_part(call.kernels, slot, row, call.w_k, to, offsets, count, span)
        return True

    @kernel()
    def transpose_channels(call, g, target, source, filters, channels, pitch, places):
        """All taps where a channel's filters are apart by a few elements, among which their taps
        are in any order, as in a filter whose channels and filters are swapped.

        Returns whether it packed them: two taps may share an element, as in a broadcast filter.
        """
        rows, span = schedule.filter_rows(g), tap_span(call, g, size)
        table, lowest = places + 8 * schedule.taps(g), lowest_tap(call, g)
        if not write_places(call, g, places, 0, rows, lowest, span, table):
            return False
        first = source + lowest
        for c in range(channels):
            prefetch_filters(call, source + (c + CHANNELS_AHEAD) * call.w_c, filters)
            for k in range(0, filters, lanes):
                rows = min(lanes, filters - k)
                to = target + c * pitch + k * itemsize
                for e in range(0, span, lanes):
                    at = first + c * call.w_c + k * call.w_k + e * size
                    columns, offsets = min(lanes, span - e), table + 8 * e
                    scatter_block(call.kernels, 1, at, call.w_k, to, offsets, rows, columns)
        return True

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
        taps = schedule.taps(g)
        if taps_follow(call, g, size) and call.w_c == taps * size:
            for e in range(taps, min(lanes, channels) * taps):
                memory.write(places + 8 * e, memory.read(places + 8 * (e - taps)) + pitch)
            transpose_taps(call, target, source, filters, channels, taps, pitch, places)
            return
        span = tap_span(call, g, size)
        if call.w_k != size and span <= min(call.w_k // size, SPAN * taps):
            gaps = taps < span or span <= FEW
            if gaps and row_span(call, g, size) <= FEW:
                packed = transpose_rows(call, g, target, source, filters, channels, pitch, places)
            else:
                packed = transpose_channels(
                    call, g, target, source, filters, channels, pitch, places
                )
            if packed:
                return
        for tap in range(taps):
            at = source + row_offset(call, g, tap // g.S) + tap % g.S * call.w_s
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


@functools.cache
def make_write_head(lanes, formats):
    """Make write_head(), for words of x and w with these formats."""
    if not dots.inverts(formats):

        @kernel()
        def write_none(panel, elements, pitch):
            """Write nothing: the panel has no head."""

        return write_none

    def write_head(typingctx, panel, elements, pitch):
        def codegen(context, builder, signature, args):
            e = Integers(builder, lanes, WORD_BYTES)
            panel, elements, pitch = args
            first, vector = builder.inttoptr(panel, BYTES), lanes * WORD_BYTES

            def write(column, _):
                begin = e.at(first, column)

                def add(i, sums):
                    w = e.load(e.at(begin, builder.mul(i, pitch)))
                    return [dots.multiply_add(e, formats, zero, w, *sums)]

                zero = dots.invert_signs(e, formats, e.constant(0))
                (total,) = e.loop(elements, 1, [e.constant(0)], add)
                e.store(builder.neg(total), e.at(begin, builder.neg(pitch)))
                return []

            e.loop(pitch, vector, [], write)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3), codegen

    return memory.named(write_head, lanes, *formats)


@kernel()
def panel_start(call, g, panel, block):
    """Byte offset of channel block `block` of a panel in the packed filters of its group; its head
    is in front of it.
    """
    elements = schedule.panel_offset(g, panel, block, call.lanes)
    if call.heads:
        elements += schedule.head_offset(g, panel, block, call.lanes)
    return elements * call.itemsize


# Bound by compile_pack_block.
record = element_channels = pack_taps = write_head = BOUND


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
        memory.zero(target, channels * schedule.taps(g) * pitch)
    count = min(channels * element_channels, call.channels // g.groups - c * element_channels)
    source = call.w + k * call.w_k + c * element_channels * call.w_c
    places = scratch  # byte offset in the panel of each tap of the filter
    for j in range(schedule.filter_rows(g)):
        for i in range(g.S):
            s = schedule.column_tap(g, i)
            memory.write(places + 8 * (j * g.S + s), (j * g.S + i) * channels * pitch)
            if c % g.tile_c == 0:
                block, where = min(g.tile_c, g.C - c), (k, j // g.R, j % g.R, s, c)
                size = filters * block * call.itemsize
                record(call.record, FILTER, where, 0, 0, panel, block, size)
    pack_taps(call, g, target, source, filters, count, pitch, places)
    write_head(target, channels * schedule.taps(g), pitch)


SIGNATURE = types.void(BLOB_POINTER, *[types.int64] * 6)


@functools.cache
def compile_pack_block(lanes, form, recording=False):
    """The part that packs channel blocks of panels whose elements have the formats `form`."""
    name = f"pack_block_{lanes}x{form.w}_{form.panel}{'_recording' if recording else ''}"
    formats = (form.buffer, form.panel) if form.channels > 1 else None
    name += "_with_heads" * dots.inverts(formats)
    make = words.make_pack_taps if form.channels > 1 else make_pack_taps
    return compile_part(
        SIGNATURE,
        pack_block,
        name,
        record=recorder(recording),
        element_channels=form.channels,
        pack_taps=make(lanes, form),
        write_head=make_write_head(lanes, formats),
    )


def pack(blob, thread):
    """The launchable packer: items are the panels of all groups."""
    call, g = fields(blob).call, fields(blob).geometry
    panels = schedule.panel_count(g)
    scratch = call.scratch + thread * call.scratch_bytes + call.packing
    item = next_item(blob, thread)
    while item < call.items:
        group, panel = item // panels, item % panels
        for block in range(schedule.block_count(g)):
            offset = panel_start(call, g, panel, block)
            target = call.panels + group * call.panel_group + offset
            c = block * g.tile_c
            channels = min(g.tile_c, g.C - c)
            run_part(call.kernels, PACK_BLOCK, blob, target, group, panel, c, channels, scratch)
        item = next_item(blob, thread)


@functools.cache
def compile_pack():
    """The compiled packer; it calls what depends on the element type through the kernel table."""
    return compile_part(ENTRY, pack, "pack")
