"""fprop on the CPU.

GEMM mapping: A = activation, gemm_m = N*Z*P*Q; B = filter, gemm_n = K; C = output;
gemm_k = T*R*S*C.

One work item is a load tile (output planes x rows x columns) and a chunk of filter panels:

    for each channel block:
        execute the tile's loads into this thread's buffer        (or read x in place)
        for each panel of the chunk:
            pack the panel                                        (unless w is packed already)
            for each register tile of the load tile:
                microkernel: sums over shifted views of the buffer -> y, or the staging tile
            staging tile -> residual, activation, layout -> y
"""

from __future__ import annotations

import math
from typing import NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.gemm.compiled.microkernel import multiply_tile
from implicit_conv.kernels.cpu.gemm.compiled.panels import pack_block, panel_start
from implicit_conv.kernels.cpu.gemm.layout import RUN_BYTES, run_table_bytes
from implicit_conv.kernels.cpu.runtime.call import Call
from implicit_conv.kernels.cpu.runtime.compiled.entry import Blob, fields
from implicit_conv.kernels.cpu.runtime.layout import LINE
from implicit_conv.kernels.cpu.runtime.table import microkernel_slot
from implicit_conv.kernels.cpu.tile.compiled.epilogue import store_at
from implicit_conv.kernels.cpu.tile.compiled.load import load_at
from implicit_conv.kernels.cpu.tile.compiled.work import bounds, operator
from implicit_conv.kernels.geometry import Geometry, Place


class View(NamedTuple):
    """Pixels of a tile in memory: address of the first, byte strides of the three nested axes."""

    address: int
    outer: int
    group: int
    inner: int


def at(view: View, outer: int, group: int, inner: int) -> int:
    """Address of a pixel of `view`."""
    return view.address + outer * view.outer + group * view.group + inner * view.inner


def row_in_place(call: Call, g: Geometry, j: int) -> int:
    """Byte offset of the row of x that filter row j reads, from that of the first filter row."""
    return j // g.R * g.dilation_d * call.x.d + j % g.R * g.dilation_h * call.x.h


def write_runs(call: Call, g: Geometry, channels: int, first: int, last: int, table: int) -> None:
    """Write a run table for the filter columns first .. last - 1: the number of runs of a filter
    row, then (byte offset in A, elements, elements before it in the panel, number of its chain,
    runs to the end of that chain) of each run, filter row by filter row.

    Taps whose elements are contiguous in A make one run, up to the end of a chain; all filter rows
    have the same runs.
    """
    pixel = channels * call.itemsize
    pitch = schedule.row_pitch(g) * pixel
    parts = schedule.chain_parts(g.S * channels, call.chain)
    length = schedule.chain_length(g.S * channels, call.chain)
    address = table + 8
    to, end, count = address, 0, 0
    for i in range(g.S):
        s = schedule.column_tap(g, i)
        if not first <= s < last:
            end = -1  # the next tap does not follow in the panel
            continue
        at = s * g.dilation_w * call.x.w if call.in_place else schedule.tap_column(g, s) * pixel
        before, after = i * channels, (i + 1) * channels
        while before < after:
            part = before // length
            elements = min(after, (part + 1) * length) - before
            if count > 0 and at == end and part == memory.read(to - RUN_BYTES + 24):
                memory.write(to - RUN_BYTES + 8, memory.read(to - RUN_BYTES + 8) + elements)
            else:
                memory.write(to, at)
                memory.write(to + 8, elements)
                memory.write(to + 16, before)
                memory.write(to + 24, part)
                to += RUN_BYTES
                count += 1
            before += elements
            at += elements * call.itemsize
            end = at
    memory.write(table, count)
    rows = schedule.chain_rows(g.S * channels, call.chain)
    for j in range(schedule.filter_rows(g) - 1, -1, -1):
        down = row_in_place(call, g, j) if call.in_place else schedule.tap_row(g, j) * pitch
        for i in range(count):
            at, to = address + RUN_BYTES * i, address + RUN_BYTES * (j * count + i)
            memory.write(to, memory.read(at) + down)
            memory.write(to + 8, memory.read(at + 8))
            memory.write(to + 16, memory.read(at + 16) + j * g.S * channels)
            memory.write(to + 24, memory.read(at + 24) + j // rows * parts)
    runs_left = 0
    for i in range(schedule.filter_rows(g) * count - 1, -1, -1):
        at = address + RUN_BYTES * i
        begins = runs_left == 0 or memory.read(at + 24) != memory.read(at + RUN_BYTES + 24)
        runs_left = 1 if begins else runs_left + 1
        memory.write(at + 32, runs_left)


def table_bytes(call: Call, g: Geometry) -> int:
    """Bytes of the run table of a segment."""
    return run_table_bytes(g, schedule.chain_parts(g.S * min(g.C, g.tile_c), call.chain))


def has_chains(call: Call, g: Geometry, channels: int) -> bool:
    """Whether the products of `channels` channels are added up in several chains."""
    elements = g.S * channels
    rows = schedule.chain_rows(elements, call.chain)
    return schedule.filter_rows(g) > rows or elements > call.chain


def write_segments(
    call: Call, g: Geometry, channels: int, q: int, columns: int, table: int
) -> None:
    """A run table for each segment of the output columns q, q + 1, ... of a tile."""
    column = q
    while column < q + columns:
        column, first, last = schedule.column_segment(g, column, q + columns, call.in_place)
        write_runs(call, g, channels, first, last, table)
        table += table_bytes(call, g)


def view_in_roles(g: Geometry, address: int, n: int, p: int, q: int) -> View:
    """A view of pixels with the byte strides n, p and q of planes, rows and columns."""
    outer, group, inner = schedule.by_role(g, n, p, q)
    return View(address, outer, group, inner)


def activations(call: Call, g: Geometry, origin: Place, c: int, channels: int, buffer: int) -> View:
    """A: the tile's pixels in the buffer, or in x itself."""
    if call.in_place:
        n, p, q = origin
        address = call.x.address + n // g.Z * call.x.n + c * call.x.element
        address += schedule.input_plane(g, n, 0) * call.x.d
        address += (p * g.stride_h - g.pad_h) * call.x.h + (q * g.stride_w - g.pad_w) * call.x.w
        plane = schedule.plane_step(g, call.x.n, g.stride_d * call.x.d)
        return view_in_roles(g, address, plane, g.stride_h * call.x.h, g.stride_w * call.x.w)
    pixel = channels * call.itemsize
    row = schedule.row_pitch(g) * pixel
    plane = schedule.output_plane_rows(g) * row
    return view_in_roles(g, buffer, plane, row, schedule.column_step(g) * pixel)


class Rows(NamedTuple):
    """The output rows of a load tile, and the filter planes that meet the image."""

    first: int
    length: int
    by_group: int  # 1: the group axis runs along the rows
    first_plane: int
    end_plane: int


class Product(NamedTuple):
    """What the register tiles of a load tile share for one panel and one channel block."""

    a: View
    panel: int  # address of the packed filters
    sums: View  # the initial sums
    out: View  # where the sums are stored
    vectors: int  # of the panel
    chained: int  # 1: the initial sums are added to the sums of all chains
    final: int  # 1: the sums are rounded to the narrower elements of y, or streamed to it
    fetches: int  # 1: the lines at `out` are fetched before the sums are computed
    low: float  # the sums are clamped to low .. high
    high: float


def column(view: View, i: int) -> View:
    """Column `i` of a view: its rows take the place of pixels of a row."""
    return View(at(view, 0, 0, i), view.outer, view.inner, view.group)


def turned(product: Product, i: int) -> Product:
    """The product of column `i` of a load tile."""
    return Product(
        column(product.a, i),
        product.panel,
        column(product.sums, i),
        column(product.out, i),
        product.vectors,
        product.chained,
        product.final,
        product.fetches,
        product.low,
        product.high,
    )


def multiply(
    call: Call,
    g: Geometry,
    product: Product,
    extent: Place,
    rows: Rows,
    columns: tuple[int, int],
    table: int,
) -> None:
    """Consumer: every register tile of a load tile, for one panel and one channel block.

    `extent` counts the pixels along (outer, group, inner), and `columns` is (first output column,
    columns). Several columns make up the inner axis; each segment of them has its own run table.
    """
    outer, group, inner = extent
    q, count = columns
    column = q
    while column < q + count:
        start = column - q
        column, _, _ = schedule.column_segment(g, column, q + count, call.in_place)
        if g.Q > 1:
            inner = column - q - start
        if schedule.is_column(g, inner, call.in_place):
            down = Rows(rows.first, rows.length, 0, rows.first_plane, rows.end_plane)
            multiply_segment(call, g, turned(product, start), (outer, 1, group), 0, down, table)
        else:
            multiply_segment(call, g, product, (outer, group, inner), start, rows, table)
        table += table_bytes(call, g)


def needed_rows(call: Call, g: Geometry, rows: Rows, first: int, count: int) -> tuple[int, int]:
    """(first, end) of the filter rows that a register tile multiplies: it has all `rows`, or if the
    group axis runs along them, `count` of them from `first` on.
    """
    if call.heads:
        return 0, schedule.filter_rows(g)
    p = rows.first
    if rows.by_group:
        p += first
    else:
        count = rows.length
    r, r_end = schedule.valid_rows(g, p, count)
    return rows.first_plane * g.R + r, (rows.end_plane - 1) * g.R + r_end


def multiply_segment(
    call: Call, g: Geometry, product: Product, extent: Place, start: int, rows: Rows, table: int
) -> None:
    """The register tiles of the pixels from `start` on along the inner axis, which share a run
    table.
    """
    outer, group, inner = extent
    a, sums, out = product.a, product.sums, product.out
    runs, per_row = table + 8, memory.read(table)
    cuts = schedule.cuts(inner, g.tile_m)
    band = schedule.rows_together(g, cuts[1][0], call.in_place)
    first_row = 0
    while first_row < group:
        end_row = min(group, first_row + band)
        if rows.by_group and not call.heads:
            p, count = rows.first + first_row, end_row - first_row
            end_row = first_row + schedule.rows_alike(g, p, count)
        for o in range(outer):
            begin = start
            for pixels, tiles in cuts:
                step = schedule.rows_together(g, pixels, call.in_place)
                for first in range(first_row, end_row if tiles > 0 else first_row, step):
                    groups = min(step, end_row - first)
                    r, r_end = needed_rows(call, g, rows, first, groups)
                    multiply_tile(
                        call.kernels,
                        slot=microkernel_slot(product.vectors, groups, pixels),
                        a=at(a, o, first, begin),
                        a_inner=a.inner,
                        a_group=a.group,
                        b=product.panel,
                        runs=runs + RUN_BYTES * r * per_row,
                        run_count=max(0, r_end - r) * per_row,
                        c_in=at(sums, o, first, begin),
                        c_in_inner=sums.inner,
                        c_in_group=sums.group,
                        c_out=at(out, o, first, begin),
                        c_out_inner=out.inner,
                        c_out_group=out.group,
                        tiles=tiles,
                        chained=product.chained,
                        final=product.final,
                        fetches=product.fetches,
                        low=product.low,
                        high=product.high,
                    )
                begin += tiles * pixels
        first_row = end_row


def run_item(
    blob: Blob, group: int, origin: Place, first_panel: int, end_panel: int, scratch: int
) -> None:
    """One work item: a load tile and the panels first_panel .. end_panel - 1."""
    call, g = fields(blob).call, fields(blob).geometry
    n, p, q = origin
    planes, rows, columns = schedule.tile_extent(g, n, p, q)
    extent = schedule.by_role(g, planes, rows, columns)
    tile_rows = Rows(p, rows, g.P > 1 and g.Q > 1, *schedule.valid_planes(g, n, planes))
    y_plane = schedule.plane_step(g, call.y.n, call.y.z)
    y = (
        call.y.address
        + schedule.plane_offset(g, n, call.y.n, call.y.z)
        + p * call.y.p
        + q * call.y.q
    )
    blocks = schedule.block_count(g)
    for block in range(blocks):
        c = block * g.tile_c
        channels = min(g.tile_c, g.C - c)
        load_at(blob, origin, buffer=scratch, c=group * g.C + c, channels=channels)
        a = activations(call, g, origin, group * g.C + c, channels, scratch)
        write_segments(call, g, channels, q, columns, scratch + call.scratch.runs)
        for panel in range(first_panel, end_panel):
            k = panel * g.tile_k
            filters = min(g.tile_k, g.K - k)
            vectors = schedule.ceil_div(filters, call.lanes)
            width = vectors * call.lanes
            weights = call.panels.address + group * call.panels.group
            weights += panel_start(call, g, panel, block)
            if call.w.address:
                weights = scratch + call.scratch.panel + call.heads * width * call.itemsize
                pack_block(
                    call.kernels,
                    slot=call.pack_block,
                    blob=blob,
                    target=weights,
                    group=group,
                    panel=panel,
                    c=c,
                    channels=channels,
                    scratch=scratch + call.scratch.packing,
                )
            staged = call.stores.staged or filters < width or (call.stores.rounds and blocks > 1)
            if staged:
                slot = panel - first_panel if blocks > 1 else 0
                pixel = width * call.itemsize
                staging = scratch + call.scratch.staging
                staging += slot * g.tile_n * g.tile_p * g.tile_q * g.tile_k * call.itemsize
                out = view_in_roles(g, staging, rows * columns * pixel, columns * pixel, pixel)
            else:
                staging = 0
                target = y + (group * g.K + k) * call.y.k
                out = view_in_roles(g, target, y_plane, call.y.p, call.y.q)
            sums = out
            if block == 0:
                first_sum = group * schedule.panel_count(g) + panel
                start = call.bias.address + first_sum * call.bias.panel + q * call.bias.pixel
                sums = View(start, 0, 0, call.bias.pixel)
            last = block == blocks - 1
            low, high = bounds(call) if last else (-math.inf, math.inf)
            chained = blocks > 1 or has_chains(call, g, channels)
            streams = call.stores.streams and blocks == 1 and out.address % LINE == 0
            final = (call.stores.rounds or streams) and not staged
            fetches = call.stores.fetches and not staged
            product = Product(a, weights, sums, out, vectors, chained, final, fetches, low, high)
            multiply(call, g, product, extent, tile_rows, (q, columns), scratch + call.scratch.runs)
            if last and staged:
                first = group * g.K + k
                store_at(blob, origin, staging=staging, width=width, k=first, filters=filters)
    if call.stores.streams:
        memory.settle()


# The entry that convolves; what depends on dtypes it calls through the kernel table
FPROP = operator(run_item)
