"""Pack filters into panels: ``[group][panel][channel block][tap][channel][filters of the panel]``.

Taps are in the order in which the microkernel sums them: filter rows, then phase buffers, then the
taps of a buffer. A panel is tile_k filters wide; the last panel is one vector wide if that holds
the rest. Filters past K are zero. For `matrices`, the rows of every two words are zipped. Where
`dots` inverts the signs of x, a row of sums, its head, is in front of each channel block of a
panel.
"""

from __future__ import annotations

import functools
from typing import Any

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.emit.internals import types
from implicit_conv.kernels.cpu.emit.intrinsics import emitting
from implicit_conv.kernels.cpu.emit.vector import BYTES, Builder, Integers, Value, Values
from implicit_conv.kernels.cpu.gemm.compiled import dots, matrices
from implicit_conv.kernels.cpu.gemm.compiled.pack_taps import make_pack_taps
from implicit_conv.kernels.cpu.gemm.compiled.words import Block
from implicit_conv.kernels.cpu.runtime.call import Call
from implicit_conv.kernels.cpu.runtime.compiled.entry import Blob, fields, next_item
from implicit_conv.kernels.cpu.runtime.compiled.executed_loads import FILTER, recorder
from implicit_conv.kernels.cpu.runtime.compiled.part import declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, entry, translated
from implicit_conv.kernels.cpu.runtime.table import PACK_BLOCK
from implicit_conv.kernels.cpu.tile.storage import Format
from implicit_conv.kernels.geometry import Geometry

WORD_BYTES = 4  # bytes of a word of several channels


@functools.cache
def make_write_head(lanes: int, formats: Any) -> Any:
    """Make write_head(), for words of x and w with these formats."""
    if not dots.inverts(formats):

        def write_none(panel: int, elements: int, pitch: int) -> None:
            """Write nothing: the panel has no head."""

        return write_none

    @emitting(types.void(*[types.int64] * 3), lanes, *formats)
    def write_head(builder: Builder, panel: Value, elements: Value, pitch: Value) -> None:
        e = Integers(builder, lanes, WORD_BYTES)
        first, vector = builder.inttoptr(panel, BYTES), lanes * WORD_BYTES

        def write(column: Value, _: object) -> list[Value]:
            begin = e.at(first, column)

            def add(i: Value, sums: Values) -> list[Value]:
                w = e.load(e.at(begin, builder.mul(i, pitch)))
                return [dots.multiply_add(e, formats, zero, w, *sums)]

            zero = dots.invert_signs(e, formats, e.constant(0))
            (total,) = e.loop(elements, 1, [e.constant(0)], add)
            e.store(builder.neg(total), e.at(begin, builder.neg(pitch)))
            return []

        e.loop(pitch, vector, [], write)

    return write_head


def panel_start(call: Call, g: Geometry, panel: int, block: int) -> int:
    """Byte offset of channel block `block` of a panel in the packed filters of its group; its head
    is in front of it.
    """
    elements = schedule.panel_offset(g, panel, block, call.lanes)
    if call.heads:
        elements += schedule.head_offset(g, panel, block, call.lanes)
    return elements * call.itemsize


pack_block = declare(PACK_BLOCK, "pack_block", "blob target group panel c channels scratch")


def make_pack_block(
    lanes: int, form: Format, way: int, zips: bool, recording: bool = False
) -> Source:
    """The part that packs channel blocks of panels, whose elements have the formats `form`, from a
    filter of one way; `zips` tells whether matrix products multiply by them.
    """
    formats = (form.buffer, form.panel) if form.channels > 1 else None
    record = recorder(recording)
    element_channels = form.channels
    pack_taps = make_pack_taps(lanes, form, way)
    zip_rows = matrices.make_zip_rows(zips)
    write_head = make_write_head(lanes, formats)

    def block_of_panel(
        blob: Blob, target: int, group: int, panel: int, c: int, channels: int, scratch: int
    ) -> None:
        """Pack the channels c, c + 1, ... of one panel to `target`.

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
        source = call.w.address + k * call.w.k + c * element_channels * call.w.c
        places = scratch  # byte offset in the panel of each tap of the filter
        first = c % g.tile_c == 0
        for i in range(g.S):
            s = schedule.column_tap(g, i)
            for j in range(schedule.filter_rows(g)):
                memory.write(places + 8 * (j * g.S + s), (j * g.S + i) * channels * pitch)
                if first:
                    block, where = min(g.tile_c, g.C - c), (k, j // g.R, j % g.R, s, c)
                    size = filters * block * call.itemsize
                    record(call.record, FILTER, where, 0, 0, panel, block, size)
        pack_taps(call, g, Block(target, source, filters, count, pitch), places)
        zip_rows(target, channels * schedule.taps(g), pitch)
        write_head(target, channels * schedule.taps(g), pitch)

    return translated(pack_block, block_of_panel)


def pack(blob: Blob, thread: int) -> None:
    """The launchable packer: items are the panels of all groups."""
    call, g = fields(blob).call, fields(blob).geometry
    panels = schedule.panel_count(g)
    scratch = call.scratch.address + thread * call.scratch.bytes + call.scratch.packing
    item = next_item(blob, thread)
    while item < call.items:
        group, panel = item // panels, item % panels
        for block in range(schedule.block_count(g)):
            offset = panel_start(call, g, panel, block)
            target = call.panels.address + group * call.panels.group + offset
            c = block * g.tile_c
            channels = min(g.tile_c, g.C - c)
            pack_block(
                call.kernels,
                slot=call.pack_block,
                blob=blob,
                target=target,
                group=group,
                panel=panel,
                c=c,
                channels=channels,
                scratch=scratch,
            )
        item = next_item(blob, thread)


# The entry that packs a filter; what depends on dtypes it calls through the kernel table
PACK = entry(pack)
