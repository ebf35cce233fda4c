"""Consumers: multiply a stage's views into the accumulator of one warp (or warpgroup).

A view is an address: a tap of an im2col::w load reads its phase buffer some rows further down. The
swizzle belongs to absolute addresses, so a shifted view is swizzled by where it lies, and
`ldmatrix` takes any row. Two rows a multiple of 8 apart have the same swizzle, hence the fixed
steps between tiles.
"""

import functools

from implicit_conv.kernels import walk as plain_walk
from implicit_conv.kernels.gpu import mma, smem
from implicit_conv.kernels.gpu.ptx import device, device_module

walk = device_module(plain_walk)


@functools.cache
def make_multiply(v):
    """multiply(acc, a, b, warp, lane) for stage views at a and b: one filter tap, one channel
    block.
    """
    return {"mma": make_mma, "fma": make_fma, "wgmma": make_wgmma}[v.consumer](v)


@functools.cache
def make_warp_origin(v):
    """(first row, first column) in the tile of consumer warp `index`."""
    warps_n, rows, columns = v.warps_n, 16 * v.tiles_m, 8 * v.tiles_n

    @device
    def warp_origin(index):
        return index // warps_n * rows, index % warps_n * columns

    return warp_origin


def make_mma(v):
    """mma.sync: fragments by ldmatrix, a step of 32 bytes of gemm_k at a time."""
    pitch, steps = v.row_bytes, v.row_bytes // 32
    mask = plain_walk.swizzle_mask(pitch)
    load_a = smem.ldmatrix(v.tiles_m, 16 * pitch)
    load_b = smem.ldmatrix(v.tiles_n // 2, 16 * pitch)
    multiply_tiles = mma.multiply(v.dtype, v.tiles_m, v.tiles_n)

    @device
    def multiply(acc, a, b, row, column, lane):
        a = walk.swizzle(a + (row + lane % 16) * pitch + lane // 16 * 16, mask)
        b = walk.swizzle(
            b + (column + lane % 8 + lane // 16 * 8) * pitch + lane // 8 % 2 * 16, mask
        )
        for step in range(steps):
            acc = multiply_tiles(acc, load_a(a ^ 32 * step), load_b(b ^ 32 * step))
        return acc

    return multiply


def make_fma(v):
    """Plain float32, 16 bytes of gemm_k at a time: every product and sum rounded once."""
    pitch, steps = v.row_bytes, v.row_bytes // 16
    mask = plain_walk.swizzle_mask(pitch)
    load_a = smem.load_quads(2 * v.tiles_m, 8 * pitch)
    load_b = smem.load_quads(v.tiles_n, 8 * pitch)
    multiply_tiles = mma.multiply_float(v.tiles_m, v.tiles_n)

    @device
    def multiply(acc, a, b, row, column, lane):
        a = walk.swizzle(a + (row + lane // 4) * pitch, mask)
        even = b + (column + lane % 4 * 2) * pitch
        odd = walk.swizzle(even + pitch, mask)
        even = walk.swizzle(even, mask)
        for step in range(steps):
            chunk = 16 * step
            acc = multiply_tiles(acc, load_a(a ^ chunk), load_b(even ^ chunk), load_b(odd ^ chunk))
        return acc

    return multiply


def make_wgmma(v):
    """wgmma: B by descriptor; A by ldmatrix, which takes any row, or by descriptor as well.

    A warpgroup has 64 rows and all columns. The documents allow a descriptor to start at 8-row
    boundaries; one that starts elsewhere awaits the hardware probe.
    """
    pitch, steps = v.row_bytes, v.row_bytes // 32
    mask = plain_walk.swizzle_mask(pitch)
    constant = mma.DESCRIPTOR[pitch]
    load_a = make_load_steps(steps)
    kind = (v.dtype, v.tile_n, steps)

    @device
    def descriptor(address):
        return (address & 0x3FFFF) >> 4 | constant

    if v.descriptors:
        multiply_stage = mma.wgmma_descriptors(*kind)

        @device
        def multiply(acc, a, b, row, column, lane):
            return multiply_stage(acc, descriptor(a + row // 64 * 64 * pitch), descriptor(b))

        return multiply
    multiply_stage = mma.wgmma_registers(*kind)

    @device
    def multiply(acc, a, b, row, column, lane):
        a = walk.swizzle(a + (row + lane % 16) * pitch + lane // 16 * 16, mask)
        return multiply_stage(acc, load_a(a), descriptor(b))

    return multiply


def make_load_steps(steps):
    """The fragments of all steps of a stage, one tuple."""
    load = smem.ldmatrix(1, 0)
    if steps == 2:
        return device(lambda a: load(a) + load(a ^ 32))
    return device(lambda a: load(a) + load(a ^ 32) + load(a ^ 64) + load(a ^ 96))
