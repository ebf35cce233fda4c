"""Cases, inputs and the error measure, for tests and measurements."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from implicit_conv.arrays.arrays import numpy_dtype
from implicit_conv.cpu.candidates.query import Request
from implicit_conv.cpu.engines import engine
from implicit_conv.cpu.machine.arch import CpuArch, cpu_arch
from implicit_conv.operators.plan import Plan
from implicit_conv.problem import reference
from implicit_conv.problem.options import INTEGER_RANGES, SPACE, TAPS, Activation
from implicit_conv.problem.problem import Problem

Array = NDArray[Any]
Pair = tuple[int, int]
EPS = {"float32": 2.0**-24, "float64": 2.0**-53}  # unit roundoff of the dtypes of sums
# dtype: (largest error of rounding to it relative to the value, largest absolute error of rounding
# a subnormal).
ROUNDING = {"float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 2.0**-134)}


@dataclass(frozen=True)
class Case:
    """A convolution, given by its sizes and options; it makes arrays and reference results.

    It has as many spatial axes as its `size`; the layouts, the defaults of which have two, must
    have as many.
    """

    N: int = 1
    C: int = 1  # input channels of a group
    K: int = 1  # filters of a group
    groups: int = 1
    size: tuple[int, ...] = (5, 7)
    kernel: tuple[int, ...] = (3, 3)
    stride: tuple[int, ...] = (1, 1)
    dilation: tuple[int, ...] = (1, 1)
    padding: tuple[Pair, ...] = ((0, 0), (0, 0))
    layout: str = "NCHW"
    weight_layout: str = "KCRS"
    dtype: str = "float32"
    w_dtype: str | None = None  # None: that of x
    padding_mode: str = "zeros"

    @property
    def output(self) -> tuple[int, ...]:
        """(P, Q); below 1 if the filter does not fit in the padded image."""
        return tuple(
            (size + lo + hi - (taps - 1) * dilation - 1) // stride + 1
            for size, taps, stride, dilation, (lo, hi) in zip(
                self.size, self.kernel, self.stride, self.dilation, self.padding, strict=True
            )
        )

    @property
    def is_valid(self) -> bool:
        """Whether it has outputs, and pixels for its padding to repeat."""
        sizes = zip(self.size, self.padding, strict=True)
        repeats = self.padding_mode != "zeros"
        empty = (size + min(0, lo) + min(0, hi) < 1 < 1 + max(lo, hi) for size, (lo, hi) in sizes)
        return min(self.output) >= 1 and not (repeats and any(empty))

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return len(self.size)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of x, w and y with the axes N, C, H, W; K, C, R, S; and N, K, P, Q."""
        channels, filters = self.C * self.groups, self.K * self.groups
        return {
            "x": (self.N, channels, *self.size),
            "w": (filters, self.C, *self.kernel),
            "y": (self.N, filters, *self.output),
        }

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of `conv2d`."""
        arithmetic = ("stride", "padding", "dilation", "groups", "padding_mode")
        names = (*arithmetic, "layout", "weight_layout")
        return {name: getattr(self, name) for name in names}

    @property
    def problem(self) -> Problem:
        """The same convolution as the planner sees it."""
        x = dict(zip(f"NC{SPACE[self.rank]}", self.shapes["x"], strict=True))
        w = dict(zip(f"KC{TAPS[self.rank]}", self.shapes["w"], strict=True))
        shapes = [x[a] for a in self.layout], [w[a] for a in self.weight_layout]
        options = {**self.options, "rank": self.rank}
        return Problem.parse(*shapes, self.dtype, w_dtype=self.w_dtype, **options)

    def inputs(self, seed: int, integers: bool = False) -> tuple[Array, Array]:
        """(x, w) in N, C, H, W and K, C, R, S order: normally distributed, or integers -4 to 4; of
        integer dtypes any integers.
        """
        rng = np.random.default_rng(seed)
        dtype = numpy_dtype(self.dtype)
        shapes = self.shapes["x"], self.shapes["w"]
        if self.dtype in INTEGER_RANGES:
            dtypes = (self.dtype, self.w_dtype or self.dtype)
            x, w = (
                rng.integers(*INTEGER_RANGES[dtype], shape, dtype, endpoint=True)
                for shape, dtype in zip(shapes, dtypes, strict=True)
            )
            return x, w
        x, w = (
            rng.integers(-4, 5, shape).astype(dtype)
            if integers
            else rng.standard_normal(shape).astype(dtype)
            for shape in shapes
        )
        return x, w

    def arrange(self, x: Array, w: Array) -> tuple[Array, Array]:
        """(x, w) as contiguous arrays in the layouts of the case."""
        return (
            np.ascontiguousarray(from_nchw(x, self.layout)),
            np.ascontiguousarray(from_kcrs(w, self.weight_layout)),
        )

    def reference(self, x: Array, w: Array, magnitude: bool = False) -> Array:
        """The reference result in N, K, P, Q order, float64, or int64 for integers."""
        return reference.conv(
            x,
            w,
            stride=self.stride,
            pads=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            padding_mode=self.padding_mode,
            magnitude=magnitude,
            dtype="int64" if self.dtype in INTEGER_RANGES else "float64",
        )

    def epilogue(
        self, sums: Array, parts: Collection[str]
    ) -> tuple[Activation, dict[str, Array], Array]:
        """An epilogue that keeps integers exact, and its result for `sums`.

        Parameters
        ----------
        sums : (N, K, P, Q) array
        parts : some of "bias", "residual" and "leaky_relu"; other names are ignored

        Returns
        -------
        activation : as `conv2d` takes it
        operands : `bias` (K,) and `residual` in the layout of the case, if they are in `parts`
        expected : (N, K, P, Q) array
        """
        activation: Activation = None
        operands = {}
        if "bias" in parts:
            bias = np.arange(sums.shape[1]) - sums.shape[1] // 2
            sums, operands["bias"] = sums + bias[:, None, None], bias
        if "residual" in parts:
            residual = np.arange(sums.size).reshape(sums.shape) % 13 - 6
            sums = sums + residual
            operands["residual"] = from_nchw(residual.astype(numpy_dtype(self.dtype)), self.layout)
        if "leaky_relu" in parts:
            activation, sums = ("leaky_relu", 2.0), np.where(sums < 0, 2 * sums, sums)
        return activation, operands, sums

    def rounded(self, sums: Array) -> Array:
        """Exact `sums`, rounded once to the dtype of the case, as float64."""
        dtype = numpy_dtype(self.dtype)
        with np.errstate(over="ignore"):
            return sums.astype(np.float32).astype(dtype).astype(np.float64)


def from_nchw(array: Array, layout: str) -> Array:
    """`array` (N, C, spatial axes) with its axes in the order of `layout`; a view."""
    return _permuted(array, f"NC{SPACE[array.ndim - 2]}", layout)


def to_nchw(array: Array, layout: str) -> Array:
    """`array` in `layout` with its axes in the order N, C, spatial axes; a view."""
    return _permuted(array, layout, f"NC{SPACE[array.ndim - 2]}")


def from_kcrs(w: Array, weight_layout: str) -> Array:
    """`w` (K, C, taps) with its axes in the order of `weight_layout`; a view."""
    return _permuted(w, f"KC{TAPS[w.ndim - 2]}", weight_layout)


def to_kcrs(w: Array, weight_layout: str) -> Array:
    """`w` in `weight_layout` with its axes in the order K, C, taps; a view."""
    return _permuted(w, weight_layout, f"KC{TAPS[w.ndim - 2]}")


def _permuted(array: Array, letters: str, wanted: str) -> Array:
    """`array`, whose axes are `letters`, with its axes in the order `wanted`."""
    return array.transpose([letters.index(letter) for letter in wanted])


def errors(y: Array, reference: Array, scale: Array, dtype: str) -> Array:
    """|y - reference| of each element, in units of eps * scale; NaN where y is NaN.

    eps is that of the sums: 2^-53 for float64, else 2^-24, also for integers. scale is the sum of
    |x||w|. The error of rounding a sum to 16 bits once is subtracted first.
    """
    error = np.abs(y.astype(np.result_type(reference, np.float64)) - reference)
    if dtype in INTEGER_RANGES:
        dtype = "float32"
    if dtype in ROUNDING:
        share, least = ROUNDING[dtype]
        error = np.maximum(error - np.maximum(share * np.abs(reference), least), 0)
        dtype = "float32"
    units: Array = error / np.maximum(EPS[dtype] * scale, np.finfo(dtype).tiny)
    return units


def error_units(y: Array, reference: Array, scale: Array, dtype: str) -> float:
    """The largest of the `errors` of all elements; NaN if y has a NaN."""
    return float(errors(y, reference, scale, dtype).max(initial=0.0))


def plan_of(
    case: Case,
    arch: CpuArch | None = None,
    *,
    precision: str = "standard",
    algorithm: str = "auto",
    activation: Activation = None,
    out_dtype: object = None,
) -> Plan:
    """The CPU's plan of a case on `arch` (by default this machine), which no cache keeps."""
    request = Request(precision, algorithm)
    made = engine.plan(
        case.problem, arch or cpu_arch(), request, activation=activation, out_dtype=out_dtype
    )
    return Plan(made)


def changed(plan: Plan, **changes: Any) -> Plan:
    """`plan` with its best candidate changed, and no other candidate."""
    made = plan.engine
    assert isinstance(made, engine.CpuEngine)
    choice = replace(made.choice, candidates=(replace(made.best, **changes),))
    return Plan(replace(made, choice=choice))
