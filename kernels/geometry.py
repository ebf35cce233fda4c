"""Geometry: everything that compiled code knows about a convolution, as plain integers; and the
epilogue, with the numbers of activations, which the host's parser and all kernels share.

C and K count one group. An axis of the filter reads ``position = out * stride + tap * dilation -
pad``. Its taps fall into *phase buffers*: the taps whose ``tap * dilation`` leave the same
remainder modulo the stride read pixels with that stride, so one strided walk serves all of them,
shifted by whole rows. Depth has no phases: a filter plane reads whole planes of the buffer, which
neighbouring output planes share where their windows overlap without gaps.

An activation is (kind, low, high). CLAMP is used for none, relu and relu6; `low` is also the slope
of a leaky relu.
"""

import math
from typing import NamedTuple, TypeAlias

UNLIMITED = 1 << 62  # a w_offset_max that no offset exceeds
# Values of padding_mode: padding is zeros, or it repeats pixels of the image as the modes
# "reflect", "symmetric", "edge" and "wrap" of numpy.pad do.
ZEROS, REFLECT, SYMMETRIC, REPLICATE, CIRCULAR = range(5)
Place: TypeAlias = tuple[int, int, int]  # plane, row and column of a tile, or their counts


class Geometry(NamedTuple):
    """Extents, steps and tile sizes of one fprop problem, in the letters of a Problem."""

    N: int
    D: int
    H: int
    W: int
    C: int  # channels of one group
    K: int  # filters of one group
    groups: int
    T: int
    R: int
    S: int
    Z: int
    P: int
    Q: int
    stride_d: int
    stride_h: int
    stride_w: int
    dilation_d: int
    dilation_h: int
    dilation_w: int
    pad_d: int  # padding on the low side; negative values crop
    pad_h: int
    pad_w: int
    # Traversal stride of the loads: stride_w, or 1 where image rows are buffered without gaps.
    step_w: int
    # Phase buffers of an axis: min(taps, step / gcd(step, dilation)), or one for each tap where
    # that takes less memory, because the dilation is large.
    phases_h: int
    phases_w: int
    # Remainders that tap * dilation_w leave modulo step_w: taps are summed remainder by remainder,
    # also where each has a buffer of its own, so that the order depends on no output extent.
    remainders_w: int
    slots: int  # L: slots of one image row in the (n, slot) order of im2col::w, at least Q
    tile_n: int  # output planes, output rows and output columns of one load tile
    tile_p: int
    tile_q: int
    # Rows along gemm_m of one load: tile_q where a load is one image row, else the GPU's tile.
    tile_m: int
    tile_c: int  # channels of one k-block
    tile_k: int  # filters of one panel
    w_offset_max: int = UNLIMITED  # 31 where a w_offset must fit into the instruction
    padding_mode: int = ZEROS
    skips_w: int = 0  # 1: columns on the sides leave out the filter columns that read zeros alone


NO_GEOMETRY = Geometry(*[0] * len(Geometry._fields))  # of launches that convolve nothing
ACTIVATIONS = 7  # kinds of activation
CLAMP, LEAKY_RELU, SILU, GELU, SIGMOID, TANH, HARDSWISH = range(ACTIVATIONS)


class Epilogue(NamedTuple):
    """What is done to sums before they are stored."""

    # (kind, low, high)
    activation: tuple[float, float, float] = (float(CLAMP), -math.inf, math.inf)
    biased: bool = False  # whether sums begin with a bias
    scaled: bool = False  # whether sums are scaled for each filter, and a bias is added after that
