"""Complex convolutions: one real convolution with the real and imaginary parts as channels.

    y = x * w:   y.re = x.re * w.re - x.im * w.im,   y.im = x.re * w.im + x.im * w.re

With channels (c, part) and filters (k, part) this is a real convolution of twice the channels and
filters, whose filter holds w.re twice, w.im and -w.im. Channels-last arrays are viewed as such;
others are copied. Three real convolutions would take three quarters of the products, but copies of
all arrays, and sums of x.re + x.im whose error is not bounded by that of each part; measured, one
real convolution took 1.0 to 1.4 times as long as three, without their copies (EPYC, one thread,
2026-11).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from implicit_conv.arrays.arrays import Array, numpy_dtype
from implicit_conv.cpu.candidates.candidate import Candidate, Given, Method
from implicit_conv.cpu.candidates.problem_views import spatial
from implicit_conv.cpu.candidates.query import Formats, Query, Refusal, Request, Serves
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.plan import planner
from implicit_conv.cpu.plan.composite import Composite, Derived
from implicit_conv.cpu.plan.planner import steps_of
from implicit_conv.cpu.run.call import Arrays, stand_in
from implicit_conv.kernels.cpu.runtime.program import Called, Copied, Step
from implicit_conv.problem.options import COMPLEX_PARTS
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import Load


@dataclass(frozen=True)
class ComplexAsReal(Composite):
    """One real convolution, whose channels are the real and imaginary parts."""

    name: ClassVar[str] = "complex numbers as real ones"
    kind: ClassVar[str] = "real filter"
    serves: ClassVar[Serves] = Serves(tuple(COMPLEX_PARTS))
    summary: ClassVar[str] = "one real convolution, whose channels are the real and imaginary parts"
    letters: ClassVar[str] = "KC"  # the axes of w for sums, and for what is summed

    @classmethod
    def candidates(
        cls, problem: Problem, arch: CpuArch, request: Request
    ) -> Iterator[Candidate | Refusal]:
        """One candidate."""
        real = real_problem(problem)
        reserved = request.reserved_bytes + copied_bytes(real)
        request = replace(request, reserved_bytes=reserved)
        (arrays,) = cls().part_arrays(problem, arch)
        query = cls.query(real, arch, request)._replace(arrays=arrays)
        found = planner.of_part(query, cls.name)
        yield found if isinstance(found, Refusal) else cls().composed(problem, arch, [found])

    @classmethod
    def query(cls, real: Problem, arch: CpuArch, request: Request) -> Query:
        """What the planner is asked for the real convolution."""
        return Query(spatial(real, request.precision), arch, request)

    def shapes(self, problem: Problem) -> tuple[tuple[int, ...], ...]:
        """Those of x, w and y."""
        return problem.input_shape, problem.weight_shape, problem.output_shape

    def resized(self, c: Candidate, problem: Problem, derived: Derived) -> Candidate | None:
        """The real convolution of a near size."""
        real = derived(c.parts[0], real_problem(problem))
        return None if real is None else self.composed(problem, c.arch, [real])

    def part_arrays(self, problem: Problem, arch: CpuArch) -> list[Arrays]:
        """Real arrays."""
        real = real_problem(problem)
        x, w, y = (stand_in(shape, real.dtype) for shape in self.shapes(real))
        return [Arrays(x, w, y)]

    def part_formats(self, c: Candidate, formats: Formats) -> Formats:
        """Those of real numbers."""
        return formats._replace(y_dtype=COMPLEX_PARTS[formats.y_dtype])

    def titles(self, c: Candidate) -> list[str]:
        """How x and y are read and written."""
        how = "viewed" if c.problem.channels_last else "copied"
        return [f"the real convolution, for which x and y are {how}"]

    def copied_bytes(self, c: Candidate) -> int:
        """Bytes of the real filter, and of copies unless channels are last."""
        return copied_bytes(real_problem(c.problem))

    def filters(self, c: Candidate, w: Array) -> list[Array]:
        """The filter of the real convolution."""
        real = real_problem(c.problem)
        found = np.empty(real.weight_shape, numpy_dtype(real.dtype))
        self._fill(c.problem, w, found)
        return [found]

    def _fill(self, problem: Problem, w: Array, real: Array, *_: object) -> None:
        """Write the filter of the real convolution."""
        k, c = (problem.weight_layout.index(letter) for letter in self.letters)
        for out in (0, 1):
            for given in (0, 1):
                place: list[Any] = [slice(None)] * real.ndim
                place[k], place[c] = slice(out, None, 2), slice(given, None, 2)
                part = w.real if out == given else w.imag
                real[tuple(place)] = -part if given > out else part

    def loads(self, c: Candidate) -> list[Load]:
        """Those of the real convolution."""
        return c.parts[0].best.trace(real_problem(c.problem))

    def steps(self, c: Candidate, given: Given) -> list[Step]:
        """The steps of the real convolution, which writes to y if that can be viewed, between those
        that copy what cannot be viewed.
        """
        arrays, room = given.arrays, given.room
        problem, real, found = c.problem, real_problem(c.problem), list[Step]()
        axis = problem.array_layout.index("C")
        x_shape, _, y_shape = self.shapes(real)

        def read(array: Array, shape: tuple[int, ...]) -> Array:
            view = viewed(problem, array)
            if view is not None:
                return view
            copy = room.array(shape, numpy_dtype(real.dtype))
            parts = zip((array.real, array.imag), both_parts(copy, axis), strict=True)
            found.extend(Copied(source, target) for source, target in parts)
            return copy

        own, w = self.part_formats(c, given.formats), None
        (panels,) = self.panels(c, arrays)
        if arrays.w is not None:
            w = room.array(real.weight_shape, numpy_dtype(real.dtype))
            found.append(Called(functools.partial(self._fill, problem), (arrays.w, w)))
        residual = None if arrays.residual is None else read(arrays.residual, y_shape)
        y = viewed(problem, arrays.y)
        result = room.array(y_shape, numpy_dtype(own.y_dtype)) if y is None else y
        x = read(arrays.x, x_shape)
        of_real = Arrays(x, w, result, residual, panels)
        found += steps_of(c.parts[0], given._replace(arrays=of_real, formats=own))
        if y is None:
            parts = zip(both_parts(result, axis), (arrays.y.real, arrays.y.imag), strict=True)
            found.extend(Copied(source, target) for source, target in parts)
        return found


def real_problem(problem: Problem) -> Problem:
    """The real convolution that computes a complex `problem`."""
    parts = COMPLEX_PARTS[problem.dtype]
    return problem.changed(C=2 * problem.C, K=2 * problem.K, dtype=parts, w_dtype=None)


def viewed(problem: Problem, array: Array) -> Array | None:
    """A view of a complex array with parts as channels; None if it must be copied."""
    if problem.channels_last and array.strides[-1] == array.itemsize:
        return array.view(COMPLEX_PARTS[array.dtype.name])
    return None


def both_parts(real: Array, axis: int) -> tuple[Array, Array]:
    """The real and imaginary parts in a real array with parts as channels along `axis`."""
    before = (slice(None),) * axis
    return real[(*before, slice(0, None, 2))], real[(*before, slice(1, None, 2))]


def copied_bytes(real: Problem) -> int:
    """Bytes of the real filter, and of x and y unless their channels are last."""
    copies = math.prod(real.weight_shape)
    if not real.channels_last:
        copies += math.prod(real.input_shape) + math.prod(real.output_shape)
    return copies * real.itemsize


COMPLEX: tuple[type[Method], ...] = (ComplexAsReal,)
