"""wgrad on NVIDIA GPUs: the gradient of a filter.

GEMM mapping: A = output grad, gemm_m = K; B = activation, gemm_n = R*S*C; C = filter grad; gemm_k =
N*P*Q in the order (n, p, q). The channels of a tap are padded to whole chunks of 16 bytes.

In memory the rows of both operands are pixels, so stages hold pixels too, and fragments come from
transposed loads. Pixels are cut into splits of equal numbers of k-blocks, so that there are enough
blocks for all multiprocessors. A block has one tile of one split:

    producer warps                            consumer warps
    for k-block of the split:                 for k-block of the split:
        wait empty; load dy, then x               wait full; acc += dy^T x; release
                                              acc -> the split's part of the workspace

A second kernel adds the parts in the order of the splits, and rounds to dw. Their number and sizes
are the plan's, so two runs have the same bits. Where x or dy cannot be loaded 16 bytes at a time,
kernels/gpu/image_copy.py may copy them before.

The gradient of a bias, db, is the sum of dy over all pixels. Where it is asked for, blocks of the
first columns also add up the stages of dy, 16 rows a warp, and the second kernel adds these sums.

In the Call, y is dy, w is dw, bias is db, and the workspace is at `residual`: float32
[split, K, R*S*C], then [K, split] of db.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from implicit_conv.kernels import walk as plain_walk
from implicit_conv.kernels.gpu import blob, gmem, mbarrier, mma, raster, ring, smem, tma, warp
from implicit_conv.kernels.gpu.call import Call, Floats, Ints, Params
from implicit_conv.kernels.gpu.consumer import make_warp_origin
from implicit_conv.kernels.gpu.integer import divide, quotient
from implicit_conv.kernels.gpu.producer import make_copy_chunk
from implicit_conv.kernels.gpu.ptx import device, device_module, shared_base
from implicit_conv.kernels.gpu.ring import Ring
from implicit_conv.kernels.gpu.sizes import ITEMSIZES, VECTOR_BYTES
from implicit_conv.kernels.gpu.wgrad_variant import (
    PANEL_BYTES,
    SplitSum,
    WgradVariant,
)

walk = device_module(plain_walk)
smem_base = shared_base()
PANEL_CHUNKS = PANEL_BYTES // VECTOR_BYTES


@functools.cache
def make_wgrad(v: WgradVariant) -> Any:
    """The kernel of variant `v`; its one argument is the params blob."""
    produce = make_tensor_produce(v) if v.producer == "tma" else make_produce(v)
    consume = make_consume(v)
    fence_init = mbarrier.fence_init if v.producer == "tma" else device(lambda: None)
    stage_bytes, consumer_warps, arrivals = v.stage_bytes, v.consumer_warps, v.arrivals

    def wgrad(argument: Any) -> None:
        params, base = blob.unpack(argument), smem_base()
        call, index = params.call, warp.index()
        stages = ring.Ring(base + call.barriers_at, base, stage_bytes, call.a_stages)
        if index == 0:
            ring.init(stages, arrivals, consumer_warps, warp.lane())
            fence_init()
        warp.sync_block()
        split = quotient(warp.block(), call.tiles)
        group, tile_m, panel = raster.tile_at(call, warp.block() - split * call.tiles)
        place = split, group, tile_m, panel
        if index < consumer_warps:
            consume(params, stages, place, index)
        else:
            produce(params, stages, place, index - consumer_warps)

    return wgrad


def make_columns(unit: int) -> Any:
    """columns(g): gemm_n columns of a tap, its channels padded to whole chunks."""

    @device
    def columns(g: Any) -> int:
        return (g.C + unit - 1) // unit * unit

    return columns


@device
def pixel(params: Params, m: int) -> tuple[int, int, int]:
    """(n, p, q) of an output pixel."""
    g, call = params.geometry, params.call
    n = divide(m, call.by_image)
    rest = m - n * (g.P * g.Q)
    p = divide(rest, call.by_row)
    return n, p, rest - p * g.Q


def make_tensor_produce(v: WgradVariant) -> Any:
    """produce(params, stages, place, producer): one lane issues tensor copies.

    A copy has 64 channels of the pixels of a k-block: of dy as it is, of x for a filter tap.
    """
    tile_m, tile_n, tile_k, channels = v.tile_m, v.tile_n, v.tile_k, v.panel
    panel_bytes, stage_bytes, a_bytes = v.panel_bytes, v.stage_bytes, v.a_bytes
    load, taps_of, load_taps = tma.load_im2col("im2col"), make_taps(v), make_load_taps(v)

    @device
    def produce(params: Params, stages: Ring, place: Ints, producer: int) -> None:
        g, call, (split, _, tile, panel) = params.geometry, params.call, place
        if not warp.elect():
            return
        taps = taps_of(params, panel * tile_n)
        stage, parity = 0, 0
        first = split * call.k_blocks * tile_k
        for _ in range(call.k_blocks):
            n, p, q = pixel(params, first)
            full, at = ring.full(stages, stage), ring.address(stages, stage)
            ring.wait_empty(stages, stage, parity)
            mbarrier.arrive_expect_tx(full, stage_bytes)
            for k in range(0, tile_m, channels):
                to = at + k // channels * panel_bytes
                load(to, params.filter_map, tile * tile_m + k, q, p, n, full, 0, 0)
            h, w = p * g.stride_h - g.pad_h, q * g.stride_w - g.pad_w
            load_taps(at + a_bytes, params.activation_map, (n, h, w), full, taps)
            stage, parity = ring.advance(stages, stage, parity)
            first += tile_k

    return produce


def make_taps(v: WgradVariant, panel: int = 0) -> Any:
    """taps(params, column): channel and offsets of w and h of each panel of a tile, in one tuple.

    `column` is the first one. Columns past the last tap have that one, and are not stored.
    """
    channels, columns = v.panel, make_columns(v.unit)
    rest = device(lambda params, column: ())
    if (panel + 1) * channels < v.tile_n:
        rest = make_taps(v, panel + 1)

    @device
    def taps(params: Params, column: int) -> Any:
        g = params.geometry
        number = quotient(column, columns(g))
        c = column - number * columns(g)
        number = min(number, g.R * g.S - 1)
        r = quotient(number, g.S)
        s = number - r * g.S
        return c, s * g.dilation_w, r * g.dilation_h, *rest(params, column + channels)

    return taps


def make_load_taps(v: WgradVariant, panel: int = 0) -> Any:
    """load_taps(at, map, pixel, barrier, taps): the copies of the panels of x, as `make_taps`."""
    panel_bytes, load = v.panel_bytes, tma.load_im2col("im2col")
    rest = device(lambda at, map, pixel, barrier, taps: None)
    if (panel + 1) * v.panel < v.tile_n:
        rest = make_load_taps(v, panel + 1)

    @device
    def load_taps(at: int, map: int, pixel: Ints, barrier: int, taps: Ints) -> None:
        n, h, w = pixel
        load(at, map, taps[0], w, h, n, barrier, taps[1], taps[2])
        rest(at + panel_bytes, map, pixel, barrier, taps[3:])

    return load_taps


def make_produce(v: WgradVariant) -> Any:
    """produce(params, stages, place, producer): loads the stages of a block's split.

    A thread has one chunk of columns, of every few pixels. What is outside the image, past the last
    pixel, filter or channel is filled with zeros, whatever is in memory there.
    """
    tile_m, tile_n, tile_k, unit = v.tile_m, v.tile_n, v.tile_k, v.unit
    a_chunks, b_chunks = tile_m // unit, tile_n // unit
    a_rows, b_rows = v.arrivals // a_chunks, v.arrivals // b_chunks  # pixels loaded at once
    panel_bytes, a_bytes = v.panel_bytes, v.a_bytes
    mask = swizzle_mask(v)
    columns = make_columns(unit)
    copy_chunk, finish = make_copy_chunk(v)

    @device
    def place_of(stage: int, chunk: int, row: int) -> int:
        at = stage + chunk // PANEL_CHUNKS * panel_bytes + chunk % PANEL_CHUNKS * VECTOR_BYTES
        return walk.swizzle(at + row * PANEL_BYTES, mask)

    @device
    def load_dy(params: Params, stage: int, first: int, group: int, k: int, thread: int) -> None:
        g, call = params.geometry, params.call
        chunk = thread % a_chunks
        k += chunk * unit
        source = call.y + (group * g.K + k) * call.y_k
        for above in range(0, tile_k, a_rows):
            row = above + thread // a_chunks
            n, p, q = pixel(params, first + row)
            at = source + n * call.y_n + p * call.y_p + q * call.y_q
            kept = first + row < call.rows
            copy_chunk(place_of(stage, chunk, row), at, call.y, call.y_k, (g.K - k) * kept)

    @device
    def load_x(params: Params, stage: int, first: int, tap: Ints, thread: int) -> None:
        g, call, (h_tap, w_tap, channel, channels) = params.geometry, params.call, tap
        chunk = thread % b_chunks
        source = call.x + channel * call.x_c
        for above in range(0, tile_k, b_rows):
            row = above + thread // b_chunks
            n, p, q = pixel(params, first + row)
            h, w = p * g.stride_h + h_tap, q * g.stride_w + w_tap
            inside = (h >= 0) & (h < g.H) & (w >= 0) & (w < g.W) & (first + row < call.rows)
            at = source + n * call.x_n + h * call.x_h + w * call.x_w
            copy_chunk(place_of(stage, chunk, row), at, call.x, call.x_c, channels * inside)

    @device
    def tap_of(params: Params, group: int, column: int) -> Ints:
        """First row and column of x that a tap reads; channel; channels from it on, or 0."""
        g = params.geometry
        tap = quotient(column, columns(g))
        c = column - tap * columns(g)
        r = quotient(tap, g.S)
        s = tap - r * g.S
        h, w = r * g.dilation_h - g.pad_h, s * g.dilation_w - g.pad_w
        return h, w, group * g.C + c, (g.C - c) * (r < g.R)

    @device
    def produce(params: Params, stages: Ring, place: Ints, producer: int) -> None:
        call, (split, group, tile, panel) = params.call, place
        thread = producer * 32 + warp.lane()
        tap = tap_of(params, group, panel * tile_n + thread % b_chunks * unit)
        stage, parity = 0, 0
        first = split * call.k_blocks * tile_k
        for _ in range(call.k_blocks):
            ring.wait_empty(stages, stage, parity)
            at = ring.address(stages, stage)
            load_dy(params, at, first, group, tile * tile_m, thread)
            load_x(params, at + a_bytes, first, tap, thread)
            finish(ring.full(stages, stage))
            stage, parity = ring.advance(stages, stage, parity)
            first += tile_k

    return produce


def swizzle_mask(v: WgradVariant) -> int:
    """That of a stage: ldmatrix reads 8 pixels at once; float32 is read by neighbouring lanes."""
    return 0 if v.consumer == "fma" else plain_walk.swizzle_mask(PANEL_BYTES)


def make_consume(v: WgradVariant) -> Any:
    """consume(params, stages, place, index): a warp's part of a tile, to the workspace."""
    tile_m, tile_n, a_bytes = v.tile_m, v.tile_n, v.a_bytes
    multiply, sums = make_multiply(v)
    warp_origin, columns, store_rows = make_warp_origin(v), make_columns(v.unit), make_store_rows(v)
    store_dy = make_store_dy(v, sums)
    zeros = (np.float32(0),) * (v.accumulators + sums)

    @device
    def consume(params: Params, stages: Ring, place: Ints, index: int) -> None:
        g, call, (split, group, tile, panel) = params.geometry, params.call, place
        (row, column), lane = warp_origin(index), warp.lane()
        stage, parity, acc = 0, 0, zeros
        for _ in range(call.k_blocks):
            ring.wait_full(stages, stage, parity)
            a = ring.address(stages, stage)
            acc = multiply(acc, a, a + a_bytes, row, column, lane, panel, index)
            ring.release(stages, stage, lane)
            stage, parity = ring.advance(stages, stage, parity)
        k = tile * tile_m + row + lane // 4
        column += panel * tile_n + lane % 4 * 2
        width = g.R * g.S * columns(g)
        at = call.residual + 4 * (((split * g.groups + group) * g.K + k) * width + column)
        store_rows(at, 4 * width, g.K - k, width - column, acc)
        store_dy(params, place, index, lane, acc)

    return consume


def make_mma(v: WgradVariant) -> Any:
    """mma.sync with fragments from transposed ldmatrix, in steps of 16 pixels."""
    panel, panel_bytes, mask, steps = v.panel, v.panel_bytes, swizzle_mask(v), v.tile_k // 16
    load_a, load_b = smem.ldmatrix_trans(v.tiles_m), smem.ldmatrix_trans(v.tiles_n // 2)
    multiply_tiles = mma.multiply(v.dtype, v.tiles_m, v.tiles_n)

    @device
    def multiply(acc: Floats, a: int, b: int, row: int, column: int, lane: int) -> Floats:
        a += row // panel * panel_bytes + (lane % 8 + lane // 16 * 8) * PANEL_BYTES
        b += column // panel * panel_bytes + lane % 16 * PANEL_BYTES
        a = walk.swizzle(a + row % panel * 2 + lane // 8 % 2 * 16, mask)
        b = walk.swizzle(b + column % panel * 2 + lane // 16 * 16, mask)
        for step in range(steps):
            below = step * 16 * PANEL_BYTES  # whole swizzle atoms
            acc = multiply_tiles(acc, load_a(a + below), load_b(b + below))
        return acc

    return multiply


def make_wgmma(v: WgradVariant) -> Any:
    """wgmma with both operands by MN-major descriptors; a warpgroup has 64 rows."""
    panel_bytes, steps = v.panel_bytes, v.tile_k // 16
    constant = mma.TRANSPOSED_DESCRIPTOR | panel_bytes // 16 << 16
    multiply_stage = mma.wgmma(v.dtype, v.tile_n, steps, True, True)

    @device
    def descriptor(address: int) -> int:
        return (address & 0x3FFFF) >> 4 | constant

    @device
    def multiply(acc: Floats, a: int, b: int, row: int, column: int, lane: int) -> Floats:
        return multiply_stage(acc, descriptor(a + row // 64 * panel_bytes), descriptor(b))

    return multiply


def make_fma(v: WgradVariant) -> Any:
    """float32 fma in steps of 4 pixels: product and sum are rounded once together."""
    panel, panel_bytes, steps = v.panel, v.panel_bytes, v.tile_k // 4
    load_a = smem.load_columns(2 * v.tiles_m, 8 * 4, PANEL_BYTES)
    load_b = smem.load_columns(v.tiles_n, 8 * 4, PANEL_BYTES)
    multiply_tiles = mma.multiply_float(v.tiles_m, v.tiles_n)

    @device
    def multiply(acc: Floats, a: int, b: int, row: int, column: int, lane: int) -> Floats:
        a += row // panel * panel_bytes + (row % panel + lane // 4) * 4
        b += column // panel * panel_bytes + (column % panel + lane % 4 * 2) * 4
        for step in range(steps):
            below = step * 4 * PANEL_BYTES
            even, odd = load_b(b + below), load_b(b + below + 4)
            acc = multiply_tiles(acc, load_a(a + below), even, odd)
        return acc

    return multiply


def make_multiply(v: WgradVariant) -> Any:
    """(multiply(acc, a, b, row, column, lane, panel, index), how many accumulators sum up dy).

    These are the last, of which the first is of row l / 4, the last of row l / 4 + 8: a warp of a
    block of the first columns has rows of dy of its own, 16 of the tile.
    """
    products = {"mma": make_mma, "fma": make_fma, "wgmma": make_wgmma}[v.consumer](v)
    if not v.biased:
        return device(
            lambda acc, a, b, row, column, lane, *_: products(acc, a, b, row, column, lane)
        ), 0
    count, tile_m = v.accumulators, v.tile_m
    sums, add = (2, make_add_floats(v)) if v.consumer == "fma" else (4, make_multiply_ones(v))

    @device
    def multiply_and_add(
        acc: Floats, a: int, b: int, row: int, column: int, lane: int, panel: int, index: int
    ) -> Floats:
        added, own = acc[count:], 16 * index
        if (panel == 0) & (own < tile_m):
            added = add(added, a, own, lane)
        return products(acc[:count], a, b, row, column, lane) + added

    return multiply_and_add, sums


def make_multiply_ones(v: WgradVariant) -> Any:
    """add(sums, a, row, lane): 16 rows of dy times a tile of ones, in steps of 16 pixels."""
    panel, panel_bytes, mask, steps = v.panel, v.panel_bytes, swizzle_mask(v), v.tile_k // 16
    load, multiply, ones = smem.ldmatrix_trans(1), mma.multiply(v.dtype, 1, 1), mma.ONES[v.dtype]

    @device
    def add(sums: Floats, a: int, row: int, lane: int) -> Floats:
        a += row // panel * panel_bytes + (lane % 8 + lane // 16 * 8) * PANEL_BYTES
        a = walk.swizzle(a + row % panel * 2 + lane // 8 % 2 * 16, mask)
        for step in range(steps):
            sums = multiply(sums, load(a + step * 16 * PANEL_BYTES), (ones, ones))
        return sums

    return add


def make_add_floats(v: WgradVariant) -> Any:
    """add(sums, a, row, lane): 16 rows of float32 dy, in steps of 4 pixels."""
    panel, panel_bytes, steps = v.panel, v.panel_bytes, v.tile_k // 4
    load = smem.load_columns(2, 8 * 4, PANEL_BYTES)

    @device
    def add(sums: Floats, a: int, row: int, lane: int) -> Floats:
        upper, lower = sums
        a += row // panel * panel_bytes + (row % panel + lane // 4) * 4
        for step in range(steps):
            dy = load(a + step * 4 * PANEL_BYTES)
            upper += (dy[0] + dy[1]) + (dy[2] + dy[3])
            lower += (dy[4] + dy[5]) + (dy[6] + dy[7])
        return upper, lower

    return add


def make_store_dy(v: WgradVariant, sums: int) -> Any:
    """store_dy(params, place, index, lane, acc): a warp's sums of dy, to the workspace."""
    if not v.biased:
        return device(lambda params, place, index, lane, acc: None)
    tile_m, store, bits = v.tile_m, gmem.store(4), gmem.from_float("float32")

    @device
    def store_dy(params: Params, place: Ints, index: int, lane: int, acc: Floats) -> None:
        g, call, (split, group, tile, panel) = params.geometry, params.call, place
        own = 16 * index + lane // 4
        k = tile * tile_m + own
        at = sums_of_dy(call, group * g.K + k) + 4 * split
        kept = (panel == 0) & (own < tile_m) & (lane % 4 == 0)
        store(at, bits(acc[-sums]), kept & (k < g.K))
        store(at + 4 * 8 * call.splits, bits(acc[-1]), kept & (k + 8 < g.K))

    return store_dy


@device
def sums_of_dy(call: Call, k: int) -> int:
    """The address of the sums of dy of a filter: they follow those of dw of all splits."""
    return call.residual + call.splits * (call.residual_n + 4 * k)


def make_store_rows(v: WgradVariant, tile: int = 0) -> Any:
    """store_rows(at, pitch, rows, columns, acc): a lane's sums of tiles of 16 rows.

    `at` is the address of its first element, `rows` and `columns` are those from there on.
    """
    values = 4 * v.tiles_n
    store = gmem.store_tiles(v.tiles_n)
    rest = device(lambda at, pitch, rows, columns, acc: None)
    if tile + 1 < v.tiles_m:
        rest = make_store_rows(v, tile + 1)

    @device
    def store_rows(at: int, pitch: int, rows: int, columns: int, acc: Floats) -> None:
        lower = at + 8 * pitch
        store(at, lower, columns * (rows > 0), columns * (rows > 8), acc[:values])
        rest(lower + 8 * pitch, pitch, rows - 16, columns, acc[values:])

    return store_rows


@functools.cache
def make_split_sum(v: SplitSum) -> Any:
    """The kernel that adds splits: a thread has one element of dw; its argument is the blob.

    The Call's strides of `residual` are those of the sums by split, tap and k, in bytes. If they
    are biased, the next threads have one element of db.
    """
    load, store, threads = gmem.load(4, True), gmem.store(ITEMSIZES[v.dtype]), v.threads
    to_float, from_float = gmem.to_float("float32"), gmem.from_float(v.dtype)
    bias_sums, bias = make_bias(v)

    def split_sum(argument: Any) -> None:
        params = blob.unpack(argument)
        g, call = params.geometry, params.call
        index = warp.block() * threads + warp.index() * 32 + warp.lane()
        tap = quotient(index, g.C)
        c = index - tap * g.C
        row = quotient(tap, g.S)
        s = tap - row * g.S
        k = quotient(row, g.R)
        r = row - k * g.R
        kept = k < g.groups * g.K
        apart, total = call.residual_n, np.float32(0)
        at = call.residual + k * call.residual_k + r * call.residual_p + s * call.residual_q + 4 * c
        at, apart, kept = bias_sums(params, index, at, apart, kept)
        for split in range(0, call.splits, 4):  # so many loads are on their way at once
            first = load(at, kept)
            second = load(at + apart, kept & (split + 1 < call.splits))
            third = load(at + 2 * apart, kept & (split + 2 < call.splits))
            fourth = load(at + 3 * apart, kept & (split + 3 < call.splits))
            total += to_float(first)
            total += to_float(second)
            total += to_float(third)
            total += to_float(fourth)
            at += 4 * apart
        to = call.w + k * call.w_k + c * call.w_c + r * call.w_r + s * call.w_s
        store(bias(params, index, to), from_float(total), kept)

    return split_sum


def make_bias(v: SplitSum) -> Any:
    """(sums, result) of elements of db, which are behind those of dw.

    sums(params, index, at, apart, kept) are the address of the first sum, the bytes to the next and
    whether there is such an element; result(params, index, to) is the element's address.
    """
    if not v.biased:
        sums = device(lambda params, index, at, apart, kept: (at, apart, kept))
        return sums, device(lambda params, index, to: to)
    itemsize = ITEMSIZES[v.dtype]

    @device
    def filter_of(params: Params, index: int) -> int:
        g = params.geometry
        return index - g.groups * g.K * (g.R * g.S * g.C)

    @device
    def own_sums(params: Params, index: int, at: int, apart: int, kept: int) -> Ints:
        g, k = params.geometry, filter_of(params, index)
        if k < 0:
            return at, apart, kept
        return sums_of_dy(params.call, k), 4, k < g.groups * g.K

    @device
    def result(params: Params, index: int, to: int) -> int:
        k = filter_of(params, index)
        return to if k < 0 else params.call.bias + k * itemsize

    return own_sums, result
