"""Epilogue: accumulator -> bias, residual, activation -> y.

A warp stores its accumulator in chunks of 16 rows and 32 or 64 columns. Rows past the last pixel,
junk slots and columns past K are not stored. How lanes and elements go together depends on y:

    store_16bit.py      channels-last, elements of 16 bits
    store_float32.py    channels-last, float32
    store_elements.py   any other layout
"""

from __future__ import annotations

import functools
from typing import Any

from implicit_conv.kernels.gpu.call import Floats, Ints, Params
from implicit_conv.kernels.gpu.ptx import device
from implicit_conv.kernels.gpu.raster import make_locate_row
from implicit_conv.kernels.gpu.sizes import CHUNK_ROWS
from implicit_conv.kernels.gpu.store_16bit import make_store_16bit
from implicit_conv.kernels.gpu.store_elements import make_store_elements
from implicit_conv.kernels.gpu.store_float32 import make_store_float32
from implicit_conv.kernels.gpu.variant import Variant


@functools.cache
def make_writer(v: Variant) -> Any:
    """(locate, store_chunk) for the layout of y.

    locate(params, tile, row, lane): the addresses of the pixels of 16 rows that a lane writes;
    store_chunk(params, staging, place, group, k, lane, values): stores a chunk that begins at
    filter k of the group.
    """
    locate_row = make_locate_row(v)
    if not v.packed:
        return make_store_elements(v, locate_row)
    make_store = make_store_16bit if v.staged else make_store_float32
    return make_store(v, locate_row)


@functools.cache
def make_store_tile(v: Variant, block: int = 0) -> Any:
    """store_tile(params, staging, tile, origin, acc): stores blocks of 16 rows.

    It begins with block number `block`; `tile` is (group, gemm_m tile, gemm_n tile), `origin` is
    (first row of the warp in it, first column, lane). Values in registers are indexed by constants
    alone. So each block, and each chunk of a block, is stored by a function of its own, which
    passes the rest of the tuple on to the next.
    """
    tile_n, rows, values = v.tile_n, block * CHUNK_ROWS, 4 * v.tiles_n
    locate, _ = make_writer(v)
    store_chunks = make_store_chunks(v)
    rest = device(lambda params, staging, tile, origin, acc: None)
    if block + 1 < v.tiles_m:
        rest = make_store_tile(v, block + 1)

    @device
    def store(params: Params, staging: int, tile: Ints, origin: Ints, acc: Floats) -> None:
        (group, tile_m, panel), (row, column, lane) = tile, origin
        place = locate(params, tile_m, row + rows, lane)
        k = panel * tile_n + column
        store_chunks(params, staging, place, group, k, lane, acc[:values])
        rest(params, staging, tile, origin, acc[values:])

    return store


@functools.cache
def make_store_chunks(v: Variant, chunk: int = 0) -> Any:
    """store_chunks(params, staging, place, group, k, lane, values): stores the chunks of a block.

    It begins with chunk number `chunk`; `values` are the accumulators from there on, and `k`
    is the first column of the block in its group.
    """
    columns, count = chunk * v.chunk_columns, v.chunk_columns // 2
    _, store_chunk = make_writer(v)
    rest = device(lambda params, staging, place, group, k, lane, values: None)
    if (chunk + 1) * v.chunk_columns < 8 * v.tiles_n:
        rest = make_store_chunks(v, chunk + 1)

    @device
    def store(
        params: Params, staging: int, place: Any, group: int, k: int, lane: int, values: Floats
    ) -> None:
        store_chunk(params, staging, place, group, k + columns, lane, values[:count])
        rest(params, staging, place, group, k, lane, values[count:])

    return store
