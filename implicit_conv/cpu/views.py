"""The problem as a method sees it: with other dtypes or merged axes, but the same sums."""

from __future__ import annotations

from dataclasses import replace

from implicit_conv.problem import Problem

POINTWISE_RULE = "it needs a 1x1 filter, stride 1 and no padding"
STRICT_RULE = "its order of sums is not that of precision 'strict'; ask for 'standard'"
ROW_NEED = "pixels of x and y that reshape to one row without a copy"
STEPS = (1, 2)  # strides along W, in pixels, that vector loads of planes support


def is_pointwise(problem: Problem) -> bool:
    """Whether each output pixel depends on the input pixel at the same position alone."""
    pads = (*problem.pad_lo, *problem.pad_hi)
    return problem.kernel == (1, 1) and problem.stride == (1, 1) and not any(pads)


def widened(problem: Problem) -> Problem:
    """`problem` with the dtype of its sums: 16-bit floats are converted to float32 by loads."""
    if problem.dtype == problem.sum_dtype:
        return problem
    return replace(problem, dtype=problem.sum_dtype, converted=True)


def flattened(problem: Problem) -> Problem:
    """A pointwise problem whose pixels are one row: those of an image in NCHW, or of all images in
    NHWC.
    """
    h, w = problem.size
    if problem.layout == "NHWC":
        images = max(1, problem.N)  # an empty batch is planned, but never computed
        return replace(problem, N=min(1, problem.N), size=(1, images * h * w))
    return replace(problem, size=(1, h * w))


def ungrouped(problem: Problem) -> Problem:
    """`problem` with the channels and filters of all groups in a single group."""
    return replace(problem, groups=1)
