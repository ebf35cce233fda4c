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
from typing import Any, NamedTuple

import numpy as np

from implicit_conv.arrays import (
    Array,
    as_array,
    check_like_output,
    check_vector,
    dtype_key,
    writable_directly,
)
from implicit_conv.cpu.arch import CpuArch
from implicit_conv.cpu.candidate import Request
from implicit_conv.cpu.dgrad import DgradEngine
from implicit_conv.cpu.engine import CpuEngine
from implicit_conv.cpu.runner import check_array, check_out, parse_name
from implicit_conv.errors import DTypeError, PlanError
from implicit_conv.options import COMPLEX_PARTS, ITEMSIZES
from implicit_conv.problem import Problem
from implicit_conv.schedule import Load


def real_problem(problem: Problem) -> Problem:
    """The real convolution that computes a complex `problem`."""
    return replace(
        problem,
        C=2 * problem.C,
        K=2 * problem.K,
        dtype=COMPLEX_PARTS[problem.dtype],
        w_dtype=None,
    )


class PackedComplex(NamedTuple):
    """The packed filter of the real convolution."""

    key: tuple[object, ...]
    operand: Any  # the real engine's packed filter

    @property
    def panels(self) -> None:
        """No array of the caller's overlaps with packed filters."""


@dataclass(frozen=True)
class ComplexEngine:
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

    @property
    def arch(self) -> CpuArch:
        """The machine that the plan is for."""
        return self.real.arch

    @property
    def candidates(self) -> tuple[Any, ...]:
        """The candidates of the real convolution."""
        return self.real.candidates

    @property
    def algorithm(self) -> str:
        """The algorithm of the real convolution."""
        return self.real.algorithm

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
    def workspace_bytes(self) -> int:
        """Bytes of scratch memory, of the real filter, and of copies unless channels are last."""
        return self.real.workspace_bytes + copied_bytes(self.real.problem, self.real.out_dtype)

    @property
    def call_bytes(self) -> int:
        """Bytes that a call with a plain filter takes besides its arrays."""
        return self.real.call_bytes + copied_bytes(self.real.problem, self.real.out_dtype)

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed filter."""
        return self.real.packed_bytes

    @property
    def peak_bytes(self) -> int:
        """Bytes of scratch memory, packed filter and output together."""
        y = math.prod(self.y_shape) * ITEMSIZES[self.out_dtype]
        return self.call_bytes + y

    def explain(self) -> str:
        """The text of `Plan.explain`."""
        how = "viewed" if self.problem.channels_last else "copied"
        return (
            f"problem     {self.problem}\n"
            "algorithm   one real convolution, whose channels are the real and imaginary parts; "
            f"x and y are {how}\n\n{self.real.explain()}"
        )

    def trace(self) -> list[Load]:
        """The loads of the real convolution."""
        return self.real.trace()

    def pack(self, w: Any) -> PackedComplex:
        """The packed filter; see `Plan.pack`."""
        packed = self.real.pack(self._real_filter(w))
        return PackedComplex(("complex", packed.key), packed)

    def tuned(self, filters: str) -> ComplexEngine:
        """The plan with the fastest candidate of the real convolution; see `Plan.tune`."""
        return replace(self, real=self.real.tuned(filters))

    def _real_filter(self, w: Any) -> Array:
        """The filter of the real convolution."""
        array = as_array("w", w)
        problem = self.problem
        check_array("w", array, problem.weight_shape, problem.dtype)
        k, c = (problem.weight_layout.index(letter) for letter in "KC")
        real = np.empty(self.real.problem.weight_shape, self.real.problem.dtype)
        transposed = isinstance(self.real, DgradEngine)
        for out in (0, 1):
            for given in (0, 1):
                place: list[Any] = [slice(None)] * real.ndim
                place[c if transposed else k] = slice(out, None, 2)
                place[k if transposed else c] = slice(given, None, 2)
                part = array.real if out == given else array.imag
                real[tuple(place)] = -part if given > out else part
        return real

    def _real_array(self, array: Array) -> Array:
        """A view of a channels-last array, or a copy, with parts as channels."""
        part = np.dtype(COMPLEX_PARTS[array.dtype.name])
        axis = self._channel_axis
        if axis == array.ndim - 1 and array.strides[-1] == array.itemsize:
            return array.view(part)
        parts = np.stack([array.real, array.imag], axis + 1)
        shape = (*array.shape[:axis], 2 * array.shape[axis], *array.shape[axis + 1 :])
        return parts.reshape(shape)

    def run(
        self,
        x: Any,
        w: Any,
        bias: Any = None,
        residual: Any = None,
        out: Any = None,
        scale: Any = None,
    ) -> Array:
        """Check the arrays and compute the result; see `Plan.__call__`."""
        x = as_array("x", x)
        check_array("x", x, self.x_shape, self.problem.dtype)
        filters = w.operand if isinstance(w, PackedComplex) else self._real_filter(w)
        if bias is not None:
            count = self.y_shape[self._channel_axis]
            bias = check_vector("bias", bias, count, self.problem.dtype)
            bias = bias.view(COMPLEX_PARTS[self.problem.dtype])
        if scale is not None:
            if np.iscomplexobj(scale):
                raise DTypeError(
                    f"scale is {np.asarray(scale).dtype}; it must be real: multiply w by a complex "
                    "factor instead"
                )
            scale = np.repeat(np.asarray(scale), 2)
        if residual is not None:
            residual = as_array("residual", residual)
            check_like_output("residual", residual, self.y_shape, self.problem.dtype)
            residual = self._real_array(residual)
        if out is not None:
            check_out(out, self.y_shape, self.out_dtype)
        direct = (
            out is not None
            and not isinstance(w, PackedComplex)
            and writable_directly(out, (x, bias, residual))
        )
        y = out if direct else np.empty(self.y_shape, self.out_dtype)
        assert y is not None
        if self._channel_axis == y.ndim - 1 and y.strides[-1] == y.itemsize:
            target = y.view(COMPLEX_PARTS[self.out_dtype])
            self.real.run(self._real_array(x), filters, bias, residual, target, scale)
        else:
            parts = self.real.run(self._real_array(x), filters, bias, residual, None, scale)
            places: list[Any] = [slice(None)] * y.ndim
            for part, values in enumerate((y.real, y.imag)):
                places[self._channel_axis] = slice(part, None, 2)
                values[...] = parts[tuple(places)]
        if out is not None and not direct:
            out[...] = y
            return out  # type: ignore[no-any-return]
        return y

    def ready(self, x: Array, w: Any, y: Array, biased: bool) -> Callable[..., Array] | None:
        """A function of (x, w, bias, out) that repeats ``y = run(x, w)``; `w` is an array, or the
        `operand` of a packed filter.
        """

        def repeat(x: Array, w: Any, bias: object = None, out: Array | None = None) -> Array:
            filters = w if isinstance(w, np.ndarray) else PackedComplex((), w)
            return self.run(x, filters, bias, None, out)

        return repeat


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
