"""A trial: one call of conv2d with all that it depends on, and the check of its result.

The expectation is `implicit_conv.reference`, in float64. The repr of a trial is Python code that
makes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from implicit_conv.activation import Activation, parse_activation
from implicit_conv.api import conv2d, plan_conv2d
from implicit_conv.arrays import numpy_dtype
from implicit_conv.errors import PlanError
from implicit_conv.kernels.activation import LEAKY_RELU
from implicit_conv.options import WEIGHT_LAYOUTS
from implicit_conv.parse import Padding
from implicit_conv.reference import pad_or_crop
from implicit_conv.settings import config
from implicit_conv.testing import ROUNDING, Array, Case, errors, from_nchw, to_nchw
from implicit_conv.testing.storage import stored

VALUES = ("integers", "normal", "subnormal", "x not finite", "w not finite")
# Activations whose results for integers are exact.
EXACT: tuple[Activation, ...] = (None, "relu", "relu6", ("leaky_relu", 0.5), ("clamp", -3.0, 5.0))
SMOOTH: dict[str, Callable[[Array], Array]] = {
    "silu": lambda v: v / (1 + np.exp(-v)),
    "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    "tanh": np.tanh,
    "gelu": lambda v: v * np.vectorize(math.erfc, [float])(-v / math.sqrt(2)) / 2,
    "hardswish": lambda v: v * np.clip(v + 3, 0, 6) / 6,
}
STEEPNESS = 1.5  # no activation changes by more than this times the change of its argument
# Largest error of a direct sum in units of eps * sum|x||w|: what conv2d promises for normally
# distributed data. It is also the largest error of an activation, in units of eps * |y|.
DIRECT_UNITS = 16
# Largest error of Winograd by precision, in units of eps * sum over c of max|x_c| * max|w_c|. The
# maximum of x is over the window of an output for F2, and over those of a box of outputs for F4.
WINOGRAD_UNITS = {"standard": 64, "fast": 160}
BOX = 4  # rows and columns of a box of F4


class WrongResultError(AssertionError):
    """A result is not `out`, has another dtype, or differs from the reference by too much."""


@dataclass(frozen=True)
class Trial:
    """One call of conv2d.

    Attributes
    ----------
    case : Case
        Shapes, layouts and dtype, with the padding as pairs.
    padding : int, pairs or name
        The padding as conv2d gets it.
    values : one of VALUES
        "integers" have exact sums, and "subnormal" ones are integers times a subnormal number.
    seed : int
        It decides the values.
    activation, precision, algorithm, out_dtype
        As in `conv2d`. A trial that the algorithm refuses passes.
    biased, added : bool
        Whether there is a bias, and a residual.
    storages : (str, str, str)
        How x, w and the residual are stored, each one of STORAGES.
    out : str
        How `out` is stored, one of WRITABLE, or "" for none.
    packed : bool
        Whether a plan packs the filter.
    unbatched : bool
        Whether x lacks the batch axis, of extent 1.
    threads : int
    subnormals : "keep" or "flush"
    """

    case: Case
    padding: Padding = 0
    values: str = "integers"
    seed: int = 0
    activation: Activation = None
    precision: str = "standard"
    algorithm: str = "auto"
    out_dtype: str | None = None
    biased: bool = False
    added: bool = False
    storages: tuple[str, str, str] = ("contiguous", "contiguous", "contiguous")
    out: str = ""
    packed: bool = False
    unbatched: bool = False
    threads: int = 1
    subnormals: str = "keep"

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of `conv2d` and `plan_conv2d`."""
        names = ("padding", "activation", "precision", "algorithm", "out_dtype")
        return {**self.case.options, **{name: getattr(self, name) for name in names}}

    @property
    def y_dtype(self) -> str:
        """The dtype of the result."""
        return self.out_dtype or self.case.dtype

    @property
    def sum_dtype(self) -> str:
        """The dtype of the sums and of the bias."""
        return "float64" if self.case.dtype == "float64" else "float32"

    @property
    def error_dtype(self) -> str:
        """The dtype that limits the precision of the result."""
        if self.y_dtype in ROUNDING or self.sum_dtype == self.y_dtype:
            return self.y_dtype
        return "float32"

    @property
    def may_transform(self) -> bool:
        """Whether Winograd may compute it."""
        case = self.case
        windows = case.kernel, case.dilation, case.groups
        suited = windows == ((3, 3), (1, 1), 1) and case.stride in ((1, 1), (2, 2))
        return suited and self.precision in WINOGRAD_UNITS

    @property
    def may_box(self) -> bool:
        """Whether Winograd F4 may compute it."""
        return self.may_transform and self.precision == "fast"


@dataclass(frozen=True)
class Inputs:
    """The arrays of a call; `residual` and `bias` are None where the trial has none."""

    x: Array
    w: Array
    bias: Array | None
    residual: Array | None


def check(trial: Trial) -> None:
    """Compute a trial and compare its result with the reference.

    Raises
    ------
    WrongResultError
        The result is wrong, or part of it was not written.
    """
    given = inputs(trial)
    try:
        y = compute(trial, given)
    except PlanError:
        if trial.algorithm == "auto":
            raise
        return
    verify(trial, given, y)


def inputs(trial: Trial) -> Inputs:
    """The arrays of a trial, all with a batch axis."""
    case, rng = trial.case, np.random.default_rng(trial.seed)
    filters = case.K * case.groups
    x = _values(trial, rng, (case.N, case.C * case.groups, *case.size))
    w = _values(trial, rng, (filters, case.C, *case.kernel))
    if trial.values == "subnormal":
        x *= x.dtype.type(4 * np.finfo(x.dtype).smallest_subnormal)
    for name, array in (("x not finite", x), ("w not finite", w)):
        if trial.values == name and array.size:
            at = rng.integers(array.size, size=3)
            array.flat[at] = rng.choice([np.nan, np.inf, -np.inf], size=3)
    x, w = case.arrange(x, w)
    bias = residual = None
    if trial.biased:
        bias = _values(trial, rng, (filters,)).astype(trial.sum_dtype)
    if trial.added:
        residual = _values(trial, rng, (case.N, filters, *case.output))
        residual = stored(from_nchw(residual, case.layout), trial.storages[2], rng)
    return Inputs(
        stored(x, trial.storages[0], rng), stored(w, trial.storages[1], rng), bias, residual
    )


def _values(trial: Trial, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Normally distributed numbers, or integers from -4 to 4, in the dtype of the case."""
    normal = trial.values == "normal"
    numbers = rng.standard_normal(shape) if normal else rng.integers(-4, 5, shape)
    return numbers.astype(numpy_dtype(trial.case.dtype))


@np.errstate(all="ignore")  # NaN and infinity are values like others here
def compute(trial: Trial, given: Inputs) -> Array:
    """The result of the call, with a batch axis.

    Raises
    ------
    WrongResultError
        The result is not `out`, or has another dtype than the trial asks for.
    PlanError
        The algorithm cannot compute the trial.
    """
    case, dtype = trial.case, numpy_dtype(trial.y_dtype)
    x, w, residual = given.x, given.w, given.residual
    out = None
    if trial.out:
        blank = np.full(case.problem.output_shape, np.nan).astype(
            dtype
        )  # an element that is not written shows
        out = stored(blank, trial.out, np.random.default_rng(trial.seed))
    if trial.unbatched:
        x = x[0]
        residual, out = (None if array is None else array[0] for array in (residual, out))
    threads, subnormals = trial.threads, trial.subnormals
    with config(device="cpu", algorithm="auto", num_threads=threads, subnormals=subnormals):
        if trial.packed:
            plan = plan_conv2d(x.shape, w.shape, case.dtype, **trial.options)
            y: Array = plan(x, plan.pack(w), given.bias, residual=residual, out=out)
        else:
            y = conv2d(x, w, given.bias, residual=residual, out=out, **trial.options)
    if out is not None and y is not out:
        raise WrongResultError("the result is not the array that was given as out")
    if y.dtype.newbyteorder("=") != dtype:
        raise WrongResultError(f"the result is {y.dtype}, but {dtype} was asked for")
    return y[None] if trial.unbatched else y


@np.errstate(all="ignore")
def verify(trial: Trial, given: Inputs, y: Array) -> None:
    """Compare the result `y` of a trial with the reference.

    Raises
    ------
    WrongResultError
        An element is wrong.
    """
    case = trial.case
    y = to_nchw(y, case.layout).astype(np.float64)
    x = to_nchw(given.x, case.layout).astype(np.float64)
    w = given.w.transpose(WEIGHT_LAYOUTS[case.weight_layout]).astype(np.float64)
    addends = [] if given.bias is None else [given.bias.astype(np.float64)[:, None, None]]
    if given.residual is not None:
        addends.append(to_nchw(given.residual, case.layout).astype(np.float64))
    specified = np.ones(y.shape, bool)
    if trial.values == "w not finite" or (trial.values == "x not finite" and trial.may_transform):
        holds, specified = _spread(trial, x, w)
        if np.isfinite(y[holds]).any():
            raise WrongResultError("a NaN or an infinity does not show in an output that holds it")
        x, w = (np.where(np.isfinite(array), array, 0) for array in (x, w))
    if trial.values == "subnormal" and trial.subnormals == "flush":
        x = np.zeros_like(x)
    expected = _activated(trial.activation, sum(addends, case.reference(x, w)))
    if trial.values != "normal" and trial.activation in EXACT and not trial.may_box:
        expected = expected.astype(trial.sum_dtype).astype(numpy_dtype(trial.y_dtype)).astype(float)
        right = (y == expected) | (np.isnan(y) & np.isnan(expected))
    else:
        bound = _bound(trial, x, w, addends) + DIRECT_UNITS * np.abs(expected)
        right = errors(y, expected, bound, trial.error_dtype) <= 1
    wrong = np.argwhere(specified & ~right)
    if len(wrong):
        at = tuple(wrong[0].tolist())
        raise WrongResultError(
            f"{len(wrong)} of {y.size} elements are wrong; the first, {list(at)} in N, K, P, Q "
            f"order, is {y[at]} and should be {expected[at]}"
        )


def _spread(trial: Trial, x: Array, w: Array) -> tuple[Array, Array]:
    """(outputs that hold a number that is not finite, outputs that must not show it).

    F4 may show a number of x in all outputs of a box. It is not specified whether a number of w
    shows in outputs of its filter where its tap reads padding.
    """
    in_x, in_w = ~np.isfinite(x), ~np.isfinite(w)
    if in_w.any():
        holds = trial.case.reference(np.ones_like(x), in_w) > 0
        finite = np.isfinite(w.sum(axis=(1, 2, 3)))
        return holds, np.broadcast_to(finite[:, None, None], holds.shape)
    holds = trial.case.reference(in_x, np.ones_like(w)) > 0
    if not trial.may_box:
        return holds, ~holds
    shown = np.zeros_like(holds)
    for p, q in np.ndindex(*(-(-extent // BOX) for extent in holds.shape[2:])):
        box = np.s_[:, :, p * BOX : (p + 1) * BOX, q * BOX : (q + 1) * BOX]
        shown[box] = holds[box].any(axis=(2, 3), keepdims=True)
    return holds, ~shown


def _activated(activation: Activation, sums: Array) -> Array:
    """The activation of `sums`, in float64."""
    if isinstance(activation, str) and activation in SMOOTH:
        return SMOOTH[activation](sums)
    kind, low, high = parse_activation(activation)
    return np.where(sums < 0, low * sums, sums) if kind == LEAKY_RELU else np.clip(sums, low, high)


def _bound(trial: Trial, x: Array, w: Array, addends: list[Array]) -> Array:
    """The largest error of a result, in units of eps, without that of its activation."""
    case = trial.case
    bound = DIRECT_UNITS * sum(map(np.abs, addends), case.reference(x, w, magnitude=True))
    if trial.may_transform:
        reach = BOX - 1 if trial.may_box else 0  # the distance of outputs that share a box
        padded = pad_or_crop(np.abs(x), case.padding, case.padding_mode)
        padded = np.pad(padded, ((0, 0), (0, 0), (reach, reach), (reach, reach)))
        extents = tuple(taps + 2 * reach for taps in case.kernel)
        windows = np.lib.stride_tricks.sliding_window_view(padded, extents, axis=(2, 3))
        windows = windows[:, :, :: case.stride[0], :: case.stride[1]].max(axis=(4, 5))
        scale = np.einsum("ncpq,kc->nkpq", windows, np.abs(w).max(axis=(2, 3)))
        bound = np.maximum(bound, WINOGRAD_UNITS[trial.precision] * scale)
    return STEEPNESS * bound
