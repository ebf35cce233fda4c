"""The algorithms: which can serve a problem, and how each sees it; a refusal is a reason."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

from implicit_conv.arch import CpuArch
from implicit_conv.kernels.schedule import ceil_div
from implicit_conv.problem import Problem

PRECISIONS = ("strict", "standard", "fast")
# Outputs of a box along an axis.
WINOGRAD = {"winograd_f2": 2, "winograd_f4": 4, "winograd_f2_stride2": 2}
COLUMN_DTYPES = ("float32", "float64")  # that numpy's matmul leaves to BLAS
STEPS = (1, 2)  # traversal strides that vector loads of image rows serve
WINOGRAD_CHANNELS = 2048  # a transformed panel of more would leave L2


def winograd_size(algorithm: str) -> int:
    """m of Winograd F(m x m, 3x3); 0 for other algorithms."""
    return WINOGRAD.get(algorithm, 0)


def refusal(problem: Problem, algorithm: str, precision: str) -> str | None:
    """Why `algorithm` cannot serve `problem` at `precision`; None if it can."""
    return _RULES[algorithm](problem, precision)


def _pointwise(problem: Problem, precision: str) -> str | None:
    pads = (*problem.pad_lo, *problem.pad_hi)
    if problem.kernel != (1, 1) or problem.stride != (1, 1) or any(pads):
        return "it needs a 1x1 filter, stride 1 and no padding"
    return None


def _depthwise(problem: Problem, precision: str) -> str | None:
    if not problem.groups == problem.C == problem.K:
        return "it needs one channel and one filter a group"
    return None


def _winograd(problem: Problem, stride: int) -> str | None:
    if problem.kernel != (3, 3) or problem.stride != (stride, stride) or problem.dilation != (1, 1):
        return f"it needs a 3x3 filter, stride {stride} and dilation 1"
    if problem.groups > 1:
        return "groups leave too few channels to make up for the transforms"
    if not 1 <= problem.C <= WINOGRAD_CHANNELS:
        return f"it takes 1 to {WINOGRAD_CHANNELS} channels, not {problem.C}"
    return None


def _winograd_f2(problem: Problem, precision: str, stride: int = 1) -> str | None:
    if precision == "strict":
        return "its sums are not those of precision 'strict'; ask for 'standard'"
    return _winograd(problem, stride)


def _winograd_f4(problem: Problem, precision: str) -> str | None:
    if precision != "fast":
        return f"its error is not that of precision {precision!r}; ask for 'fast'"
    return _winograd(problem, stride=1)


def _gemm_im2col(problem: Problem, precision: str) -> str | None:
    if precision == "strict":
        return "the order of its sums is numpy's; ask for 'standard'"
    if problem.dtype not in COLUMN_DTYPES:
        return f"it takes {' and '.join(COLUMN_DTYPES)}, not {problem.dtype}"
    return None


_RULES: dict[str, Callable[[Problem, str], str | None]] = {
    "implicit_gemm": lambda problem, precision: None,
    "pointwise": _pointwise,
    "depthwise": _depthwise,
    "winograd_f2": _winograd_f2,
    "winograd_f4": _winograd_f4,
    "winograd_f2_stride2": functools.partial(_winograd_f2, stride=2),
    "gemm_im2col": _gemm_im2col,
}
ALGORITHMS = tuple(_RULES)
WEIGHED = tuple(name for name in ALGORITHMS if name != "gemm_im2col")  # by "auto"


def widened(problem: Problem) -> Problem:
    """A problem of 16-bit floats as the engine sums it: in float32."""
    if problem.dtype == problem.sum_dtype:
        return problem
    return replace(problem, dtype=problem.sum_dtype, converted=True)


def paired(problem: Problem) -> Problem:
    """A problem of bfloat16 with pairs of channels, each as wide as a float32, as its channels.

    An odd number of channels is filled up with a zero, hence copied.
    """
    channels = problem.C // problem.groups
    return replace(
        problem, C=ceil_div(channels, 2) * problem.groups, dtype="float32",
        converted=channels % 2 == 1,
    )  # fmt: skip


def multiplies_pairs(problem: Problem, algorithm: str, arch: CpuArch) -> bool:
    """Whether `algorithm` multiplies bfloat16 as it is, by dot products of pairs of channels."""
    channels = problem.C // problem.groups
    return (
        problem.dtype == "bfloat16"
        and arch.bfloat16 != "widen"
        and algorithm in ("implicit_gemm", "pointwise")
        and channels > 1  # one would be half of a pair
        and (channels % 2 == 0 or problem.groups == 1)  # no pair spans two groups
    )


def collapsed(problem: Problem) -> Problem:
    """A pointwise problem with all pixels that lie one behind the other as a single row."""
    h, w = problem.size
    if problem.layout == "NHWC":
        images = max(1, problem.N)  # without any the row is never computed, but it is planned
        return replace(problem, N=min(1, problem.N), size=(1, images * h * w))
    return replace(problem, size=(1, h * w))


def swappable(problem: Problem) -> bool:
    """Whether filters and pixels of a pointwise problem may trade places: see `swapped`."""
    as_stored = problem.layout == "NCHW" and not problem.converted
    return as_stored and problem.groups == 1 and min(problem.C, problem.K) > 0


def swapped(problem: Problem) -> Problem:
    """An image of a pointwise problem with filters and pixels in each other's place.

    In NCHW the pixels of a channel lie together, as the filters of a packed panel do, and the
    channels of a filter as those of a pixel in NHWC: nothing needs to be transposed. Each sum keeps
    its order.
    """
    h, w = problem.size
    return replace(problem, N=1, size=(1, problem.K), K=h * w, layout="NHWC")


def whole_window(problem: Problem) -> bool:
    """Whether a filter covers all of x, and a single output pixel is left."""
    pads = (*problem.pad_lo, *problem.pad_hi)
    return problem.kernel == problem.size and problem.output == (1, 1) and not any(pads)


def rows_of_channels(problem: Problem) -> Problem | None:
    """A problem as a row of pixels against filters, both with their elements one behind the other;
    None where they do not lie so.

    The elements are channels; or all that a window holds, where there is but one window an image.
    """
    orders = {("NCHW", "KCRS"), ("NHWC", "KRSC")}
    r, s = problem.kernel
    if problem.groups > 1 or min(problem.C, problem.K, problem.N) < 1:
        return None
    if (r, s) == (1, 1) and problem.weight_layout != "RSCK":
        orders |= {("NCHW", "KRSC"), ("NHWC", "KCRS")}
    if (problem.layout, problem.weight_layout) not in orders:
        return None
    if whole_window(problem):
        return replace(
            problem, N=1, C=problem.C * r * s, size=(1, problem.N), kernel=(1, 1), stride=(1, 1),
            dilation=(1, 1), layout="NHWC",
        )  # fmt: skip
    if problem.layout == "NCHW" or _pointwise(problem, "standard") is not None:
        return None
    return collapsed(problem)


def rows_of_pixels(problem: Problem) -> Problem | None:
    """A pointwise problem with each of its planes as one row; None where there are no planes."""
    planes = problem.layout == "NCHW" and not problem.converted
    return collapsed(problem) if planes and _pointwise(problem, "standard") is None else None


def by_pixels(problem: Problem) -> bool:
    """Whether a problem's vectors may hold pixels of an output row, so that filters need not be
    packed and a few of them fill vectors.
    """
    served = not problem.converted and problem.stride[1] in STEPS
    return served and problem.C > 0 and problem.K > 0


def boxed(problem: Problem, m: int) -> Problem:
    """A problem whose output is rounded up to whole Winograd boxes, by padding behind."""
    more = [
        (ceil_div(extent, m) * m - extent) * stride
        for extent, stride in zip(problem.output, problem.stride, strict=True)
    ]
    return replace(problem, pad_hi=(problem.pad_hi[0] + more[0], problem.pad_hi[1] + more[1]))


def fills_by_groups(problem: Problem, lanes: int) -> bool:
    """Whether a vector holds the filters of whole groups, and their channels too."""
    channels, filters = problem.C // problem.groups, problem.K // problem.groups
    fills = 1 < filters <= lanes and lanes % filters == 0
    return problem.groups > 1 and fills and 1 <= channels <= filters


def by_channels(problem: Problem) -> Problem:
    """A problem of groups with their channels, and filters, as those of a single one."""
    return replace(problem, groups=1)
