"""A convolution in Gluon: im2col loads of the activation, tiled ones of the filter, wgmma."""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)


@gluon.jit
def convolution(
    x, w, y, P, Q, R: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, K: tl.constexpr
):
    """Each block computes as many output pixels as x has in a column; w is (K, R * S * C)."""
    pixels: gl.constexpr = x.block_type.shape[0]
    channels: gl.constexpr = x.block_type.shape[1]
    a = gl.allocate_shared_memory(x.dtype, [pixels, channels], x.layout)
    b = gl.allocate_shared_memory(w.dtype, [K, channels], w.layout)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    first = gl.program_id(0) * pixels
    image, row, column = first // (P * Q), first // Q % P, first % Q
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, K, 16])
    sums = gl.zeros([pixels, K], gl.float32, layout)
    phase = 0
    for r in gl.static_range(R):
        for s in gl.static_range(S):
            mbarrier.expect(bar, x.nbytes_per_cta + w.nbytes_per_cta)
            tma.async_load_im2col(x, [image, row - PAD, column - PAD, 0], [r, s], bar, a)
            tma.async_load(w, [0, (r * S + s) * channels], bar, b)
            mbarrier.wait(bar, phase)
            phase ^= 1
            sums = warpgroup_mma(a, b.permute((1, 0)), sums, is_async=True)
            sums = warpgroup_mma_wait(num_outstanding=0, deps=(sums,))
    fence_async_shared()
    mbarrier.invalidate(bar)
    rows = first + gl.arange(0, pixels, layout=gl.SliceLayout(1, layout))
    columns = gl.arange(0, K, layout=gl.SliceLayout(0, layout))
    gl.store(y + rows[:, None] * K + columns[None, :], sums)
