"""Input gradients of convolutions whose padding repeats pixels of x.

A repeated pixel is read for several positions of the padded image, and its gradient is the sum of
theirs. The gradient inside the image is that of zero padding. Each strip of padding along an axis
has an input gradient of its own, which is computed into scratch memory and added to the pixels that
the padding repeats: first along the later axes, whose corners it contains, then along its own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from implicit_conv.arrays.arrays import Array, numpy_dtype
from implicit_conv.cpu.candidates.candidate import Request
from implicit_conv.cpu.engines import dgrad
from implicit_conv.cpu.engines.dgrad import InputGradEngine
from implicit_conv.cpu.engines.runner import parse_out_dtype
from implicit_conv.cpu.engines.sums import SumEngine
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.run.call import Placed
from implicit_conv.cpu.run.packed import PackedFilter, packed_parts
from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.runtime.program import Called, Copied, Room, Step
from implicit_conv.problem.options import ITEMSIZES, PADDING_MODES, SPACE
from implicit_conv.problem.problem import Problem


@dataclass(frozen=True)
class Strip:
    """The padding on one side of an axis.

    Attributes
    ----------
    axis : int
        The spatial axis.
    first : int
        Its first position along the axis, counted from the start of the padding.
    engine : InputGradEngine
        The plan of its gradient.
    """

    axis: int
    first: int
    engine: InputGradEngine


@dataclass(frozen=True)
class FoldedEngine(SumEngine):
    """The plan of an input gradient.

    Attributes
    ----------
    problem : Problem
        The convolution whose input gradient this is.
    image : InputGradEngine
        The plan of the gradient inside the image.
    strips : tuple of Strip
    out_dtype : str
        The dtype of results; sums are computed in that of the engines.
    """

    problem: Problem
    image: InputGradEngine
    strips: tuple[Strip, ...]
    out_dtype: str
    names: ClassVar[tuple[str, str]] = ("dy", "w")
    has_epilogue: ClassVar[bool] = False
    kind: ClassVar[str] = "images"

    @property
    def engines(self) -> tuple[InputGradEngine, ...]:
        """The plans of the image and of all strips."""
        return (self.image, *(strip.engine for strip in self.strips))

    @property
    def x_shape(self) -> tuple[int, ...]:
        """The shape of dy."""
        return self.problem.output_shape

    @property
    def y_shape(self) -> tuple[int, ...]:
        """The shape of dx."""
        return self.problem.input_shape

    @property
    def summed(self) -> Problem:
        """The fprop of the phase with most taps."""
        return self.image.summed

    @property
    def y_dtype(self) -> str:
        """The dtype of sums, in which strips are added."""
        return self.image.out_dtype

    @property
    def copied_bytes(self) -> int:
        """Bytes of the largest strip, and of its sums along the later axes."""
        engines = self.engines[1:]
        return 2 * max(math.prod(e.y_shape) * ITEMSIZES[e.out_dtype] for e in engines)

    def explain(self) -> str:
        """The text of `Plan.explain`: the gradient inside the image, then the strips."""
        space = SPACE[self.problem.rank]
        lines = [
            f"strip       {' x '.join(map(str, strip.engine.problem.size))} pixels of padding at "
            f"{space[strip.axis]}={strip.first - max(0, self.problem.pad_lo[strip.axis])}, added "
            f"to the pixels that padding_mode {self.problem.padding_mode!r} repeats"
            for strip in self.strips
        ]
        return "\n".join([*lines, "", self.image.explain()])

    def pack(self, w: object) -> PackedFilter:
        """The packed filters of the image and of all strips as one; see `Plan.pack`."""
        return packed_parts(self.kind, [engine.pack(w) for engine in self.engines])

    def tuned(self, filters: str) -> FoldedEngine:
        """The plan with the fastest candidates of the image and of all strips; see `Plan.tune`."""
        strips = (replace(strip, engine=strip.engine.tuned(filters)) for strip in self.strips)
        return replace(self, image=self.image.tuned(filters), strips=tuple(strips))

    def steps(self, of: Placed, room: Room) -> list[Step]:
        """The gradient of the image, and of each strip, which is then added to it; the image writes
        to y if it has the dtype of that.
        """
        starts = self.starts
        y = of.y
        if self.image.y_dtype != self.y_dtype:
            y = room.array(y.shape, numpy_dtype(self.image.y_dtype))
        found = self.image.steps(of._replace(y=y), room)
        if y is not of.y:
            found.append(Copied(y, of.y))
        end = room.end
        for strip, start in zip(self.strips, starts[1:-1], strict=True):
            room.end, engine = end, strip.engine
            values = room.array(engine.y_shape, numpy_dtype(engine.y_dtype))
            found += engine.steps(of._replace(y=values, panels=of.panels + start), room)
            found.append(Called(functools.partial(self._add, strip), (values, of.y)))
        return found

    def _add(self, strip: Strip, values: Array, y: Array, *_: object) -> None:
        """Add the gradient of a strip to the pixels that it repeats."""
        axes = [self.problem.array_layout.index(letter) for letter in SPACE[self.problem.rank]]
        values = values.astype(y.dtype, copy=False)
        for axis in range(len(axes) - 1, strip.axis, -1):
            rows = np.moveaxis(values, axes[axis], 0)
            folded = np.zeros((y.shape[axes[axis]], *rows.shape[1:]), rows.dtype)
            _add_rows(rows, self.sources(axis), folded)
            values = np.moveaxis(folded, 0, axes[axis])
        place, first = axes[strip.axis], strip.first
        rows = np.moveaxis(values, place, 0)
        sources = self.sources(strip.axis)[first : first + len(rows)]
        _add_rows(rows, sources, np.moveaxis(y, place, 0))

    def sources(self, axis: int) -> list[int]:
        """The pixel that each position of the padded axis reads; none repeats a cropped pixel."""
        problem = self.problem
        size, low, high = problem.size[axis], problem.pad_lo[axis], problem.pad_hi[axis]
        mode = PADDING_MODES.index(problem.padding_mode)
        first, count = max(0, -low), size - max(0, -low) - max(0, -high)
        return [
            at if 0 <= at < size else first + schedule.repeated_pixel(mode, at - first, count)
            for at in range(-max(0, low), size + max(0, high))
        ]


def _add_rows(rows: Array, sources: list[int], target: Array) -> None:
    for source, row in zip(sources, rows, strict=True):
        target[source] += row


def plan(
    problem: Problem, arch: CpuArch, request: Request, *, out_dtype: object = None
) -> FoldedEngine:
    """Plan the input gradient of `problem`, whose padding repeats pixels.

    Raises
    ------
    PlanError, DTypeError
        As in `dgrad.plan`.
    """
    dtype = parse_out_dtype(out_dtype, problem)
    sums = dtype if dtype == "float64" else problem.sum_dtype
    plain = replace(problem, padding_mode="zeros")
    parts = list(_strips(plain))
    largest = max(math.prod(part.input_shape) for *_, part in parts)
    request = replace(request, reserved_bytes=2 * largest * ITEMSIZES[sums])
    strips = tuple(
        Strip(axis, first, dgrad.plan(part, arch, request, out_dtype=sums))
        for axis, first, part in parts
    )
    return FoldedEngine(problem, dgrad.plan(plain, arch, request, out_dtype=sums), strips, dtype)


def _strips(problem: Problem) -> Iterator[tuple[int, int, Problem]]:
    """(axis, first position from the start of the padded axis, problem) of every strip.

    Along earlier axes a strip covers the image, along later ones the padding too.
    """
    padded = [
        (-max(0, low), size + max(0, low) + max(0, high))
        for size, low, high in zip(problem.size, problem.pad_lo, problem.pad_hi, strict=True)
    ]
    image = [(0, size) for size in problem.size]
    for axis, (size, low, high) in enumerate(
        zip(problem.size, problem.pad_lo, problem.pad_hi, strict=True)
    ):
        for start, count in ((-low, low), (size, high)):
            if count > 0:
                ranges = [*image[:axis], (start, count), *padded[axis + 1 :]]
                yield axis, start + max(0, low), _part(problem, ranges)


def _part(problem: Problem, ranges: Sequence[tuple[int, int]]) -> Problem:
    """The convolution that reads only the positions (first, count) of each axis, with the same
    output.
    """
    low = [pad + first for pad, (first, _) in zip(problem.pad_lo, ranges, strict=True)]
    reach = (
        (out - 1) * stride + (taps - 1) * dilation + 1
        for out, stride, taps, dilation in zip(
            problem.output, problem.stride, problem.kernel, problem.dilation, strict=True
        )
    )
    return replace(
        problem,
        size=tuple(count for _, count in ranges),
        pad_lo=tuple(low),
        pad_hi=tuple(
            need - count - pad for need, (_, count), pad in zip(reach, ranges, low, strict=True)
        ),
    )
