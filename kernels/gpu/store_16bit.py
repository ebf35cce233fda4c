"""Stores of channels-last y of 16-bit elements: 16 bytes of a lane, whole lines of memory.

Bias, residual and activation are applied to the fragments, in float32. Only then are columns packed
in pairs, and exchanged between lanes through a staging tile in shared memory: 16 rows of a chunk of
64 or 32 columns. A residual takes the same way in the other direction.

    a lane's words         row lane / 4 (and + 8), columns 8 t + 2 (lane % 4) of each tile t
    a lane's 16 bytes      of 64 columns: columns 8 (lane % 8) of row lane / 8, and + 4, 8, 12
                           of 32 columns: columns 8 (lane % 4) of row lane / 4, and + 8

So one instruction writes four lines of 128 bytes, or eight halves of one. `unit_mask` exchanges the
16-byte units of a row, so that neither side has bank conflicts.
"""

from __future__ import annotations

from typing import Any

from implicit_conv.kernels.gpu import fragment, gmem, smem, warp
from implicit_conv.kernels.gpu.call import Floats, Params
from implicit_conv.kernels.gpu.epilogue_math import make_epilogue_math
from implicit_conv.kernels.gpu.ptx import device
from implicit_conv.kernels.gpu.sizes import CHUNK_ROWS, WARP
from implicit_conv.kernels.gpu.variant import Variant

UNIT = 16  # bytes


def make_unit_mask(columns: int) -> Any:
    """unit_mask(row): the bits that are xored to the offset of a unit in a row of the staging tile.

    The banks hold 8 units, which are one row of 64 columns or two of 32. A store of fragments
    writes one unit in each of 8 rows, and meets each of the 8 places once.
    """
    if columns == 64:
        return device(lambda row: (row & 7) * UNIT)
    return device(lambda row: (row >> 1 & 3) * UNIT)


def make_store_16bit(v: Variant, locate_row: Any) -> tuple[Any, Any]:
    """(locate, store_chunk) as in `epilogue.make_writer`."""
    columns, itemsize, scaled = v.chunk_columns, v.itemsize, v.scaled
    pitch, units = columns * itemsize, columns // 8
    values = columns // 2  # of a lane
    add_columns = fragment.scale_columns if v.scaled else fragment.add_columns
    epilogue_math = make_epilogue_math(v, values, add_columns(columns))
    pack, store_words = fragment.pack(v.dtype, values // 2), fragment.store(columns)
    load_bias, load_residual = make_load_bias(v), make_load_residual(v)
    unit_mask, store_quads = make_unit_mask(columns), make_store_quads(columns)

    @device
    def store_chunk(
        params: Params, staging: int, place: Any, group: int, k: int, lane: int, values: Floats
    ) -> None:
        g = params.geometry
        words = staging + lane // 4 * pitch + unit_mask(lane // 4) + lane % 4 * 4
        left = k + lane % units * 8
        offset, here = (group * g.K + left) * itemsize, left < g.K
        if scaled:  # pairs are needed first, so that the registers of all tiles suffice
            bias = load_bias(params, group, k, lane)
            added = load_residual(staging, place, offset, here, lane, words)
        else:
            added = load_residual(staging, place, offset, here, lane, words)
            bias = load_bias(params, group, k, lane)
        values = epilogue_math(params, values, bias, added)
        store_words(words, pack(values))
        warp.sync()
        store_quads(staging, place, offset, here, lane)
        warp.sync()  # the staging tile is free for the next chunk

    return make_locate(columns, locate_row), store_chunk


def make_locate(columns: int, locate_row: Any, first: int = 0) -> Any:
    """locate(params, tile, row, lane): (y, residual, kept) of each row of a lane's units."""
    units = columns // 8
    rest = device(lambda params, tile, row, lane: ())
    if first + WARP // units < CHUNK_ROWS:
        rest = make_locate(columns, locate_row, first + WARP // units)

    @device
    def locate(params: Params, tile: Any, row: int, lane: int) -> Any:
        here = locate_row(params, tile, row + first + lane // units)
        return (here, *rest(params, tile, row, lane))

    return locate


def make_quad(columns: int, number: int) -> Any:
    """quad(staging, lane): the address of a lane's `number`-th unit of 16 bytes."""
    pitch, units, unit_mask = 2 * columns, columns // 8, make_unit_mask(columns)
    first = number * WARP // units

    @device
    def quad(staging: int, lane: int) -> int:
        row = first + lane // units
        return staging + row * pitch + (lane % units * UNIT ^ unit_mask(row))

    return quad


def make_store_quads(columns: int, number: int = 0) -> Any:
    """store_quads(staging, place, offset, here, lane): a lane's units of the staging tile to y."""
    quad, rest = make_quad(columns, number), device(lambda staging, place, offset, here, lane: None)
    if (number + 1) * WARP < CHUNK_ROWS * columns // 8:
        rest = make_store_quads(columns, number + 1)

    @device
    def store_quads(staging: int, place: Any, offset: int, here: bool, lane: int) -> None:
        y, _, kept = place[0]
        gmem.store_quad(y + offset, smem.load_quad(quad(staging, lane)), here & kept)
        rest(staging, place[1:], offset, here, lane)

    return store_quads


def make_load_bias(v: Variant) -> Any:
    """load_bias(params, group, k, lane): the biases or pairs of a lane's columns, or nothing."""
    if not v.biased:
        return device(lambda params, group, k, lane: ())
    size, tiles = v.bias_bytes, v.chunk_columns // 8
    load_word, load = gmem.load(4, True), gmem.load_floats
    widen = device(lambda values: values)
    if not v.scaled:
        load = device(lambda at, here: (load_word(at, here),))
        widen = fragment.widen(v.dtype, tiles)

    def make_words(tile: int) -> Any:
        """words(at, k, K): the two columns of each tile."""
        rest = make_words(tile + 1) if tile + 1 < tiles else device(lambda at, k, K: ())
        return device(
            lambda at, k, K: load(at + 8 * tile * size, k + 8 * tile < K) + rest(at, k, K)
        )

    words = make_words(0)

    @device
    def load_bias(params: Params, group: int, k: int, lane: int) -> Any:
        g = params.geometry
        at = params.call.bias + (group * g.K + k + lane % 4 * 2) * size
        return widen(words(at, k, g.K))

    return load_bias


def make_load_residual(v: Variant) -> Any:
    """load_residual(staging, place, offset, here, lane, words): a lane's values, or nothing.

    A lane reads the words of the staging tile that it writes next, so the results can be staged
    without another synchronisation.
    """
    if not v.residual:
        return device(lambda staging, place, offset, here, lane, words: ())
    columns = v.chunk_columns
    widen, load_words = fragment.widen(v.dtype, columns // 4), fragment.load(columns)

    def make_stage(number: int) -> Any:
        """stage(staging, place, offset, here, lane): a lane's units of the residual."""
        quad = make_quad(columns, number)
        rest = device(lambda staging, place, offset, here, lane: None)
        if (number + 1) * WARP < CHUNK_ROWS * columns // 8:
            rest = make_stage(number + 1)

        @device
        def stage(staging: int, place: Any, offset: int, here: bool, lane: int) -> None:
            _, residual, kept = place[0]
            smem.store_quad(quad(staging, lane), gmem.load_quad(residual + offset, here & kept))
            rest(staging, place[1:], offset, here, lane)

        return stage

    stage = make_stage(0)

    @device
    def load_residual(
        staging: int, place: Any, offset: int, here: bool, lane: int, words: int
    ) -> Any:
        stage(staging, place, offset, here, lane)
        warp.sync()
        return widen(load_words(words))

    return load_residual
