"""Stores of y in any layout, element by element: lanes are neighbouring pixels.

The chunk goes through a staging tile of float32 in shared memory, which a warp writes in the layout
of the fragments and reads by rows.
"""

from __future__ import annotations

from typing import Any

from implicit_conv.kernels.gpu import gmem, smem, warp
from implicit_conv.kernels.gpu.call import Floats, Params
from implicit_conv.kernels.gpu.epilogue_math import ACTIVATIONS
from implicit_conv.kernels.gpu.ptx import device
from implicit_conv.kernels.gpu.sizes import (
    CHUNK_COLUMNS,
    CHUNK_ROWS,
    ITEMSIZES,
    PAIR_BYTES,
    STAGING_PITCH,
)
from implicit_conv.kernels.gpu.variant import Variant


def make_store_elements(v: Variant, locate_row: Any) -> tuple[Any, Any]:
    """(locate, store_chunk) as in `epilogue.make_writer`."""
    element_math = make_element_math(v)
    store = gmem.store(ITEMSIZES[v.y_dtype])
    stage = smem.store_tiles(CHUNK_COLUMNS // 8, STAGING_PITCH)
    step = 32 // CHUNK_ROWS

    @device
    def locate(params: Params, tile_m: int, row: int, lane: int) -> Any:
        return locate_row(params, tile_m, row + lane % CHUNK_ROWS)

    @device
    def store_chunk(
        params: Params, staging: int, place: Any, group: int, k: int, lane: int, values: Floats
    ) -> None:
        g, call = params.geometry, params.call
        y, residual, kept = place
        stage(staging + lane // 4 * STAGING_PITCH + lane % 4 * 8, values)
        warp.sync()
        staged = staging + lane % CHUNK_ROWS * STAGING_PITCH
        for first in range(0, CHUNK_COLUMNS, step):
            column = first + lane // CHUNK_ROWS
            here = kept & (k + column < g.K)
            filter_, value = group * g.K + k + column, smem.load_float(staged + 4 * column)
            bits = element_math(params, value, residual, here, filter_)
            store(y + filter_ * call.y_k, bits, here)
        warp.sync()  # the staging tile is free for the next chunk

    return locate, store_chunk


def make_element_math(v: Variant) -> Any:
    """element_math(params, value, residual, kept, k): the bits of one element of y.

    `residual` is the address of the pixel's residual, `kept` says whether the element is stored,
    and `k` numbers the filters of all groups.
    """
    itemsize = v.itemsize
    load, load_constant = gmem.load(itemsize), gmem.load(itemsize, True)
    to_float, from_float = gmem.to_float(v.dtype), gmem.from_float(v.y_dtype)
    unchanged = device(lambda params, value, at, kept, k: value)
    add_bias, add_residual, change = unchanged, unchanged, unchanged
    if v.scaled:
        load_pair = gmem.load_pair(True)

        @device
        def add_bias(params: Params, value: float, at: int, kept: bool, k: int) -> Any:
            scale, bias = load_pair(params.call.bias + k * PAIR_BYTES, kept)
            return value * scale + bias

    elif v.biased:

        @device
        def add_bias(params: Params, value: float, at: int, kept: bool, k: int) -> Any:
            return value + to_float(load_constant(params.call.bias + k * itemsize, kept))

    if v.residual:

        @device
        def add_residual(params: Params, value: float, at: int, kept: bool, k: int) -> Any:
            return value + to_float(load(at + k * params.call.residual_k, kept))

    if not v.plain:
        function = ACTIVATIONS[v.activation]

        @device
        def change(params: Params, value: float, at: int, kept: bool, k: int) -> Any:
            return function(value, params.limits)

    @device
    def element_math(params: Params, value: float, at: int, kept: bool, k: int) -> Any:
        value = add_bias(params, value, at, kept, k)
        value = add_residual(params, value, at, kept, k)
        return from_float(change(params, value, at, kept, k))

    return element_math
