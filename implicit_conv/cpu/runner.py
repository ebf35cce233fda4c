"""Runner: what the engines of all operators on the CPU do with the arrays of a call."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from implicit_conv.arrays import (
    Array,
    as_array,
    check_distinct,
    check_like_output,
    check_numbers,
    check_vector,
    dtype_key,
    dtype_name,
    numpy_dtype,
    with_own_strides,
    writable_directly,
)
from implicit_conv.cpu.call import Call
from implicit_conv.errors import DTypeError, PlanError, ShapeError
from implicit_conv.integers import (
    FLOATS,
    check_range,
    checked_bias,
    magnitude,
    out_dtypes,
    refuse_int32,
)
from implicit_conv.options import ITEMSIZES
from implicit_conv.problem import Problem


class Runner(ABC):
    """Checks the arrays of a call, runs it, and converts its result."""

    problem: Problem
    out_dtype: str  # the dtype of results
    names: ClassVar[tuple[str, str]] = ("x", "w")  # of the two arrays, in messages
    has_epilogue: ClassVar[bool] = True  # whether a bias, a residual or a scale may be given

    @property
    @abstractmethod
    def x_shape(self) -> tuple[int, ...]:
        """The shape of the first array."""

    @property
    @abstractmethod
    def y_shape(self) -> tuple[int, ...]:
        """The shape of the result."""

    @property
    @abstractmethod
    def summed(self) -> Problem:
        """The fprop with the largest sums, which decide what may be added to them."""

    @property
    @abstractmethod
    def call_bytes(self) -> int:
        """Bytes that a call with a plain filter takes besides its arrays."""

    @property
    def peak_bytes(self) -> int:
        """Bytes that a call with a plain filter takes, with its result; see `Plan.peak_bytes`."""
        elements = math.prod(self.y_shape)
        converted = 0 if self.out_dtype == self.y_dtype else ITEMSIZES[self.out_dtype]
        return elements * ITEMSIZES[self.y_dtype] + max(self.call_bytes, elements * converted)

    @abstractmethod
    def filters(self, w: object) -> Any:
        """`w` after its checks: an array, or a packed filter, which has a `panels` and an
        `operand`.
        """

    @abstractmethod
    def bind(
        self, x: Array, w: Any, y: Array, residual: Array | None, biased: bool, scaled: bool = False
    ) -> Call:
        """The cached call for arrays of these strides."""

    @property
    def y_dtype(self) -> str:
        """The dtype that kernels store: `out_dtype`, or that of the sums if numpy converts them."""
        if self.problem.is_integer:
            return self.out_dtype
        stored = (self.problem.dtype, self.problem.sum_dtype)
        return self.out_dtype if self.out_dtype in stored else self.problem.sum_dtype

    def run(
        self,
        x: object,
        w: object,
        bias: object = None,
        residual: object = None,
        out: Array | None = None,
        scale: object = None,
    ) -> Array:
        """Check the arrays and compute the result; see `Plan.__call__`."""
        problem, shape = self.problem, self.y_shape
        if not (self.has_epilogue or (bias is residual is scale is None)):
            raise PlanError("a gradient has no bias, residual or scale; leave them out")
        x = as_array(self.names[0], x)
        check_array(self.names[0], x, self.x_shape, problem.dtype)
        filters = self.filters(w)
        if scale is not None:
            scale = self._factor("scale", scale)
            bias = None if bias is None else self._factor("bias", bias)
        elif bias is not None:
            bias = checked_bias(bias, self.summed)
        if residual is not None:
            residual = self._residual(residual, bias, scale)
        if out is not None:
            check_out(out, shape, self.out_dtype)
        packed = not isinstance(filters, np.ndarray)
        read = filters.panels if packed else filters
        direct = (
            out is not None
            and out.dtype == self.y_dtype
            and writable_directly(out, (x, read, bias, residual))
            and (residual is None or not (problem.is_integer or scale is not None))
        )
        y = out if direct else np.empty(shape, numpy_dtype(self.y_dtype))
        assert y is not None
        if y.size:
            call = self.bind(x, filters, y, residual, bias is not None, scale is not None)
            call(x, filters.operand if packed else filters, bias, y, residual, scale)
        if out is not None:
            if not direct:
                out[...] = y
            return out
        return y if self.out_dtype == self.y_dtype else y.astype(self.out_dtype)

    def ready(self, x: Array, w: Any, y: Array, biased: bool) -> Call | None:
        """The call that computed ``y = run(x, w)``; None if `run` does more than that call."""
        if y.size == 0 or y.dtype != self.y_dtype:
            return None
        return self.bind(x, w, y, None, biased)

    def _factor(self, name: str, given: object) -> Array:
        """A scale, or a bias that is added after it, in the dtype in which sums are finished."""
        dtype = self.out_dtype if self.problem.is_integer else self.problem.sum_dtype
        if dtype not in FLOATS:
            raise DTypeError(
                f"a scale makes floats of integers, but out_dtype is {dtype}; ask for out_dtype "
                "'float32' or 'float64'"
            )
        return check_vector(name, given, self.summed.K, dtype)

    def _residual(self, given: object, bias: Array | None, scale: Array | None) -> Array:
        """A residual of the output's shape, and of the dtype of x, or for integers of the output.

        For integers, and with a scale, it is contiguous, as the output then is: kernels add it to
        whole vectors.
        """
        problem, residual = self.summed, as_array("residual", given)
        if not problem.is_integer:
            check_like_output("residual", residual, self.y_shape, problem.dtype)
            return residual if scale is None else with_own_strides(residual)
        check_like_output("residual", residual, self.y_shape, self.out_dtype)
        if self.out_dtype == problem.sum_dtype:
            largest = problem.largest_sum + (0 if bias is None else magnitude(bias))
            check_range("residual", largest, residual, self.out_dtype)
        return with_own_strides(residual)


def check_array(name: str, array: Array, shape: tuple[int, ...], dtype: str) -> None:
    """Refuse an array of another shape or dtype than the plan's.

    Raises
    ------
    DTypeError, ShapeError
        It has another.
    """
    if array.dtype != dtype:
        raise DTypeError(f"{name} is {array.dtype} but the plan was made for {dtype}")
    if array.shape != shape:
        raise ShapeError(f"{name} has shape {array.shape} but the plan was made for {shape}")


def parse_name(key: str | np.dtype[Any]) -> str:
    """The name of a dtype, in words that no dtype has if its byte order is foreign."""
    if not isinstance(key, str) and not key.isnative:
        return f"{key.str} of foreign byte order"
    return dtype_name(key)


def parse_out_dtype(out_dtype: object, problem: Problem) -> str:
    """The name of the dtype of results.

    Raises
    ------
    DTypeError
        `out_dtype` is not supported for this problem.
    """
    dtype = problem.dtype
    floats = dict.fromkeys((dtype, "float32", "float64"))
    supported = out_dtypes(problem) if problem.is_integer else tuple(floats)
    if out_dtype is None:
        return supported[0]
    try:
        name = parse_name(dtype_key(out_dtype))
    except TypeError:
        raise DTypeError(
            f"out_dtype {out_dtype!r} cannot be read as a data type; use one of "
            f"{', '.join(supported)}"
        ) from None
    if name == "int32" and problem.is_integer and name not in supported:
        refuse_int32(problem)
    if name not in supported:
        raise DTypeError(
            f"out_dtype {name} is not supported for {dtype} x; use one of {', '.join(supported)}"
        )
    return name


def check_out(out: object, shape: tuple[int, ...], dtype: str) -> None:
    """Check that `out` is a writable numpy array of this shape and dtype, with distinct elements.

    Raises
    ------
    ShapeError, DTypeError
        It is not.
    """
    if not isinstance(out, np.ndarray):
        raise DTypeError(
            f"out must be a numpy array, not {type(out).__name__}; leave it out, or pass a numpy "
            "view of it, such as out.numpy() of a tensor on the CPU"
        )
    check_numbers("out", out)
    if not out.flags.writeable:
        raise ShapeError("out is read-only; pass a writable array")
    check_like_output("out", out, shape, dtype)
    check_distinct("out", out)
