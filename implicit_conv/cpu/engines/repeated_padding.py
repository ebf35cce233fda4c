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
from typing import ClassVar, NamedTuple

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.candidates.candidate import Candidate, Choice, Given, Method
from implicit_conv.cpu.candidates.phrases import gradient_text
from implicit_conv.cpu.candidates.query import Query, Refusal, Request
from implicit_conv.cpu.engines.gradients import gradient_methods
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.plan import planner
from implicit_conv.cpu.plan.composite import Composite, Derived
from implicit_conv.cpu.plan.planner import steps_of
from implicit_conv.cpu.run.call import Arrays, stand_in
from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.runtime.program import Called, Step
from implicit_conv.problem.options import ITEMSIZES, PADDING_MODES, SPACE
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import Load


class Strip(NamedTuple):
    """The padding on one side of an axis.

    Attributes
    ----------
    axis : int
        The spatial axis.
    first : int
        Its first position along the axis, counted from the start of the padding.
    problem : Problem
        The convolution that reads its positions alone.
    """

    axis: int
    first: int
    problem: Problem


@dataclass(frozen=True)
class Borders(Composite):
    """The gradient inside the image, then those of all strips of padding."""

    name: ClassVar[str] = "repeated padding"
    kind: ClassVar[str] = "borders"
    summary: ClassVar[str] = "the gradient inside the image, and of each strip of padding"

    @classmethod
    def candidates(
        cls, problem: Problem, arch: CpuArch, request: Request
    ) -> Iterator[Candidate | Refusal]:
        """One candidate."""
        reserved = request.reserved_bytes + strip_bytes(problem)
        request, found = replace(request, reserved_bytes=reserved), list[Choice]()
        for part, arrays in zip(_parts(problem), cls().part_arrays(problem, arch), strict=True):
            query = Query(part, arch, request, arrays, gradient_methods(part))
            choice = planner.of_part(query, cls.name)
            if isinstance(choice, Refusal):
                yield choice
                return
            found.append(choice)
        yield cls().composed(problem, arch, found)

    def resized(self, c: Candidate, problem: Problem, derived: Derived) -> Candidate | None:
        """The same strips of an image of a near size."""
        parts = _parts(problem)
        if len(parts) != len(c.parts):
            return None
        found = [derived(choice, part) for choice, part in zip(c.parts, parts, strict=True)]
        known = [choice for choice in found if choice is not None]
        return self.composed(problem, c.arch, known) if len(known) == len(parts) else None

    def part_arrays(self, problem: Problem, arch: CpuArch) -> list[Arrays]:
        """The image and the strips, which are sums; each reads the whole dy and w."""
        return [
            Arrays(
                stand_in(part.output_shape, part.dtype),
                stand_in(part.weight_shape, part.filter_dtype),
                stand_in(part.input_shape, part.sum_dtype),
            )
            for part in _parts(problem)
        ]

    def titles(self, c: Candidate) -> list[str]:
        """Where each strip is."""
        problem, space = c.problem, SPACE[c.problem.rank]
        return [
            "inside the image",
            *(
                f"strip of {' x '.join(map(str, strip.problem.size))} pixels of padding at "
                f"{space[strip.axis]}={strip.first - max(0, problem.pad_lo[strip.axis])}, added to "
                f"the pixels that padding_mode {problem.padding_mode!r} repeats"
                for strip in strips_of(problem)
            ),
        ]

    def part_text(self, problem: Problem) -> str:
        """The problem of a part in words."""
        return gradient_text(problem, ("dy", "w"), "dx")

    def copied_bytes(self, c: Candidate) -> int:
        """Bytes of the largest strip, and of its sums along the later axes."""
        return strip_bytes(c.problem)

    def filters(self, c: Candidate, w: Array) -> list[Array]:
        """All parts read the whole filter."""
        return [w] * len(c.parts)

    def loads(self, c: Candidate) -> list[Load]:
        """Those of all parts, with the coordinates of each one's own arrays."""
        parts = zip(c.parts, _parts(c.problem), strict=True)
        return [load for choice, part in parts for load in choice.best.trace(part)]

    def steps(self, c: Candidate, given: Given) -> list[Step]:
        """The gradient of the image, and of each strip, which is then added to it."""
        arrays, room, (image, *strips) = given.arrays, given.room, c.parts
        (begin, *begins), end = self.panels(c, arrays), room.end
        found = steps_of(image, given._replace(arrays=arrays._replace(panels=begin)))
        for strip, choice, panels in zip(strips_of(c.problem), strips, begins, strict=True):
            room.end = end
            values = room.array(strip.problem.input_shape, arrays.y.dtype)
            own = arrays._replace(y=values, panels=panels)
            found += steps_of(choice, given._replace(arrays=own))
            found.append(Called(functools.partial(_add, c.problem, strip), (values, arrays.y)))
        return found


def _parts(problem: Problem) -> list[Problem]:
    """The problems of the image and of all strips."""
    plain = problem.changed(padding_mode="zeros")
    return [plain, *(strip.problem for strip in strips_of(problem))]


def strip_bytes(problem: Problem) -> int:
    """Bytes of the largest strip, and of its sums along the later axes."""
    largest = max(math.prod(strip.problem.input_shape) for strip in strips_of(problem))
    return 2 * largest * ITEMSIZES[problem.sum_dtype]


def _add(problem: Problem, strip: Strip, values: Array, y: Array, *_: object) -> None:
    """Add the gradient of a strip to the pixels that it repeats."""
    axes = [problem.array_layout.index(letter) for letter in SPACE[problem.rank]]
    values = values.astype(y.dtype, copy=False)
    for axis in range(len(axes) - 1, strip.axis, -1):
        rows = np.moveaxis(values, axes[axis], 0)
        folded = np.zeros((y.shape[axes[axis]], *rows.shape[1:]), rows.dtype)
        _add_rows(rows, sources(problem, axis), folded)
        values = np.moveaxis(folded, 0, axes[axis])
    place, first = axes[strip.axis], strip.first
    rows = np.moveaxis(values, place, 0)
    read = sources(problem, strip.axis)[first : first + len(rows)]
    _add_rows(rows, read, np.moveaxis(y, place, 0))


def sources(problem: Problem, axis: int) -> list[int]:
    """The pixel that each position of the padded axis reads; none repeats a cropped pixel."""
    size, low, high = problem.size[axis], problem.pad_lo[axis], problem.pad_hi[axis]
    mode = PADDING_MODES.index(problem.padding_mode)
    first, count = max(0, -low), size - max(0, -low) - max(0, -high)
    return [
        at if 0 <= at < size else first + schedule.repeated_pixel(mode, at - first, count)
        for at in range(-max(0, low), size + max(0, high))
    ]


def _add_rows(rows: Array, sources: list[int], target: Array) -> None:
    with np.errstate(all="ignore"):  # as in kernels, infinities and NaNs are no errors
        for source, row in zip(sources, rows, strict=True):
            target[source] += row


def strips_of(problem: Problem) -> Iterator[Strip]:
    """Every strip of padding.

    Along earlier axes a strip covers the image, along later ones the padding too.
    """
    problem = problem.changed(padding_mode="zeros")
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
                yield Strip(axis, start + max(0, low), _part(problem, ranges))


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


BORDERS: tuple[type[Method], ...] = (Borders,)
