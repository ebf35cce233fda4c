"""Cases, inputs and the error measure, for tests and measurements."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from implicit_conv import reference
from implicit_conv.activation import Activation
from implicit_conv.arrays import numpy_dtype
from implicit_conv.cpu import engine
from implicit_conv.cpu.arch import CpuArch, cpu_arch
from implicit_conv.cpu.candidate import Request
from implicit_conv.options import LAYOUTS, WEIGHT_LAYOUTS
from implicit_conv.plan import Plan
from implicit_conv.problem import Problem

Array = NDArray[Any]
Pair = tuple[int, int]
EPS = {"float32": 2.0**-24, "float64": 2.0**-53}  # unit roundoff of the dtypes of sums
# dtype: (largest error of rounding to it relative to the value, largest absolute error of rounding
# a subnormal).
ROUNDING = {"float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 2.0**-134)}


@dataclass(frozen=True)
class Case:
    """A convolution, given by its sizes and options; it makes arrays and reference results."""

    N: int = 1
    C: int = 1  # input channels of a group
    K: int = 1  # filters of a group
    groups: int = 1
    size: Pair = (5, 7)
    kernel: Pair = (3, 3)
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    padding: tuple[Pair, Pair] = ((0, 0), (0, 0))
    layout: str = "NCHW"
    weight_layout: str = "KCRS"
    dtype: str = "float32"

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
    def options(self) -> dict[str, Any]:
        """Keyword arguments of `conv2d`."""
        names = ("stride", "padding", "dilation", "groups", "layout", "weight_layout")
        return {name: getattr(self, name) for name in names}

    @property
    def problem(self) -> Problem:
        """The same convolution as the planner sees it."""
        x = {"N": self.N, "C": self.C * self.groups, "H": self.size[0], "W": self.size[1]}
        w = {"K": self.K * self.groups, "C": self.C, "R": self.kernel[0], "S": self.kernel[1]}
        shapes = [x[a] for a in self.layout], [w[a] for a in self.weight_layout]
        return Problem.parse(*shapes, self.dtype, **self.options)

    def inputs(self, seed: int, integers: bool = False) -> tuple[Array, Array]:
        """(x, w) in N, C, H, W and K, C, R, S order: normally distributed, or integers -4 to 4."""
        rng = np.random.default_rng(seed)
        dtype = numpy_dtype(self.dtype)
        shapes = (
            (self.N, self.C * self.groups, *self.size),
            (self.K * self.groups, self.C, *self.kernel),
        )
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
            np.ascontiguousarray(_permuted(w, "KCRS", WEIGHT_LAYOUTS[self.weight_layout])),
        )

    def reference(self, x: Array, w: Array, magnitude: bool = False) -> Array:
        """The reference result in N, K, P, Q order, float64."""
        return reference.conv2d(
            x,
            w,
            stride=self.stride,
            pads=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            magnitude=magnitude,
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
    """`array` (N, C, H, W) with its axes in the order of `layout`; a view."""
    return _permuted(array.transpose(0, 2, 3, 1), "NHWC", LAYOUTS[layout])


def to_nchw(array: Array, layout: str) -> Array:
    """`array` in `layout` with its axes in the order N, C, H, W; a view."""
    return array.transpose(LAYOUTS[layout]).transpose(0, 3, 1, 2)


def _permuted(array: Array, letters: str, positions: tuple[int, ...]) -> Array:
    """`array` with its axes permuted: axis i moves to positions[i]."""
    order = sorted(range(len(letters)), key=lambda axis: positions[axis])
    return array.transpose(order)


def error_units(y: Array, reference: Array, scale: Array, dtype: str) -> float:
    """Largest |y - reference| of all elements, in units of eps * scale; NaN if y has a NaN.

    eps is that of the sums: 2^-53 for float64, else 2^-24. scale is the sum of |x||w|. The error of
    rounding a sum to 16 bits once is subtracted first.
    """
    error = np.abs(y.astype(np.float64) - reference)
    if dtype in ROUNDING:
        share, least = ROUNDING[dtype]
        error = np.maximum(error - np.maximum(share * np.abs(reference), least), 0)
        dtype = "float32"
    units = error / np.maximum(EPS[dtype] * scale, np.finfo(dtype).tiny)
    return float(units.max(initial=0.0))


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
    choice = made.choice._replace(candidates=(replace(made.best, **changes),))
    return Plan(replace(made, choice=choice))
