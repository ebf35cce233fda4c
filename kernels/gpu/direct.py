"""fprop on the CUDA cores: depthwise convolutions and groups of few channels.

GEMM mapping: none. A group of few channels would fill a small part of a matrix instruction, so each
thread multiplies by float32 fma:

    thread   neighbouring filters (16 bytes of y, or one filter) x pixels along W; accumulators,
             and the pixels of x that one filter row needs, are in registers
    warp     neighbouring vectors of a panel, then neighbouring strips: whole sectors
    block    a panel of neighbouring filters, whose taps are staged in shared memory as float32;
             its tiles are neighbours, so filter rows find the pixels of the rows above in L1

    for tile of this block:                      # a panel's tiles follow each other
        if the panel is a new one: stage its filters
        for filter row, column block:
            load pixels -> acc += pixels x taps
        epilogue -> y
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from implicit_conv.kernels.gpu import blob, fragment, gmem, raster, smem, vector, warp
from implicit_conv.kernels.gpu.call import Floats, Ints, Params
from implicit_conv.kernels.gpu.epilogue_math import make_epilogue_math
from implicit_conv.kernels.gpu.integer import divide, quotient
from implicit_conv.kernels.gpu.ptx import device, shared_base
from implicit_conv.kernels.gpu.sizes import PAIR_BYTES, VECTOR_BYTES
from implicit_conv.kernels.gpu.store_elements import make_element_math

smem_base = shared_base()
WORD = 4  # bytes of a staged tap


@functools.cache
def make_direct(v: Any) -> Any:
    """The kernel of variant `v`; its one argument is the params blob."""
    stage, sum_strip, store_strip = make_stage(v), make_sum_strip(v), make_store_strip(v)
    tile_n, filters, quad = v.tile_n, v.filters, v.quad
    vectors = tile_n // filters
    tile_strips, pixels = v.threads // vectors, v.strip.pixels

    def direct(argument: Any) -> None:
        params, base = blob.unpack(argument), smem_base()
        g, call = params.geometry, params.call
        thread = warp.index() * 32 + warp.lane()
        weights = base + thread % vectors * quad * WORD
        tile, end = share(call.tiles)
        staged = -1
        while tile < end:
            panel, tile_m, _ = raster.tile_at(call, tile)
            if panel != staged:
                warp.sync_block()  # all threads have used the filters of the last panel
                stage(params, base, panel, thread)
                warp.sync_block()
                staged = panel
            k = panel * tile_n + thread % vectors * filters
            m = tile_m * tile_strips + thread // vectors
            n = divide(m, call.by_image)
            m -= n * (g.P * call.row_tiles)
            p = divide(m, call.by_row)
            q = (m - p * call.row_tiles) * pixels
            kept = (n < g.N) & (k < g.groups * g.K)
            acc = sum_strip(params, weights, n, p, q, k, kept)
            store_strip(params, weights, n, p, q, k, kept, acc)
            tile += 1

    return direct


@device
def share(tiles: int) -> tuple[int, int]:
    """(first, end) of this block's tiles, which are neighbours."""
    block, blocks = warp.block(), warp.blocks()
    each = quotient(tiles, blocks)
    longer = tiles - each * blocks  # so many blocks have one more
    first = block * each + min(block, longer)
    return first, first + each + (block < longer)


def make_stage(v: Any) -> Any:
    """stage(params, base, panel, thread): the taps and biases of a panel as float32 words.

    Row (r * S + s) * group_c + c has a word for each filter of the panel, the next row the biases,
    and the last one the scales. Quads of neighbouring filters that are as far apart as the filters
    of a thread are neighbours, so lanes that read theirs meet different banks.
    """
    tile_n, filters, quad, itemsize = v.tile_n, v.filters, v.quad, v.itemsize
    group_c = v.strip.group_c
    half = tile_n * quad // filters  # words between the quads of a thread
    rows_at_once = v.threads // tile_n
    load, to_float = gmem.load(itemsize, True), gmem.to_float(v.dtype)
    stage_bias = device(lambda at, bias, k, here: None)
    if v.scaled:
        load_pair, row_bytes = gmem.load_pair(True), tile_n * WORD

        @device
        def stage_bias(at: int, bias: int, k: int, here: bool) -> None:
            scale, shift = load_pair(bias + k * PAIR_BYTES, here)
            smem.store_float(at, shift)
            smem.store_float(at + row_bytes, scale)

    elif v.biased:

        @device
        def stage_bias(at: int, bias: int, k: int, here: bool) -> None:
            smem.store_float(at, to_float(load(bias + k * itemsize, here)))

    @device
    def stage(params: Params, base: int, panel: int, thread: int) -> None:
        g, call = params.geometry, params.call
        word = thread % tile_n
        k = panel * tile_n + word % half // quad * filters + word // half * quad + word % quad
        here = k < g.groups * g.K
        at = base + word * WORD
        rows = g.R * g.S * group_c
        for row in range(thread // tile_n, rows, rows_at_once):
            tap = row // group_c
            r = quotient(tap, g.S)
            s, c = tap - r * g.S, row - tap * group_c
            source = call.w + k * call.w_k + r * call.w_r + s * call.w_s + c * call.w_c
            smem.store_float(at + row * tile_n * WORD, to_float(load(source, here)))
        if thread < tile_n:
            stage_bias(at + rows * tile_n * WORD, call.bias, k, here)

    return stage


def make_sum_strip(v: Any) -> Any:
    """sum_strip(params, weights, n, p, q, k, kept): the accumulators of a strip, by pixels."""
    strip, filters = v.strip, v.filters
    columns, group_c, group_k = strip.columns, strip.group_c, strip.group_k
    load_row = make_load_row(v, strip.positions)
    multiply = vector.multiply(strip, filters, v.tile_n)
    zeros = (np.float32(0),) * (strip.pixels * filters)
    tap_bytes = group_c * v.tile_n * WORD
    compiled = columns > 1  # positions are columns of x, not output pixels

    @device
    def sum_strip(params: Params, weights: int, n: int, p: int, q: int, k: int, kept: bool) -> Any:
        g, call = params.geometry, params.call
        image = call.x + n * call.x_n + k // group_k * group_c * call.x_c
        step = 1 if compiled else g.stride_w
        acc = zeros
        for r in range(g.R):
            h = p * g.stride_h - g.pad_h + r * g.dilation_h
            limit = g.W * ((h >= 0) & (h < g.H) & kept)
            for s in range(0, g.S, columns):
                w = q * g.stride_w - g.pad_w + s * g.dilation_w
                at = image + h * call.x_h + w * call.x_w
                row = load_row(at, step * call.x_w, call.x_c, w, step, limit)
                acc = multiply(acc, row, weights + (r * g.S + s) * tap_bytes)
        return acc

    return sum_strip


@functools.cache
def make_load_row(v: Any, positions: tuple[int, ...]) -> Any:
    """load_row(at, distance, x_c, w, step, limit): float32 values of pixels, by position.

    Position i is in column w + i * step, at address `at` + i * distance; it is zero where its
    column is not below `limit`.
    """
    load_pixel, position = make_load_pixel(v), positions[0]
    rest = device(lambda at, distance, x_c, w, step, limit: ())
    if len(positions) > 1:
        rest = make_load_row(v, positions[1:])

    @device
    def load_row(at: int, distance: int, x_c: int, w: int, step: int, limit: int) -> Any:
        first = load_pixel(at + position * distance, x_c, w + position * step, limit)
        return first + rest(at, distance, x_c, w, step, limit)

    return load_row


@functools.cache
def make_load_pixel(v: Any, part: int = 0) -> Any:
    """load_pixel(at, x_c, w, limit): the channels of a pixel that the thread's filters read."""
    channels, elements = v.strip.channels(v.filters), v.load_elements
    load, widen = vector.load(elements * v.itemsize), fragment.widen(v.dtype, v.load_words)
    number, vectors = part * elements, v.producer == "vectors"
    offset = part * VECTOR_BYTES
    rest = device(lambda at, x_c, w, limit: ())
    if number + elements < channels:
        rest = make_load_pixel(v, part + 1)

    @device
    def load_pixel(at: int, x_c: int, w: int, limit: int) -> Any:
        place = at + (offset if vectors else part * x_c)
        return widen(load(place, w, limit))[:elements] + rest(at, x_c, w, limit)

    return load_pixel


def make_store_strip(v: Any) -> Any:
    """store_strip(params, weights, n, p, q, k, kept, acc): the epilogue of a strip."""
    store_pixels = make_store_pixels(v) if v.producer == "vectors" else make_store_elements(v)
    load_bias, load_residuals = make_load_bias(v), make_load_residuals(v, v.strip.pixels)

    @device
    def store_strip(
        params: Params, weights: int, n: int, p: int, q: int, k: int, kept: bool, acc: Floats
    ) -> None:
        g, call = params.geometry, params.call
        y = call.y + n * call.y_n + p * call.y_p + q * call.y_q + k * call.y_k
        residual = call.residual + n * call.residual_n + p * call.residual_p
        residual += q * call.residual_q
        left = (g.Q - q) * kept  # pixels that are stored
        bias = load_bias(params, weights)
        added = load_residuals(residual + k * call.residual_k, call.residual_q, left)
        store_pixels(params, (y, residual, k, left), bias, added, acc)

    return store_strip


def make_load_bias(v: Any) -> Any:
    """load_bias(params, weights): the staged biases of a thread's filters, or nothing; where values
    are scaled, then their scales.
    """
    if not v.biased or v.producer == "elements":
        return device(lambda params, weights: ())
    row_bytes, group_c = v.tile_n * WORD, v.strip.group_c
    load = smem.load_quads(v.filters // v.quad, row_bytes * v.quad // v.filters)
    load_scales = load if v.scaled else device(lambda at: ())

    @device
    def load_bias(params: Params, weights: int) -> Any:
        g = params.geometry
        at = weights + g.R * g.S * group_c * row_bytes
        return load(at) + load_scales(at + row_bytes)

    return load_bias


@functools.cache
def make_load_residuals(v: Any, pixels: int) -> Any:
    """load_residuals(at, step, left): 4 words of each pixel of which `left` is more, or nothing.

    All are loaded before the first pixel of y is stored, so that their latencies overlap.
    """
    if not v.residual or v.producer == "elements":
        return device(lambda at, step, left: ())
    if pixels == 1:
        return device(lambda at, step, left: gmem.load_quad(at, left > 0))
    before, last = make_load_residuals(v, pixels - 1), pixels - 1

    @device
    def load_residuals(at: int, step: int, left: int) -> Any:
        return before(at, step, left) + gmem.load_quad(at + last * step, left > last)

    return load_residuals


@functools.cache
def make_store_pixels(v: Any, pixel: int = 0) -> Any:
    """store_pixels(params, place, bias, added, acc): 16 bytes of each pixel.

    `place` is (address of the first pixel of y, of the residual, first filter, pixels to store).
    """
    filters, words = v.filters, VECTOR_BYTES // 4
    add_bias = fragment.scale(filters) if v.scaled else fragment.add(filters)
    epilogue_math = make_epilogue_math(v, filters, add_bias)
    pack, widen = fragment.pack(v.dtype, words), device(lambda words: ())
    if v.residual:
        widen = fragment.widen(v.dtype, words)
    rest = device(lambda params, place, bias, added, acc: None)
    if pixel + 1 < v.strip.pixels:
        rest = make_store_pixels(v, pixel + 1)

    @device
    def store(params: Params, place: Ints, bias: Floats, added: Floats, acc: Floats) -> None:
        y, _, _, left = place
        values = epilogue_math(params, acc[:filters], bias, widen(added[:words]))
        gmem.store_quad(y + pixel * params.call.y_q, pack(values), left > pixel)
        rest(params, place, bias, added[words:], acc[filters:])

    return store


@functools.cache
def make_store_elements(v: Any, pixel: int = 0) -> Any:
    """store_pixels(params, place, bias, added, acc): one element of each pixel.

    `place` is that of `make_store_pixels`; biases and residuals are loaded here.
    """
    element_math, store_bits = make_element_math(v), gmem.store(v.itemsize)
    rest = device(lambda params, place, bias, added, acc: None)
    if pixel + 1 < v.strip.pixels:
        rest = make_store_elements(v, pixel + 1)

    @device
    def store(params: Params, place: Ints, bias: Floats, added: Floats, acc: Floats) -> None:
        call, (y, residual, k, left) = params.call, place
        kept, source = left > pixel, residual + pixel * call.residual_q
        store_bits(y + pixel * call.y_q, element_math(params, acc[0], source, kept, k), kept)
        rest(params, place, bias, added, acc[1:])

    return store
