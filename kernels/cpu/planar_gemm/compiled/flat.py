"""fprop of 1x1 filters with pixels as vector lanes: all pixels of a load tile form one long row.

    y[k, i : i + lanes] = sum over c of w[k, c] * x[c, i : i + lanes]

As in `fprop`, filters are read in place and nothing is packed, which is faster where each element
of a filter meets few pixels, as in the last layers of an image classifier. At stride 1 the planes
of x are read in place. A few pixels beyond whole vectors are computed by dot products, whose lanes
are channels: 7x7 pixels take 3 vectors and 1/16, not 4.

Planes in place lie on many pages, and an array of numpy does not begin with a cache line. So the
first panel may keep what it reads: it copies the pixels of each register tile, channel by channel,
and the others read the copy in order while they prefetch the planes of the next load tile.

One work item is a load tile and a chunk of filter panels:

    execute the tile's loads of every channel into this thread's buffer  (or read x in place)
    gather the last pixels as rows of contiguous channels
    for each panel of the chunk:
        for each register tile of a few vectors:
            microkernel: sums over planes, or their copy -> y, or the staging tile, one row for each
                filter
        dot products of the last pixels -> y, or the staging tile
        NHWC: the staging tile of a few panels is transposed
        staging tile -> residual, activation, layout -> y
"""

from __future__ import annotations

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.few_outputs.compiled import sum_windows
from implicit_conv.kernels.cpu.planar_gemm.compiled.fprop import Panel, load, sum_tile
from implicit_conv.kernels.cpu.planar_gemm.compiled.microkernel import sum_long_row
from implicit_conv.kernels.cpu.runtime.call import Call
from implicit_conv.kernels.cpu.runtime.compiled.entry import Blob, fields
from implicit_conv.kernels.cpu.runtime.table import (
    TRANSPOSE_WORDS,
    first_panel_slot,
    planar_gemm_slot,
    transpose_slot,
)
from implicit_conv.kernels.cpu.tile.compiled.epilogue import store_tile
from implicit_conv.kernels.cpu.tile.compiled.load import load_tile
from implicit_conv.kernels.cpu.tile.compiled.transpose import transpose
from implicit_conv.kernels.cpu.tile.compiled.work import bounds, is_staged, operator
from implicit_conv.kernels.geometry import Geometry, Place

LINE = 64  # bytes
copy_float, copy_double = memory.copy_bytes(4), memory.copy_bytes(8)


def tile_rows(blob: Blob, group: int, origin: Place, scratch: int) -> int:
    """Address of the tile's first pixel: in x, or in the buffer after its loads."""
    call, g = fields(blob).call, fields(blob).geometry
    n, p, q = origin
    c = group * g.C
    if call.in_place:
        load_tile(
            call.kernels,
            slot=call.load_tile,
            blob=blob,
            buffer=scratch,
            n=n,
            p=p,
            q=q,
            c=c,
            channels=g.C,
        )
        return call.x.address + n * call.x.n + q * call.x.w + c * call.x.c
    load(blob, origin, c, scratch, call.planar_gemm.plane)
    return scratch


def sum_vectors(call: Call, g: Geometry, panel: Panel, pixels: int) -> None:
    """Whole register tiles of vectors, one of fewer vectors, and the pixels beyond them unless they
    are left to dot products.
    """
    vectors, step = pixels // call.lanes, schedule.pixel_rows(g)
    left = vectors % step
    if vectors > left:
        sum_tile(call, g, panel, 0, step, (vectors - left) * call.lanes)
    if left > 0:
        sum_tile(call, g, panel, vectors - left, left, left * call.lanes)
    if pixels % call.lanes > call.planar_gemm.tail_pixels:
        sum_tile(call, g, panel, vectors, 0, pixels % call.lanes)


def sum_kept(call: Call, g: Geometry, panel: Panel, pixels: int, kept: int, place: int) -> None:
    """The same by panel number `place` of a work item: the first one copies its pixels to `kept`,
    where the others read them. What is left of whole register tiles is summed by single vectors.
    """
    step = schedule.pixel_rows(g) * call.lanes
    tail = pixels % call.lanes
    whole = pixels // step * step
    rest = pixels - whole - (tail if tail <= call.planar_gemm.tail_pixels else 0)
    sources = panel.a
    if place > 0:
        # Each panel prefetches a line of what register tiles of the next load tile read.
        sources += pixels * call.itemsize + min((place - 1) * LINE, step * call.itemsize)
    if whole > 0:
        sum_copies(call, g, panel, 0, schedule.pixel_rows(g), whole, sources, kept, place)
    if rest > 0:
        sum_copies(call, g, panel, whole, 0, rest, sources, kept, place)


def sum_copies(
    call: Call,
    g: Geometry,
    panel: Panel,
    first: int,
    height: int,
    pixels: int,
    sources: int,
    kept: int,
    place: int,
) -> None:
    """Register tiles of `height` vectors of `pixels` pixels from pixel `first` on."""
    slot, offset = planar_gemm_slot(panel.filters, height), first * call.itemsize
    if place == 0:
        slot = first_panel_slot(panel.filters, height)
    sum_long_row(
        call.kernels,
        slot=slot,
        w=panel.w,
        w_filter=panel.w_filter,
        b=sources + offset,
        plane=call.x.c,
        kept=kept + offset * g.C,
        elements=g.C,
        sums=panel.sums,
        out=panel.out + offset,
        out_filter=panel.out_filter,
        columns=pixels,
        low=panel.low,
        high=panel.high,
    )


def copy_element(call: Call, to: int, at: int) -> None:
    """Copy one element of x, or one sum."""
    if call.itemsize == 4:
        copy_float(to, at)
    else:
        copy_double(to, at)


def gather_tail(call: Call, g: Geometry, a: int, first: int, pixels: int, rows: int) -> None:
    """Gather `pixels` pixels of a tile at `a`, from `first` on, into contiguous rows of
    channels.
    """
    for c in range(g.C if pixels > 0 else 0):
        plane = a + memory.read(call.planar_gemm.views + 8 * c) + first * call.itemsize
        for i in range(pixels):
            copy_element(call, rows + (i * g.C + c) * call.itemsize, plane + i * call.itemsize)


def sum_tail(
    call: Call,
    g: Geometry,
    panel: Panel,
    first_filter: int,
    pixels: int,
    rows: int,
    out: int,
    out_pixel: int,
) -> None:
    """Dot products of the gathered pixels with a panel, into contiguous filters; `out_pixel` is the
    byte stride of pixels.

    A register tile that would reach beyond the last filter begins earlier, if necessary in the
    previous panel, and writes only the new sums.
    """
    for i in range(0, panel.filters if pixels > 0 else 0, call.tile_filters):
        k = min(i, g.K - first_filter - call.tile_filters)
        sum_windows(
            call.kernels,
            x=rows,
            x_pixel=g.C * call.itemsize,
            w=panel.w + k * panel.w_filter,
            w_filter=panel.w_filter,
            sums=panel.sums + k * call.itemsize,
            out=out + k * call.itemsize,
            out_pixel=out_pixel,
            elements=g.C,
            pixels=pixels,
            last=pixels - 1,
            skipped=i - k,
            filters=panel.filters - k,
            low=panel.low,
            high=panel.high,
        )


def move_tail(call: Call, panel: Panel, first: int, pixels: int, sums: int) -> None:
    """Move the dot products into each filter's row, from pixel `first` on."""
    for k in range(panel.filters):
        target = panel.out + k * panel.out_filter + first * call.itemsize
        for i in range(pixels):
            at = sums + (i * panel.filters + k) * call.itemsize
            copy_element(call, target + i * call.itemsize, at)


def store_planes(blob: Blob, origin: Place, staging: int, first: int, filters: int) -> None:
    """Store the staging tile of `filters` filters, from `first` on, one long row at a time."""
    call, (n, p, q) = fields(blob).call, origin
    for i in range(filters):
        store_tile(
            call.kernels,
            blob=blob,
            staging=staging + i * call.planar_gemm.plane,
            width=1,
            n=n,
            p=p,
            q=q,
            k=first + i,
            filters=1,
        )


def store_transposed(
    blob: Blob, origin: Place, staging: int, transposed: int, pixels: int, first: int, filters: int
) -> None:
    """Store the staging tile in NHWC: transpose its long rows into the transposed tile, which
    already holds the dot products, and store that.
    """
    call, (n, p, q) = fields(blob).call, origin
    width = call.planar_gemm.waiting_filters
    pixel = width * call.itemsize
    for i in range(0, pixels, call.lanes):
        for k in range(0, filters, call.lanes):
            rows, columns = min(call.lanes, filters - k), min(call.lanes, pixels - i)
            transpose(
                call.kernels,
                slot=transpose_slot(TRANSPOSE_WORDS, 1, min(rows, columns) < call.lanes),
                source=staging + k * call.planar_gemm.plane + i * call.itemsize,
                source_stride=call.planar_gemm.plane,
                target=transposed + i * pixel + k * call.itemsize,
                target_stride=pixel,
                rows=rows,
                columns=columns,
            )
    store_tile(
        call.kernels,
        blob=blob,
        staging=transposed,
        width=width,
        n=n,
        p=p,
        q=q,
        k=first,
        filters=filters,
    )


def run_item(
    blob: Blob, group: int, origin: Place, first_panel: int, end_panel: int, scratch: int
) -> None:
    """One work item: a load tile of one image, and the panels first_panel .. end_panel - 1."""
    call, g = fields(blob).call, fields(blob).geometry
    n, p, q = origin
    _, rows, columns = schedule.tile_extent(g, n, p, q)
    pixels = rows * columns
    a = tile_rows(blob, group, origin, scratch)
    tail = pixels % call.lanes
    if tail > call.planar_gemm.tail_pixels:
        tail = 0  # these pixels are a vector of their own
    whole, tail_rows = pixels - tail, scratch + call.scratch.tail
    tail_sums = tail_rows + tail * g.C * call.itemsize
    gather_tail(call, g, a, whole, tail, tail_rows)
    low, high = bounds(call)
    channels_last = call.planar_gemm.filters_together
    staged = channels_last or is_staged(call) or (rows > 1 and call.y.p != columns * call.y.q)
    staging = scratch + call.scratch.staging
    transposed = staging + call.planar_gemm.waiting_filters * call.planar_gemm.plane
    pixel = call.planar_gemm.waiting_filters * call.itemsize
    y = call.y.address + schedule.plane_offset(g, n, call.y.n, call.y.z)
    y += p * call.y.p + q * call.y.q + group * g.K * call.y.k
    w = call.w.address + group * g.K * call.w.k
    vector = call.lanes * call.itemsize
    waiting = 0  # filters in the staging tile
    for panel in range(first_panel, end_panel):
        k = panel * g.tile_k
        filters = min(g.tile_k, g.K - k)
        out, out_filter = y + k * call.y.k, call.y.k
        if staged:
            out, out_filter = staging + waiting * call.planar_gemm.plane, call.planar_gemm.plane
        sums = call.bias.address + (group * schedule.panel_count(g) + panel) * call.bias.panel
        shared = Panel(
            a, vector, w + k * call.w.k, call.w.k, filters, sums, out, vector, out_filter, low, high
        )
        if call.planar_gemm.keeps:
            sum_kept(call, g, shared, pixels, scratch, panel - first_panel)
        else:
            sum_vectors(call, g, shared, pixels)
        if channels_last:
            to = transposed + whole * pixel + waiting * call.itemsize
            sum_tail(call, g, shared, k, tail, tail_rows, to, pixel)
            waiting += filters
            if panel == end_panel - 1 or waiting + g.tile_k > call.planar_gemm.waiting_filters:
                first = group * g.K + k + filters - waiting
                store_transposed(blob, origin, staging, transposed, whole, first, waiting)
                waiting = 0
        else:
            sum_tail(call, g, shared, k, tail, tail_rows, tail_sums, filters * call.itemsize)
            move_tail(call, shared, whole, tail, tail_sums)
            if staged:
                store_planes(blob, origin, staging, group * g.K + k, filters)


LONG_ROWS = operator(run_item)  # the entry that convolves
