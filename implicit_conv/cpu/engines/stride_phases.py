"""The stride phases of arrays: their pixels and taps, and the call of all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from implicit_conv.arrays.arrays import Array, Binding, numpy_dtype, ordered, with_own_strides
from implicit_conv.cpu.engines.engine import CpuEngine
from implicit_conv.cpu.run.call import Arrays, Call, CallForm, contiguous_strides, stand_in
from implicit_conv.errors import PlanError
from implicit_conv.problem.options import ITEMSIZES, WEIGHT_LAYOUTS_OF
from implicit_conv.problem.phases import Phase
from implicit_conv.problem.problem import Problem

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.runtime.program import Room, Step


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
    """`w` itself, or with groups a copy with each group's filters and channels swapped."""
    if problem.groups == 1:
        return w
    filters = ordered(w, tuple(map(problem.weight_layout.find, filter_layout(problem))))
    k, c, *taps = filters.shape
    grouped = filters.reshape(problem.groups, k // problem.groups, c, *taps)
    copied = np.ascontiguousarray(grouped.swapaxes(1, 2))
    return copied.reshape(problem.C, k // problem.groups, *taps)


def stand_ins(problem: Problem, phase: Phase, view: Problem) -> Arrays:
    """Arrays with the strides of those that a phase gets if dy, w and dx are contiguous, with the
    axes of `view`, which is that of the phase's fprop; they have no memory of their own.
    """
    shape, axes = problem.weight_shape, filter_layout(problem)
    if problem.groups > 1:
        shape = problem.C, problem.K // problem.groups, *problem.kernel
    w = sliced(stand_in(shape, problem.filter_dtype), axes, phase.taps)
    dy = stand_in(problem.output_shape, problem.dtype)
    dx = stand_in(problem.input_shape, problem.dtype)
    dx = sliced(dx, problem.array_layout, phase.pixels)
    return CallForm(view, dx.shape, dx.dtype, view.filter_axes).arrays(dy, w, dx, None)


def copied_bytes(problem: Problem) -> int:
    """Bytes of the copy of w with swapped filters and channels, which groups need."""
    itemsize = ITEMSIZES[problem.filter_dtype]
    return math.prod(problem.weight_shape) * itemsize if problem.groups > 1 else 0


def gathered(pixels: Array, whole: bool) -> Array:
    """The pixels of a phase as a contiguous array unless it has the `whole` array: kernels add a
    residual to whole vectors of a contiguous output.
    """
    return pixels if whole else with_own_strides(pixels)


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


def nothing(empty: CpuEngine) -> tuple[Array, Array]:
    """The arrays without channels that the plan of empty pixels takes."""
    dtype = numpy_dtype(empty.problem.dtype)
    w_dtype = numpy_dtype(empty.problem.filter_dtype)
    return np.empty(empty.x_shape, dtype), np.empty(empty.problem.weight_shape, w_dtype)


def bound_phases(
    problem: Problem,
    parts: Sequence[Part],
    y: Array,
    w: Array | None,
    binding: Binding,
    residual_dtype: str,
    whole: bool,
) -> list[tuple[Part, Call]]:
    """The calls of phases for arrays of these strides; without `w` they read packed filters. One
    phase may have the `whole` array.
    """
    calls = []
    for part in parts:
        pixels = part.pixels(y, problem.array_layout)
        strides, added = pixels.strides, binding.residual
        if added is not None and not whole:
            strides = contiguous_strides(pixels.shape, pixels.itemsize)
            added = contiguous_strides(pixels.shape, ITEMSIZES[residual_dtype])
        taps = None if w is None else part.taps(w, filter_layout(problem)).strides
        own = binding._replace(w=taps, y=strides, residual=added)
        calls.append((part, part.engine.bind(own)))
    return calls


class PhasedCall(Call):
    """The prepared calls of all phases."""

    __slots__ = ("_calls", "_empty", "_whole")

    def __init__(
        self,
        form: CallForm,
        calls: Sequence[tuple[Part, Call]],
        empty: tuple[Call, tuple[Array, Array]] | None,
    ) -> None:
        """`empty` is the call for pixels that no tap reaches, and its arrays without channels."""
        super().__init__(form)
        self._calls, self._empty = calls, empty
        self._whole = len(calls) == 1 and empty is None

    def _compute(
        self, x: Array, w: Any, bias: Any, y: Array, residual: Array | None, scale: Any
    ) -> None:
        """See `Call`; `w` is a plain filter, or the operands of packed filters."""
        problem = self._form.problem
        axes, filter_axes = problem.array_layout, filter_layout(problem)
        if self._empty is not None:
            call, arrays = self._empty
            call(*arrays, bias, y, residual, scale)
        packed = isinstance(w, tuple)
        filters = w if packed else swapped(problem, w)
        for number, (part, call) in enumerate(self._calls):
            operand = filters[number] if packed else part.taps(filters, filter_axes)
            pixels = out = part.pixels(y, axes)
            added = None
            if residual is not None:
                out = gathered(out, self._whole)
                added = gathered(part.pixels(residual, axes), self._whole)
            call(x, operand, bias, out, added, scale)
            if out is not pixels:
                pixels[...] = out

    def steps(self, x: Array, w: Any, y: Array, room: Room) -> list[Step]:
        """See `Call`; `w` is a plain filter, or the addresses of the panels of phases.

        Raises
        ------
        PlanError
            Groups need a copy of w.
        """
        problem = self._form.problem
        if problem.groups > 1:
            raise PlanError("the filter of groups is copied")
        found = []
        if self._empty is not None:
            call, (x_empty, w_empty) = self._empty
            found += call.steps(x_empty, w_empty, y, room)
        for number, (part, call) in enumerate(self._calls):
            taps = w[number] if isinstance(w, tuple) else part.taps(w, filter_layout(problem))
            found += call.steps(x, taps, part.pixels(y, problem.array_layout), room)
        return found
