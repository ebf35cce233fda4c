"""The stride phases of arrays: their pixels and taps, and the steps of all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from implicit_conv.arrays.arrays import Array, numpy_dtype, ordered
from implicit_conv.cpu.engines.engine import CpuEngine
from implicit_conv.cpu.run.call import Arrays, Placed, ordered_arrays, stand_in
from implicit_conv.kernels.cpu.runtime.program import (
    Copied,
    Room,
    Step,
    address_of,
    copied,
    located,
)
from implicit_conv.problem.options import ITEMSIZES, WEIGHT_LAYOUTS_OF
from implicit_conv.problem.phases import Phase
from implicit_conv.problem.problem import Problem


@dataclass(frozen=True)
class Part:
    """A phase and its plan."""

    phase: Phase
    engine: CpuEngine

    def pixels(self, array: Array, axes: str) -> Array:
        """The pixels of the phase in `array`, whose spatial axes are named in its layout `axes`."""
        return sliced(array, axes, self.phase.pixels)

    def taps(self, w: Array, axes: str) -> Array:
        """The taps of the phase in `w`, a filter with the layout `axes`."""
        return sliced(w, axes, self.phase.taps)


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


def stand_ins(problem: Problem, phase: Phase, view: Problem) -> Arrays:
    """Arrays with the strides of those that a phase gets if dy, w and dx are contiguous, with the
    axes of `view`, which is that of the phase's fprop; they have no memory of their own.
    """
    w = stand_in(swapped_shape(problem), problem.filter_dtype)
    w = sliced(w, filter_layout(problem), phase.taps)
    dy = stand_in(problem.output_shape, problem.dtype)
    dx = stand_in(problem.input_shape, problem.dtype)
    dx = sliced(dx, problem.array_layout, phase.pixels)
    return ordered_arrays(view, dy, w, dx)


def copied_bytes(problem: Problem) -> int:
    """Bytes of the copy of w with swapped filters and channels, which groups need."""
    itemsize = ITEMSIZES[problem.filter_dtype]
    return math.prod(problem.weight_shape) * itemsize if problem.groups > 1 else 0


def without_channels(problem: Problem) -> Problem:
    """The fprop that has the output of the gradient, and no channels; images without pixels, which
    no fprop has as its output, are no images of one pixel.
    """
    ones, zeros = (1,) * problem.rank, (0,) * problem.rank
    has_pixels = min(problem.size) > 0
    return replace(
        problem,
        N=problem.N * has_pixels,
        C=0,
        K=problem.C,
        groups=1,
        size=problem.size if has_pixels else ones,
        kernel=ones,
        stride=ones,
        dilation=ones,
        pad_lo=zeros,
        pad_hi=zeros,
        weight_layout=WEIGHT_LAYOUTS_OF[problem.rank][0],
        padding_mode="zeros",
    )


def phase_steps(
    problem: Problem,
    parts: Sequence[Part],
    of: Placed,
    filters: Sequence[Array | int],
    room: Room,
) -> list[Step]:
    """The steps of phases: each one reads its taps, or a packed filter at an address, and writes
    its pixels.

    Phases with equal problems have the same launches.
    """
    found, end, known = list[Step](), room.end, dict[Any, tuple[list[Step], list[int]]]()
    for part, w in zip(parts, filters, strict=True):
        y, residual = part.pixels(of.y, problem.array_layout), None
        if of.residual is not None:
            residual = part.pixels(of.residual, problem.array_layout)
        given = [each for each in (w, y, residual) if each is not None]
        begins = [each if isinstance(each, int) else address_of(each) for each in given]
        if part.engine.problem not in known:
            room.end = end
            steps = _phase_steps(part.engine, of, w, y, residual, room)
            known[part.engine.problem] = steps, begins
        steps, firsts = known[part.engine.problem]
        moves = zip(begins, firsts, strict=True)
        by = {located(first)[0]: begin - first for begin, first in moves}
        found += [step.moved(by) for step in steps]
    return found


def _phase_steps(
    engine: CpuEngine,
    of: Placed,
    w: Array | int,
    y: Array,
    residual: Array | None,
    room: Room,
) -> list[Step]:
    """The steps of a phase. Kernels add a residual to whole vectors of a contiguous output: of
    pixels that lie a stride apart, both are copied.
    """
    found, pixels = list[Step](), y
    if residual is not None and y.shape != of.y.shape:
        y = room.array(y.shape, y.dtype)
        residual = copied(residual, room, found)
    filters, panels = (None, w) if isinstance(w, int) else (w, 0)
    found += engine.steps(of._replace(w=filters, y=y, residual=residual, panels=panels), room)
    if y is not pixels:
        found.append(Copied(y, pixels))
    return found


def empty_steps(empty: CpuEngine, of: Placed, room: Room) -> list[Step]:
    """The steps of the plan of pixels that no tap reaches: its other arrays have no channels."""
    dtypes = empty.problem.dtype, empty.problem.filter_dtype
    x, w = (
        np.empty(shape, numpy_dtype(dtype))
        for shape, dtype in zip((empty.x_shape, empty.problem.weight_shape), dtypes, strict=True)
    )
    return empty.steps(of._replace(x=x, w=w, panels=0), room)
