"""torch and scipy on one case, and how a rival and this engine are checked and timed.

All functions that are timed read equal arrays: x and w have the case's layouts. They take no
arguments and return a new array. Conversions happen before the clock starts, except those that a
function's own call makes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from implicit_conv.operators.conv import conv2d, plan_conv2d
from implicit_conv.operators.plan import Plan
from implicit_conv.problem.options import INTEGER_RANGES
from implicit_conv.problem.reference import pad_or_crop
from implicit_conv.settings import config
from implicit_conv.testing import Array, Case, error_units, to_nchw
from implicit_conv.timing import Local, Seconds, Timed, interleave

Function = Callable[[], Any]
OURS = ("call", "plan")  # names of a public function, and of a plan with a packed filter
CONTROL = "control"  # "call" once more, so that its ratio to "call" differs from 1 only by noise
LIMIT_UNITS = 16.0  # largest error of a right result, in units of eps * sum|x||w|
# The same for Winograd with large tiles, which precision "fast" allows and engines use unasked: 70
# units were measured for ncnn on "3x3 16-16 @32" and 287 for F6 with 3 channels (2026-11). A result
# with an indexing error has more than 10000.
FAST_UNITS = 1024.0
SMALL_FLOPS = 2e9  # above it `reference` takes too long, and torch in float64 replaces it


class WrongResultError(ArithmeticError):
    """A result is wrong, so its function is not timed."""


class Measurement(NamedTuple):
    """One case: its plan, and the error (in units) and samples of each function."""

    plan: Plan
    errors: dict[str, float]
    samples: dict[str, Seconds]


def measure(
    case: Case,
    rivals: Mapping[str, Timed],
    threads: int,
    rounds: int,
) -> Measurement:
    """Check "call", "plan" and the rivals on one case, then time them in turn.

    Parameters
    ----------
    case : Case
    rivals : mapping of name to rival, ready to convolve `case`
    threads, rounds : int

    Raises
    ------
    WrongResultError
        An error exceeds LIMIT_UNITS.
    """
    with config(num_threads=threads):
        plan, functions = ours(case, *case.arrange(*case.inputs(0)))
        timed = {**local(functions), **rivals}
        errors = check(case, timed, threads)
        return Measurement(plan, errors, interleave(with_control(timed), rounds))


def ours(
    case: Case, x: Array, w: Array, precision: str = "standard"
) -> tuple[Plan, dict[str, Function]]:
    """The plan, and conv2d ("call") and the plan with a packed filter ("plan")."""
    options = {**case.options, "precision": precision}
    plan = plan_conv2d(x.shape, w.shape, x.dtype, w_dtype=w.dtype, **options)
    packed = plan.pack(w)
    return plan, {"call": lambda: conv2d(x, w, **options), "plan": lambda: plan(x, packed)}


def local(functions: Mapping[str, Function]) -> dict[str, Timed]:
    """Functions of this process, for `interleave`."""
    return {name: Local(function) for name, function in functions.items()}


def with_control(timed: Mapping[str, Timed]) -> dict[str, Timed]:
    """All that are timed, and "call" once more."""
    return {**timed, CONTROL: timed["call"]}


def check(
    case: Case, timed: Mapping[str, Timed], threads: int = 1, fast: Collection[str] = ()
) -> dict[str, float]:
    """Largest error of each function's result; see `errors_of`."""
    x, w = case.inputs(0)
    if case.dtype in INTEGER_RANGES:
        x, w = x.astype(float), w.astype(float)  # |-128| is no int8
    exact, scale = oracle(case, x, w, threads), oracle(case, abs(x), abs(w), threads)
    results = ((name, result_of(case, name, each.result())) for name, each in timed.items())
    return errors_of(results, exact, scale, case, fast)


def errors_of(
    results: Iterable[tuple[str, Array]],
    exact: Array,
    scale: Array,
    case: Case,
    fast: Collection[str] = (),
) -> dict[str, float]:
    """Largest error of each result, in units of eps times `scale`, the sum of absolute products.

    Raises
    ------
    WrongResultError
        An error exceeds LIMIT_UNITS, or FAST_UNITS for the names in `fast`.
    """
    errors = {}
    for name, result in results:
        errors[name] = error_units(result, exact, scale, case.dtype)
        limit = FAST_UNITS if name in fast else LIMIT_UNITS
        if not errors[name] <= limit:
            raise WrongResultError(
                f"{name} is {errors[name]:.3g} units of eps * sum|a||b| from the oracle on {case}; "
                f"at most {limit:g} are allowed"
            )
    return errors


def oracle(case: Case, x: Array, w: Array, threads: int = 1) -> Array:
    """The convolution in float64, axes N, K, P, Q: by `reference`, or by torch for large cases."""
    p, q = case.output
    flops = 2.0 * case.N * case.K * case.groups * case.C * p * q * case.kernel[0] * case.kernel[1]
    if flops <= SMALL_FLOPS or not find_spec("torch"):
        return case.reference(x, w)
    plain = replace(case, layout="NCHW", dtype="float64")
    return np.asarray(torch_rival(plain, x.astype(float), w.astype(float), threads)())


def result_of(case: Case, name: str, y: Any) -> Array:
    """What the function called `name` returned, as a numpy array with channels second."""
    if not isinstance(y, np.ndarray) and case.dtype == "bfloat16":
        y = y.float()  # numpy cannot read a tensor of bfloat16
    array = np.asarray(y)
    return to_nchw(array, case.layout) if name in OURS else array


def torch_rival(case: Case, x: Array, w: Array, threads: int) -> Function:
    """conv2d of torch (oneDNN). For NHWC, x and w are channels_last; oneDNN reorders w per call.

    Raises
    ------
    ValueError
        torch needs equal low and high padding.
    """
    import torch

    (pad_h, end_h), (pad_w, end_w) = case.padding
    if (pad_h, pad_w) != (end_h, end_w):
        raise ValueError(f"torch needs equal low and high padding, not {case.padding}")
    torch.set_num_threads(threads)
    x_t, w_t = tensor_of(to_nchw(x, case.layout)), tensor_of(w)
    if case.layout == "NHWC":
        w_t = w_t.contiguous(memory_format=torch.channels_last)
    convolve: Any = torch.nn.functional.conv2d
    options = {
        "stride": case.stride,
        "padding": (pad_h, pad_w),
        "dilation": case.dilation,
        "groups": case.groups,
    }

    def call() -> Any:
        with torch.inference_mode():
            return convolve(x_t, w_t, **options)

    return call


def tensor_of(array: Array) -> Any:
    """A tensor that shares the memory of `array`; torch cannot import bfloat16 arrays of numpy."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def scipy_rival(case: Case, x: Array, w: Array, threads: int) -> Function:
    """scipy.signal.correlate over (C, H, W) for each filter; a stride drops computed pixels.

    Raises
    ------
    ValueError
        It has neither groups nor dilation.
    """
    from scipy.signal import correlate

    if case.groups != 1 or case.dilation != (1, 1):
        raise ValueError("scipy.signal.correlate has neither groups nor dilation")
    images = to_nchw(x, case.layout)
    stride_h, stride_w = case.stride

    def call() -> Array:
        padded = pad_or_crop(images, case.padding)
        return np.stack(
            [
                [correlate(image, taps, "valid")[0, ::stride_h, ::stride_w] for taps in w]
                for image in padded
            ]
        )

    return call


RIVALS = {"torch": torch_rival, "scipy": scipy_rival}  # axes of their results: N, K, P, Q
