"""Executor: what the engines of all operators on the CPU do with the arrays of a call.

Arrays are checked once, in `operands` and `run`. What is prepared for them depends on a `Binding`,
their strides, so that no array is part of what imports and compiles.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from implicit_conv.arrays.arrays import (
    Array,
    Binding,
    RepeatedCall,
    as_array,
    check_like_output,
    check_out,
    check_vector,
    dtype_key,
    dtype_name,
    numpy_dtype,
    with_own_strides,
    writable_directly,
)
from implicit_conv.arrays.integers import (
    FLOATS,
    check_range,
    checked_bias,
    magnitude,
    out_dtypes,
    refuse_int32,
)
from implicit_conv.cpu.run.call import Arrays, Call, RepeatedArrays
from implicit_conv.cpu.run.packed import PackedFilter
from implicit_conv.errors import DTypeError, PlanError, ShapeError
from implicit_conv.kernels.cpu.runtime.pool import new_array
from implicit_conv.kernels.cpu.runtime.program import (
    RESIDUAL,
    Program,
    Room,
    Step,
    W,
    X,
    Y,
    begin_of,
    placed,
)
from implicit_conv.kernels.cpu.runtime.same_arrays import Record, can_record
from implicit_conv.problem.operand_checks import NO_EPILOGUE
from implicit_conv.problem.options import COMPLEX_PARTS, ITEMSIZES, contiguous_strides
from implicit_conv.problem.problem import Problem
from implicit_conv.process.cache import cached_property, keep_call
from implicit_conv.process.preparation import imports

if TYPE_CHECKING:
    from implicit_conv.cpu.run.prepared import PreparedCall


@imports
def _tensors() -> Any:
    from implicit_conv.arrays import tensors

    return tensors


@imports
def _prepared_call() -> Any:
    from implicit_conv.cpu.run.prepared import PreparedCall

    return PreparedCall


class Executor(ABC):
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

    @property
    @abstractmethod
    def packed_key(self) -> tuple[object, ...]:
        """The key of packed filters that the plan reads."""

    def filters(self, w: object) -> Any:
        """`w` after its checks: an array, or a packed filter, which has a `panels` and an
        `operand`.
        """
        if not isinstance(w, PackedFilter):
            return self.plain_filter(w)
        if w.key != self.packed_key:
            raise ShapeError(
                "w was packed in another order than this plan reads, for another problem, operator "
                "or CPU, or by a plan with another method or tile; pack it with plan.pack(w) of "
                "this plan"
            )
        return w

    def plain_filter(self, w: object) -> Array:
        """The filter `w` as an array, after its checks."""
        if hasattr(w, "operand"):
            raise ShapeError("w is packed already; pass it to the plan that packed it")
        array = as_array("w", w)
        check_array("w", array, self.problem.weight_shape, self.problem.filter_dtype)
        return array

    @property
    @abstractmethod
    def w_shape(self) -> tuple[int, ...]:
        """The shape of the second array."""

    @abstractmethod
    def steps(self, arrays: Arrays, room: Room, *, biased: bool, scaled: bool) -> list[Step]:
        """The steps of a call; see `Method.steps`."""

    @abstractmethod
    def vectors_of_steps(self) -> Callable[[Any, Any], tuple[Any, Any]] | None:
        """What makes a bias and a scale of steps of those of a call; None if they are the same."""

    def bound(self, binding: Binding) -> Call:
        """A new call for arrays of these strides.

        Raises
        ------
        PlanError
            No method takes them.
        """
        problem, room, y_shape = self.problem, Room(), self.y_shape
        x_dtype, y_dtype = numpy_dtype(problem.dtype), numpy_dtype(self.y_dtype)
        w = residual = None
        if binding.w is not None:
            dtype = numpy_dtype(problem.filter_dtype)
            w = placed(W, self.w_shape, dtype, binding.w)
        if binding.residual is not None:
            dtype = numpy_dtype(self.residual_dtype)
            residual = placed(RESIDUAL, y_shape, dtype, binding.residual)
        arrays = Arrays(
            placed(X, self.x_shape, x_dtype, binding.x),
            w,
            placed(Y, y_shape, y_dtype, binding.y),
            residual,
            begin_of(W),
        )
        steps = self.steps(arrays, room, biased=binding.biased, scaled=binding.scaled)
        summed, bias = self.summed, None
        if binding.biased and not binding.scaled:
            bias = np.empty(summed.K, numpy_dtype(summed.sum_dtype))
        vectors = self.vectors_of_steps()
        if bias is not None and vectors is not None:
            bias, _ = vectors(bias, None)
        return Call(summed, y_shape, y_dtype, Program(steps, room, bias), vectors)

    @cached_property
    def calls(self) -> dict[object, Any]:
        """Prepared calls by their bindings."""
        return {}

    def bind(self, binding: Binding) -> Call:
        """The cached call for arrays of these strides."""
        call: Call | None = self.calls.get(binding)
        if call is None:
            call = self.bound(binding)
            keep_call(self.calls, binding, call)
        return call

    def operands(self, x: object, w: object) -> tuple[Array, Any]:
        """`x` and `w` as `run` takes them, after their checks; `w` may be a packed filter."""
        first = as_array(self.names[0], x)
        check_array(self.names[0], first, self.x_shape, self.problem.dtype)
        return first, self.filters(w)

    @cached_property
    def y_dtype(self) -> str:
        """The dtype that kernels store: `out_dtype`, or that of the sums if numpy converts them."""
        if self.problem.is_integer:
            return self.out_dtype
        stored = (self.problem.dtype, self.problem.sum_dtype)
        return self.out_dtype if self.out_dtype in stored else self.problem.sum_dtype

    @property
    def residual_dtype(self) -> str:
        """The dtype of a residual."""
        return self.out_dtype if self.problem.is_integer else self.problem.dtype

    def run(
        self,
        x: Array,
        w: Any,
        bias: object = None,
        residual: object = None,
        out: Array | None = None,
        scale: object = None,
    ) -> Array:
        """Compute the result of `operands`, after checks of all other arrays; see `Plan.__call__`.

        `x` and `w` are native, and have the shapes and dtypes of the plan.
        """
        problem, shape = self.problem, self.y_shape
        if not (self.has_epilogue or residual is None):
            raise PlanError(NO_EPILOGUE)
        bias, scale = self.vectors(bias, scale)
        if residual is not None:
            residual = self._residual(residual, bias, scale)
        if out is not None:
            check_out(out, shape, self.out_dtype)
        packed = not isinstance(w, np.ndarray)
        read = w.panels if packed else w
        direct = (
            out is not None
            and out.dtype == self.y_dtype
            and writable_directly(out, (x, read, bias, residual))
            and (
                residual is None
                or not (problem.is_integer or scale is not None)
                or out.strides == residual.strides
            )
        )
        y = out if direct else new_array(shape, numpy_dtype(self.y_dtype), x.ctypes.data)
        assert y is not None
        if y.size:
            binding = Binding(
                x.strides,
                None if packed else w.strides,
                y.strides,
                None if residual is None else residual.strides,
                bias is not None,
                scale is not None,
            )
            self.bind(binding)(x, w.operand if packed else w, bias, y, residual, scale)
        if out is not None:
            if not direct:
                out[...] = y
            return out
        return y if self.out_dtype == self.y_dtype else y.astype(self.out_dtype)

    def vectors(self, bias: object, scale: object) -> tuple[Array | None, Array | None]:
        """A bias and a scale, either of which may be None, as kernels take them: contiguous arrays
        of shape (K,).
        """
        if not (self.has_epilogue or (bias is scale is None)):
            raise PlanError(NO_EPILOGUE)
        if scale is None:
            return None if bias is None else checked_bias(bias, self.summed), None
        return None if bias is None else self._factor("bias", bias), self._factor("scale", scale)

    def repeated(
        self,
        given: tuple[Any, Any],
        operands: tuple[Array, Any],
        bias: Any,
        residual: Any,
        out: Any,
        y: Array,
        *,
        scaled: bool = False,
    ) -> RepeatedCall | None:
        """The call by which `run` got `y` of `operands`, to be made again for what is stored like
        `given`; None if `run` does more than that call.
        """
        (x, w), record = operands, cast(Any, None)
        read, key = (w, None) if isinstance(w, np.ndarray) else (w.panels, w.key)
        if 0 in self.y_shape or self.out_dtype != self.y_dtype:
            return None
        if x is given[0] and w is given[1]:
            kind = RepeatedArrays
            record = self._record((x, read, bias, residual, out), y, scaled=scaled)
        elif residual is out is None:
            kind = _tensors().RepeatedTensors
            record = _tensors().tensor_key(given[0], given[1] if key is None else None, bias)
        if record is None:
            return None
        binding = Binding(
            x.strides,
            w.strides if key is None else None,
            y.strides,
            None if residual is None else residual.strides,
            bias is not None,
            scaled,
        )
        return kind(key, self.bind(binding), record, y)

    def _record(self, arrays: tuple[Any, ...], y: Array, *, scaled: bool) -> Record | None:
        """The record of the arrays of a call that `run` makes without copies of them, with the
        result `y`; None if it makes some, or checks their values.
        """
        residual = arrays[3]
        if y.dtype != self.y_dtype or not can_record(*arrays):
            return None
        if residual is not None:
            if self.problem.is_integer or residual.dtype != self.residual_dtype:
                return None
            own = contiguous_strides(y.shape, y.itemsize)
            if scaled and not residual.strides == y.strides == own:
                return None
        record = Record(*arrays)
        return None if record.comparison()(*arrays) else record

    def prepared(
        self, x: Any, w: Any, bias: Any, residual: Any, out: Any, scale: Any
    ) -> PreparedCall:
        """See `Plan.prepare`."""
        check_out(out, self.y_shape, self.out_dtype)
        own = [None if each is None else each.copy() for each in self.vectors(bias, scale)]
        call: PreparedCall = _prepared_call()(self, x, w, own[0], residual, out, own[1])
        return call

    def _factor(self, name: str, given: Any) -> Array:
        """A scale, or a bias that is added after it, in the dtype in which sums are finished; a
        scale of complex numbers is real.
        """
        if self.problem.is_complex:
            if name == "bias":
                return checked_bias(given, self.summed)
            if np.iscomplexobj(given):
                raise DTypeError(
                    f"scale is {np.asarray(given).dtype}; it must be real: multiply w by a complex "
                    "factor instead"
                )
            return check_vector(name, given, self.summed.K, COMPLEX_PARTS[self.problem.dtype])
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
        check_like_output("residual", residual, self.y_shape, self.residual_dtype)
        if not problem.is_integer:
            return residual if scale is None else with_own_strides(residual)
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
    others = COMPLEX_PARTS if problem.is_complex else ("float32", "float64")
    supported: tuple[str, ...] = tuple(dict.fromkeys((dtype, *others)))
    if problem.is_integer:
        supported = out_dtypes(problem)
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
