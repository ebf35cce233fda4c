"""Geometry: all that compiled code knows of a convolution, as plain integers.

C and K count one group. An axis of the filter reads ``position = out * stride + tap * dilation -
pad``; its taps fall into *phase buffers*: taps whose ``tap * dilation`` leave the same remainder
modulo the stride read pixels that lie ``stride`` apart, hence one strided walk serves them all,
shifted by whole rows.
"""

from typing import NamedTuple

UNLIMITED = 1 << 62


class Geometry(NamedTuple):
    """Extents, steps and tile sizes of one fprop problem; see addressing.md section 5 for the
    letters.
    """

    N: int
    H: int
    W: int
    C: int  # channels of one group
    K: int  # filters of one group
    groups: int
    R: int
    S: int
    P: int
    Q: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int
    pad_h: int  # low side; may be negative (crop)
    pad_w: int
    # traversal stride of the loads: stride_w, or 1 where whole rows are buffered as they lie
    step_w: int
    # phase buffers of an axis: min(taps, step / gcd(step, dilation)), or one for each tap
    # where that takes less room, since taps lie far apart
    phases_h: int
    phases_w: int
    slots: int  # L: slots of one image row in the (n, slot) order of im2col::w, at least Q
    tile_n: int  # images, output rows and output columns of one load tile
    tile_p: int
    tile_q: int
    tile_m: (
        int  # gemm_m rows of one load: tile_q where a load is one image row, else the GPU's tile
    )
    tile_c: int  # channels of one k-block
    tile_k: int  # filters of one panel
    w_offset_max: int = UNLIMITED  # 31 where a w_offset must fit the instruction
