"""Epilogue: accumulator -> bias, residual, activation -> y.

A warp stores its accumulator in chunks of 16 rows x 32 columns. Rows past the last pixel, junk
slots and columns past K are not stored. How lanes and elements go together depends on y:

    words.py      channels-last, 16-bit elements
    pairs.py      channels-last, float32
    elements.py   any other layout
"""

from __future__ import annotations

import functools
from typing import Any

from implicit_conv.kernels.gpu.call import Floats, Params
from implicit_conv.kernels.gpu.elements import make_elements
from implicit_conv.kernels.gpu.pairs import make_pairs
from implicit_conv.kernels.gpu.ptx import device
from implicit_conv.kernels.gpu.sizes import CHUNK_COLUMNS, CHUNK_ROWS
from implicit_conv.kernels.gpu.variant import Variant
from implicit_conv.kernels.gpu.words import make_words

TILES = CHUNK_COLUMNS // 8
VALUES = 4 * TILES  # accumulator registers of a chunk


@functools.cache
def make_writer(v: Variant) -> Any:
    """(locate, store_chunk) for the layout of y.

    locate(params, tile_m, row, lane): the addresses of the pixels of 16 rows that a lane writes;
    store_chunk(params, staging, place, group, k, lane, values): stores a chunk that begins at
    filter k of the group.
    """
    if not v.packed:
        return make_elements(v)
    return make_pairs(v) if v.itemsize == 4 else make_words(v)


@functools.cache
def make_store_tile(v: Variant, block: int = 0) -> Any:
    """store_tile(params, staging, tile, row, column, lane, acc): stores blocks of 16 rows.

    It begins with block number `block`; `tile` is (group, gemm_m tile, gemm_n tile). Values in
    registers are indexed by constants alone. So each block, and each chunk of a block, is stored by
    a function of its own, which passes the rest of the tuple on to the next.
    """
    tile_n, rows, values = v.tile_n, block * CHUNK_ROWS, 4 * v.tiles_n
    locate, _ = make_writer(v)
    store_chunks = make_store_chunks(v)

    @device
    def store_block(
        params: Params,
        staging: int,
        tile: tuple[int, int, int],
        row: int,
        column: int,
        lane: int,
        acc: Floats,
    ) -> None:
        group, tile_m, panel = tile
        place = locate(params, tile_m, row + rows, lane)
        store_chunks(params, staging, place, group, panel * tile_n + column, lane, acc)

    if block + 1 == v.tiles_m:
        return store_block
    rest = make_store_tile(v, block + 1)

    @device
    def store(
        params: Params,
        staging: int,
        tile: tuple[int, int, int],
        row: int,
        column: int,
        lane: int,
        acc: Floats,
    ) -> None:
        store_block(params, staging, tile, row, column, lane, acc[:values])
        rest(params, staging, tile, row, column, lane, acc[values:])

    return store


@functools.cache
def make_store_chunks(v: Variant, chunk: int = 0) -> Any:
    """store_chunks(params, staging, place, group, k, lane, values): stores the chunks of a block.

    It begins with chunk number `chunk`; `values` are the accumulators from there on, and `k`
    is the first column of the block in its group.
    """
    columns = chunk * CHUNK_COLUMNS
    _, store_chunk = make_writer(v)

    @device
    def store_first(
        params: Params, staging: int, place: Any, group: int, k: int, lane: int, values: Floats
    ) -> None:
        store_chunk(params, staging, place, group, k + columns, lane, values)

    if chunk + 1 == v.tiles_n // TILES:
        return store_first
    rest = make_store_chunks(v, chunk + 1)

    @device
    def store(
        params: Params, staging: int, place: Any, group: int, k: int, lane: int, values: Floats
    ) -> None:
        store_first(params, staging, place, group, k, lane, values[:VALUES])
        rest(params, staging, place, group, k, lane, values[VALUES:])

    return store
