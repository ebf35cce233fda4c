"""The CPU engine: it plans a request, explains the plan, packs filters and convolves."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from implicit_conv.activation import Activation, parse_activation
from implicit_conv.arrays import (
    Array,
    as_array,
    check_like_output,
    check_vector,
    dtype_name,
    numpy_dtype,
    writable_directly,
)
from implicit_conv.cache import keep_call
from implicit_conv.cpu import explain as words
from implicit_conv.cpu import planner
from implicit_conv.cpu.arch import CpuArch
from implicit_conv.cpu.call import Arrays, Call, bits
from implicit_conv.cpu.candidate import Candidate, Formats, Request
from implicit_conv.cpu.packed import PackedFilter
from implicit_conv.cpu.planner import Choice
from implicit_conv.errors import DTypeError, ShapeError
from implicit_conv.options import ITEMSIZES, WEIGHT_LAYOUTS
from implicit_conv.problem import Problem
from implicit_conv.schedule import Load

LOG = logging.getLogger("implicit_conv")


@dataclass(frozen=True)
class CpuEngine:
    """The plan of one request on one CPU.

    Attributes
    ----------
    problem : Problem
    arch : CpuArch
    request : Request
        Precision, algorithm and whether subnormals are treated as zero.
    choice : Choice
        The candidates, of which the first one runs if it accepts the strides of the arrays, and the
        refusals.
    activation : (kind, low, high)
        As `parse_activation` returns it.
    out_dtype : str
        The dtype of results.
    unbatched : bool
        Whether x and y have no batch axis.
    """

    problem: Problem
    arch: CpuArch
    request: Request
    choice: Choice
    activation: tuple[float, float, float]
    out_dtype: str
    unbatched: bool = False

    def __getstate__(self) -> dict[str, object]:
        """Leave prepared calls out of pickles and copies: they hold addresses of this process."""
        return {name: value for name, value in self.__dict__.items() if name != "calls"}

    @functools.cached_property
    def fallbacks(self) -> tuple[Candidate, ...]:
        """Candidates for strides that others do not accept, the cheapest first.

        They are made on first use, because most arrays are contiguous.
        """
        found = [f for c in self.choice.candidates for f in c.method.fallbacks(c)]
        return tuple(sorted(found, key=lambda candidate: candidate.cycles))

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All candidates, in the order in which they are tried."""
        return tuple(self._in_order())

    @functools.cached_property
    def calls(self) -> dict[object, object]:
        """Prepared calls; the keys are the strides of their arrays."""
        return {}

    @property
    def best(self) -> Candidate:
        """The candidate that runs if it accepts the strides of the arrays."""
        return self.choice.candidates[0]

    @property
    def algorithm(self) -> str:
        """The algorithm of the best candidate."""
        return self.best.algorithm

    @property
    def y_dtype(self) -> str:
        """The dtype that kernels store: `out_dtype`, or that of the sums if numpy converts them."""
        stored = (self.problem.dtype, self.problem.sum_dtype)
        return self.out_dtype if self.out_dtype in stored else self.problem.sum_dtype

    @property
    def formats(self) -> Formats:
        """The properties of compiled kernels that are not part of a candidate."""
        return Formats(self.y_dtype, self.request.flushes)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of scratch memory of all threads, without the packed filter."""
        return self.best.workspace_bytes

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed filter."""
        return self.best.packed.bytes

    @property
    def peak_bytes(self) -> int:
        """Bytes of scratch memory, packed filter and output together."""
        y = math.prod(self.problem.output_shape) * ITEMSIZES[self.y_dtype]
        return self.workspace_bytes + self.packed_bytes + y

    def explain(self) -> str:
        """The text of `Plan.explain`: the best candidate, then the table of all candidates."""
        choice = self.choice._replace(candidates=self.candidates)
        return words.explain(choice, self.request.precision, self.formats)

    def trace(self) -> list[Load]:
        """The loads of the best candidate for contiguous arrays."""
        return self.best.method.loads(self.best)

    def pack(self, w: object) -> PackedFilter:
        """The filter `w` in the order that the best candidate reads; see `Plan.pack`."""
        array = bits(self._checked_filter(w))
        return self.best.method.pack(self.best, array, self.formats)

    def run(
        self,
        x: object,
        w: object,
        bias: object = None,
        residual: object = None,
        out: Array | None = None,
    ) -> Array:
        """Check the arrays and convolve; see `Plan.__call__`."""
        problem = self.problem
        x = as_array("x", x)
        if self.unbatched and x.ndim == 3:
            x = x[None]
        self._check("x", x, problem.input_shape)
        filters = self._checked_filters(w)
        if bias is not None:
            bias = check_vector("bias", bias, problem.K, problem.sum_dtype)
        shape = problem.output_shape[1:] if self.unbatched else problem.output_shape
        if residual is not None:
            residual = as_array("residual", residual)
            check_like_output("residual", residual, shape, problem.dtype)
        if out is not None:
            _check_out(out, shape, self.out_dtype)
        read = filters.panels if isinstance(filters, PackedFilter) else filters
        direct = (
            out is not None
            and out.dtype == self.y_dtype
            and writable_directly(out, (x, read, bias, residual))
        )
        y = out if direct else np.empty(shape, numpy_dtype(self.y_dtype))
        assert y is not None
        if y.size:
            y4, residual4 = y, residual
            if self.unbatched:
                y4, residual4 = y[None], None if residual is None else residual[None]
            call = self.bind(x, filters, y4, residual4, bias is not None)
            operand = filters.operand if isinstance(filters, PackedFilter) else filters
            call(x, operand, bias, y4, residual4)
        if out is not None:
            if not direct:
                out[...] = y
            return out
        return y if self.out_dtype == self.y_dtype else y.astype(self.out_dtype)

    def ready(self, x: Array, w: Any, y: Array, biased: bool) -> Call | None:
        """The call that computed ``y = run(x, w)``; None if `run` does more than that call."""
        if self.unbatched or y.size == 0 or y.dtype != self.y_dtype:
            return None
        return self.bind(x, w, y, None, biased)

    def bind(
        self, x: Array, w: PackedFilter | Array, y: Array, residual: Array | None, biased: bool
    ) -> Call:
        """The cached call for 4-d arrays of these strides."""
        packed = isinstance(w, PackedFilter)
        key = (
            x.strides,
            w.key if isinstance(w, PackedFilter) else w.strides,
            packed,
            y.strides,
            residual is not None and residual.strides,
            biased,
        )
        call = self.calls.get(key)
        if call is None:
            call = self.bind_anew(x, w, y, residual, biased, self.formats)
            keep_call(self.calls, key, call)
        assert isinstance(call, Call)
        return call

    def bind_anew(
        self,
        x: Array,
        w: PackedFilter | Array,
        y: Array,
        residual: Array | None,
        biased: bool,
        formats: Formats,
        record: int = 0,
    ) -> Call:
        """Bind the first candidate that accepts the strides of the arrays; nothing is cached.

        A debug build writes its loads to the address `record`.
        """
        from implicit_conv.kernels.cpu.operator import Epilogue

        axes: tuple[int, ...]
        key = None
        if not isinstance(w, PackedFilter):
            filters, axes = bits(w), WEIGHT_LAYOUTS[self.problem.weight_layout]
        elif w.plain is not None:
            filters, axes = w.plain, w.axes
        else:
            filters, axes, key = None, (0, 1, 2, 3), w.key
        arrays = Arrays(bits(x), filters, axes, bits(y), residual)
        candidate = next(
            c
            for c in self._in_order()
            if c.method.accepts(c, arrays) and (key is None or c.packed.key == key)
        )
        if candidate is not self.best:
            LOG.debug(
                "%s runs, because %s needs %s",
                candidate.name,
                self.best.name,
                self.best.method.needs,
            )
        epilogue = Epilogue(self.activation, biased)
        return candidate.method.bind(candidate, arrays, epilogue, formats, record)

    def _in_order(self) -> Iterator[Candidate]:
        """All candidates in the order in which they are tried; fallbacks are made when reached."""
        yield from self.choice.candidates
        yield from self.fallbacks

    def _checked_filters(self, w: object) -> PackedFilter | Array:
        """`w`: a plain filter, or one that is packed in the order the best candidate reads."""
        if not isinstance(w, PackedFilter):
            return self._checked_filter(w)
        if w.key != self.best.packed.key:
            raise ShapeError(
                "w was packed in another order than this plan reads, for another problem or by a "
                "plan with another method or tile; pack it with plan.pack(w) of this plan"
            )
        return w

    def _checked_filter(self, w: object) -> Array:
        array = as_array("w", w)
        self._check("w", array, self.problem.weight_shape)
        return array

    def _check(self, name: str, array: Array, shape: tuple[int, ...]) -> None:
        """Refuse an array that has not the problem's dtype and the given shape."""
        dtype = self.problem.dtype
        if array.dtype != dtype:
            raise DTypeError(f"{name} is {array.dtype} but the plan was made for {dtype}")
        if array.shape != shape:
            raise ShapeError(f"{name} has shape {array.shape} but the plan was made for {shape}")


def plan(
    problem: Problem,
    arch: CpuArch,
    request: Request,
    *,
    activation: Activation = None,
    out_dtype: object = None,
    unbatched: bool = False,
) -> CpuEngine:
    """Plan a request.

    Raises
    ------
    PlanError, DTypeError
        The precision, algorithm, activation or out_dtype is unknown, or is not supported for this
        problem.
    """
    choice = planner.plan(problem, arch, request)
    best = choice.candidates[0]
    LOG.debug("%s: %s on %d threads", problem, best.name, best.threads)
    return CpuEngine(
        problem,
        arch,
        request,
        choice,
        parse_activation(activation),
        _out_dtype(out_dtype, problem.dtype),
        unbatched,
    )


def _out_dtype(out_dtype: object, dtype: str) -> str:
    """The name of the dtype of results, where `dtype` is that of x."""
    key = dtype_key(dtype if out_dtype is None else out_dtype)
    supported = dict.fromkeys((dtype, "float32", "float64"))
    name = dtype_name(key)
    if not isinstance(key, str) and not key.isnative:
        name = f"{key.str} of foreign byte order"
    if name not in supported:
        raise DTypeError(
            f"out_dtype {name} is not supported for {dtype} x; use one of {', '.join(supported)}"
        )
    return name


def dtype_key(dtype: object) -> str | np.dtype[Any]:
    """A dtype as a hashable value; the name "bfloat16" is kept, so that it needs no ml_dtypes."""
    return "bfloat16" if dtype == "bfloat16" else np.dtype(dtype)  # type: ignore[call-overload]


def _check_out(out: object, shape: tuple[int, ...], dtype: str) -> None:
    if not isinstance(out, np.ndarray):
        raise DTypeError(f"out must be a numpy array, not {type(out).__name__}")
    if not out.flags.writeable:
        raise ShapeError("out is read-only; pass a writable array")
    check_like_output("out", out, shape, dtype)
