"""fprop by rows: layers of at most four channels, such as the first of a network.

GEMM mapping: A = activation, gemm_m = output pixels of a row; B = filter, gemm_n = K; gemm_k = a
filter row, each of its pixels padded with zeros to four channels. No load can have several taps of
so few channels as they lie in memory, so rows of x are staged once, pixels padded, and the windows
of neighbouring output pixels overlap there:

    staged row      0 1 2 3 4 5 6 7 8 9 ...      a pixel has 8 bytes
    pixel q         [-------------]              with stride 2 windows begin 16 bytes apart, where
    pixel q + 1         [-------------]          ldmatrix can read them

A block keeps the filters of a panel, and walks down an image, so that a tile finds the rows that it
shares with the tile above. Its own are loaded into registers before the tile above is multiplied,
and staged after that:

    for tile of this block:
        load the rows that the next tile adds        # into registers
        for filter row, step of 16 elements:
            acc += windows x filters
        stage these rows; epilogue -> y; barrier

The last step of a filter row may end past the window. There the filter is zero, but x need not be
finite, so the fragment is zero as well. staged_rows.py has what is staged, and how.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from implicit_conv.kernels import walk as plain_walk
from implicit_conv.kernels.gpu import blob, mma, smem, warp
from implicit_conv.kernels.gpu.call import Ints, Params, reciprocal
from implicit_conv.kernels.gpu.direct import share
from implicit_conv.kernels.gpu.epilogue import make_store_chunks, make_writer
from implicit_conv.kernels.gpu.integer import divide
from implicit_conv.kernels.gpu.ptx import device, device_module, shared_base
from implicit_conv.kernels.gpu.staged_rows import (
    GROUP_BYTES,
    make_fetch,
    make_put,
    make_stage_filters,
    make_stage_rows,
)
from implicit_conv.kernels.gpu.variant import STAGED_BYTES, STAGED_CHANNELS, STEP_PIXELS

walk = device_module(plain_walk)
smem_base = shared_base()
STEP_BYTES = STEP_PIXELS * STAGED_BYTES


@functools.cache
def make_rows(v: Any) -> Any:
    """The kernel of variant `v`; its one argument is the params blob."""
    band = v.band
    stage_filters, stage_rows = make_stage_filters(v), make_stage_rows(v)
    fetch, put = make_fetch(v), make_put(v)
    sum_tile, store_tile, locate = make_sum_tile(v), make_store_tile(v), make_locate(v)
    staged, fresh, held, staging_bytes = band.staged, band.fresh, band.held, v.staging_bytes

    def rows(argument: Any) -> None:
        params, base = blob.unpack(argument), smem_base()
        call, lane = params.call, warp.lane()
        index = warp.index()
        thread = index * 32 + lane
        filters, images = base + call.b_at, base
        staging = base + call.staging_at + index * staging_bytes
        tile, end = share(call.tiles)
        place = locate(params, tile)
        if tile < end:
            stage_filters(params, filters, place[0], thread)
            stage_rows(params, images, place, 0, thread)
        warp.sync_block()
        slot = 0
        while tile < end:
            after = locate(params, tile + 1)
            more = tile + 1 < end
            follows = more & (after[2] != 0)
            words = fetch(params, after, follows, thread, lane)
            acc = sum_tile(images, filters, slot, index, lane)
            if follows:
                put(images, words, params, after, slot + staged, thread)
            elif more:
                stage_rows(params, images, after, slot + staged, thread)
            store_tile(params, staging, place, index, lane, acc)
            if place[0] != after[0] and more:
                warp.sync_block()  # all have read the filters of the last panel
                stage_filters(params, filters, after[0], thread)
            slot += fresh if follows else staged
            slot -= held * (slot >= held)
            place = after
            warp.sync_block()
            tile += 1

    return rows


@functools.cache
def make_locate(v: Any) -> Any:
    """locate(params, tile): (panel, image, first output row, first column) of the tile-th tile.

    Rows vary fastest and panels slowest.
    """
    rows, columns = v.band.rows, v.row_columns
    by_rows, by_columns = np.uint64(reciprocal(rows)), np.uint64(reciprocal(columns))

    @device
    def locate(params: Params, tile: int) -> Ints:
        g, call = params.geometry, params.call
        down, across = divide(g.P + rows - 1, by_rows), divide(g.Q + columns - 1, by_columns)
        panel = divide(tile, call.by_panel)
        rest = tile - panel * call.tiles_m
        strip = divide(rest, call.by_row)
        n = divide(strip, call.by_image)
        return panel, n, (rest - strip * down) * rows, (strip - n * across) * columns

    return locate


def make_sum_tile(v: Any) -> Any:
    """sum_tile(images, filters, slot, index, lane): the accumulators of a warp's pixels.

    A warp has 16 output pixels of each row of the tile: neighbours, or every second of 32.
    """
    band, pitch, b_pitch = v.band, v.band.pitch(v.row_columns), v.row_bytes
    (R, S), (stride_h, stride_w), copies = band.kernel, band.stride, band.copies
    rows, steps, held, tile_n = band.rows, band.steps, band.held, v.tile_n
    second = held * pitch + (stride_w - 1) * STAGED_BYTES  # of windows at odd output pixels
    window = stride_w * STAGED_BYTES * copies  # bytes between the windows of a warp
    mask = plain_walk.swizzle_mask(b_pitch)
    load_a, load_b = smem.ldmatrix(1, 0), smem.ldmatrix(tile_n // 16, 16 * b_pitch)
    multiply, zeros = mma.multiply(v.dtype, rows, v.tiles_n), (np.float32(0),) * v.accumulators
    inside = S * STAGED_CHANNELS % 16 or 16  # elements of the last step that the window has
    keep = make_keep(rows)

    def make_windows(row: int) -> Any:
        """windows(at, first, offset): the fragments of a step for each output row."""
        if row == rows:
            return device(lambda at, first, offset: ())
        rest, down = make_windows(row + 1), row * stride_h

        @device
        def windows(at: int, first: int, offset: int) -> Any:
            slot = first + down
            slot -= held * (slot >= held)
            return load_a(at + slot * pitch + offset) + rest(at, first, offset)

        return windows

    windows = make_windows(0)

    @device
    def sum_tile(images: int, filters: int, slot: int, index: int, lane: int) -> Any:
        odd = index % copies
        pixel = 16 * (index // copies) + lane % 16
        at = images + GROUP_BYTES + odd * second + pixel * window + lane // 16 * 16
        b = filters + (lane % 8 + lane // 16 * 8) * b_pitch + lane // 8 % 2 * 16
        b = walk.swizzle(b, mask)  # filter rows are whole swizzle atoms apart
        low = np.uint32(0xFFFFFFFF) * np.uint32(lane % 4 * 2 < inside)
        high = np.uint32(0xFFFFFFFF) * np.uint32(lane % 4 * 2 + 8 < inside)
        acc = zeros
        for r in range(R):
            view = b + r * (tile_n * b_pitch)
            for step in range(steps - 1):
                a = windows(at, slot + r, step * STEP_BYTES)
                acc = multiply(acc, a, load_b(view ^ step * STEP_BYTES))
            last = windows(at, slot + r, (steps - 1) * STEP_BYTES)
            if inside < 16:
                last = keep(last, low, high)
            acc = multiply(acc, last, load_b(view ^ (steps - 1) * STEP_BYTES))
        return acc

    return sum_tile


def make_keep(rows: int) -> Any:
    """keep(a, low, high): fragments whose columns 0 to 7 and 8 to 15 are masked."""
    if rows == 0:
        return device(lambda a, low, high: ())
    rest = make_keep(rows - 1)

    @device
    def keep(a: Ints, low: int, high: int) -> Any:
        first = np.uint32(a[0] & low), np.uint32(a[1] & low)
        return (*first, np.uint32(a[2] & high), np.uint32(a[3] & high), *rest(a[4:], low, high))

    return keep


def make_store_tile(v: Any, row: int = 0) -> Any:
    """store_tile(params, staging, place, index, lane, acc): the epilogue, from an output row on."""
    copies, values, tile_n = v.band.copies, 4 * v.tiles_n, v.tile_n
    (locate, _), store_chunks = make_writer(v), make_store_chunks(v)
    rest = device(lambda params, staging, place, index, lane, acc: None)
    if row + 1 < v.band.rows:
        rest = make_store_tile(v, row + 1)

    @device
    def store(params: Params, staging: int, place: Ints, index: int, lane: int, acc: Any) -> None:
        panel, n, p, q = place
        q += 16 * (index - index % copies) + index % copies
        at = locate(params, (n, p + row, q), 0, lane)
        store_chunks(params, staging, at, 0, panel * tile_n, lane, acc[:values])
        rest(params, staging, place, index, lane, acc[values:])

    return store
