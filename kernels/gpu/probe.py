"""A kernel that multiplies a view of A which starts at any row: a probe of shifted descriptors.

Tensor copies load A (rows of one pixel each) and B into swizzled shared memory. The consumer of the
variant then multiplies the rows of A from `x_w` bytes on, and the float32 accumulators go to y, a
row-major tile. With the identity as B, y tells which element of A each operand register received.

    x_w       bytes from the first row of A to the view's
    a_load    bytes of A; b_load, those of B; a_at, b_at, staging_at, barriers_at as in every kernel
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from implicit_conv.kernels.gpu import blob, gmem, mbarrier, smem, tma, warp
from implicit_conv.kernels.gpu.consumer import make_multiply, make_warp_origin
from implicit_conv.kernels.gpu.ptx import shared_base
from implicit_conv.kernels.gpu.sizes import WARP
from implicit_conv.kernels.gpu.variant import Variant

smem_base = shared_base()


@functools.cache
def make_probe(v: Variant) -> Any:
    """The kernel for variant `v`, all of whose warps multiply; its argument is the params blob."""
    multiply, warp_origin = make_multiply(v), make_warp_origin(v)
    zeros = (np.float32(0),) * v.accumulators
    pitch = 4 * 8 * v.tiles_n  # bytes of a row of a warp's accumulators
    row_bytes, warp_bytes = 4 * v.tile_n, 16 * pitch
    stage = smem.store_tiles(v.tiles_n, pitch)

    def probe(argument: Any) -> None:
        params, base = blob.unpack(argument), smem_base()
        call, index, lane = params.call, warp.index(), warp.lane()
        a, b, barrier = base + call.a_at, base + call.b_at, base + call.barriers_at
        if index == 0:
            mbarrier.init(barrier, 1, lane == 0)
            mbarrier.fence_init()
        warp.sync_block()
        if index == 0:
            if warp.elect():
                mbarrier.arrive_expect_tx(barrier, call.a_load + call.b_load)
                tma.load_tile_3d(a, params.activation_map, 0, 0, 0, barrier)
                tma.load_tile_3d(b, params.filter_map, 0, 0, 0, barrier)
            warp.sync()
        mbarrier.wait(barrier, 0)
        row, column = warp_origin(index)
        acc = multiply(zeros, a + call.x_w, b, row, column, lane)
        staging = base + call.staging_at + index * warp_bytes
        stage(staging + lane // 4 * pitch + lane % 4 * 8, acc)
        warp.sync()
        for first in range(0, warp_bytes, 16 * WARP):
            at = first + 16 * lane
            to = (row + at // pitch) * row_bytes + column * 4 + at % pitch
            gmem.store_quad(call.y + to, smem.load_quad(staging + at), 1)

    return probe
