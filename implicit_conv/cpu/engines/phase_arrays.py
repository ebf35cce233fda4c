"""The stride phases of arrays: their pixels and taps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from implicit_conv.arrays.arrays import Array, ordered
from implicit_conv.cpu.run.call import Arrays, stand_in
from implicit_conv.problem.options import ITEMSIZES, WEIGHT_LAYOUTS_OF
from implicit_conv.problem.phases import Phase
from implicit_conv.problem.problem import Problem


def pixels_of(phase: Phase, array: Array, axes: str) -> Array:
    """The pixels of a phase in `array`, whose spatial axes are named in its layout `axes`."""
    return sliced(array, axes, phase.pixels)


def taps_of(phase: Phase, w: Array, axes: str) -> Array:
    """The taps of a phase in `w`, a filter with the layout `axes`."""
    return sliced(w, axes, phase.taps)


def sliced(array: Array, axes: str, slices: Sequence[slice]) -> Array:
    """`array` with its spatial axes, or those of taps, sliced."""
    of_axis = dict(zip(space(axes), slices, strict=True))
    return array[tuple(of_axis.get(letter, slice(None)) for letter in axes)]


def space(axes: str) -> list[str]:
    """The letters of the spatial axes, in the order D, H, W or T, R, S."""
    return [letter for letter in "DHWTRS" if letter in axes]


def filter_layout(problem: Problem) -> str:
    """The layout of the filter that phases slice: w, or with groups a copy of it."""
    return problem.weight_layout if problem.groups == 1 else WEIGHT_LAYOUTS_OF[problem.rank][0]


def swapped(problem: Problem, w: Array) -> Array:
    """A view of `w` with each group's filters and channels swapped, with the axes (group, channel,
    filter, taps); as an array of the shape `swapped_shape`, it is the filter that phases slice.
    """
    filters = ordered(w, tuple(map(problem.weight_layout.find, filter_layout(problem))))
    k, c, *taps = filters.shape
    return filters.reshape(problem.groups, k // problem.groups, c, *taps).swapaxes(1, 2)


def swapped_shape(problem: Problem) -> tuple[int, ...]:
    """The shape of the filter that phases slice."""
    if problem.groups == 1:
        return problem.weight_shape
    return problem.C, problem.K // problem.groups, *problem.kernel


def swapped_copy(problem: Problem, w: Array) -> Array:
    """The filter that phases slice: `w` itself, or with groups a copy."""
    if problem.groups == 1:
        return w
    return np.ascontiguousarray(swapped(problem, w)).reshape(swapped_shape(problem))


def stand_ins(problem: Problem, phase: Phase) -> Arrays:
    """Arrays with the strides of those that a phase gets if dy, w and dx are contiguous; they have
    no memory of their own.
    """
    w = stand_in(swapped_shape(problem), problem.filter_dtype)
    dy = stand_in(problem.output_shape, problem.dtype)
    dx = stand_in(problem.input_shape, problem.dtype)
    w = taps_of(phase, w, filter_layout(problem))
    return Arrays(dy, w, pixels_of(phase, dx, problem.array_layout))


def copied_bytes(problem: Problem) -> int:
    """Bytes of the copy of w with swapped filters and channels, which groups need."""
    itemsize = ITEMSIZES[problem.filter_dtype]
    return math.prod(problem.weight_shape) * itemsize if problem.groups > 1 else 0
