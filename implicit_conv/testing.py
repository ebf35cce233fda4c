"""Cases, inputs and the error measure: what tests and measurements share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from implicit_conv import reference
from implicit_conv.problem import LAYOUTS, WEIGHT_LAYOUTS

Array = NDArray[Any]
Pair = tuple[int, int]
EPS = {"float32": 2.0**-24, "float64": 2.0**-53}


@dataclass(frozen=True)
class Case:
    """A convolution by its sizes and options; arrays and the oracle's answer follow from it."""

    N: int = 1
    C: int = 1  # of a group
    K: int = 1  # of a group
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
        """(P, Q); below 1 where the filter does not fit."""
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

    def inputs(self, seed: int, integers: bool = False) -> tuple[Array, Array]:
        """(x, w) in N, C, H, W and K, C, R, S order: normal, or integers from -4 to 4."""
        rng = np.random.default_rng(seed)
        shapes = (
            (self.N, self.C * self.groups, *self.size),
            (self.K * self.groups, self.C, *self.kernel),
        )
        x, w = (
            rng.integers(-4, 5, shape).astype(self.dtype)
            if integers
            else rng.standard_normal(shape).astype(self.dtype)
            for shape in shapes
        )
        return x, w

    def arrange(self, x: Array, w: Array) -> tuple[Array, Array]:
        """(x, w) contiguous in the case's layouts."""
        return (
            np.ascontiguousarray(from_nchw(x, self.layout)),
            np.ascontiguousarray(_permuted(w, "KCRS", WEIGHT_LAYOUTS[self.weight_layout])),
        )

    def reference(self, x: Array, w: Array, magnitude: bool = False) -> Array:
        """The oracle's answer in N, K, P, Q order, float64."""
        return reference.conv2d(
            x, w, stride=self.stride, pads=self.padding, dilation=self.dilation,
            groups=self.groups, magnitude=magnitude,
        )  # fmt: skip


def from_nchw(array: Array, layout: str) -> Array:
    """`array` (N, C, H, W) with its axes in the order of `layout`; a view."""
    return _permuted(array.transpose(0, 2, 3, 1), "NHWC", LAYOUTS[layout])


def to_nchw(array: Array, layout: str) -> Array:
    """`array` in `layout` with its axes in the order N, C, H, W; a view."""
    return array.transpose(LAYOUTS[layout]).transpose(0, 3, 1, 2)


def _permuted(array: Array, letters: str, positions: tuple[int, ...]) -> Array:
    """Axes of `array` moved so that axis i stands at positions[i]."""
    order = sorted(range(len(letters)), key=lambda axis: positions[axis])
    return array.transpose(order)


def error_units(y: Array, reference: Array, scale: Array, dtype: str) -> float:
    """Largest |y - reference| in units of eps * scale, per element; NaN where y has one.

    eps is 2^-24 for float32, 2^-53 for float64; scale is the sum of |x||w|.
    """
    error = np.abs(y.astype(np.float64) - reference)
    units = error / np.maximum(EPS[dtype] * scale, np.finfo(dtype).tiny)
    return float(units.max(initial=0.0))
