"""Producers: fill stages in the order in which the consumer reads them.

    for tile of this block:
        for load of the tile:                    # filter row [x filter column] x channel block
            wait empty -> load activation (every phase buffer) and filter -> full

With im2col::w the filter has a ring of its own, with a stage for each tap of the load.

A stage holds rows of `row_bytes`, one pixel or filter each. Its 16-byte chunks are swizzled in the
pattern of TMA.
"""

from __future__ import annotations

import functools
from typing import Any

from implicit_conv.kernels import walk as plain_walk
from implicit_conv.kernels.geometry import CIRCULAR, REPLICATE, SYMMETRIC, ZEROS, Geometry
from implicit_conv.kernels.gpu import gmem, mbarrier, raster, ring, smem, tap_tables, tma, warp
from implicit_conv.kernels.gpu.call import Ints, Params
from implicit_conv.kernels.gpu.ptx import device, device_module
from implicit_conv.kernels.gpu.ring import Rings
from implicit_conv.kernels.gpu.sizes import ROW_ENTRY_BYTES, VECTOR_BYTES
from implicit_conv.kernels.gpu.variant import Variant

walk = device_module(plain_walk)

# The first image row that a gemm_m row past the last reads: outside the image for every filter tap.
NOWHERE = -(1 << 30)
NEVER = NOWHERE // 2  # no row that is kept reads so far before an image
TABLE_BARRIER = 1  # the named barrier at which the producer warps meet
BANK_LANES = 8  # lanes whose chunks of 16 bytes are all of the banks of shared memory


@functools.cache
def make_producer(v: Variant) -> Any:
    """The producer's role for variant `v`: produce(params, base, rings, producer)."""
    return make_tensor_producer(v) if v.producer == "tma" else make_thread_producer(v)


@functools.cache
def make_tensor_producer(v: Variant) -> Any:
    """One lane issues tensor copies."""
    tile_c = v.tile_c
    pixel, load_rows = raster.make_pixel(v), raster.make_load_rows(v)
    plane, (_, filter_plane) = raster.make_plane(v), raster.make_filter_rows(v)
    fill, start = make_fill_loads(v) if v.wide else make_fill_taps(v)
    loads = device(lambda g: 1) if v.wide else device(lambda g: g.S)

    @device
    def produce(params: Params, base: int, rings: Rings, producer: int) -> None:
        g, call = params.geometry, params.call
        if producer != 0 or not warp.elect():
            return
        table = base + call.tap_tables_at
        state = start
        tile = warp.block()
        while tile < call.tiles:
            _, tile_m, panel = raster.tile_at(call, tile)
            n, p, q, _ = pixel(params, tile_m, 0)
            first, end = load_rows(params, p)
            d, p = plane(g, p)
            for row in range(first, end):
                t, r = filter_plane(g, row)
                for s in range(loads(g)):
                    for c in range(0, g.C, tile_c):
                        place = n, d, p, q, row, t, r, s, c
                        state = fill(params, table, rings, place, panel, state)
            tile += warp.blocks()

    return produce


def make_load_filter(v: Variant) -> Any:
    """load_filter(params, stage, barrier, panel, row, s, c): the tensor copy of one tap."""
    tile_n = v.tile_n

    @device
    def load_filter(
        params: Params, stage: int, barrier: int, panel: int, row: int, s: int, c: int
    ) -> None:
        tap = row * params.geometry.S + s
        tma.load_tile_3d(stage, params.filter_map, c, tap, panel * tile_n, barrier)

    return load_filter


def make_fill_taps(v: Variant) -> Any:
    """(fill, start) for A and B in one ring; its state is (stage, parity)."""
    load_activation, load_filter = make_load_activation(v), make_load_filter(v)

    @device
    def fill(params: Params, table: int, rings: Rings, place: Ints, panel: int, state: Ints) -> Any:
        call, (a_ring, b_ring), (_, _, _, _, row, _, _, s, c) = params.call, rings, place
        stage, parity = state
        full = ring.full(a_ring, stage)
        ring.wait_empty(a_ring, stage, parity)
        mbarrier.arrive_expect_tx(full, call.a_load + call.b_load)
        load_activation(params, table, ring.address(a_ring, stage), full, place)
        load_filter(params, ring.address(b_ring, stage), full, panel, row, s, c)
        return ring.advance(a_ring, stage, parity)

    return fill, (0, 0)


def make_fill_loads(v: Variant) -> Any:
    """(fill, start) for two rings; the state has stage and parity of A, then of B."""
    load_activation, load_filter = make_load_activation(v), make_load_filter(v)

    @device
    def fill(params: Params, table: int, rings: Rings, place: Ints, panel: int, state: Ints) -> Any:
        call, (a_ring, b_ring), (_, _, _, _, row, _, _, _, c) = params.call, rings, place
        a, a_parity, b, b_parity = state
        full = ring.full(a_ring, a)
        ring.wait_empty(a_ring, a, a_parity)
        mbarrier.arrive_expect_tx(full, call.a_load)
        load_activation(params, table, ring.address(a_ring, a), full, place)
        a, a_parity = ring.advance(a_ring, a, a_parity)
        for tap in range(params.geometry.S):
            full = ring.full(b_ring, b)
            ring.wait_empty(b_ring, b, b_parity)
            mbarrier.arrive_expect_tx(full, call.b_load)
            load_filter(params, ring.address(b_ring, b), full, panel, row, tap, c)
            b, b_parity = ring.advance(b_ring, b, b_parity)
        return a, a_parity, b, b_parity

    return fill, (0, 0, 0, 0)


@functools.cache
def make_load_activation(v: Variant) -> Any:
    """The tensor copies of one activation load."""
    load_pixels, load_walk = tma.load_im2col("im2col"), tma.load_im2col("im2col::w")

    @device
    def load_tap(params: Params, table: int, stage: int, barrier: int, place: Ints) -> None:
        g, (n, _, p, q, _, _, r, s, c) = params.geometry, place
        w, h = q * g.stride_w - g.pad_w, p * g.stride_h - g.pad_h
        offset_w, offset_h = s * g.dilation_w, r * g.dilation_h
        load_pixels(stage, params.activation_map, c, w, h, n, barrier, offset_w, offset_h)

    @device
    def load_volume_tap(params: Params, table: int, stage: int, barrier: int, place: Ints) -> None:
        g, map, (n, d, p, q, _, t, r, s, c) = params.geometry, params.activation_map, place
        w, h = q * g.stride_w - g.pad_w, p * g.stride_h - g.pad_h
        offsets = s * g.dilation_w, r * g.dilation_h, t * g.dilation_d
        tma.load_im2col_5d(stage, map, c, w, h, d, n, barrier, *offsets)

    @device
    def load_row(params: Params, table: int, stage: int, barrier: int, place: Ints) -> None:
        g, map, (n, _, p, q, _, _, r, _, c) = params.geometry, params.activation_map, place
        w, h = q * g.stride_w - g.pad_w, p * g.stride_h - g.pad_h + r * g.dilation_h
        for b in range(g.phases_w):
            halo, offset, at = tap_tables.buffer_load(g, table, b)
            load_walk(stage + at, map, c, w, h, n, barrier, halo, offset)

    @device
    def load_permuted(params: Params, table: int, stage: int, barrier: int, place: Ints) -> None:
        """The H axis of the map is the batch and its N axis the image row.

        So a walk along W continues in the next image.
        """
        g, map, (n, _, p, q, _, _, r, _, c) = params.geometry, params.activation_map, place
        w, h = q * g.stride_w - g.pad_w, p * g.stride_h - g.pad_h + r * g.dilation_h
        for b in range(g.phases_w):
            _, offset, at = tap_tables.buffer_load(g, table, b)
            load_pixels(stage + at, map, c, w, n, h, barrier, offset, 0)

    if not v.wide:
        return load_volume_tap if v.volume else load_tap
    return load_permuted if v.permuted else load_row


@functools.cache
def make_thread_producer(v: Variant) -> Any:
    """128 threads compute addresses, for any layout, stride, group and alignment of x and w.

    The pixel of each gemm_m row is computed once per tile and kept in a row table. Thread t copies
    chunk t % chunks of every (128 / chunks)-th row.
    """
    tile_n, tile_m, tile_c = v.tile_n, v.tile_m, v.tile_c
    itemsize, row_bytes = v.itemsize, v.row_bytes
    chunks = row_bytes // 16
    threads = 32 * v.producer_warps
    rows_at_once = threads // chunks
    per_chunk = 16 // itemsize
    mask = plain_walk.swizzle_mask(row_bytes)
    copy_chunk, finish = make_copy_chunk(v)
    copy_part = make_copy_part(v)
    pixel, place_in = raster.make_pixel(v), make_place_in(v.padding_mode)
    plane, (rows, filter_plane) = raster.make_plane(v), raster.make_filter_rows(v)
    row_of = make_row(v)

    @device
    def write_row_table(params: Params, table: int, tile_m_index: int, thread: int) -> None:
        g = params.geometry
        for first in range(0, tile_m, threads):
            row = first + thread
            n, p, q, kept = pixel(params, tile_m_index, row)
            d, p = plane(g, p)
            outside = NOWHERE * (1 - kept)
            h, w = p * g.stride_h - g.pad_h + outside, q * g.stride_w - g.pad_w
            smem.store_quad(table + row * ROW_ENTRY_BYTES, (n, h, w, d))

    @device
    def load_activation(params: Params, table: int, stage: int, place: Ints, thread: int) -> None:
        g, call, (group, _, t, r, s, c) = params.geometry, params.call, place
        chunk = thread % chunks
        channel = c + chunk * per_chunk
        source = call.x + (group * g.C + channel) * call.x_c
        for first in range(0, tile_m, rows_at_once):
            row = first + thread // chunks
            n, h, w, d = smem.load16(table + row * ROW_ENTRY_BYTES)
            h, present = row_of(g, d, h, t, r)
            w = place_in(w + s * g.dilation_w, g.W)
            inside = present & (w >= 0) & (w < g.W)
            at = source + n * call.x_n + h * call.x_h + w * call.x_w
            to = walk.swizzle(stage + row * row_bytes + chunk * 16, mask)
            copy_chunk(to, at, call.x, call.x_c, (g.C - channel) * inside)

    @device
    def load_folded(params: Params, table: int, stage: int, place: Ints, thread: int) -> None:
        """Columns are elements, and those outside the image begin or end inside a chunk."""
        g, call, (_, _, t, r, _, c) = params.geometry, params.call, place
        chunk = thread % chunks
        channel = c + chunk * per_chunk
        for first in range(0, tile_m, rows_at_once):
            row = first + thread // chunks
            n, h, w, d = smem.load16(table + row * ROW_ENTRY_BYTES)
            h, inside = row_of(g, d, h, t, r)
            column = w + channel
            at = call.x + n * call.x_n + h * call.x_h + column * call.x_c
            to = walk.swizzle(stage + row * row_bytes + chunk * 16, mask)
            end = min(g.C - channel, g.W - column) * inside
            copy_part(to, at, call.x, call.x_c, -column, end)

    if v.folded:
        load_activation = load_folded

    @device
    def load_filter(params: Params, stage: int, panel: int, place: Ints, thread: int) -> None:
        g, call, (group, filter_row, _, _, s, c) = params.geometry, params.call, place
        chunk = thread % chunks
        channel = c + chunk * per_chunk
        source = call.w + filter_row * call.w_r + s * call.w_s + channel * call.w_c
        for first in range(0, tile_n, rows_at_once):
            row = first + thread // chunks
            k = panel * tile_n + row
            at = source + (group * g.K + k) * call.w_k
            to = walk.swizzle(stage + row * row_bytes + chunk * 16, mask)
            copy_chunk(to, at, call.w, call.w_c, (g.C - channel) * (k < g.K))

    @device
    def produce(params: Params, base: int, rings: Rings, producer: int) -> None:
        g, call, (a_ring, b_ring) = params.geometry, params.call, rings
        thread = producer * 32 + warp.lane()
        table = base + call.rows_at
        stage, parity = 0, 0
        tile = warp.block()
        while tile < call.tiles:
            group, tile_m_index, panel = raster.tile_at(call, tile)
            # All warps have read the table of the last tile.
            warp.sync_named(TABLE_BARRIER, threads)
            write_row_table(params, table, tile_m_index, thread)
            warp.sync_named(TABLE_BARRIER, threads)
            for row in range(rows(g)):
                t, r = filter_plane(g, row)
                for s in range(g.S):
                    for block in range(call.k_blocks):  # one of zeros if C is 0
                        place = group, row, t, r, s, block * tile_c
                        ring.wait_empty(a_ring, stage, parity)
                        a, b = ring.address(a_ring, stage), ring.address(b_ring, stage)
                        load_activation(params, table, a, place, thread)
                        load_filter(params, b, panel, place, thread)
                        finish(ring.full(a_ring, stage))
                        stage, parity = ring.advance(a_ring, stage, parity)
            tile += warp.blocks()

    return produce


def make_row(v: Variant) -> Any:
    """row(g, d, h, t, r): (the row of x that a filter row reads, whether it is inside).

    The window begins at row h of plane d. Rows are counted through all planes of an image.
    """
    place_in = make_place_in(v.padding_mode)

    @device
    def row(g: Geometry, d: int, h: int, t: int, r: int) -> tuple[int, bool]:
        h = place_in(h + r * g.dilation_h, g.H)
        return h, (h >= 0) & (h < g.H)

    @device
    def volume_row(g: Geometry, d: int, h: int, t: int, r: int) -> tuple[int, bool]:
        d, (h, inside) = place_in(d + t * g.dilation_d, g.D), row(g, d, h, t, r)
        return d * g.H + h, inside & (d >= 0) & (d < g.D)

    return volume_row if v.volume else row


def make_place_in(padding_mode: int) -> Any:
    """place_in(position, size): the pixel of an axis that a load reads; zeros are read outside.

    A position is less than a whole axis away from its pixels, or else that of a row that is not
    kept.
    """
    if padding_mode == ZEROS:
        return device(lambda position, size: position)
    if padding_mode == CIRCULAR:
        turned = device(lambda p, size: p + size * ((p < 0) - (p >= size)))
    elif padding_mode == REPLICATE:
        turned = device(lambda p, size: min(max(p, 0), size - 1))
    else:
        edge = padding_mode == SYMMETRIC  # the first pixel is repeated, too

        @device
        def turned(p: int, size: int) -> int:
            p = max(p, -edge - p)
            return min(p, 2 * size - 2 + edge - p)

    return device(lambda position, size: turned(position, size) if position > NEVER else position)


@functools.cache
def make_copy_chunk(v: Variant) -> Any:
    """(copy_chunk, finish): copy 16 bytes of a row; report that a thread's copies are complete.

    copy_chunk(to, at, base, step, count) copies `count` elements that are `step` bytes apart from
    global address `at` to shared address `to`, and fills the rest with zeros. `base` is a valid
    address for the case that there is nothing to read.
    """
    copy_part = make_copy_part(v)

    @device
    def copy_async(to: int, at: int, base: int, step: int, count: int) -> None:
        """The source is aligned to 16 bytes; a chunk is read as a whole or not at all."""
        present = count > 0
        smem.copy_quad(to, base + (at - base) * present, 16 * present)

    @device
    def copy_first(to: int, at: int, base: int, step: int, count: int) -> None:
        copy_part(to, at, base, step, 0, count)

    @device
    def finish_elements(barrier: int) -> None:
        mbarrier.arrive(barrier, 1)

    if v.producer == "elements":
        return copy_first, finish_elements
    copy = copy_async if v.copy_bytes == VECTOR_BYTES else copy_first
    return copy, mbarrier.arrive_after_copies


@functools.cache
def make_copy_part(v: Variant) -> Any:
    """copy_part(to, at, base, step, start, end): copy elements `start` to `end` of a chunk.

    The other elements are zeros. `base` is a valid address, as of `make_copy_chunk`.
    """
    return make_copy_words(v) if v.copy_bytes < VECTOR_BYTES else make_copy_elements(v)


def make_copy_words(v: Variant) -> Any:
    """`make_copy_part` by copies of 4 or 8 bytes.

    The address, all strides and the bytes of a pixel's channels are multiples of `copy_bytes`. So
    `start` and `end` are, too, and a copy is read as a whole or not at all. Lanes whose chunks are
    in the same banks begin with different parts of these.
    """
    size, elements = v.copy_bytes, v.copy_bytes // v.itemsize
    copies = VECTOR_BYTES // size
    copy = smem.copy_words(size)

    @device
    def copy_words(to: int, at: int, base: int, step: int, start: int, end: int) -> None:
        first = warp.lane() // BANK_LANES % copies
        for number in range(copies):
            part = number ^ first
            present = (start <= part * elements) & (part * elements < end)
            source = base + (at + part * size - base) * present
            copy(to + part * size, source, size * present)

    return copy_words


def make_copy_elements(v: Variant) -> Any:
    """`make_copy_part` from any source. Each element goes through a register.

    That is slower than cp.async.
    """
    itemsize = v.itemsize
    load = gmem.load(itemsize, True)

    @device
    def element(at: int, step: int, start: int, end: int, number: int) -> Any:
        return load(at + number * step, (start <= number) & (number < end))

    @device
    def word(at: int, step: int, start: int, end: int, number: int) -> Any:
        """Four bytes of the chunk, which begin with the given element."""
        bits = element(at, step, start, end, number)
        if itemsize == 4:
            return bits
        return bits | element(at, step, start, end, number + 1) << 16

    @device
    def copy_elements(to: int, at: int, base: int, step: int, start: int, end: int) -> None:
        words = (
            word(at, step, start, end, 0),
            word(at, step, start, end, 4 // itemsize),
            word(at, step, start, end, 8 // itemsize),
            word(at, step, start, end, 12 // itemsize),
        )
        smem.store_quad(to, words)

    return copy_elements
