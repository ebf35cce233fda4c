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

from implicit_conv.arrays.arrays import Array, Binding, check_vector, dtype_key
from implicit_conv.arrays.integers import checked_bias
from implicit_conv.cpu.candidates.candidate import Request
from implicit_conv.cpu.engines.dgrad import DgradEngine
from implicit_conv.cpu.engines.engine import CpuEngine
from implicit_conv.cpu.engines.runner import parse_name
from implicit_conv.cpu.engines.sums import SumEngine
from implicit_conv.cpu.run.call import Call, CallForm, contiguous_strides
from implicit_conv.cpu.run.packed import PackedParts
from implicit_conv.errors import DTypeError, PlanError
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

    def pack(self, w: Any) -> PackedParts:
        """The packed filter; see `Plan.pack`."""
        return PackedParts(self.kind, (self.real.pack(self.real_filter(self.plain_filter(w))),))

    def tuned(self, filters: str) -> ComplexEngine:
        """The plan with the fastest candidate of the real convolution; see `Plan.tune`."""
        return replace(self, real=self.real.tuned(filters))

    def real_filter(self, w: Array) -> Array:
        """The filter of the real convolution."""
        problem = self.problem
        k, c = (problem.weight_layout.index(letter) for letter in "KC")
        real = np.empty(self.real.problem.weight_shape, self.real.problem.dtype)
        transposed = isinstance(self.real, DgradEngine)
        for out in (0, 1):
            for given in (0, 1):
                place: list[Any] = [slice(None)] * real.ndim
                place[c if transposed else k] = slice(out, None, 2)
                place[k if transposed else c] = slice(given, None, 2)
                part = w.real if out == given else w.imag
                real[tuple(place)] = -part if given > out else part
        return real

    def viewed(self, strides: tuple[int, ...], dtype: str) -> tuple[int, ...] | None:
        """The strides of the view of a complex array as a real one; None if it must be copied."""
        size = ITEMSIZES[dtype]
        if self.problem.channels_last and strides[-1] == size:
            return *strides[:-1], size // 2
        return None

    def real_array(self, array: Array) -> Array:
        """A view of a channels-last array, or a copy, with parts as channels."""
        axis = self._channel_axis
        if self.viewed(array.strides, array.dtype.name):
            return array.view(COMPLEX_PARTS[array.dtype.name])
        shape = (*array.shape[:axis], 2 * array.shape[axis], *array.shape[axis + 1 :])
        copy = np.empty(shape, COMPLEX_PARTS[array.dtype.name])
        real, imaginary = self.both_parts(copy)
        real[...], imaginary[...] = array.real, array.imag
        return copy

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

    def bound(self, binding: Binding) -> Call:
        """A call of the real convolution, which writes to y if that can be viewed."""
        real, dtype = self.real, self.problem.dtype
        size, w, residual = real.problem.itemsize, binding.w, binding.residual
        view = self.viewed(binding.y, self.out_dtype)
        direct = view is not None and real.y_dtype == COMPLEX_PARTS[self.out_dtype]
        new = contiguous_strides(real.y_shape, ITEMSIZES[real.y_dtype])
        if residual is not None:
            copy = contiguous_strides(real.y_shape, size)
            residual = self.viewed(residual, dtype) or copy
        call = real.bind(
            binding._replace(
                x=self.viewed(binding.x, dtype) or contiguous_strides(real.x_shape, size),
                w=None if w is None else contiguous_strides(real.problem.weight_shape, size),
                y=view if direct and view else new,
                residual=residual,
            )
        )
        return ComplexCall(self, call, direct)


class ComplexCall(Call):
    """The call of a real convolution, with parts as channels."""

    __slots__ = ("_direct", "_engine", "_real")

    def __init__(self, engine: ComplexEngine, real: Call, direct: bool) -> None:
        """`direct` says that the real convolution writes to y."""
        super().__init__(CallForm(engine.summed, engine.y_shape, np.dtype(engine.y_dtype), ()))
        self._engine, self._real, self._direct = engine, real, direct

    def _compute(
        self, x: Array, w: Any, bias: Any, y: Array, residual: Array | None, scale: Any
    ) -> None:
        """See `Call`; `w` is a complex filter, or the operands of `PackedParts`."""
        engine = self._engine
        filters = w[0] if isinstance(w, tuple) else engine.real_filter(w)
        if bias is not None:
            bias = self._addend(bias).view(COMPLEX_PARTS[self._sums.name])
        added = None if residual is None else engine.real_array(residual)
        factors = None if scale is None else np.repeat(scale, 2)
        target = engine.real_array(y) if self._direct else None
        result = self._real(engine.real_array(x), filters, bias, target, added, factors)
        if not self._direct:
            y.real, y.imag = engine.both_parts(result)


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
