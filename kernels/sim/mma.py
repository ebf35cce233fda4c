"""Twins of kernels/gpu/mma.py: products and sums in float64, rounded once per instruction."""

import numpy as np

from implicit_conv.kernels.sim.errors import SimulationError
from implicit_conv.kernels.sim.machine import LANES, current
from implicit_conv.kernels.sim.number import from_bits
from implicit_conv.kernels.walk import swizzle, swizzle_mask

SPAN = {1: 128, 2: 64, 3: 32}  # bytes of a swizzled row by the descriptor's mode


def _pairs(registers, dtype):
    """(register, lane, 2) float32 of packed 16-bit elements."""
    bits = np.stack(registers).astype(np.uint32)
    return np.stack([from_bits(bits & 0xFFFF, dtype), from_bits(bits >> 16, dtype)], axis=-1)


def _a_matrix(registers, dtype, tiles):
    """Rows x 16 from fragments (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8)."""
    pairs = _pairs(registers, dtype)
    pairs = pairs.reshape(tiles, 2, 2, 8, 4, 2)  # tile, k half, row half, g, t, pair
    return pairs.transpose(0, 2, 3, 1, 4, 5).reshape(16 * tiles, 16)


def _b_matrix(registers, dtype, tiles):
    """Columns x 16 from fragments (2t, g), (2t + 8, g)."""
    pairs = _pairs(registers, dtype).reshape(tiles, 2, 8, 4, 2)  # tile, k half, g, t, pair
    return pairs.transpose(0, 2, 1, 3, 4).reshape(8 * tiles, 16)


def _scatter(products, tiles_m, tiles_n):
    """The registers of an accumulator, from a matrix of 16 tiles_m x 8 tiles_n."""
    parts = products.reshape(tiles_m, 2, 8, tiles_n, 4, 2)  # m, row half, g, n, t, pair
    return parts.transpose(0, 3, 1, 5, 2, 4).reshape(4 * tiles_m * tiles_n, 32)


def _add(acc, products):
    total = np.stack(acc).astype(np.float64) + products
    return tuple(total.astype(np.float32))


def multiply(dtype, tiles_m, tiles_n):
    def hook(acc, a, b):
        a, b = _a_matrix(a, dtype, tiles_m), _b_matrix(b, dtype, tiles_n)
        return _add(_lanes(acc), _scatter(_product(a, b), tiles_m, tiles_n))

    return hook


def _product(a, b):
    return a.astype(np.float64) @ b.astype(np.float64).T


def _lanes(acc):
    return [np.broadcast_to(value, LANES.shape) for value in acc]


def multiply_tf32():
    def hook(acc, a, b):
        a = _truncate(a).reshape(2, 2, 8, 4).transpose(1, 2, 0, 3).reshape(16, 8)
        b = _truncate(b).reshape(2, 8, 4).transpose(1, 0, 2).reshape(8, 8)
        return _add(_lanes(acc), _scatter(_product(a, b), 1, 1))

    return hook


def _truncate(registers):
    """float32 values truncated to tf32, which has the upper 19 bits."""
    return (np.stack(registers).astype(np.uint32) & 0xFFFFE000).view(np.float32)


def multiply_float(tiles_m, tiles_n):
    """Each step of gemm_k is an fma: the float64 sum is rounded to float32."""

    def hook(acc, a, b_even, b_odd):
        total = np.stack(_lanes(acc)).reshape(tiles_m, tiles_n, 2, 2, 32)
        a = np.stack(a).reshape(tiles_m, 1, 2, 1, 4, 32).astype(np.float64)
        b = np.stack([np.stack(b_even), np.stack(b_odd)]).reshape(2, tiles_n, 4, 32)
        b = b.transpose(1, 0, 2, 3).reshape(1, tiles_n, 1, 2, 4, 32)
        for k in range(4):
            total = (total + a[..., k, :] * b[..., k, :]).astype(np.float32)
        return tuple(total.reshape(-1, 32))

    return hook


def _decode(descriptor):
    """(start, LBO, SBO, swizzle mode) of a shared-memory matrix descriptor."""
    descriptor = int(descriptor)
    if descriptor >> 49 & 7:
        raise SimulationError("a descriptor's base offset other than 0 is not simulated")
    start, lbo, sbo = ((descriptor >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    return start, lbo, sbo, descriptor >> 62


def _read_operand(descriptor, rows, first_row, step):
    """`rows` x 16 elements; row i is at start + i // 8 * SBO + i % 8 * span, then swizzled."""
    warp = current()
    start, _, sbo, mode = _decode(descriptor)
    if mode == 0:
        raise SimulationError("descriptors without swizzle are not simulated")
    row = first_row + np.arange(rows)
    line = start + 32 * step + row // 8 * sbo + row % 8 * SPAN[mode]
    halves = [
        warp.block.smem.load(warp, swizzle(line + 16 * half, swizzle_mask(SPAN[mode])), 16)
        for half in (0, 1)
    ]
    return np.concatenate(halves, axis=1).view(np.uint16)


def _wgmma(dtype, columns, steps, a_of):
    """The part of one warp: 16 rows. All four warps must pass the same descriptors."""

    def hook(acc, a, b):
        warp = current()
        _same_in_warpgroup(warp, b)
        acc = _lanes(acc)
        for step in range(steps):
            rows = from_bits(_read_operand(b, columns, 0, step), dtype)
            acc = _add(acc, _scatter(_product(a_of(a, step, warp), rows), 1, columns // 8))
        return acc

    return hook


def _same_in_warpgroup(warp, descriptor):
    call, warp.wgmma_calls = warp.wgmma_calls, warp.wgmma_calls + 1
    first = warp.block.wgmma_log.setdefault((warp.index // 4, call), int(descriptor))
    if first != int(descriptor):
        raise SimulationError(
            f"{warp}: the warps of a warpgroup pass different descriptors to wgmma"
        )


def wgmma_registers(dtype, columns, steps):
    def rows(a, step, warp):
        return _a_matrix(a[4 * step : 4 * step + 4], dtype, 1)

    return _wgmma(dtype, columns, steps, rows)


def wgmma_descriptors(dtype, columns, steps):
    def rows(a, step, warp):
        return from_bits(_read_operand(a, 16, 16 * (warp.index % 4), step), dtype)

    return _wgmma(dtype, columns, steps, rows)


def wgmma_fence():
    """Nothing to do: the twin of wgmma completes at once."""


def wgmma_commit():
    """Nothing to do: the twin of wgmma completes at once."""


def wgmma_wait(groups):
    return wgmma_fence
