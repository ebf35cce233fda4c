"""Stores of channels-last y of 16-bit elements: 16 bytes of a lane, whole sectors of a row.

Bias, residual and activation are applied to the fragments, in float32. Only then are columns packed
in pairs, and exchanged between lanes through a staging tile in shared memory: 16 rows of 64 bytes.
A residual takes the same way in the other direction.

    a lane's words         row lane / 4 (and + 8), columns 8 t + 2 (lane % 4) for t = 0 .. 3
    a lane's 16 bytes      row lane / 2, columns 8 (lane % 2), and these + 16

`unit_mask` exchanges the 16-byte units of a row, so that neither side has bank conflicts.
"""

from __future__ import annotations

from typing import Any

from implicit_conv.kernels.gpu import fragment, gmem, smem, warp
from implicit_conv.kernels.gpu.call import Floats, Params
from implicit_conv.kernels.gpu.epilogue_math import make_epilogue_math
from implicit_conv.kernels.gpu.ptx import device
from implicit_conv.kernels.gpu.raster import make_locate_row
from implicit_conv.kernels.gpu.sizes import CHUNK_COLUMNS
from implicit_conv.kernels.gpu.variant import Variant

PITCH = 2 * CHUNK_COLUMNS  # bytes of a row of the staging tile
UNIT = 16  # bytes


@device
def unit_mask(row: int) -> int:
    """The bits that are xored to the offset of a unit in its row.

    The banks hold 8 units, which are two rows. A store of fragments writes one unit in each of 8
    rows, and a load reads two units in each of 4 rows; both meet each of the 8 places once.
    """
    return (row & 2 | row >> 2 & 1) * UNIT


def make_store_16bit(v: Variant) -> Any:
    """(locate, store_chunk) as in `epilogue.make_writer`."""
    locate_row, itemsize = make_locate_row(v), v.itemsize
    epilogue_math = make_epilogue_math(v, fragment.VALUES, fragment.add_columns)
    pack = fragment.pack(v.dtype, fragment.WORDS)
    load_bias, load_residual = make_load_bias(v), make_load_residual(v)

    @device
    def locate(params: Params, tile_m: int, row: int, lane: int) -> Any:
        return locate_row(params, tile_m, row + lane // 2)

    @device
    def store_chunk(
        params: Params, staging: int, place: Any, group: int, k: int, lane: int, values: Floats
    ) -> None:
        g = params.geometry
        y, residual, kept = place
        words = staging + lane // 4 * PITCH + unit_mask(lane // 4) + lane % 4 * 4
        row = staging + lane // 2 * PITCH
        first = row + (lane % 2 * UNIT ^ unit_mask(lane // 2))
        second = row + (lane % 2 * UNIT + 2 * UNIT ^ unit_mask(lane // 2))
        left = k + lane % 2 * 8
        here, there = kept & (left < g.K), kept & (left + 16 < g.K)
        offset = (group * g.K + left) * itemsize
        added = load_residual(residual + offset, here, there, first, second, words)
        values = epilogue_math(params, values, load_bias(params, group, k, lane), added)
        fragment.store(words, pack(values))
        warp.sync()
        gmem.store_quad(y + offset, smem.load_quad(first), here)
        gmem.store_quad(y + offset + 2 * UNIT, smem.load_quad(second), there)
        warp.sync()  # the staging tile is free for the next chunk

    return locate, store_chunk


def make_load_bias(v: Variant) -> Any:
    """load_bias(params, group, k, lane): the bias of a lane's 8 columns, or nothing."""
    if not v.biased:
        return device(lambda params, group, k, lane: ())
    itemsize = v.itemsize
    load, widen = gmem.load(4, True), fragment.widen(v.dtype, 4)

    @device
    def load_bias(params: Params, group: int, k: int, lane: int) -> Any:
        g = params.geometry
        at = params.call.bias + (group * g.K + k + lane % 4 * 2) * itemsize
        return widen(
            (
                load(at, k < g.K),
                load(at + 8 * itemsize, k + 8 < g.K),
                load(at + 16 * itemsize, k + 16 < g.K),
                load(at + 24 * itemsize, k + 24 < g.K),
            )
        )

    return load_bias


def make_load_residual(v: Variant) -> Any:
    """load_residual(at, here, there, first, second, words): a lane's 16 values, or nothing.

    A lane reads the words of the staging tile that it writes next, so the results can be staged
    without another synchronisation.
    """
    if not v.residual:
        return device(lambda at, here, there, first, second, words: ())
    widen = fragment.widen(v.dtype, 8)

    @device
    def load_residual(
        at: int, here: int, there: int, first: int, second: int, words: tuple[int, ...]
    ) -> Any:
        smem.store_quad(first, gmem.load_quad(at, here))
        smem.store_quad(second, gmem.load_quad(at + 2 * UNIT, there))
        warp.sync()
        return widen(fragment.load(words))

    return load_residual
