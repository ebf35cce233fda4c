"""wgrad on the CPU.

GEMM mapping: A = activation, gemm_n = T*R*S*C; B = output gradient, gemm_m = K, the vector lanes;
C = filter gradient; gemm_k = N*Z*P*Q.

A load tile (output planes x output rows x output columns) is cut from the problem's shape alone,
and its pixels are one chain of every sum. So the order of a sum depends neither on the channel
blocks nor on the panels of a work item, nor on the number of threads.

One work item is a part of the load tiles, a channel block and a chunk of filter panels:

    for each load tile of the part:
        execute the tile's loads of x into this thread's buffer   (or read x in place)
        load the panels of dy: [panel][pixel][filter]             (or read dy in place)
        for each panel of the chunk:
            for each tap:
                pixels whose tap reads more than zeros: microkernel over shifted views -> sums,
                while the pixels of the next load tile are prefetched
        after every 64 tiles: add the sums to the level above
    levels -> sums -> dw, or memory, if there are several parts
"""

from __future__ import annotations

from typing import NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.runtime.call import Call
from implicit_conv.kernels.cpu.runtime.compiled.entry import Blob, fields
from implicit_conv.kernels.cpu.runtime.layout import LINE
from implicit_conv.kernels.cpu.runtime.table import microkernel_slot
from implicit_conv.kernels.cpu.tile.compiled.filters import row_offset
from implicit_conv.kernels.cpu.tile.compiled.load import load_pixels, load_tile
from implicit_conv.kernels.cpu.wgrad.compiled.addresses import dw_address, dy_address
from implicit_conv.kernels.cpu.wgrad.compiled.microkernel import multiply_pixels
from implicit_conv.kernels.cpu.wgrad.compiled.panels import load_panels
from implicit_conv.kernels.cpu.wgrad.compiled.sums import carry, is_fresh, store_sums, total
from implicit_conv.kernels.cpu.wgrad.compiled.work import adder, operator
from implicit_conv.kernels.cpu.wgrad.layout import tile_height
from implicit_conv.kernels.geometry import Geometry, Place

QUEUE_BYTES = 32  # bytes of a queue of two pieces of memory: (address, lines) of each


class View(NamedTuple):
    """Pixels in memory: address of the first one, byte strides of planes, rows and columns."""

    address: int
    plane: int
    row: int
    column: int


class Item(NamedTuple):
    """A work item of a part."""

    group: int
    c: int  # first channel of the block in its group
    channels: int
    first_panel: int
    end_panel: int


def item_of(call: Call, g: Geometry, index: int) -> Item:
    """The work item of this index; chunks of panels vary fastest, then channel blocks."""
    panels, blocks = schedule.panel_count(g), schedule.block_count(g)
    chunks = schedule.ceil_div(panels, call.chunk)
    first = index % chunks * call.chunk
    block, group = index // chunks % blocks, index // (chunks * blocks)
    c = block * g.tile_c
    return Item(group, c, min(g.tile_c, g.C - c), first, min(first + call.chunk, panels))


def pixel_of(view: View, plane: int, row: int, column: int) -> int:
    """Address of a pixel of a view."""
    return view.address + plane * view.plane + row * view.row + column * view.column


def load_x(
    blob: Blob, origin: Place, extent: Place, group: int, c: int, channels: int, buffer: int
) -> View:
    """Load the tile's pixels of x, or find them in place: a view of output pixel 0 at tap 0.

    In a buffer, rows of one row phase are contiguous, and so are the columns of one phase.
    """
    call, g = fields(blob).call, fields(blob).geometry
    (n, p, q), (planes, rows, columns) = origin, extent
    first = group * g.C + c
    d, h, w = schedule.input_plane(g, n, 0), p * g.stride_h - g.pad_h, q * g.stride_w - g.pad_w
    source = call.x.address + n // g.Z * call.x.n + first * call.x.c
    source += d * call.x.d + h * call.x.h + w * call.x.w
    plane = schedule.plane_step(g, call.x.n, g.stride_d * call.x.d)
    if call.in_place:
        return View(source, plane, g.stride_h * call.x.h, g.stride_w * call.x.w)
    pixel = channels * call.itemsize
    if call.gradient.unpadded:
        load_pixels(
            call.kernels,
            blob=blob,
            target=buffer,
            pitch=pixel,
            source=source,
            plane=plane,
            row=g.stride_h * call.x.h,
            column=call.x.w,
            step=g.stride_w,
            channel=call.x.c,
            planes=planes,
            rows=rows,
            columns=columns,
            channels=channels,
        )
        return View(buffer, rows * columns * pixel, columns * pixel, pixel)
    load_tile(
        call.kernels,
        slot=call.load_tile,
        blob=blob,
        buffer=buffer,
        n=n,
        p=p,
        q=q,
        c=first,
        channels=channels,
    )
    row = schedule.row_pitch(g) * pixel
    plane = schedule.output_plane_rows(g) * row
    return View(buffer, plane, row, schedule.column_step(g) * pixel)


def row_offset_of_x(call: Call, g: Geometry, channels: int, j: int) -> int:
    """Byte offset of the view of filter row j from that of row 0."""
    if call.in_place:
        return j // g.R * g.dilation_d * call.x.d + j % g.R * g.dilation_h * call.x.h
    return schedule.tap_row(g, j) * schedule.row_pitch(g) * channels * call.itemsize


def column_offset_of_x(call: Call, g: Geometry, channels: int, s: int) -> int:
    """Byte offset of the view of filter column s from that of column 0."""
    if call.in_place:
        return s * g.dilation_w * call.x.w
    return schedule.tap_column(g, s) * channels * call.itemsize


def load_dy(blob: Blob, origin: Place, extent: Place, item: Item, panels: int) -> None:
    """Load the tile's pixels of dy into the panels of a work item, unless they are all read in
    place.
    """
    call, g = fields(blob).call, fields(blob).geometry
    planes, rows, columns = extent
    k = item.first_panel * g.tile_k
    filters = min(g.K, item.end_panel * g.tile_k) - k
    if call.gradient.dy_in_place:
        whole = filters // call.lanes * call.lanes
        if whole == filters:
            return
        first = whole // g.tile_k * g.tile_k  # only the last panel is not in place
        panels += (first // g.tile_k) * call.gradient.panel_bytes
        k, filters = k + first, filters - first
    load_panels(
        call.kernels,
        blob=blob,
        target=panels,
        source=dy_address(call, g, origin, item.group * g.K + k),
        planes=planes,
        rows=rows,
        columns=columns,
        filters=filters,
    )


def view_dy(
    call: Call,
    g: Geometry,
    origin: Place,
    extent: Place,
    group: int,
    k: int,
    filters: int,
    width: int,
    panel: int,
) -> View:
    """The pixels of a panel of `width` filters, of which `filters` are in dy."""
    if call.gradient.dy_in_place and filters == width:
        plane = schedule.plane_step(g, call.y.n, call.y.z)
        return View(dy_address(call, g, origin, group * g.K + k), plane, call.y.p, call.y.q)
    _, rows, columns = extent
    pitch = width * call.itemsize
    return View(panel, rows * columns * pitch, columns * pitch, pitch)


def advance(queue: int, lines: int) -> None:
    """Move on in the queue of memory that is prefetched, after `lines` lines."""
    left = memory.read(queue + 8) - lines
    memory.write(queue, memory.read(queue) + lines * LINE)
    memory.write(queue + 8, left)
    if left <= 0 and memory.read(queue + 24) > 0:
        memory.write(queue, memory.read(queue + 16))
        memory.write(queue + 8, memory.read(queue + 24))
        memory.write(queue + 24, 0)


def look_ahead(call: Call, g: Geometry, item: Item, origin: Place, queue: int) -> None:
    """Write the queue of memory to prefetch for the tile at `origin`: (address, lines) of x, then
    of dy.

    Only arrays whose needed pixels are contiguous are prefetched: others are in many pieces.
    """
    n, p, q = origin
    _, rows, columns = schedule.tile_extent(g, n, p, q)
    c, k = item.group * g.C + item.c, item.group * g.K + item.first_panel * g.tile_k
    d = max(0, schedule.input_plane(g, n, 0))
    h, w = max(0, p * g.stride_h - g.pad_h), max(0, q * g.stride_w - g.pad_w)
    size = columns * g.stride_w * item.channels * call.itemsize
    lines = 0
    if call.x.w * columns * g.stride_w == size and columns == g.Q:
        lines = min(g.H - h, rows * g.stride_h) * call.x.h // LINE
    plane = call.x.address + n // g.Z * call.x.n + d * call.x.d
    memory.write(queue, plane + h * call.x.h + w * call.x.w + c * call.x.c)
    memory.write(queue + 8, lines)
    filters = min(g.K, item.end_panel * g.tile_k) - item.first_panel * g.tile_k
    lines = 0
    if call.y.q == filters * call.itemsize and columns == g.Q:
        lines = rows * call.y.p // LINE
    memory.write(queue + 16, dy_address(call, g, origin, k))
    memory.write(queue + 24, lines)
    advance(queue, 0)


def multiply(
    call: Call,
    g: Geometry,
    origin: Place,
    extent: Place,
    channels: int,
    a: View,
    b: View,
    vectors: int,
    sums: int,
    direct: int,
    adds: int,
    queue: int,
) -> None:
    """Consumer: all taps of a tile for one panel.

    Only the pixels whose tap reads more than zeros are multiplied. With `joined`, the columns of a
    filter row are rows of one matrix, and pixels outside the image are zeros of the buffer. With
    `direct`, the sums are elements of dw.
    """
    (n, p, q), (planes, rows, columns) = origin, extent
    taps, count = g.S, channels
    if call.gradient.joined:
        taps, count = 1, g.S * channels
    pitch = g.tile_k * call.itemsize
    sum_row, sum_tap = pitch, count * pitch
    if call.gradient.taps_inside:
        sum_row, sum_tap = schedule.taps(g) * pitch, pitch
    if direct:
        sum_row, sum_tap = call.w.c, call.w.s
    for j in range(schedule.filter_rows(g)):
        first_plane, end_plane = schedule.used_planes(g, n, planes, j // g.R)
        first_row, end_row = schedule.used_rows(g, p, rows, j % g.R)
        row_of_x = row_offset_of_x(call, g, channels, j)
        row_sums = sums + (row_offset(call, g, j) if direct else j * taps * sum_tap)
        for s in range(taps):
            first, end = 0, columns
            if not call.gradient.joined:
                first, end = schedule.used_columns(g, q, columns, s)
            inside = (end_plane - first_plane, end_row - first_row, end - first)
            at = pixel_of(a, first_plane, first_row, first)
            at += row_of_x + column_offset_of_x(call, g, channels, s)
            multiply_tap(
                call,
                g,
                View(at, a.plane, a.row, a.column),
                View(pixel_of(b, first_plane, first_row, first), b.plane, b.row, b.column),
                inside,
                count,
                vectors,
                row_sums + s * sum_tap,
                sum_row,
                adds,
                queue,
            )


def multiply_tap(
    call: Call,
    g: Geometry,
    a: View,
    b: View,
    extent: Place,
    count: int,
    vectors: int,
    sums: int,
    sum_row: int,
    adds: int,
    queue: int,
) -> None:
    """All register tiles of `count` rows of A, for the pixels of one tap."""
    planes, rows, columns = extent
    if a.row == columns * a.column and b.row == columns * b.column:
        rows, columns = 1, rows * columns
        if a.plane == columns * a.column and b.plane == columns * b.column:
            planes, columns = 1, planes * columns
    if planes == 0 or rows == 0 or columns == 0:
        planes = 0
        if adds:
            return
    first, next_row = 0, call.x.c if call.in_place else call.itemsize
    for height, tiles in schedule.cuts(count, tile_height(g, vectors)):
        if tiles == 0:
            continue
        ahead_step = LINE if memory.read(queue + 8) > 0 else 0
        multiply_pixels(
            call.kernels,
            slot=microkernel_slot(vectors, 1, height),
            a=a.address + first * next_row,
            a_plane=a.plane,
            a_row=a.row,
            a_column=a.column,
            a_next=next_row,
            b=b.address,
            b_plane=b.plane,
            b_row=b.row,
            b_column=b.column,
            c=sums + first * sum_row,
            c_row=sum_row,
            planes=planes,
            rows=rows,
            columns=columns,
            tiles=tiles,
            ahead=memory.read(queue),
            ahead_step=ahead_step,
            adds=adds,
        )
        advance(queue, tiles * planes * rows * columns)
        first += height * tiles


def stores_directly(call: Call, g: Geometry, panel: int) -> int:
    """Whether the sums of a panel are stored into dw itself, which needs whole vectors."""
    filters = min(g.tile_k, g.K - panel * g.tile_k)
    return call.gradient.direct and filters % call.lanes == 0


def sum_tiles(blob: Blob, item: Item, first_tile: int, end_tile: int, scratch: int) -> None:
    """The sums of a work item over a range of load tiles."""
    call, g = fields(blob).call, fields(blob).geometry
    group, c, channels, first_panel, end_panel = item
    sums, queue = scratch + call.scratch.staging, memory.stack(QUEUE_BYTES)
    if first_tile >= end_tile:
        memory.zero(sums, call.gradient.item_sums)
    for tile in range(first_tile, end_tile):
        done = tile - first_tile
        if done > 0:
            carry(call, sums, done)
        adds = not is_fresh(done)
        origin = schedule.tile_origin(g, tile)
        extent = schedule.tile_extent(g, *origin)
        a = load_x(blob, origin, extent, group, c, channels, scratch)
        load_dy(blob, origin, extent, item, scratch + call.scratch.panel)
        following = schedule.tile_origin(g, min(tile + 1, end_tile - 1))
        look_ahead(call, g, item, following, queue)
        for panel in range(first_panel, end_panel):
            k = panel * g.tile_k
            filters = min(g.tile_k, g.K - k)
            vectors = schedule.ceil_div(filters, call.lanes)
            width = vectors * call.lanes
            loaded = (
                scratch + call.scratch.panel + (panel - first_panel) * call.gradient.panel_bytes
            )
            b = view_dy(call, g, origin, extent, group, k, filters, width, loaded)
            to = sums + (panel - first_panel) * call.gradient.panel_sums
            direct = stores_directly(call, g, panel)
            if direct:
                to = dw_address(call, g, group * g.K + k, c, 0)
            multiply(call, g, origin, extent, channels, a, b, vectors, to, direct, adds, queue)
    total(call, sums, end_tile - first_tile)


def store(blob: Blob, item: Item, sums: int) -> None:
    """Store the sums of a work item into dw."""
    call, g = fields(blob).call, fields(blob).geometry
    for panel in range(item.first_panel, item.end_panel):
        if stores_directly(call, g, panel):
            continue
        k = panel * g.tile_k
        store_sums(
            call.kernels,
            blob=blob,
            sums=sums + (panel - item.first_panel) * call.gradient.panel_sums,
            k=item.group * g.K + k,
            filters=min(g.tile_k, g.K - k),
            c=item.c,
            channels=item.channels,
        )


def sum_item(blob: Blob, index: int, first_tile: int, end_tile: int, scratch: int) -> None:
    """The sums of the work item of this index over a range of load tiles."""
    call, g = fields(blob).call, fields(blob).geometry
    sum_tiles(blob, item_of(call, g, index), first_tile, end_tile, scratch)


def store_item(blob: Blob, index: int, sums: int) -> None:
    """Store the sums of the work item of this index."""
    call, g = fields(blob).call, fields(blob).geometry
    store(blob, item_of(call, g, index), sums)


WGRAD = operator(sum_item, store_item)  # the entry that sums
ADD_PARTS = adder(store_item)  # the entry that adds the sums of parts
