"""Winograd F(m x m, R x S): m*m outputs from (m+R-1)*(m+S-1) products instead of R*S*m*m.

    y = A^T [ (G g G^T) * (B^T d B) ] A,   d an (m+R-1) x (m+S-1) box of the input, g a filter

Along an axis with a single tap a box has one output. At stride 2 four outputs take a 5x5 box of the
input and 25 products instead of 36. A box is what the literature calls a tile of the input or the
output, which is a load tile or register tile here. Filters of several planes are transformed plane
by plane: the products of a box are sums over planes and channels, and an input plane is transformed
once for all output planes of a load tile.

One work item is a load tile whose rows and columns are multiples of a box's:

    execute the tile's loads into this thread's buffer            (the loads of fprop)
    input part: every row of boxes, transformed    -> U[xi][input plane][box][channel]
    for each panel of the chunk:
        pack the panel and transform it    -> V[xi][filter plane][channel][filter] (or w is packed)
        for each xi: microkernel, boxes x filters over planes and channels  -> M[xi][box][filter]
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
from implicit_conv.kernels.cpu.runtime.compiled.source import entry
from implicit_conv.kernels.cpu.runtime.layout import LINE
from implicit_conv.kernels.cpu.runtime.table import microkernel_slot
from implicit_conv.kernels.cpu.tile.compiled.epilogue import store_at
from implicit_conv.kernels.cpu.tile.compiled.load import load_at
from implicit_conv.kernels.cpu.tile.compiled.work import bounds, operator
from implicit_conv.kernels.cpu.winograd.compiled.transforms import (
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
    return panel * size * (g.tile_k * g.T * g.C * call.itemsize + LINE)


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
        for t in range(g.T):
            transform_filters(
                call.kernels,
                source=plain + t * g.R * g.S * tap,
                row=g.S * tap,
                column=tap,
                target=target + (t * g.C + c) * channel,
                xi_stride=g.T * g.C * channel + LINE,
                count=channels * vectors,
            )


def transform_boxes(call: Call, g: Geometry, extent: Place, buffer: int, u: Matrices) -> None:
    """Write U of a load tile: the transforms of all boxes of its input planes, rows and columns."""
    box_rows = schedule.box_extent(g.R, call.winograd)
    box_columns = schedule.box_extent(g.S, call.winograd)
    pixel = g.C * call.itemsize
    row = schedule.row_pitch(g) * pixel
    rows = schedule.plane_rows(g)  # computed once, since it divides
    row_phase = (schedule.tap_row(g, 1) - schedule.tap_row(g, 0)) * row
    column_phase = (schedule.tap_column(g, 1) - schedule.tap_column(g, 0)) * pixel
    boxes, count = extent[2] // box_columns, schedule.ceil_div(g.C, call.lanes)
    target = u.address
    for plane in range(schedule.buffered_planes(g, extent[0])):
        for i in range(0, extent[1], box_rows):
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
    g: Geometry,
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
    box_rows = schedule.box_extent(g.R, call.winograd)
    planes, rows, columns = extent
    address, out_n, out_p, out_q = out
    low, high = limits
    boxes = columns // schedule.box_extent(g.S, call.winograd)
    source = products.address
    for plane in range(planes):
        for i in range(0, rows, box_rows):
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


def write_runs(call: Call, g: Geometry, plane: int, table: int) -> None:
    """Write the run table that all products share, whose input planes have the byte stride `plane`:
    a run for each filter plane and chain of channels. Few channels of several filter planes are one
    chain.
    """
    length, parts = schedule.chain_length(g.C, call.chain), schedule.chain_parts(g.C, call.chain)
    together = schedule.chain_rows(g.C, call.chain)
    for t in range(g.T):
        left = min(together - t % together, g.T - t)  # filter planes to the end of their chain
        for part in range(parts):
            first = part * length
            memory.write(table, t * plane + first * call.itemsize)
            memory.write(table + 8, min(length, g.C - first))
            memory.write(table + 16, t * g.C + first)
            memory.write(table + 24, t // together * parts + part)
            memory.write(table + 32, left)
            table += RUN_BYTES


def multiply_boxes(
    call: Call,
    g: Geometry,
    n: int,
    extent: Place,
    u: Matrices,
    v: Matrices,
    products: Matrices,
    vectors: int,
    runs: int,
) -> None:
    """Write M: for every xi, boxes x filters summed over filter planes and channels, from output
    plane n on.
    """
    in_plane = extent[1] * extent[2] // schedule.box_outputs(g, call.winograd)
    together = schedule.planes_together(g, extent[0])
    gap = (schedule.plane_pitch(g) - 1) * in_plane * u.row  # to the input planes of the next plane
    parts = schedule.chain_parts(g.C, call.chain)
    cuts = schedule.cuts(together * in_plane, g.tile_m)
    for xi in range(schedule.box_products(g, call.winograd)):
        a, c = u.address + xi * u.xi, products.address + xi * products.xi
        for plane in range(0, extent[0], together):
            t, t_end = 0, 1
            if g.T > 1:
                t, t_end = schedule.valid_planes(g, n + plane, together)
            for count, tiles in cuts:
                if tiles == 0:
                    continue
                multiply_tile(
                    call.kernels,
                    slot=microkernel_slot(vectors, 1, count),
                    a=a,
                    a_inner=u.row,
                    b=v.address + xi * v.xi,
                    runs=runs + RUN_BYTES * t * parts,
                    run_count=(t_end - t) * parts,
                    c_in=call.zeros,
                    c_out=c,
                    c_out_inner=products.row,
                    tiles=tiles,
                )
                a += tiles * count * u.row
                c += tiles * count * products.row
            a += gap


def run_item(
    blob: Blob, group: int, origin: Place, first_panel: int, end_panel: int, scratch: int
) -> None:
    """One work item: a load tile, and the panels first_panel .. end_panel - 1."""
    call, g = fields(blob).call, fields(blob).geometry
    m, (n, p, q) = call.winograd, origin
    size = schedule.box_products(g, m)
    extent = schedule.tile_extent(g, n, p, q)
    in_plane = extent[1] * extent[2] // schedule.box_outputs(g, m)
    boxes = extent[0] * in_plane
    load_at(blob, origin, buffer=scratch, c=group * g.C, channels=g.C)
    u_row = schedule.ceil_div(g.C, call.lanes) * call.lanes * call.itemsize
    u_plane = in_plane * u_row
    u_size = schedule.buffered_planes(g, extent[0]) * u_plane
    u = Matrices(scratch + call.scratch.boxes, u_size + LINE, u_row)
    transform_boxes(call, g, extent, scratch, u)
    runs = scratch + call.scratch.runs
    write_runs(call, g, u_plane, runs)
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
        v = Matrices(weights, g.T * g.C * pixel + LINE, pixel)
        products = Matrices(scratch + call.scratch.products, boxes * pixel + LINE, pixel)
        multiply_boxes(call, g, n, extent, u, v, products, vectors, runs)
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
        untransform_boxes(call, g, extent, products, out, bias, vectors, limits)
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


WINOGRAD = operator(run_item)  # the entry that convolves
PACK = entry(pack)  # the entry that packs a filter
