"""A kernel that returns the bytes of one tensor copy: a probe of walks, fills, swizzles and maps.

It has one warp. A lane issues the copy, all lanes wait, and they write shared memory to y. The
fields of Call carry the operands of the copy:

    x_n, x_h, x_w, x_c    coordinates n, h, w, c
                          tiled: the box begins at (n, w, c), a filter at (k, tap, c)
    w_r, w_s              im2col: offsets of h and w; im2col::w and ::w::128: halo and w_offset
    a_load                bytes delivered, a multiple of 16
"""

from __future__ import annotations

import functools
from typing import Any

from implicit_conv.kernels.gpu import blob, gmem, mbarrier, smem, tma, warp
from implicit_conv.kernels.gpu.call import Call
from implicit_conv.kernels.gpu.ptx import device, shared_base
from implicit_conv.kernels.gpu.sizes import DUMP_DATA_AT, DUMP_THREADS

INFIXES = {"im2col": "im2col", "w": "im2col::w", "w128": "im2col::w::128"}
MODES = (*INFIXES, "tiled")

smem_base = shared_base()


@functools.cache
def make_dump(mode: str) -> Any:
    """The kernel for copies of `mode`; its one argument is the params blob."""
    wide = mode in ("w", "w128")
    load_pixels = tma.load_im2col(INFIXES.get(mode, "im2col"))

    @device
    def load_im2col(map: int, c: Call, at: int, barrier: int) -> None:
        first, second = (c.w_r, c.w_s) if wide else (c.w_s, c.w_r)
        load_pixels(at, map, c.x_c, c.x_w, c.x_h, c.x_n, barrier, first, second)

    @device
    def load_tile(map: int, c: Call, at: int, barrier: int) -> None:
        tma.load_tile_3d(at, map, c.x_c, c.x_w, c.x_n, barrier)

    load = load_tile if mode == "tiled" else load_im2col

    def dump(argument: Any) -> None:
        params, barrier, lane = blob.unpack(argument), smem_base(), warp.lane()
        call = params.call
        mbarrier.init(barrier, 1, lane == 0)
        mbarrier.fence_init()
        warp.sync()
        if warp.elect():
            mbarrier.arrive_expect_tx(barrier, call.a_load)
            load(params.activation_map, call, barrier + DUMP_DATA_AT, barrier)
        warp.sync()
        mbarrier.wait(barrier, 0)
        for first in range(0, call.a_load, 16 * DUMP_THREADS):
            at = first + 16 * lane
            inside = at < call.a_load
            words = smem.load_quad(barrier + DUMP_DATA_AT + at * inside)
            gmem.store_quad(call.y + at, words, inside)

    return dump
