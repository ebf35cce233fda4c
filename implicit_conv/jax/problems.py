"""Convolutions of JAX as those of this package: which operator computes one, on which views.

``conv_general_dilated`` is one operation for what are three here. With a stride of its window it is
a convolution; with a dilated lhs it is the input gradient of one; and where its windows are images,
it is a weight gradient. JAX's own rules of differentiation make the latter two.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from implicit_conv.arrays.arrays import Array
from implicit_conv.errors import PlanError
from implicit_conv.operators import conv, input_grad, weight_grad
from implicit_conv.operators.dispatch import Operator, make_plan
from implicit_conv.operators.plan import Plan
from implicit_conv.operators.programs import Views

PIXELS, TAPS = ("W", "HW", "DHW"), ("S", "RS", "TRS")  # letters of 1, 2 and 3 spatial axes
OPERATORS = {
    value.name: value
    for module in (conv, input_grad, weight_grad)
    for value in vars(module).values()
    if isinstance(value, Operator)
}
MOST_PARTS = 64  # calls of one convolution


class Window(NamedTuple):
    """The arguments of ``conv_general_dilated_p`` that say what is summed."""

    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    feature_groups: int
    batch_groups: int

    @property
    def reverses_taps(self) -> bool:
        """Whether plans take the taps of rhs in reverse order."""
        return set(self.lhs_dilation) != {1}


class Problem(NamedTuple):
    """A plan of this package, and the views of lhs, rhs and the result that it runs on, one by one:
    more than one of groups that it does not have.
    """

    plan: Plan
    parts: tuple[Views, ...]


def problem_of(window: Window, views: Views, dtype: str, precision: str) -> Problem:
    """The problem of a convolution. Views have the axes (n, c, pixels), (k, c, taps), (n, k,
    pixels), whatever their order in memory is, and taps in reverse order where the window
    `reverses_taps`.

    Raises
    ------
    PlanError
        It is none of those that this package surely computes.
    ShapeError, DTypeError
        Its sizes or its dtype are beyond those that this package takes.
    """
    rank = views[0].ndim - 2
    if not 1 <= rank <= 3:
        raise PlanError(f"a convolution of {rank} spatial axes")
    if min(array.size for array in views) == 0:
        raise PlanError("an array is empty")
    dilated = window.reverses_taps
    images = not dilated and (window.batch_groups > 1 or _windows_are_images(window, views))
    if dilated and window.batch_groups > 1:
        raise PlanError("a dilated lhs with groups of images")
    if window.feature_groups > 1 and (images or (dilated and not _is_depthwise(window, views))):
        return _of_groups(window, views, dtype, precision)
    if images:
        return _weight_gradient(window, views, dtype, precision)
    if dilated:
        return _input_gradient(window, views, dtype, precision)
    x, w, _ = views
    groups, sizes = window.feature_groups, (window.stride, window.padding, window.rhs_dilation)
    return _planned("conv{}d", views, (x, w), sizes, groups, dtype, precision)


def _is_depthwise(window: Window, views: Views) -> bool:
    """Whether a group has one channel and one filter."""
    groups = window.feature_groups
    return bool(groups == views[0].shape[1] == views[2].shape[1])


def _of_groups(window: Window, views: Views, dtype: str, precision: str) -> Problem:
    """The problem of each group: that of the first, and the views of all."""
    groups = window.feature_groups
    if groups > MOST_PARTS or _is_depthwise(window, views):
        raise PlanError(f"{groups} groups, one by one")
    x, w, y = views
    channels, filters = x.shape[1] // groups, w.shape[0] // groups
    own, plan = window._replace(feature_groups=1), None
    parts: list[Views] = []
    for group in range(groups):
        read = slice(group * channels, (group + 1) * channels)
        made = slice(group * filters, (group + 1) * filters)
        plan, part = problem_of(own, (x[:, read], w[made], y[:, made]), dtype, precision)
        parts += part
    assert plan is not None
    return Problem(plan, tuple(parts))


def _windows_are_images(window: Window, views: Views) -> bool:
    """Whether windows have more pixels than the result: then taps are many, and sums few."""
    _, w, y = views
    return math.prod(w.shape[2:]) > math.prod(y.shape[2:])


def _weight_gradient(window: Window, views: Views, dtype: str, precision: str) -> Problem:
    """The result is the gradient of a filter: lhs has its images as channels, rhs is dy."""
    x, dy, dw = (array.swapaxes(0, 1) for array in views)
    pads = []
    for axis, (low, _) in enumerate(window.padding):
        pixels, size, taps = dy.shape[axis + 2], x.shape[axis + 2], dw.shape[axis + 2]
        reach = (pixels - 1) * window.rhs_dilation[axis] + (taps - 1) * window.stride[axis] + 1
        pads.append((low, reach - size - low))  # what no sum reaches is cropped
    sizes = window.rhs_dilation, tuple(pads), window.stride
    groups = window.batch_groups
    own = {"weight_shape": None}
    return _planned(
        "conv{}d_weight_grad", (x, dy, dw), (x, dw), sizes, groups, dtype, precision, own
    )


def _input_gradient(window: Window, views: Views, dtype: str, precision: str) -> Problem:
    """The result is the gradient of x: lhs is dy."""
    if set(window.stride) != {1}:
        raise PlanError("a stride of the window and a dilated lhs")
    dy, w, dx = views
    groups = window.feature_groups
    filters = w if groups > 1 else w.swapaxes(0, 1)
    reaches = [(taps - 1) * d for taps, d in zip(w.shape[2:], window.rhs_dilation, strict=True)]
    pads = tuple(
        (reach - low, reach - high)
        for reach, (low, high) in zip(reaches, window.padding, strict=True)
    )
    sizes = window.lhs_dilation, pads, window.rhs_dilation
    given = (dy, filters, dx), (dy, filters)
    own = {"input_shape": None}
    return _planned("conv{}d_input_grad", *given, sizes, groups, dtype, precision, own)


def _planned(
    name: str,
    views: Views,
    layouts: tuple[Array, Array],
    sizes: tuple[Any, Any, Any],
    groups: int,
    dtype: str,
    precision: str,
    own: dict[str, None] | None = None,
) -> Problem:
    """The plan of the operator `name`, for the layouts of two of the views, images and filters.
    `own` names its option that is the shape of the result.
    """
    rank = views[0].ndim - 2
    operator = OPERATORS[name.format(rank)]
    layout, image_axes = _layout(layouts[0], "NC", PIXELS[rank - 1])
    weight_layout, filter_axes = _layout(layouts[1], "KC", TAPS[rank - 1])
    axes = [filter_axes if view is layouts[1] else image_axes for view in views]
    planned: Any = tuple(view.transpose(each) for view, each in zip(views, axes, strict=True))
    stride, padding, dilation = sizes
    names = (f"{each}_shape" for each in operator.names)
    options: dict[str, Any] = dict(zip(names, (view.shape for view in planned), strict=False))
    options |= {each: planned[2].shape for each in own or ()}
    options |= {"layout": layout, "weight_layout": weight_layout, "groups": groups}
    options |= {"stride": stride, "padding": padding, "dilation": dilation}
    out_dtype = planned[2].dtype.name
    plan = make_plan(
        operator,
        dtype=dtype,
        searches=False,
        device="cpu",
        precision=precision,
        out_dtype=out_dtype,
        **options,
    )
    return Problem(plan, (planned,))


def _layout(array: Array, letters: str, space: str) -> tuple[str, tuple[int, ...]]:
    """The layout whose last axis is the one that comes last in memory, and the axes of `array`,
    whose first ones are `letters`, in that order.
    """
    pairs = zip(array.shape, array.strides, strict=True)
    steps = [abs(stride) if extent > 1 else math.inf for extent, stride in pairs]
    last, pixels = min(range(array.ndim), key=steps.__getitem__), tuple(range(2, array.ndim))
    if last == 1:
        return f"{letters[0]}{space}{letters[1]}", (0, *pixels, 1)
    if last == 0 and letters == "KC":
        return f"{space}CK", (*pixels, 1, 0)
    return f"{letters}{space}", tuple(range(array.ndim))
