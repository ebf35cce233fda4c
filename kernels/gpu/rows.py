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
finite, so the fragment is zero as well.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from implicit_conv.kernels import walk as plain_walk
from implicit_conv.kernels.gpu import blob, gmem, mma, smem, vector, warp
from implicit_conv.kernels.gpu.call import Ints, Params, reciprocal
from implicit_conv.kernels.gpu.direct import share
from implicit_conv.kernels.gpu.epilogue import make_store_chunks, make_writer
from implicit_conv.kernels.gpu.integer import below, divide
from implicit_conv.kernels.gpu.ptx import device, device_module, shared_base
from implicit_conv.kernels.gpu.variant import (
    STAGED_BYTES,
    STAGED_CHANNELS,
    STAGED_TOGETHER,
    STEP_PIXELS,
)

walk = device_module(plain_walk)
smem_base = shared_base()
STEP_BYTES = STEP_PIXELS * STAGED_BYTES
GROUP_BYTES = STAGED_TOGETHER * STAGED_BYTES
NOWHERE = -(1 << 30)  # rows: above any image


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


def make_stage_filters(v: Any) -> Any:
    """stage_filters(params, at, panel, thread): the filters of a panel, a row for each filter row.

    Columns past the filter row, channels past the last and filters past K are zeros.
    """
    band, tile_n, pitch, threads = v.band, v.tile_n, v.row_bytes, v.threads
    S, columns = band.kernel[1], band.steps * STEP_PIXELS
    items = band.kernel[0] * tile_n * columns
    mask = plain_walk.swizzle_mask(pitch)
    channel = [make_channel(band.channels, number) for number in range(STAGED_CHANNELS)]
    first, second, third, fourth = channel

    @device
    def stage_filters(params: Params, at: int, panel: int, thread: int) -> None:
        g, call = params.geometry, params.call
        item = thread
        while item < items:
            row, column = item // columns, item % columns
            r, number = row // tile_n, row % tile_n
            k = panel * tile_n + number
            here = (k < g.K) & (column < S)
            place = call.w + k * call.w_k + r * call.w_r + column * call.w_s
            low = first(place, call.w_c, here) | second(place, call.w_c, here) << 16
            high = third(place, call.w_c, here) | fourth(place, call.w_c, here) << 16
            to = walk.swizzle(at + row * pitch + column * STAGED_BYTES, mask)
            smem.store_words(to, (low, high))
            item += threads

    return stage_filters


@functools.cache
def make_channel(channels: int, number: int) -> Any:
    """channel(at, step, here): the bits of a channel of the pixel at `at`, or zero."""
    if number >= channels:
        return device(lambda at, step, here: np.uint32(0))
    load = gmem.load(2, True)
    return device(lambda at, step, here: load(at + number * step, here))


@functools.cache
def make_group(v: Any) -> tuple[Any, Any]:
    """(load, pixels): load(params, at, h, w) loads a group of pixels of row h from address `at`.

    It begins at column w, a multiple of four; pixels(words) are two words of each pixel. What is
    outside the image is zero.
    """
    if v.producer == "elements":
        return make_load_elements(v.band.channels), device(lambda words: words)
    planar = v.producer == "planes"
    return make_load_words(v.band.channels, planar), make_pixels(v.band.channels, planar)


def make_load_elements(channels: int) -> Any:
    """The `load` of `make_group` for any strides: its words are those of the pixels."""
    first, second, third, fourth = (make_channel(channels, c) for c in range(STAGED_CHANNELS))

    @device
    def pixel(call: Any, at: int, here: bool) -> Any:
        step = call.x_c
        low = first(at, step, here) | second(at, step, here) << 16
        high = third(at, step, here) | fourth(at, step, here) << 16
        return low, high

    @device
    def load(params: Params, at: int, h: int, w: int) -> Any:
        g, call = params.geometry, params.call
        limit = below(h, g.H, g.W)
        return (
            pixel(call, at, (w >= 0) & (w < limit))
            + pixel(call, at + call.x_w, (w >= -1) & (w + 1 < limit))
            + pixel(call, at + 2 * call.x_w, (w >= -2) & (w + 2 < limit))
            + pixel(call, at + 3 * call.x_w, (w >= -3) & (w + 3 < limit))
        )

    return load


def make_load_words(channels: int, planar: bool) -> Any:
    """The `load` of `make_group`, 8 bytes at a time: two words of each channel."""
    parts = make_load_parts(channels, planar)

    @device
    def load(params: Params, at: int, h: int, w: int) -> Any:
        g = params.geometry
        return parts(at, params.call.x_c, w, below(h, g.H, g.W))

    return load


@functools.cache
def make_load_parts(count: int, planar: bool) -> Any:
    """parts(at, step, w, limit): `count` loads of 8 bytes, from neighbours or from planes."""
    load = vector.load(8)
    if count == 1:
        return device(lambda at, step, w, limit: load(at, w, limit))
    before, last = make_load_parts(count - 1, planar), count - 1

    @device
    def parts(at: int, step: int, w: int, limit: int) -> Any:
        place = at + last * step if planar else at + last * 8
        return before(at, step, w, limit) + load(place, w, limit)

    return parts


def make_pixels(channels: int, planar: bool) -> Any:
    """pixels(words): the staged words of four pixels, from the words of `make_load_words`."""

    @functools.cache
    def make_half(pixel: int, channel: int) -> Any:
        if channel >= channels:
            return device(lambda words: np.uint32(0))
        number = STAGED_TOGETHER * channel + pixel if planar else channels * pixel + channel
        word, shift = number // 2, np.uint32(number % 2 * 16)
        return device(lambda words: np.uint32(words[word] >> shift & np.uint32(0xFFFF)))

    def make_rest(pixel: int) -> Any:
        if pixel == STAGED_TOGETHER:
            return device(lambda words: ())
        first, second, third, fourth = (make_half(pixel, c) for c in range(STAGED_CHANNELS))
        rest = make_rest(pixel + 1)

        @device
        def pixels(words: Ints) -> Any:
            low = np.uint32(first(words) | second(words) << np.uint32(16))
            high = np.uint32(third(words) | fourth(words) << np.uint32(16))
            return (low, high, *rest(words))

        return pixels

    return make_rest(0)


def make_source(v: Any) -> Any:
    """source(params, place): (address, h, w, at) of a tile's first group.

    `at` is the place of its first pixel in a staged row, whose first window begins a group further
    on.
    """
    stride_h, stride_w = v.band.stride

    @device
    def source(params: Params, place: Ints) -> Ints:
        g, call, (_, n, p, q) = params.geometry, params.call, place
        h, left = p * stride_h - g.pad_h, q * stride_w - g.pad_w
        w = left & -STAGED_TOGETHER
        address = call.x + n * call.x_n + h * call.x_h + w * call.x_w
        return address, h, w, (w - left) * STAGED_BYTES + GROUP_BYTES

    return source


def make_split(v: Any) -> Any:
    """split(item): (row, group) of the item-th group of rows."""
    groups = v.band.groups(v.row_columns)
    by_groups = np.uint64(reciprocal(groups))

    @device
    def split(item: int) -> tuple[int, int]:
        row = divide(item, by_groups)
        return row, item - row * groups

    return split


def make_stage_rows(v: Any) -> Any:
    """stage_rows(params, images, place, slot, thread): all rows that a tile reads."""
    band = v.band
    load, pixels = make_group(v)
    source, split, store = make_source(v), make_split(v), make_store_group(v)
    items, threads = band.staged * band.groups(v.row_columns), v.threads

    @device
    def stage_rows(params: Params, images: int, place: Ints, slot: int, thread: int) -> None:
        call = params.call
        address, h, w, at = source(params, place)
        item = thread
        while item < items:
            row, group = split(item)
            here = address + (row * call.x_h + group * (STAGED_TOGETHER * call.x_w))
            words = load(params, here, h + row, w + STAGED_TOGETHER * group)
            store(images, slot + row, at + group * GROUP_BYTES, pixels(words))
            item += threads

    return stage_rows


def make_fetch(v: Any) -> Any:
    """fetch(params, place, here, thread, lane): a thread's groups of the rows that a tile adds.

    Nothing is read unless `here`.
    """
    band = v.band
    load, _ = make_group(v)
    source, split, threads = make_source(v), make_split(v), v.threads
    items, before = band.fresh * band.groups(v.row_columns), band.staged - band.fresh
    nothing = (np.uint32(0),) * (
        2 * (STAGED_TOGETHER if v.producer == "elements" else band.channels)
    )

    def make_round(first: int) -> Any:
        if first >= items:
            return device(lambda params, start, warp, thread: ())
        rest = make_round(first + threads)

        @device
        def fetch(params: Params, start: Ints, first_thread: int, thread: int) -> Any:
            call, (address, h, w) = params.call, start
            words = nothing
            if first + first_thread < items:
                row, group = split(first + thread)
                here = address + (row * call.x_h + group * (STAGED_TOGETHER * call.x_w))
                words = load(params, here, h + row, w + STAGED_TOGETHER * group)
            return words + rest(params, start, first_thread, thread)

        return fetch

    rounds = make_round(0)

    @device
    def fetch(params: Params, place: Ints, here: bool, thread: int, lane: int) -> Any:
        address, h, w, _ = source(params, place)
        h += before if here else NOWHERE
        start = address + before * params.call.x_h, h, w
        return rounds(params, start, thread - lane, thread)

    return fetch


def make_put(v: Any) -> Any:
    """put(images, words, params, place, slot, thread): stage what `fetch` has loaded."""
    band = v.band
    _, pixels = make_group(v)
    source, split, store = make_source(v), make_split(v), make_store_group(v)
    items, threads = band.fresh * band.groups(v.row_columns), v.threads
    count = 2 * (STAGED_TOGETHER if v.producer == "elements" else band.channels)

    def make_round(first: int) -> Any:
        if first >= items:
            return device(lambda images, words, at, slot, thread: None)
        rest = make_round(first + threads)

        @device
        def put(images: int, words: Ints, at: int, slot: int, thread: int) -> None:
            item = first + thread
            if item < items:
                row, group = split(item)
                store(images, slot + row, at + group * GROUP_BYTES, pixels(words[:count]))
            rest(images, words[count:], at, slot, thread)

        return put

    rounds = make_round(0)

    @device
    def put(images: int, words: Ints, params: Params, place: Ints, slot: int, thread: int) -> None:
        _, _, _, at = source(params, place)
        rounds(images, words, at, slot, thread)

    return put


def make_store_group(v: Any) -> Any:
    """store_group(images, slot, at, words): four pixels in each copy of a staged row."""
    pitch, held = v.band.pitch(v.row_columns), v.band.held
    second = v.band.held * pitch - STAGED_BYTES if v.band.copies == 2 else 0

    @device
    def store_group(images: int, slot: int, at: int, words: Ints) -> None:
        slot -= held * (slot >= held)
        to = images + slot * pitch + at
        smem.store_words(to, words[:2])
        smem.store_words(to + STAGED_BYTES, words[2:4])
        smem.store_words(to + 2 * STAGED_BYTES, words[4:6])
        smem.store_words(to + 3 * STAGED_BYTES, words[6:])
        if second:
            smem.store_words(to + second, words[:2])
            smem.store_words(to + second + STAGED_BYTES, words[2:4])
            smem.store_words(to + second + 2 * STAGED_BYTES, words[4:6])
            smem.store_words(to + second + 3 * STAGED_BYTES, words[6:])

    return store_group


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
