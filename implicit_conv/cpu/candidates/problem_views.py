"""The problem as a method sees it: with other dtypes or merged axes, but the same sums.

Methods see three spatial axes, and arrays with the axes (n, d, h, w, c) and (k, c, t, r, s),
whatever the caller's rank and layouts. Axes without extent come first: a signal is a row, unless
that changes an order of sums which precision "strict" fixes.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import replace

from implicit_conv.kernels.schedule import CHAIN, ceil_div
from implicit_conv.problem.options import SPACE, TAPS
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import Load, remainder_count

POINTWISE_RULE = "it needs a 1x1 filter, stride 1 and no padding"
ROW_NEED = "pixels of x and y that reshape to one row without a copy"
STEPS = (1, 2)  # strides along W, in pixels, that vector loads of planes support


def spatial(problem: Problem, precision: str = "standard") -> Problem:
    """`problem` with three spatial axes, and its padding mode only where padding repeats pixels.

    Under `precision` "strict" the axes keep their order if another one would change that of sums.

    Pixels that negative padding crops on the high side are then no pixels of the view, so that
    padding does not repeat them; on the low side the schedule takes care of them.
    """
    if problem.repeats:
        crops = tuple(min(0, pad) for pad in problem.pad_hi)
        problem = replace(
            problem,
            size=tuple(map(operator.add, problem.size, crops)),
            pad_hi=tuple(map(operator.sub, problem.pad_hi, crops)),
        )
    flat = [_is_flat(problem, axis) for axis in range(problem.rank)]
    order = list(range(problem.rank))
    if any(flat) and (precision != "strict" or _sums_in_one_order(problem)):
        order.sort(key=lambda axis: not flat[axis])
    missing = 3 - problem.rank
    layout, weight_layout = _moved_layouts(problem.layout, problem.weight_layout, tuple(order))

    def moved(values: tuple[int, ...], default: int) -> tuple[int, ...]:
        return (default,) * missing + tuple([values[axis] for axis in order])

    def stepped(values: tuple[int, ...]) -> tuple[int, ...]:
        """The strides or dilations, which are 1 for axes of a single pixel and tap."""
        if any(flat):
            values = tuple(1 if flat[i] else v for i, v in enumerate(values))
        return moved(values, 1)

    return problem.changed(
        size=moved(problem.size, 1),
        kernel=moved(problem.kernel, 1),
        stride=stepped(problem.stride),
        dilation=stepped(problem.dilation),
        pad_lo=moved(problem.pad_lo, 0),
        pad_hi=moved(problem.pad_hi, 0),
        layout=layout,
        weight_layout=weight_layout,
        padding_mode=problem.padding_mode if problem.repeats else "zeros",
    )


def _is_flat(problem: Problem, axis: int) -> bool:
    """Whether an axis has a single pixel and a single tap."""
    pads = (problem.pad_lo[axis], problem.pad_hi[axis])
    return problem.size[axis] == problem.kernel[axis] == 1 and not any(pads)


def _sums_in_one_order(problem: Problem) -> bool:
    """Whether the order of sums is the same for any order of axes, whatever the method: integers,
    and sums of one chain whose taps are along a single axis and not sorted by remainders.
    """
    axes = [axis for axis, taps in enumerate(problem.kernel) if taps > 1]
    if problem.is_integer or not axes:
        return True
    axis, channels = axes[0], problem.C // problem.groups
    taps, steps = problem.kernel[axis], (problem.stride[axis], problem.dilation[axis])
    pairs = channels if channels == 1 else 2 * ceil_div(channels, 2)  # see methods/gemm.py
    remainders = remainder_count(taps, *steps)
    return len(axes) == 1 and remainders in (1, taps) and pairs * taps <= CHAIN


@functools.cache
def _moved_layouts(layout: str, weight_layout: str, order: tuple[int, ...]) -> tuple[str, str]:
    """The layouts of x and w in a view with this order of axes."""
    return layout.translate(_letters(SPACE, order)), weight_layout.translate(_letters(TAPS, order))


def _letters(names: dict[int, str], order: Sequence[int]) -> dict[int, int]:
    """The letters of the caller's axes in a view with this order, as `str.translate` takes them."""
    own, all_three = names[len(order)], names[3]
    return str.maketrans("".join(own[axis] for axis in order), all_three[-len(own) :])


def in_own_axes(problem: Problem, view: Problem, loads: Iterable[Load]) -> list[Load]:
    """Loads of `view`, made by `spatial`, with coordinates of `problem`: (n, its spatial axes, c)
    of x, and (k, its taps, c) of w.
    """
    letters = dict(zip(problem.layout, view.layout, strict=True))
    kept = [0, *(1 + SPACE[3].index(letters[axis]) for axis in SPACE[problem.rank]), -1]
    return [load._replace(coords=tuple(load.coords[axis] for axis in kept)) for load in loads]


def is_pointwise(problem: Problem) -> bool:
    """Whether each output pixel depends on the input pixel at the same position alone."""
    steps = {*problem.kernel, *problem.stride}
    return steps == {1} and not any((*problem.pad_lo, *problem.pad_hi))


def widened(problem: Problem) -> Problem:
    """`problem` with the dtype of its sums: loads convert 16-bit floats to float32, and integers to
    int32 or int64.
    """
    if problem.dtype == problem.sum_dtype:
        return problem
    return problem.changed(dtype=problem.sum_dtype, w_dtype=None, converted=True)


def flattened(problem: Problem) -> Problem:
    """A pointwise problem whose pixels are one row: those of an image, or of all images if channels
    are last.
    """
    d, h, w = problem.size
    if problem.channels_last:
        images = max(1, problem.N)  # an empty batch is planned, but never computed
        return problem.changed(N=min(1, problem.N), size=(1, 1, images * d * h * w))
    return problem.changed(size=(1, 1, d * h * w))


def ungrouped(problem: Problem) -> Problem:
    """`problem` with the channels and filters of all groups in a single group."""
    return problem.changed(groups=1)
