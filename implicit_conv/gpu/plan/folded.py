"""Folded loads: the columns of a filter row become channels of one load.

In a channels-last image the pixels that a filter row reads are contiguous, so the S taps of C
channels are one tap of S * C channels. First layers gain most: with 3 channels and a 7x7 filter a
load has 21 of 32 elements instead of 3 of 32, and there are 7 k-blocks of it instead of 49. The
image's row is then counted in elements: padding begins and ends inside a load, at any element.

Tensor copies cannot make these loads, because the strides of a map are multiples of 16 bytes and
those of 3 channels are not. A copy of x with 8 channels would allow them, but a call allocates
nothing and launches one kernel.
"""

from __future__ import annotations

from implicit_conv.gpu.cuda.arrays import Operand
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.problem.problem import Problem


def folded(g: Geometry) -> Geometry:
    """The geometry whose rows are counted in elements, and whose only column is a filter row."""
    return g._replace(
        C=g.S * g.C,
        S=1,
        W=g.W * g.C,
        stride_w=g.stride_w * g.C,
        pad_w=g.pad_w * g.C,
        dilation_w=1,
        step_w=g.stride_w * g.C,
        phases_w=1,
        remainders_w=1,
    )


def fold_rule(view: Problem) -> str:
    """The reason why the loads of a problem cannot be folded, or an empty string."""
    if view.layout != "NHWC" or view.weight_layout != "KRSC":
        return (
            "folded loads need channels-last x and w (NHWC, KRSC), "
            f"not {view.layout}, {view.weight_layout}"
        )
    if view.groups > 1:
        return f"the channels of neighbouring pixels are not contiguous in {view.groups} groups"
    columns, dilation = view.kernel[1], view.dilation[1]
    if columns > 1 and dilation > 1:
        return f"a dilation of {dilation} leaves gaps between the pixels of a filter row"
    return "" if columns > 1 and view.C else "there are no columns to fold"


def fold_misfit(array: Operand, itemsize: int) -> str:
    """The reason why an array's rows are not contiguous elements, or an empty string."""
    channels = array.shape[-1]
    if array.strides[-2:] == (channels * itemsize, itemsize):
        return ""
    return f"has strides {array.strides[-2:]} of columns and channels, which leave gaps in a row"
