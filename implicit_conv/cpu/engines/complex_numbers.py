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

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from implicit_conv.arrays.arrays import Array, check_vector, dtype_key, numpy_dtype
from implicit_conv.arrays.integers import checked_bias
from implicit_conv.cpu.candidates.candidate import Request
from implicit_conv.cpu.engines.dgrad import DgradEngine
from implicit_conv.cpu.engines.engine import CpuEngine
from implicit_conv.cpu.engines.runner import parse_name
from implicit_conv.cpu.engines.sums import SumEngine
from implicit_conv.cpu.run.call import Placed
from implicit_conv.cpu.run.packed import PackedFilter, packed_parts
from implicit_conv.errors import DTypeError, PlanError
from implicit_conv.kernels.cpu.runtime.program import Called, Copied, Room, Step
from implicit_conv.problem.options import COMPLEX_PARTS, ITEMSIZES
from implicit_conv.problem.problem import Problem


def real_problem(problem: Problem) -> Problem:
    """The real convolution that computes a complex `problem`."""
    return replace(
        problem,
        C=2 * problem.C,
        K=2 * problem.K,
        dtype=COMPLEX_PARTS[problem.dtype],
        w_dtype=None,
    )


@dataclass(frozen=True)
class ComplexEngine(SumEngine):
    """The plan of a complex convolution.

    Attributes
    ----------
    problem : Problem
        The complex convolution; of a transposed one, the convolution that is transposed.
    real : CpuEngine or DgradEngine
        The plan of `real_problem(problem)`.
    out_dtype : str
        The dtype of results.
    """

    problem: Problem
    real: CpuEngine | DgradEngine
    out_dtype: str

    kind: ClassVar[str] = "real filter"

    @property
    def engines(self) -> tuple[CpuEngine | DgradEngine]:
        """The plan of the real convolution."""
        return (self.real,)

    @property
    def x_shape(self) -> tuple[int, ...]:
        """The shape of x."""
        return self._complex_shape(self.real.x_shape)

    @property
    def y_shape(self) -> tuple[int, ...]:
        """The shape of y."""
        return self._complex_shape(self.real.y_shape)

    def _complex_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        axis = self._channel_axis
        return (*shape[:axis], shape[axis] // 2, *shape[axis + 1 :])

    @property
    def _channel_axis(self) -> int:
        return self.problem.array_layout.index("C")

    @property
    def copied_bytes(self) -> int:
        """Bytes of the real filter, and of copies unless channels are last."""
        return copied_bytes(self.real.problem, self.real.out_dtype)

    @property
    def summed(self) -> Problem:
        """The complex convolution with the largest sums."""
        real = self.real.summed
        return replace(real, C=real.C // 2, K=real.K // 2, dtype=self.problem.dtype)

    @property
    def y_dtype(self) -> str:
        """The dtype of results, which calls write."""
        return self.out_dtype

    def explain(self) -> str:
        """The text of `Plan.explain`."""
        how = "viewed" if self.problem.channels_last else "copied"
        return (
            f"problem     {self.problem}\n"
            "algorithm   one real convolution, whose channels are the real and imaginary parts; "
            f"x and y are {how}\n\n{self.real.explain()}"
        )

    def pack(self, w: Any) -> PackedFilter:
        """The packed filter; see `Plan.pack`."""
        w = self.plain_filter(w)
        real = np.empty(self.real.problem.weight_shape, self.real.problem.dtype)
        self.fill_real(w, real)
        return packed_parts(self.kind, [self.real.pack(real)])

    def tuned(self, filters: str) -> ComplexEngine:
        """The plan with the fastest candidate of the real convolution; see `Plan.tune`."""
        return replace(self, real=self.real.tuned(filters))

    def fill_real(self, w: Array, real: Array, *_: object) -> None:
        """Write the filter of the real convolution."""
        problem = self.problem
        k, c = (problem.weight_layout.index(letter) for letter in "KC")
        transposed = isinstance(self.real, DgradEngine)
        for out in (0, 1):
            for given in (0, 1):
                place: list[Any] = [slice(None)] * real.ndim
                place[c if transposed else k] = slice(out, None, 2)
                place[k if transposed else c] = slice(given, None, 2)
                part = w.real if out == given else w.imag
                real[tuple(place)] = -part if given > out else part

    def viewed(self, array: Array) -> Array | None:
        """A view of a complex array with parts as channels; None if it must be copied."""
        if self.problem.channels_last and array.strides[-1] == array.itemsize:
            return array.view(COMPLEX_PARTS[array.dtype.name])
        return None

    def both_parts(self, real: Array) -> tuple[Array, Array]:
        """The real and imaginary parts in a real array with parts as channels."""
        before = (slice(None),) * self._channel_axis
        return real[(*before, slice(0, None, 2))], real[(*before, slice(1, None, 2))]

    def _factor(self, name: str, given: Any) -> Array:
        """A scale, which is real, or a bias that is added after it."""
        if name == "bias":
            return checked_bias(given, self.summed)
        if np.iscomplexobj(given):
            raise DTypeError(
                f"scale is {np.asarray(given).dtype}; it must be real: multiply w by a complex "
                "factor instead"
            )
        return check_vector(name, given, self.summed.K, COMPLEX_PARTS[self.problem.dtype])

    def steps(self, of: Placed, room: Room) -> list[Step]:
        """The steps of the real convolution, which writes to y if that can be viewed, between those
        that copy what cannot be viewed.
        """
        real, found = self.real, list[Step]()
        dtype = numpy_dtype(real.problem.dtype)

        def read(array: Array, shape: tuple[int, ...]) -> Array:
            view = self.viewed(array)
            if view is not None:
                return view
            copy = room.array(shape, dtype)
            parts = zip((array.real, array.imag), self.both_parts(copy), strict=True)
            found.extend(Copied(source, target) for source, target in parts)
            return copy

        w, panels = None, of.panels
        if of.w is not None:
            w = room.array(real.problem.weight_shape, dtype)
            found.append(Called(self.fill_real, (of.w, w)))
        residual = None if of.residual is None else read(of.residual, real.y_shape)
        y = self.viewed(of.y) if real.y_dtype == COMPLEX_PARTS[self.out_dtype] else None
        result = room.array(real.y_shape, numpy_dtype(real.y_dtype)) if y is None else y
        x = read(of.x, real.x_shape)
        found += real.steps(Placed(x, w, result, residual, panels, of.biased, of.scaled), room)
        if y is None:
            parts = zip(self.both_parts(result), (of.y.real, of.y.imag), strict=True)
            found.extend(Copied(source, target) for source, target in parts)
        return found

    def vectors_of_steps(self) -> Callable[[Any, Any], tuple[Any, Any]]:
        """The parts of a bias, and a factor for each part."""

        def real_vectors(bias: Any, scale: Any) -> tuple[Any, Any]:
            if bias is not None:
                bias = bias.view(COMPLEX_PARTS[bias.dtype.name])
            return bias, None if scale is None else np.repeat(scale, 2)

        return real_vectors


def plan_complex(
    problem: Problem,
    out_dtype: object,
    activation: object,
    request: Request,
    plan_real: Callable[[Problem, Request, str], CpuEngine | DgradEngine],
) -> ComplexEngine:
    """Plan a complex convolution; `plan_real` plans a real one with a dtype of results.

    Raises
    ------
    PlanError
        There is an activation, which complex numbers do not have.
    DTypeError
        `out_dtype` is not complex.
    """
    if activation is not None:
        raise PlanError(
            f"activation {activation!r} is not defined for complex numbers; leave it out, and "
            "apply a function to the parts of the result"
        )
    supported = dict.fromkeys((problem.dtype, *COMPLEX_PARTS))
    name = problem.dtype if out_dtype is None else parse_name(dtype_key(out_dtype))
    if name not in supported:
        raise DTypeError(
            f"out_dtype {name} is not supported for {problem.dtype} x; use one of "
            f"{', '.join(supported)}"
        )
    real, parts = real_problem(problem), COMPLEX_PARTS[name]
    request = replace(request, reserved_bytes=copied_bytes(real, parts))
    return ComplexEngine(problem, plan_real(real, request, parts), name)


def copied_bytes(real: Problem, out_dtype: str) -> int:
    """Bytes of the real filter, and of x and y unless their channels are last."""
    copies = math.prod(real.weight_shape) * real.itemsize
    if not real.channels_last:
        larger = max(real.itemsize, ITEMSIZES[out_dtype])
        copies += (math.prod(real.input_shape) + math.prod(real.output_shape)) * larger
    return copies
