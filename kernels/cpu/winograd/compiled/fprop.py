"""Winograd F(m x m, 3x3): m*m outputs from (m+2)*(m+2) products instead of 9*m*m.

    y = A^T [ (G g G^T) * (B^T d B) ] A,   d an (m+2) x (m+2) box of the input, g a 3x3 filter

At stride 2 four outputs take a 5x5 box of the input and 25 products instead of 36. A box is what
the literature calls a tile of the input or the output, which is a load tile or register tile here.

One work item is a load tile whose rows and columns are multiples of m:

    execute the tile's loads into this thread's buffer            (the loads of fprop)
    input part: every row of boxes, transformed    -> U[xi][box][channel]
    for each panel of the chunk:
        pack the panel and transform it            -> V[xi][channel][filter] (unless w is packed)
        for each xi: microkernel, boxes x filters over channels  -> M[xi][box][filter]
        output part: every row of boxes, transformed -> y, or the staging tile
        staging tile -> residual, activation, layout -> y
"""

from __future__ import annotations

from typing import NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.gemm.compiled.microkernel import multiply_tile
from implicit_conv.kernels.cpu.gemm.compiled.panels import pack_block
from implicit_conv.kernels.cpu.gemm.layout import RUN_BYTES
from implicit_conv.kernels.cpu.runtime.call import Call
from implicit_conv.kernels.cpu.runtime.compiled.entry import Blob, fields, next_item
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, entry
from implicit_conv.kernels.cpu.runtime.layout import LINE
from implicit_conv.kernels.cpu.runtime.table import microkernel_slot
from implicit_conv.kernels.cpu.tile.compiled.epilogue import store_at
from implicit_conv.kernels.cpu.tile.compiled.load import load_at
from implicit_conv.kernels.cpu.tile.compiled.work import bounds, operator
from implicit_conv.kernels.cpu.winograd.compiled.transforms import (
    TAPS,
    transform_filters,
    transform_input,
    transform_output,
)
from implicit_conv.kernels.geometry import Geometry, Place


class Matrices(NamedTuple):
    """One matrix for every product of a box: address of the first, byte strides."""

    address: int
    xi: int  # between matrices
    row: int  # of a matrix


def panel_offset(call: Call, g: Geometry, panel: int, size: int) -> int:
    """Byte offset of V of a panel. A cache line separates its matrices, which would otherwise fall
    into the same few sets of a cache.
    """
    return panel * size * (g.tile_k * g.C * call.itemsize + LINE)


def pack_filters(blob: Blob, target: int, group: int, panel: int, scratch: int) -> None:
    """Write V of one panel: a few channels at a time are packed as for the GEMM, then transformed
    while they are in L1.
    """
    call, g = fields(blob).call, fields(blob).geometry
    filters = min(g.tile_k, g.K - panel * g.tile_k)
    vectors = schedule.ceil_div(filters, call.lanes)
    channel = vectors * call.lanes * call.itemsize
    plain, packing = scratch + call.scratch.panel, scratch + call.scratch.packing
    for c in range(0, g.C, call.lanes):
        channels = min(call.lanes, g.C - c)
        tap = channels * channel
        pack_block(
            call.kernels,
            slot=call.pack_block,
            blob=blob,
            target=plain,
            group=group,
            panel=panel,
            c=c,
            channels=channels,
            scratch=packing,
        )
        transform_filters(
            call.kernels,
            source=plain,
            row=TAPS * tap,
            column=tap,
            target=target + c * channel,
            xi_stride=g.C * channel + LINE,
            count=channels * vectors,
        )


def transform_boxes(call: Call, g: Geometry, extent: Place, buffer: int, u: Matrices) -> None:
    """Write U of a load tile: the transforms of all boxes of its planes, rows and columns."""
    m = call.winograd
    pixel = g.C * call.itemsize
    row = schedule.row_pitch(g) * pixel
    rows = schedule.image_rows(g)  # computed once, since it divides
    row_phase = (schedule.tap_row(g, 1) - schedule.tap_row(g, 0)) * row
    column_phase = (schedule.tap_column(g, 1) - schedule.tap_column(g, 0)) * pixel
    boxes, count = extent[2] // m, schedule.ceil_div(g.C, call.lanes)
    target = u.address
    for plane in range(extent[0]):
        for i in range(0, extent[1], m):
            transform_input(
                call.kernels,
                source=buffer + (plane * rows + i) * row,
                row=row,
                row_phase=row_phase,
                column=pixel,
                column_phase=column_phase,
                target=target,
                xi_stride=u.xi,
                box=u.row,
                boxes=boxes,
                count=count,
            )
            target += boxes * u.row


def untransform_boxes(
    call: Call,
    extent: Place,
    products: Matrices,
    out: tuple[int, int, int, int],
    bias: int,
    vectors: int,
    limits: tuple[float, float],
) -> None:
    """Transform every box of a load tile to `out`: (address, byte strides of planes, rows and
    columns).
    """
    m = call.winograd
    planes, rows, columns = extent
    address, out_n, out_p, out_q = out
    low, high = limits
    boxes, source = columns // m, products.address
    for plane in range(planes):
        for i in range(0, rows, m):
            transform_output(
                call.kernels,
                source=source,
                xi_stride=products.xi,
                target=address + plane * out_n + i * out_p,
                row=out_p,
                column=out_q,
                bias=bias,
                boxes=boxes,
                count=vectors,
                low=low,
                high=high,
            )
            source += boxes * products.row


def write_runs(call: Call, g: Geometry, table: int) -> None:
    """Write the run table that all products share: a run for each chain of channels."""
    length = schedule.chain_length(g.C, call.chain)
    for part in range(schedule.chain_parts(g.C, call.chain)):
        first = part * length
        memory.write(table, first * call.itemsize)
        memory.write(table + 8, min(length, g.C - first))
        memory.write(table + 16, first)
        memory.write(table + 24, part)
        memory.write(table + 32, 1)
        table += RUN_BYTES


def multiply_boxes(
    call: Call,
    g: Geometry,
    boxes: int,
    u: Matrices,
    v: Matrices,
    products: Matrices,
    vectors: int,
    runs: int,
) -> None:
    """Write M: for every xi, boxes x filters summed over channels."""
    for xi in range(schedule.box_products(g, call.winograd)):
        begin = 0
        for count, tiles in schedule.cuts(boxes, g.tile_m):
            if tiles == 0:
                continue
            multiply_tile(
                call.kernels,
                slot=microkernel_slot(vectors, 1, count),
                a=u.address + xi * u.xi + begin * u.row,
                a_inner=u.row,
                b=v.address + xi * v.xi,
                runs=runs,
                run_count=schedule.chain_parts(g.C, call.chain),
                c_in=call.zeros,
                c_out=products.address + xi * products.xi + begin * products.row,
                c_out_inner=products.row,
                tiles=tiles,
            )
            begin += tiles * count


def run_item(
    blob: Blob, group: int, origin: Place, first_panel: int, end_panel: int, scratch: int
) -> None:
    """One work item: a load tile, and the panels first_panel .. end_panel - 1."""
    call, g = fields(blob).call, fields(blob).geometry
    m, (n, p, q) = call.winograd, origin
    size = schedule.box_products(g, m)
    extent = schedule.tile_extent(g, n, p, q)
    boxes = extent[0] * extent[1] * extent[2] // (m * m)
    load_at(blob, origin, buffer=scratch, c=group * g.C, channels=g.C)
    u_row = schedule.ceil_div(g.C, call.lanes) * call.lanes * call.itemsize
    u = Matrices(scratch + call.scratch.boxes, boxes * u_row + LINE, u_row)
    transform_boxes(call, g, extent, scratch, u)
    runs = scratch + call.scratch.runs
    write_runs(call, g, runs)
    limits = bounds(call)
    overhangs = p + extent[1] > call.p_end or q + extent[2] > call.q_end
    for panel in range(first_panel, end_panel):
        k = panel * g.tile_k
        filters = min(g.tile_k, g.K - k)
        vectors = schedule.ceil_div(filters, call.lanes)
        width = vectors * call.lanes
        pixel = width * call.itemsize
        weights = (
            call.panels.address + group * call.panels.group + panel_offset(call, g, panel, size)
        )
        if call.w.address:
            weights = scratch + call.scratch.transformed
            pack_filters(blob, weights, group, panel, scratch)
        v = Matrices(weights, g.C * pixel + LINE, pixel)
        products = Matrices(scratch + call.scratch.products, boxes * pixel + LINE, pixel)
        multiply_boxes(call, g, boxes, u, v, products, vectors, runs)
        first = group * g.K + k
        staging = scratch + call.scratch.staging
        staged = call.stores.staged or overhangs or filters < width
        if staged:
            row = extent[2] * pixel
            out = staging, extent[1] * row, row, pixel
        else:
            y = call.y.address + schedule.plane_offset(g, n, call.y.n, call.y.z)
            y += p * call.y.p + q * call.y.q + first * call.y.k
            out = y, schedule.plane_step(g, call.y.n, call.y.z), call.y.p, call.y.q
        bias = call.bias.address + (group * schedule.panel_count(g) + panel) * call.bias.panel
        untransform_boxes(call, extent, products, out, bias, vectors, limits)
        if staged:
            store_at(blob, origin, staging=staging, width=width, k=first, filters=filters)


def pack(blob: Blob, thread: int) -> None:
    """The launchable packer: items are the panels of all groups."""
    call, g = fields(blob).call, fields(blob).geometry
    panels = schedule.panel_count(g)
    scratch = call.scratch.address + thread * call.scratch.bytes
    size = schedule.box_products(g, call.winograd)
    item = next_item(blob, thread)
    while item < call.items:
        group, panel = item // panels, item % panels
        target = (
            call.panels.address + group * call.panels.group + panel_offset(call, g, panel, size)
        )
        pack_filters(blob, target, group, panel, scratch)
        item = next_item(blob, thread)


def make_winograd() -> Source:
    """The entry that convolves."""
    return operator(run_item)


def make_pack() -> Source:
    """The entry that packs a filter."""
    return entry(pack)
