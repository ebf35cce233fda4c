"""Staging for kernels by rows: rows of x and the filters of a panel, from global to shared memory.

A staged pixel has four channels of 16 bits, of which those past the last are zeros. A thread loads
and stores a group of four neighbouring pixels that begins at a column of x divisible by four, so
where rows are whole groups each is inside the image or outside. The first window of a row begins a
group after the row's start, and a group may begin up to three pixels before it.

Rows of x are stages of a ring by their slot, and those of a tile follow each other. A filter row is
a row of 64 or 128 bytes for each filter, swizzled like a stage of B.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from implicit_conv.kernels import walk as plain_walk
from implicit_conv.kernels.gpu import gmem, smem, vector
from implicit_conv.kernels.gpu.call import Ints, Params, reciprocal
from implicit_conv.kernels.gpu.integer import below, divide
from implicit_conv.kernels.gpu.ptx import device, device_module
from implicit_conv.kernels.gpu.variant import (
    STAGED_BYTES,
    STAGED_CHANNELS,
    STAGED_TOGETHER,
    STEP_PIXELS,
)

walk = device_module(plain_walk)
GROUP_BYTES = STAGED_TOGETHER * STAGED_BYTES
NOWHERE = -(1 << 30)  # rows: above any image


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


def make_load_item(v: Any) -> Any:
    """load_item(params, start, item): the item-th group of rows that begin at (address, h, w)."""
    (load, _), split = make_group(v), make_split(v)

    @device
    def load_item(params: Params, start: Ints, item: int) -> Any:
        call, (address, h, w) = params.call, start
        row, group = split(item)
        here = address + (row * call.x_h + group * (STAGED_TOGETHER * call.x_w))
        return load(params, here, h + row, w + STAGED_TOGETHER * group)

    return load_item


def make_stage_rows(v: Any) -> Any:
    """stage_rows(params, images, place, slot, thread): all rows that a tile reads."""
    band = v.band
    load, (_, pixels) = make_load_item(v), make_group(v)
    source, split, store = make_source(v), make_split(v), make_store_group(v)
    items, threads = band.staged * band.groups(v.row_columns), v.threads

    @device
    def stage_rows(params: Params, images: int, place: Ints, slot: int, thread: int) -> None:
        address, h, w, at = source(params, place)
        item = thread
        while item < items:
            row, group = split(item)
            words = load(params, (address, h, w), item)
            store(images, slot + row, at + group * GROUP_BYTES, pixels(words))
            item += threads

    return stage_rows


def make_fetch(v: Any) -> Any:
    """fetch(params, place, here, thread, lane): a thread's groups of the rows that a tile adds.

    Nothing is read unless `here`.
    """
    band = v.band
    source, load, threads = make_source(v), make_load_item(v), v.threads
    items, before = band.fresh * band.groups(v.row_columns), band.staged - band.fresh
    nothing = (np.uint32(0),) * (
        2 * (STAGED_TOGETHER if v.producer == "elements" else band.channels)
    )

    def make_round(first: int) -> Any:
        if first >= items:
            return device(lambda params, start, first_thread, thread: ())
        rest = make_round(first + threads)

        @device
        def fetch(params: Params, start: Ints, first_thread: int, thread: int) -> Any:
            words = nothing
            if first + first_thread < items:
                words = load(params, start, first + thread)
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
