"""Epilogue: accumulator -> staging tile -> bias, residual, activation -> y.

A warp writes chunks of 16 rows x 32 columns of its accumulator to a staging tile of its own in
shared memory, and reads them back row by row, so that stores run along the contiguous axis of y
whatever the layout of the fragments. Rows past the last pixel, junk slots and columns past K are
not stored.
"""

import functools

from implicit_conv.kernels import schedule as plain_schedule
from implicit_conv.kernels.gpu import activate, gmem, smem, warp
from implicit_conv.kernels.gpu.ptx import device, device_module
from implicit_conv.kernels.gpu.sizes import CHUNK_COLUMNS, CHUNK_ROWS, STAGING_PITCH

schedule = device_module(plain_schedule)
TILES = CHUNK_COLUMNS // 8
VALUES = 4 * TILES  # accumulator registers of a chunk


@functools.cache
def make_store_tile(v, block=0):
    """store_tile(params, staging, tile, row, column, lane, acc): stores blocks of 16 rows.

    It begins with block number `block`; `tile` is (group, gemm_m tile, gemm_n tile). Values in
    registers are indexed by constants alone. So each block, and each chunk of a block, is stored by
    a function of its own, which passes the rest of the tuple on to the next.
    """
    wide, tile_n = v.wide, v.tile_n
    rows, values = block * CHUNK_ROWS, 4 * v.tiles_n
    lanes_down = (make_write_packed(v) if v.packed else make_write_elements(v))[0]
    store_chunks = make_store_chunks(v)

    @device
    def store_block(params, staging, tile, row, column, lane, acc):
        g, call = params.geometry, params.call
        group, tile_m, panel = tile
        down, across = lanes_down(lane)
        n, p, q = schedule.gemm_m_pixel(g, wide, tile_m, row + rows + down)
        kept = schedule.gemm_m_kept(g, n, q)
        y = call.y + n * call.y_n + p * call.y_p + q * call.y_q
        residual = call.residual + n * call.residual_n + p * call.residual_p + q * call.residual_q
        place = (y, residual, kept, group, down, across)
        store_chunks(params, staging, place, panel * tile_n + column, lane, acc)

    if block + 1 == v.tiles_m:
        return store_block
    rest = make_store_tile(v, block + 1)

    @device
    def store(params, staging, tile, row, column, lane, acc):
        store_block(params, staging, tile, row, column, lane, acc[:values])
        rest(params, staging, tile, row, column, lane, acc[values:])

    return store


@functools.cache
def make_store_chunks(v, chunk=0):
    """store_chunks(params, staging, place, k, lane, values): stores the chunks of a block.

    It begins with chunk number `chunk`; `values` are the accumulators from there on, and `k`
    is the first column of the block in its group.
    """
    columns = chunk * CHUNK_COLUMNS
    stage = smem.store_tiles(TILES, STAGING_PITCH)
    write_row = (make_write_packed(v) if v.packed else make_write_elements(v))[1]

    @device
    def store_chunk(params, staging, place, k, lane, values):
        y, residual, kept, group, down, across = place
        stage(staging + lane // 4 * STAGING_PITCH + lane % 4 * 8, values)
        warp.sync()
        staged = staging + down * STAGING_PITCH
        write_row(params, staged, y, residual, kept, group, k + columns, across)
        warp.sync()  # the staging tile is free for the next chunk

    if chunk + 1 == v.tiles_n // TILES:
        return store_chunk
    rest = make_store_chunks(v, chunk + 1)

    @device
    def store(params, staging, place, k, lane, values):
        store_chunk(params, staging, place, k, lane, values[:VALUES])
        rest(params, staging, place, k, lane, values[VALUES:])

    return store


@functools.cache
def make_finish(v):
    """finish(params, value, residual, kept, k): the bits of one element of y.

    `residual` is the address of the pixel's residual, `kept` says whether the element is stored,
    and `k` numbers the filters of all groups.
    """
    itemsize, plain = v.itemsize, v.plain
    load, to_float = gmem.load(itemsize), gmem.to_float(v.dtype)
    from_float = gmem.from_float(v.dtype)
    function = activate.FUNCTIONS[v.activation]

    @device
    def add_bias(params, value, kept, k):
        call = params.call
        return value + to_float(load(call.bias + k * itemsize, kept & (call.bias != 0)))

    @device
    def finish_plain(params, value, residual, kept, k):
        return from_float(add_bias(params, value, kept, k))

    @device
    def finish(params, value, residual, kept, k):
        value = add_bias(params, value, kept, k)
        call = params.call
        at = residual + k * call.residual_k
        value = value + to_float(load(at, kept & (call.residual != 0)))
        return from_float(function(value, params.limits))

    return finish_plain if plain else finish


@functools.cache
def make_write_elements(v):
    """For any layout of y: lanes are neighbouring pixels, and each lane loops over K."""
    itemsize = v.itemsize
    store, finish = gmem.store(itemsize), make_finish(v)
    step = 32 // CHUNK_ROWS

    @device
    def lanes_down(lane):
        return lane % CHUNK_ROWS, lane // CHUNK_ROWS

    @device
    def write_row(params, staged, y, residual, kept, group, k, across):
        g = params.geometry
        for first in range(0, CHUNK_COLUMNS, step):
            column = first + across
            here = kept & (k + column < g.K)
            filter_ = group * g.K + k + column
            bits = finish(params, smem.load_float(staged + 4 * column), residual, here, filter_)
            store(y + filter_ * params.call.y_k, bits, here)

    return lanes_down, write_row


@functools.cache
def make_write_packed(v):
    """For channels-last y whose pixels are aligned to 16 bytes: two lanes store each row."""
    itemsize = v.itemsize
    finish = make_finish(v)
    per_store = 16 // itemsize
    load = smem.load_quads(per_store // 4, 16)
    lanes = 32 // CHUNK_ROWS
    columns = CHUNK_COLUMNS // lanes

    @device
    def lanes_down(lane):
        return lane // lanes, lane % lanes

    @device
    def word(params, values, residual, here, k):
        if itemsize == 4:
            return finish(params, values[0], residual, here, k)
        low = finish(params, values[0], residual, here, k)
        return low | finish(params, values[1], residual, here, k + 1) << 16

    per_word = 4 // itemsize  # Numba slices tuples by names or literals, not by expressions
    second, third = 2 * per_word, 3 * per_word

    @device
    def write_row(params, staged, y, residual, kept, group, k, across):
        g = params.geometry
        for first in range(0, columns, per_store):
            column = across * columns + first
            here = kept & (k + column < g.K)
            filter_ = group * g.K + k + column
            values = load(staged + 4 * column)
            gmem.store16(
                y + filter_ * itemsize,
                word(params, values[:per_word], residual, here, filter_),
                word(params, values[per_word:], residual, here, filter_ + per_word),
                word(params, values[second:], residual, here, filter_ + second),
                word(params, values[third:], residual, here, filter_ + third),
                here,
            )

    return lanes_down, write_row
