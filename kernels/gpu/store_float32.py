"""Stores of channels-last y of float32: 8 bytes of a lane, straight from the fragments.

Four lanes hold 8 columns of a row, which are one sector. A lane has the rows lane / 4 and
lane / 4 + 8 of a chunk, and in each the columns 8 t + 2 (lane % 4) and the next for t = 0 .. 3.
Where x has 16-bit elements, biases and residuals have, too.
"""

from __future__ import annotations

from typing import Any

from implicit_conv.kernels.gpu import fragment, gmem
from implicit_conv.kernels.gpu.call import Floats, Params
from implicit_conv.kernels.gpu.epilogue_math import make_epilogue_math
from implicit_conv.kernels.gpu.ptx import device
from implicit_conv.kernels.gpu.sizes import CHUNK_COLUMNS
from implicit_conv.kernels.gpu.variant import Variant


def make_store_float32(v: Variant, locate_row: Any) -> tuple[Any, Any]:
    """(locate, store_chunk) as in `epilogue.make_writer`."""
    add_columns = fragment.scale_columns if v.scaled else fragment.add_columns
    epilogue_math = make_epilogue_math(v, CHUNK_COLUMNS // 2, add_columns(CHUNK_COLUMNS))
    load_bias, load_residual, itemsize = make_load_bias(v), make_load_residual(v), v.itemsize

    @device
    def locate(params: Params, tile_m: int, row: int, lane: int) -> Any:
        upper = locate_row(params, tile_m, row + lane // 4)
        return upper, locate_row(params, tile_m, row + lane // 4 + 8)

    @device
    def store_row(y: int, values: Floats, kept: bool, k: int, K: int) -> None:
        gmem.store_pair(y, values[:2], kept & (k < K))
        gmem.store_pair(y + 32, values[2:4], kept & (k + 8 < K))
        gmem.store_pair(y + 64, values[4:6], kept & (k + 16 < K))
        gmem.store_pair(y + 96, values[6:], kept & (k + 24 < K))

    @device
    def store_chunk(
        params: Params, staging: int, place: Any, group: int, k: int, lane: int, values: Floats
    ) -> None:
        g = params.geometry
        k += lane % 4 * 2
        first = group * g.K + k
        offset = first * 4
        added = load_residual(place, first * itemsize, k, g.K)
        r = epilogue_math(params, values, load_bias(params, group, k), added)
        (y, _, kept), (lower, _, below) = place
        store_row(y + offset, r[:2] + r[4:6] + r[8:10] + r[12:14], kept, k, g.K)
        store_row(lower + offset, r[2:4] + r[6:8] + r[10:12] + r[14:], below, k, g.K)

    return locate, store_chunk


def make_load_two(v: Variant, constant: bool = False) -> Any:
    """load_two(at, here): the float32 values of two neighbouring elements, or zeros."""
    if v.itemsize == 4:
        return gmem.load_pair(constant)
    load, widen = gmem.load(4, constant), fragment.widen(v.dtype, 1)
    return device(lambda at, here: widen((load(at, here),)))


def make_load_bias(v: Variant) -> Any:
    """load_bias(params, group, k): the bias of a lane's 8 columns, or their pairs, or nothing."""
    if not v.biased:
        return device(lambda params, group, k: ())
    size, load = v.bias_bytes, gmem.load_floats if v.scaled else make_load_two(v, True)
    tile = 8 * size

    @device
    def load_bias(params: Params, group: int, k: int) -> Any:
        K = params.geometry.K
        at = params.call.bias + (group * K + k) * size
        first = load(at, k < K) + load(at + tile, k + 8 < K)
        return first + load(at + 2 * tile, k + 16 < K) + load(at + 3 * tile, k + 24 < K)

    return load_bias


def make_load_residual(v: Variant) -> Any:
    """load_residual(place, offset, k, K): a lane's 16 values, or nothing."""
    if not v.residual:
        return device(lambda place, offset, k, K: ())
    load, tile = make_load_two(v), 8 * v.itemsize

    @device
    def load_rows(upper: int, lower: int, kept: bool, below: bool) -> Any:
        return load(upper, kept) + load(lower, below)

    @device
    def load_residual(place: Any, offset: int, k: int, K: int) -> Any:
        (_, upper, kept), (_, lower, below) = place
        upper, lower = upper + offset, lower + offset
        first = load_rows(upper, lower, kept & (k < K), below & (k < K))
        here = k + 8 < K
        second = load_rows(upper + tile, lower + tile, kept & here, below & here)
        here = k + 16 < K
        third = load_rows(upper + 2 * tile, lower + 2 * tile, kept & here, below & here)
        here = k + 24 < K
        fourth = load_rows(upper + 3 * tile, lower + 3 * tile, kept & here, below & here)
        return first + second + third + fourth

    return load_residual
