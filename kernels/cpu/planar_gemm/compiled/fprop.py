"""fprop on planes: the pixels of an output row are the lanes of a vector.

    y[k, p, q : q + lanes] = sum over e = (c, r, s) of w[k, e] * x[c, p + r, q + s : ...]

This is the transposed GEMM: its rows are filters, which are read in place and broadcast one element
at a time; its columns are shifted views of buffered image rows. Nothing is packed, and in NCHW
nothing is transposed, which is faster where there are few channels or filters. In NHWC pixels are
transposed when they are loaded and sums when they are stored, which is faster where filters would
not fill vectors. 1x1 filters need no shifted views, so several rows become one: see `flat`.

One work item is a load tile and a chunk of filter panels:

    execute the tile's loads of every channel into this thread's buffer
    for each panel of the chunk:
        for each register tile of a few output rows:
            microkernel: sums over shifted views of the buffer -> y, or the staging tile
        staging tile -> residual, activation, layout -> y
"""

from __future__ import annotations

from typing import NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.planar_gemm.compiled.microkernel import sum_rows
from implicit_conv.kernels.cpu.runtime.call import Call
from implicit_conv.kernels.cpu.runtime.compiled.entry import Blob, fields
from implicit_conv.kernels.cpu.runtime.table import planar_gemm_slot
from implicit_conv.kernels.cpu.tile.compiled.epilogue import store_tile
from implicit_conv.kernels.cpu.tile.compiled.plane_loads import (
    load_plane,
    load_planes,
    phase_bytes,
    write_loads,
)
from implicit_conv.kernels.cpu.tile.compiled.work import bounds, is_staged, operator
from implicit_conv.kernels.geometry import Geometry, Place


def load(blob: Blob, origin: Place, c: int, buffer: int, plane: int) -> None:
    """Load the tile's input rows of the channels from c on into planes of the buffer."""
    call, g = fields(blob).call, fields(blob).geometry
    n, p, q = origin
    table = buffer + call.scratch.loads
    write_loads(
        call.kernels,
        blob=blob,
        n=n,
        p=p,
        q=q,
        first=c,
        end=c + g.C,
        together=g.C,
        address=table,
    )
    if call.planar_gemm.filters_together and call.x.c == call.itemsize:
        load_planes(call.kernels, blob=blob, table=table, c=c, buffer=buffer, plane=plane)
    else:
        for i in range(g.C):
            load_plane(blob, table, c + i, buffer + i * plane)


class Panel(NamedTuple):
    """What the microkernels of a load tile and a panel share."""

    a: int  # address of the buffer or of x, byte stride of its rows
    a_row: int
    w: int  # address of the first filter, byte stride of filters
    w_filter: int
    filters: int
    sums: int  # address of the initial sums
    out: int  # address of the output, byte strides of its rows and of its filters or pixels
    out_row: int
    out_filter: int
    low: float  # the sums are clamped to low .. high
    high: float


def sum_tile(call: Call, g: Geometry, panel: Panel, first: int, height: int, pixels: int) -> None:
    """Register tiles of `height` rows from row `first` on, of `pixels` pixels."""
    sum_rows(
        call.kernels,
        slot=planar_gemm_slot(panel.filters, height),
        w=panel.w,
        w_filter=panel.w_filter,
        b=panel.a + first * panel.a_row,
        b_row=panel.a_row,
        views=call.planar_gemm.views,
        elements=g.C * schedule.taps(g),
        sums=panel.sums,
        out=panel.out + first * panel.out_row,
        out_filter=panel.out_filter,
        out_row=panel.out_row,
        columns=pixels,
        low=panel.low,
        high=panel.high,
    )


def sum_tiles(call: Call, g: Geometry, panel: Panel, rows: int, columns: int) -> None:
    """All output rows of a tile, one register tile at a time."""
    step = schedule.pixel_rows(g)
    for row in range(0, rows, step):
        sum_tile(call, g, panel, row, min(step, rows - row), columns)


def run_item(
    blob: Blob, group: int, origin: Place, first_panel: int, end_panel: int, scratch: int
) -> None:
    """One work item: a load tile of one image, and the panels first_panel .. end_panel - 1."""
    call, g = fields(blob).call, fields(blob).geometry
    n, p, q = origin
    _, rows, columns = schedule.tile_extent(g, n, p, q)
    low, high = bounds(call)
    together = call.planar_gemm.filters_together
    staged = call.stores.staged if together else is_staged(call)
    a_row = g.phases_w * phase_bytes(call, g)
    load(blob, origin, group * g.C, scratch, schedule.image_rows(g) * a_row)
    for panel in range(first_panel, end_panel):
        first = panel * g.tile_k
        filters = min(g.tile_k, g.K - first)
        k = group * g.K + first
        w = call.w.address + k * call.w.k
        sums = call.bias.address + (group * schedule.panel_count(g) + panel) * call.bias.panel
        out, out_row = call.y.address + schedule.plane_offset(g, n, call.y.n, call.y.z), call.y.p
        out += p * call.y.p + q * call.y.q + k * call.y.k
        out_filter = call.y.q if together else call.y.k
        if staged:
            out, out_row = scratch + call.scratch.staging, columns * call.itemsize
            out_filter = rows * out_row
            if together:
                out_filter = filters * call.itemsize
                out_row = columns * out_filter
        shared = Panel(
            scratch, a_row, w, call.w.k, filters, sums, out, out_row, out_filter, low, high
        )
        sum_tiles(call, g, shared, rows, columns)
        if staged and together:
            store_tile(
                call.kernels,
                blob=blob,
                staging=out,
                width=filters,
                n=n,
                p=p,
                q=q,
                k=k,
                filters=filters,
            )
        elif staged:
            for i in range(filters):
                store_tile(
                    call.kernels,
                    blob=blob,
                    staging=out + i * out_filter,
                    width=1,
                    n=n,
                    p=p,
                    q=q,
                    k=k + i,
                    filters=1,
                )


PLANAR_GEMM = operator(run_item)  # the entry that convolves
