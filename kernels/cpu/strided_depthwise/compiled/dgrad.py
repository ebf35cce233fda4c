"""Input gradient of a depthwise convolution with a stride, which is also a transposed convolution.

    dx[n, d, h, w, c] = sum over taps (t, r, s) of dy[n, z, p, q, c] * w[c, t, r, s], where
        z * stride + t * dilation - pad = d, and so on for the other axes

The geometry has dy as its input and dx as its output. One work item is a load tile of dx, which is
a few rows of a plane, and a chunk of filter panels (a panel is one channel if pixels are the lanes,
else a block of channels):

    write the row table: for each row of dx, the rows of dy and of the filter that meet it
    for each panel:
        microkernel: all stride phases of the rows -> dx, or the staging tile
        staging tile -> residual, activation, layout -> dx

Filters are packed as by `depthwise`, or if pixels are the lanes as by `planar_depthwise`.
"""

from __future__ import annotations

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.depthwise.compiled.fprop import pack_channels
from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.planar_depthwise.compiled import pack_planes
from implicit_conv.kernels.cpu.runtime.call import Call
from implicit_conv.kernels.cpu.runtime.compiled.entry import Blob, fields, next_item
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, entry
from implicit_conv.kernels.cpu.runtime.table import STRIDED_ROWS
from implicit_conv.kernels.cpu.strided_depthwise.compiled.microkernel import sum_rows
from implicit_conv.kernels.cpu.strided_depthwise.layout import COUNT_BYTES, ENTRY_BYTES
from implicit_conv.kernels.cpu.tile.compiled.epilogue import store_at
from implicit_conv.kernels.cpu.tile.compiled.work import bounds, is_staged
from implicit_conv.kernels.geometry import Geometry, Place


def source_pixel(position: int, stride: int, size: int) -> int:
    """The pixel of dy that a tap moves to a position of dx; -1 if there is none."""
    if position < 0 or position % stride != 0 or position // stride >= size:
        return -1
    return position // stride


def write_rows(call: Call, g: Geometry, d: int, h: int, rows: int, address: int) -> None:
    """Write the row table of the rows h, h + 1, ... of plane d of dx: for each row the number of
    filter rows that meet it, then (byte offset of the row of dy, first tap) of each one, in the
    order of dy.
    """
    pitch = COUNT_BYTES + ENTRY_BYTES * schedule.filter_rows(g)
    for row in range(rows):
        place = address + row * pitch
        count = 0
        for i in range(g.T):
            t = g.T - 1 - i
            z = source_pixel(d + g.pad_d - t * g.dilation_d, g.stride_d, g.D)
            for j in range(g.R):
                r = g.R - 1 - j
                p = source_pixel(h + row + g.pad_h - r * g.dilation_h, g.stride_h, g.H)
                if z >= 0 and p >= 0:
                    at = place + COUNT_BYTES + ENTRY_BYTES * count
                    memory.write(at, z * call.x.d + p * call.x.h)
                    memory.write(at + 8, (t * g.R + r) * g.S)
                    count += 1
        memory.write(place, count)


def make_strided_depthwise(planar: bool) -> Source:
    """The entry that computes dx."""

    def run_item(
        blob: Blob, origin: Place, first: int, end: int, panels: int, scratch: int
    ) -> None:
        """One work item: a load tile of one image and the panels first .. end - 1."""
        call, g = fields(blob).call, fields(blob).geometry
        n, p, q = origin
        _, rows, columns = schedule.tile_extent(g, n, p, q)
        low, high = bounds(call)
        table = scratch + call.scratch.runs
        write_rows(call, g, n % g.Z, p, rows, table)
        for panel in range(first, end):
            k = panel * g.tile_k
            filters = min(g.tile_k, g.K - k)
            width = 1 if planar else schedule.ceil_div(filters, call.lanes) * call.lanes
            staged = is_staged(call) if planar else call.stores.staged
            pixel = width * call.itemsize
            out, out_row, out_pixel = scratch + call.scratch.staging, columns * pixel, pixel
            if not staged:
                out = call.y.address + schedule.plane_offset(g, n, call.y.n, call.y.z)
                out += p * call.y.p + q * call.y.q + k * call.y.k
                out_row, out_pixel = call.y.p, call.y.q
            sum_rows(
                call.kernels,
                slot=STRIDED_ROWS,
                a=call.x.address + n // g.Z * call.x.n + k * call.x.c,
                w=panels + panel * call.panels.group,
                table=table,
                sums=call.bias.address + panel * call.bias.panel,
                out=out - q * out_pixel,
                rows=rows,
                table_row=COUNT_BYTES + ENTRY_BYTES * schedule.filter_rows(g),
                a_pixel=call.x.w,
                a_columns=g.W,
                w_tap=pixel,
                out_row=out_row,
                out_pixel=out_pixel,
                first=q // g.stride_w,
                positions=schedule.ceil_div(columns, g.stride_w),
                end=q + columns,
                vectors=width // call.lanes,
                last=max(0, filters - call.lanes) * call.itemsize,
                low=low,
                high=high,
            )
            if staged:
                staging = scratch + call.scratch.staging
                store_at(blob, origin, staging=staging, width=width, k=k, filters=filters)

    def strided_depthwise(blob: Blob, thread: int) -> None:
        """The launchable operator: items are (load tile, chunk of panels)."""
        call, g = fields(blob).call, fields(blob).geometry
        scratch = call.scratch.address + thread * call.scratch.bytes
        count = schedule.panel_count(g)
        chunks = schedule.ceil_div(count, call.chunk)
        panels = call.panels.address
        item = next_item(blob, thread)
        if call.w.address and item < call.items:
            panels = scratch + call.scratch.panel
            if planar:
                pack_planes(call.kernels, blob=blob, first=0, end=count, panels=panels)
            else:
                for block in range(count):
                    pack_channels(call.kernels, blob=blob, block=block, panels=panels)
        while item < call.items:
            first = item % chunks * call.chunk
            origin = schedule.tile_origin(g, item // chunks)
            run_item(blob, origin, first, min(first + call.chunk, count), panels, scratch)
            item = next_item(blob, thread)

    return entry(strided_depthwise)
