"""Consumers: multiply the views of a stage into the accumulator of one warp or warpgroup.

A view is an address. A tap of an im2col::w load reads its phase buffer from a row further down: a
shifted view. The swizzle is a function of absolute addresses, so the addresses of a shifted view
are swizzled like all others, and `ldmatrix` can start at any row. Rows whose distance is a multiple
of 8 have the same swizzle, so the steps between tiles are constants.
"""

from __future__ import annotations

import functools
from typing import Any

from implicit_conv.kernels import walk as plain_walk
from implicit_conv.kernels.gpu import mma, smem
from implicit_conv.kernels.gpu.call import Floats
from implicit_conv.kernels.gpu.ptx import device, device_module
from implicit_conv.kernels.gpu.variant import Variant

walk = device_module(plain_walk)


@functools.cache
def make_multiply(v: Variant) -> Any:
    """multiply(acc, a, b, row, column, lane): acc + A x B for one filter tap and channel block.

    `a` and `b` are the addresses of the views, `row` and `column` the warp's origin in the tile.
    """
    return {"mma": make_mma, "fma": make_fma, "wgmma": make_wgmma}[v.consumer](v)


@functools.cache
def make_warp_origin(v: Variant) -> Any:
    """warp_origin(index): (first row, first column) of a consumer warp in the tile."""
    warps_n, rows, columns = v.warps_n, 16 * v.tiles_m, 8 * v.tiles_n

    @device
    def warp_origin(index: int) -> tuple[int, int]:
        return index // warps_n * rows, index % warps_n * columns

    return warp_origin


def make_mma(v: Variant) -> Any:
    """mma.sync with fragments from ldmatrix, in steps of 32 bytes of gemm_k."""
    pitch, steps = v.row_bytes, v.row_bytes // 32
    mask = plain_walk.swizzle_mask(pitch)
    load_a = smem.ldmatrix(v.tiles_m, 16 * pitch)
    load_b = smem.ldmatrix(v.tiles_n // 2, 16 * pitch)
    multiply_tiles = mma.multiply(v.dtype, v.tiles_m, v.tiles_n)

    @device
    def multiply(acc: Floats, a: int, b: int, row: int, column: int, lane: int) -> Floats:
        a = walk.swizzle(a + (row + lane % 16) * pitch + lane // 16 * 16, mask)
        b = walk.swizzle(
            b + (column + lane % 8 + lane // 16 * 8) * pitch + lane // 8 % 2 * 16, mask
        )
        for step in range(steps):
            acc = multiply_tiles(acc, load_a(a ^ 32 * step), load_b(b ^ 32 * step))
        return acc

    return multiply


def make_fma(v: Variant) -> Any:
    """float32 fma in steps of 16 bytes of gemm_k: product and sum are rounded once together."""
    pitch, steps = v.row_bytes, v.row_bytes // 16
    mask = plain_walk.swizzle_mask(pitch)
    load_a = smem.load_quads(2 * v.tiles_m, 8 * pitch)
    load_b = smem.load_quads(v.tiles_n, 8 * pitch)
    multiply_tiles = mma.multiply_float(v.tiles_m, v.tiles_n)

    @device
    def multiply(acc: Floats, a: int, b: int, row: int, column: int, lane: int) -> Floats:
        a = walk.swizzle(a + (row + lane // 4) * pitch, mask)
        even = b + (column + lane % 4 * 2) * pitch
        odd = walk.swizzle(even + pitch, mask)
        even = walk.swizzle(even, mask)
        for step in range(steps):
            chunk = 16 * step
            acc = multiply_tiles(acc, load_a(a ^ chunk), load_b(even ^ chunk), load_b(odd ^ chunk))
        return acc

    return multiply


def make_wgmma(v: Variant) -> Any:
    """wgmma with B by descriptor, and A in registers from ldmatrix or by descriptor.

    A warpgroup computes 64 rows and all columns. By the documentation a descriptor starts at a
    multiple of 8 rows; whether one may start elsewhere is for the hardware probe to show. ldmatrix
    can start at any row.
    """
    pitch, steps = v.row_bytes, v.row_bytes // 32
    mask = plain_walk.swizzle_mask(pitch)
    constant = mma.DESCRIPTOR[pitch]
    load_a = make_load_steps(steps)
    multiply_stage = mma.wgmma(v.dtype, v.tile_n, steps, v.descriptors)

    @device
    def descriptor(address: int) -> int:
        return (address & 0x3FFFF) >> 4 | constant

    if v.descriptors:

        @device
        def multiply(acc: Floats, a: int, b: int, row: int, column: int, lane: int) -> Floats:
            return multiply_stage(acc, descriptor(a + row // 64 * 64 * pitch), descriptor(b))

        return multiply

    @device
    def multiply_fragments(acc: Floats, a: int, b: int, row: int, column: int, lane: int) -> Floats:
        a = walk.swizzle(a + (row + lane % 16) * pitch + lane // 16 * 16, mask)
        return multiply_stage(acc, load_a(a), descriptor(b))

    return multiply_fragments


def make_load_steps(steps: int) -> Any:
    """load_steps(a): the fragments of all steps of a stage in one tuple."""
    load = smem.ldmatrix(1, 0)
    if steps == 2:
        return device(lambda a: load(a) + load(a ^ 32))
    return device(lambda a: load(a) + load(a ^ 32) + load(a ^ 64) + load(a ^ 96))
