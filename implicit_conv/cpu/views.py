"""A problem as a method sees it: other dtypes, merged axes, the same sums."""

from __future__ import annotations

from dataclasses import replace

from implicit_conv.problem import Problem

POINTWISE_RULE = "it needs a 1x1 filter, stride 1 and no padding"
STEPS = (1, 2)  # strides along W that vector loads of planes support


def is_pointwise(problem: Problem) -> bool:
    """Whether each output pixel depends on one input pixel alone."""
    pads = (*problem.pad_lo, *problem.pad_hi)
    return problem.kernel == (1, 1) and problem.stride == (1, 1) and not any(pads)


def widened(problem: Problem) -> Problem:
    """A problem of 16-bit floats as the engine sums it: in float32."""
    if problem.dtype == problem.sum_dtype:
        return problem
    return replace(problem, dtype=problem.sum_dtype, converted=True)


def flattened(problem: Problem) -> Problem:
    """A pointwise problem with all contiguous pixels as a single row: those of an image in NCHW, of
    all images in NHWC.
    """
    h, w = problem.size
    if problem.layout == "NHWC":
        images = max(1, problem.N)  # an empty batch is planned for, but never computed
        return replace(problem, N=min(1, problem.N), size=(1, images * h * w))
    return replace(problem, size=(1, h * w))


def ungrouped(problem: Problem) -> Problem:
    """A problem of groups with their channels, and filters, as those of a single group."""
    return replace(problem, groups=1)
