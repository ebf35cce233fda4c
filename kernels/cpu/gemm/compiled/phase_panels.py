"""Pack the filters of all stride phases of a gradient in one pass over w.

A phase has the taps that lie a stride apart, so that its own packing would read a part of every
cache line of w. Here the taps of a vector of filters are transposed at once, and each of them is
written to the panels of its phase. Panels are in the order that `panels` packs.

In front of the panels is a table: for each tap, in the order of memory, the byte offset of the
panels of its phase, the taps of that phase, the number of the tap among them, and the channels of a
channel block.
"""

from __future__ import annotations

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.gemm.compiled.pack_taps import CHANNELS_AHEAD, prefetch_filters
from implicit_conv.kernels.cpu.gemm.layout import PHASE_TAP_BYTES
from implicit_conv.kernels.cpu.runtime.call import Call
from implicit_conv.kernels.cpu.runtime.compiled.entry import Blob, fields, next_item
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, entry
from implicit_conv.kernels.cpu.runtime.table import TRANSPOSE_TAPS
from implicit_conv.kernels.cpu.tile.compiled.transpose import make_transpose_block
from implicit_conv.kernels.geometry import Geometry


def make_pack_phases(lanes: int) -> Source:
    """The launchable packer: items are the panels of all phases."""
    scatter_block = make_transpose_block(TRANSPOSE_TAPS, lanes)

    def write_offsets(call: Call, g: Geometry, panel: int, c: int, pitch: int, offsets: int) -> int:
        """Write the byte offset of channel `c` of a panel for each tap; returns the end of the
        channels after it that are in the same channel block of every phase.
        """
        k, taps, end = panel * g.tile_k, schedule.taps(g), g.C
        for e in range(taps):
            at = call.panels.address + PHASE_TAP_BYTES * e
            phase, phase_taps = memory.read(at), memory.read(at + 8)
            index, most = memory.read(at + 16), memory.read(at + 24)
            first = c - c % most
            channels = min(most, g.C - first)
            before = (k * g.C * call.itemsize + first * pitch) * phase_taps
            place = phase + before + (index * channels + c - first) * pitch
            memory.write(offsets + 8 * e, place)
            end = min(end, first + channels)
        # Whole blocks write lanes without a tap to the next channel, which overwrites them.
        for e in range(taps, schedule.ceil_div(taps, lanes) * lanes):
            memory.write(offsets + 8 * e, memory.read(offsets) + pitch)
        return end

    def pack_phases(blob: Blob, thread: int) -> None:
        call, g = fields(blob).call, fields(blob).geometry
        taps, size = schedule.taps(g), call.itemsize
        last = 0  # the end of w, up to which whole blocks may be read
        if call.w.c > 0:
            last = call.w.address + (g.C - 1) * call.w.c + (g.K - 1) * call.w.k + taps * size
        offsets = call.scratch.address + thread * call.scratch.bytes + call.scratch.packing
        panel = next_item(blob, thread)
        while panel < call.items:
            filters = min(g.tile_k, g.K - panel * g.tile_k)
            pitch = schedule.ceil_div(filters, lanes) * lanes * size
            source = call.w.address + panel * g.tile_k * call.w.k
            c = 0
            while c < g.C:
                end = write_offsets(call, g, panel, c, pitch, offsets)
                if filters * size < pitch:
                    for e in range(taps):
                        to = call.panels.address + memory.read(offsets + 8 * e)
                        memory.zero(to, (end - c) * pitch)
                for i in range(c, end):
                    to = call.panels.address + (i - c) * pitch
                    prefetch_filters(call, source + (i + CHANNELS_AHEAD) * call.w.c, filters)
                    for k in range(0, filters, lanes):
                        rows = min(lanes, filters - k)
                        for e in range(0, taps, lanes):
                            columns = min(lanes, taps - e)
                            at = source + i * call.w.c + k * call.w.k + e * size
                            if i + 1 < end and at + (rows - 1) * call.w.k + lanes * size <= last:
                                columns = lanes
                            scatter_block(
                                call.kernels,
                                1,
                                at,
                                call.w.k,
                                to + k * size,
                                offsets + 8 * e,
                                rows,
                                columns,
                            )
                c = end
            panel = next_item(blob, thread)

    return entry(pack_phases)
