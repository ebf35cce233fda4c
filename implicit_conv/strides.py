"""Arrays as a plan takes them: views, and the like of a plan for strides that it cannot take."""

from __future__ import annotations

import functools
from dataclasses import replace
from itertools import pairwise

import numpy as np

from implicit_conv.algorithms import whole_window
from implicit_conv.arrays import Array, numpy_dtype
from implicit_conv.packed import PackedFilter
from implicit_conv.plan import Plan
from implicit_conv.plan import plan as make_plan
from implicit_conv.problem import LAYOUTS, WEIGHT_LAYOUTS


def bits(array: Array) -> Array:
    """`array` as compiled code takes it: 16-bit floats as integers; a view."""
    return array if array.itemsize != 2 or array.dtype == np.uint16 else array.view(np.uint16)


def suited(plan: Plan, x: Array, w: PackedFilter | Array, y: Array, residual: Array | None) -> Plan:
    """`plan`, or the like of it for arrays whose strides it cannot take."""
    rows = all(is_row(plan, array) for array in (x, y, residual) if array is not None)
    if plan.pixel_lanes or (plan.channel_lanes and whole_window(plan.problem)):
        together = not plan.in_place or (rows and bool(x[:1].flags.c_contiguous))
        return plan if together else _variant(plan, together, together)
    collapsed = plan.collapsed and rows
    a, c = x, LAYOUTS[plan.problem.layout][3]
    if plan.swapped and not isinstance(w, PackedFilter):
        a, c = w, WEIGHT_LAYOUTS[plan.problem.weight_layout][1]
    in_place = plan.in_place and a.strides[c] == a.itemsize
    if (collapsed, in_place) == (plan.collapsed, plan.in_place):
        return plan
    return _variant(plan, collapsed, in_place)


@functools.lru_cache(maxsize=256)
def _variant(plan: Plan, collapse: bool, in_place: bool) -> Plan:
    block = plan.geometry.tile_c if plan.algorithm == "depthwise" else 0
    other = make_plan(
        plan.problem, plan.arch, plan.precision, plan.algorithm, collapse, in_place, block
    )
    return replace(
        other, activation=plan.activation, subnormals=plan.subnormals, out_dtype=plan.out_dtype
    )


def is_row(plan: Plan, array: Array) -> bool:
    """Whether the pixels that the plan takes as one row lie a single stride apart."""
    n, h, w, _ = LAYOUTS[plan.problem.layout]
    axes = (n, h, w) if plan.problem.layout == "NHWC" else (h, w)
    steps = [(array.shape[axis], array.strides[axis]) for axis in axes if array.shape[axis] > 1]
    return all(outer == inner * size for (_, outer), (size, inner) in pairwise(steps))


def as_row(plan: Plan, array: Array) -> Array:
    """The pixels of an image (NCHW) or of all images (NHWC) as one row; for channel lanes always
    channels last: a view.
    """
    n, h, w, c = (array.shape[axis] for axis in LAYOUTS[plan.problem.layout])
    if plan.channel_lanes or plan.problem.layout == "NHWC":
        pixels = plan.geometry.Q
        return array.reshape(1, 1, pixels, array.size // pixels)
    return array.reshape(n, c, 1, h * w)


def launched(
    plan: Plan, x: Array, w: PackedFilter | Array, y: Array, residual: Array | None
) -> PackedFilter | Array:
    """The filter as a launch of `plan`, or of the like of it for these arrays, takes it."""
    if isinstance(w, PackedFilter):
        plain = plan.swapped
        if plan.pixel_lanes or plan.channel_lanes:
            plain = suited(plan, x, w, y, residual) is not plan
        return bits(unpacked(plan, w)) if plain else w
    if plan.channel_lanes:
        return bits(w if w[:1].flags.c_contiguous else np.ascontiguousarray(w))
    axes = WEIGHT_LAYOUTS[plan.problem.weight_layout]
    if plan.pixel_lanes and not w.transpose(axes)[:1].flags.c_contiguous:
        return np.ascontiguousarray(w.transpose(axes)).transpose(np.argsort(axes))
    return bits(w)


def unpacked(plan: Plan, w: PackedFilter) -> Array:
    """The plain filter, in the problem's layout, that was copied as it is."""
    filters: Array = w.panels.view(numpy_dtype(plan.problem.dtype))
    if plan.channel_lanes:
        return filters.reshape(plan.problem.weight_shape)
    axes = WEIGHT_LAYOUTS[plan.problem.weight_layout]
    filters = filters.reshape([plan.problem.weight_shape[axis] for axis in axes])
    return filters.transpose(np.argsort(axes))


def swapped(
    plan: Plan, x: Array, w: Array, y: Array, residual: Array | None, n: int
) -> tuple[Array, Array, Array, Array | None]:
    """Views for image n: w as channels-last pixels, x as filters of one tap, y and residual."""
    filters = w.transpose(WEIGHT_LAYOUTS[plan.problem.weight_layout])[None, None, :, :, 0, 0]
    pixels = x[n].reshape(x.shape[1], -1).T[:, :, None, None]
    out, added = (
        None if array is None else array[n].reshape(1, 1, array.shape[1], -1)
        for array in (y, residual)
    )
    assert out is not None
    return filters, pixels, out, added
