"""Every operator as a function of two of the arrays of a convolution ``y = conv(x, w)``.

A transposed convolution is the input gradient of a convolution, and so are its letters here: it
takes y and w, and returns x. The columns of im2col are the y of filters that have one tap each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import implicit_conv
from implicit_conv.problem import reference
from implicit_conv.problem.options import INTEGER_RANGES, SPACE
from implicit_conv.problem.parse import Padding, parse_padding
from implicit_conv.problem.transposed_problem import SWAPPED
from implicit_conv.testing import Array, Case, from_kcrs, from_nchw, to_kcrs, to_nchw

GEOMETRY = ("stride", "dilation", "groups", "layout")  # options that are those of the case
KERNELS = (*GEOMETRY, "weight_layout")
CHOICES = ("padding", "precision", "out_dtype")  # options that a trial chooses


@dataclass(frozen=True)
class Operator:
    """What an operator takes and returns; arrays are "x", "w" and "y" of the convolution.

    Attributes
    ----------
    function : str
        The name of the public function, with a place for the number of spatial axes.
    operands : (str, str)
        A second operand that is "" is no argument.
    result : str
    own : tuple of str
        Names of options from the case.
    chosen : tuple of str
        Names of options from the trial.
    shaped : bool
        Whether the shape of the result is an argument.
    epilogue : bool
        Whether sums may be scaled, a bias, a residual and an activation added.
    exact : bool
        Whether it takes integers and complex numbers.
    """

    function: str
    operands: tuple[str, str]
    result: str
    own: tuple[str, ...] = (*KERNELS, "padding_mode")
    chosen: tuple[str, ...] = (*CHOICES, "algorithm")
    shaped: bool = False
    epilogue: bool = False
    exact: bool = False

    @property
    def planned(self) -> bool:
        """Whether there are plans of it."""
        return "precision" in self.chosen


OPERATORS = {
    "conv": Operator(
        "conv{}d",
        ("x", "w"),
        "y",
        chosen=(*CHOICES, "algorithm", "activation"),
        epilogue=True,
        exact=True,
    ),
    "conv_transpose": Operator(
        "conv_transpose{}d",
        ("y", "w"),
        "x",
        own=KERNELS,
        chosen=(*CHOICES, "algorithm", "activation"),
        epilogue=True,
        exact=True,
    ),
    "input_grad": Operator("conv{}d_input_grad", ("y", "w"), "x", shaped=True),
    "weight_grad": Operator("conv{}d_weight_grad", ("x", "y"), "w", chosen=CHOICES, shaped=True),
    "im2col": Operator("im2col", ("x", ""), "y", GEOMETRY, ("padding",), exact=True),
    "col2im": Operator("col2im", ("y", ""), "x", GEOMETRY, ("padding",), True, exact=True),
}


def function(name: str, rank: int, prefix: str = "") -> Callable[..., Any]:
    """The public function of an operator; with the prefix "plan_" the one that plans it."""
    found: Callable[..., Any] = getattr(
        implicit_conv, prefix + OPERATORS[name].function.format(rank)
    )
    return found


def case_options(name: str, case: Case) -> dict[str, Any]:
    """The options of an operator that follow from the case."""
    options = {option: getattr(case, option) for option in OPERATORS[name].own}
    if name == "conv_transpose":
        options["weight_layout"] = case.weight_layout.translate(SWAPPED)
    return options


def output_padding(case: Case, padding: Padding) -> tuple[int, ...]:
    """The pixels that a transposed convolution adds to those that are left by `padding`."""
    steps = case.stride, case.kernel, case.dilation
    pads = case.padding
    if not isinstance(padding, str):
        pads = parse_padding(padding, SPACE[case.rank], case.size, *steps)
    axes = zip(case.size, case.output, *steps, pads, strict=True)
    return tuple(
        size - ((out - 1) * step + (taps - 1) * gap + 1 - sum(pair))
        for size, out, step, taps, gap, pair in axes
    )


def window_filter(case: Case) -> Array:
    """The filter (K, C, R, S) whose convolution is im2col: each filter of a group has one tap."""
    _, channels, *kernel = case.shapes["w"]
    one = np.eye(channels * int(np.prod(kernel))).reshape(-1, channels, *kernel)
    return np.tile(one, (case.groups, *[1] * (one.ndim - 1)))


def sums(name: str, case: Case, first: Array, second: Array, magnitude: bool = False) -> Array:
    """The result of an operator by definition, before its epilogue, in float64, int64 or
    complex128; arrays have the axes of `Case.shapes`.
    """
    dtype = "int64" if case.dtype in INTEGER_RANGES else np.result_type(first, "float64").name
    options: dict[str, Any] = {
        "stride": case.stride,
        "pads": case.padding,
        "dilation": case.dilation,
        "groups": case.groups,
        "padding_mode": case.padding_mode,
        "magnitude": magnitude,
        "dtype": dtype,
    }
    operator = OPERATORS[name]
    if operator.result == "y":
        return reference.conv(first, second, **options)
    if operator.result == "w":
        return reference.weight_grad(first, second, case.kernel, **options)
    return reference.input_grad(first, second, case.shapes["x"], **options)


def arranged(case: Case, role: str, array: Array) -> Array:
    """The x, w or y of a case, with the axes of `Case.shapes`, in the layout of the case."""
    view = from_kcrs(array, case.weight_layout) if role == "w" else from_nchw(array, case.layout)
    return np.ascontiguousarray(view)


def restored(case: Case, role: str, array: Array) -> Array:
    """An array in the layout of the case with the axes of `Case.shapes`; a view."""
    return to_kcrs(array, case.weight_layout) if role == "w" else to_nchw(array, case.layout)


def from_columns(case: Case, columns: Array) -> Array:
    """The matrix of im2col as y (N, K, P, Q)."""
    batch, filters, *pixels = case.shapes["y"]
    return np.moveaxis(columns.reshape(batch, *pixels, filters), -1, 1)
