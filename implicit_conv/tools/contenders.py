"""Contenders: this engine and its rivals on one case, checked and timed.

A contender is a function without arguments that convolves the arrays of one case and returns a new
array. All contenders read equal arrays: x and w have the case's layouts. Conversions happen before
the clock starts, except those that the contender's own call makes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from implicit_conv.api import conv2d, plan_conv2d
from implicit_conv.options import INTEGER_RANGES
from implicit_conv.plan import Plan
from implicit_conv.reference import pad_or_crop
from implicit_conv.settings import config
from implicit_conv.testing import Array, Case, error_units, to_nchw
from implicit_conv.timing import Local, Seconds, Timed, interleave
from implicit_conv.tools.inference_rivals import ENGINES, engine_rival

Contender = Callable[[], Any]
RIVALS = ("torch", *ENGINES, "scipy", "numpy")
CONTROL = "control"  # "call" once more, so that its ratio to "call" differs from 1 only by noise
LIMIT_UNITS = 16.0  # largest error of a right result, in units of eps * sum|x||w|
# The same for Winograd with large tiles, which precision "fast" allows and engines use unasked: 70
# units were measured for ncnn on "3x3 16-16 @32" and 287 for F6 with 3 channels (2026-11). A result
# with an indexing error has more than 10000.
FAST_UNITS = 1024.0
SMALL_FLOPS = 2e9  # above it `reference` takes too long, and torch in float64 replaces it


class WrongResultError(ArithmeticError):
    """The result of a contender is wrong, so it is not timed."""


class Measurement(NamedTuple):
    """One case: its plan, and the error (in units) and samples of each contender."""

    plan: Plan
    errors: dict[str, float]
    samples: dict[str, Seconds]


def measure(
    case: Case,
    rivals: Mapping[str, Timed],
    threads: int,
    rounds: int,
    precision: str = "standard",
) -> Measurement:
    """Check "call", "plan" and the rivals on one case, then time them in turn.

    Parameters
    ----------
    case : Case
    rivals : mapping of name to rival, ready to convolve `case`
    threads, rounds : int
    precision : str
        That of "call" and "plan".

    Raises
    ------
    WrongResultError
        An error exceeds LIMIT_UNITS, or FAST_UNITS for an inference engine and for precision
        "fast".
    """
    x, w = case.arrange(*case.inputs(0))
    options = {**case.options, "precision": precision}
    with config(num_threads=threads):
        plan = plan_conv2d(x.shape, w.shape, x.dtype, w_dtype=w.dtype, **options)
        packed = plan.pack(w)
        ours = {"call": lambda: conv2d(x, w, **options), "plan": lambda: plan(x, packed)}
        contenders = {**local(ours), **rivals}
        errors = check(case, contenders, threads, precision)
        return Measurement(plan, errors, interleave(with_control(contenders), rounds))


def local(functions: Mapping[str, Contender]) -> dict[str, Timed]:
    """Functions of this process as contenders of `interleave`."""
    return {name: Local(function) for name, function in functions.items()}


def with_control(contenders: Mapping[str, Timed]) -> dict[str, Timed]:
    """The contenders, and "call" once more."""
    return {**contenders, CONTROL: contenders["call"]}


def check(
    case: Case, contenders: Mapping[str, Timed], threads: int = 1, precision: str = "standard"
) -> dict[str, float]:
    """Largest error of each contender's result, in units of eps * sum|x||w|; see `testing`."""
    x, w = case.inputs(0)
    if case.dtype in INTEGER_RANGES:
        x, w = x.astype(float), w.astype(float)  # |-128| is no int8
    expected = oracle(case, x, w, threads)
    scale = oracle(case, abs(x), abs(w), threads)
    errors = {}
    for name, contender in contenders.items():
        y = result_of(case, name, contender.result())
        errors[name] = error_units(y, expected, scale, case.dtype)
        is_fast = name in ENGINES or (name not in RIVALS and precision == "fast")
        limit = FAST_UNITS if is_fast else LIMIT_UNITS
        if not errors[name] <= limit:
            raise WrongResultError(
                f"{name} is {errors[name]:.3g} units of eps * sum|x||w| from the oracle on {case}; "
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
    return np.asarray(rival("torch", plain, x.astype(float), w.astype(float), threads)())


def rival(name: str, case: Case, x: Array, w: Array, threads: int) -> Contender:
    """A rival's convolution; its result has axes N, K, P, Q.

    Parameters
    ----------
    name : one of RIVALS
    x, w : arrays as `case.arrange` returns them
    threads : int
        Threads of torch and OpenCV, set for the whole process, and of the other engines. scipy and
        numpy have those of their BLAS.

    Raises
    ------
    ImportError
        The rival is not installed.
    ValueError
        There is no such rival, or it cannot compute the case.
    """
    if name not in RIVALS:
        raise ValueError(f"there is no rival {name!r}; choose from {', '.join(RIVALS)}")
    if case.weight_layout != "KCRS":
        raise ValueError(f"rivals need weight_layout KCRS, not {case.weight_layout}")
    if name in ENGINES:
        return engine_rival(name, case, x, w, threads)
    builders = {"torch": _torch, "scipy": _scipy, "numpy": _numpy}
    return builders[name](case, x, w, threads)


def result_of(case: Case, name: str, y: Any) -> Array:
    """What contender `name` returned, as a numpy array with axes N, K, P, Q."""
    if not isinstance(y, np.ndarray) and case.dtype == "bfloat16":
        y = y.float()  # numpy cannot read a tensor of bfloat16
    array = np.asarray(y)
    return array if name in RIVALS else to_nchw(array, case.layout)


def _torch(case: Case, x: Array, w: Array, threads: int) -> Contender:
    """conv2d of torch (oneDNN). For NHWC, x and w are channels_last; oneDNN reorders w per call."""
    import torch

    (pad_h, end_h), (pad_w, end_w) = case.padding
    if (pad_h, pad_w) != (end_h, end_w):
        raise ValueError(f"torch needs equal low and high padding, not {case.padding}")
    torch.set_num_threads(threads)
    if case.dtype in INTEGER_RANGES:
        return _onednn_integers(case, x, w)
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


def _onednn_integers(case: Case, x: Array, w: Array) -> Contender:
    """torch.ops.onednn.qconv2d_pointwise with scales of 1 and zero points of 0: its float32 results
    are the sums. The filter is packed before.
    """
    import torch

    if (case.dtype, case.w_dtype) != ("uint8", "int8"):
        raise ValueError(f"oneDNN needs uint8 x and int8 w, not {case.dtype} and {case.w_dtype}")
    x_t, w_t = torch.from_numpy(to_nchw(x, case.layout)), torch.from_numpy(w)
    ones, zeros = torch.ones(len(w)), torch.zeros(len(w), dtype=torch.int32)
    padding = [low for low, _ in case.padding]
    steps = list(case.stride), padding, list(case.dilation), case.groups
    ops = torch.ops.onednn
    packed = ops.qconv_prepack(w_t, ones, 1.0, 0, *steps, list(x_t.shape))
    result: Any = (
        1.0,
        0,
        torch.float32,
        "none",
        [],
        "",
    )  # scale, zero point, dtype, and no activation

    def call() -> Any:
        with torch.inference_mode():
            return ops.qconv2d_pointwise(x_t, 1.0, 0, packed, ones, zeros, None, *steps, *result)

    return call


def tensor_of(array: Array) -> Any:
    """A tensor that shares the memory of `array`; torch cannot import bfloat16 arrays of numpy."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _scipy(case: Case, x: Array, w: Array, threads: int) -> Contender:
    """scipy.signal.correlate over (C, H, W) for each filter; a stride drops computed pixels."""
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


def _numpy(case: Case, x: Array, w: Array, threads: int) -> Contender:
    """The usual numpy code: multiply a matrix of all windows (im2col) by the filters."""
    if case.groups != 1 or case.dilation != (1, 1):
        raise ValueError("the numpy rival has neither groups nor dilation")
    images = to_nchw(x, case.layout)
    stride_h, stride_w = case.stride
    window = (case.C, *case.kernel)

    def call() -> Array:
        padded = pad_or_crop(images, case.padding)
        views = np.lib.stride_tricks.sliding_window_view(padded, window, axis=(1, 2, 3))
        views = views[:, 0, ::stride_h, ::stride_w]
        columns = views.reshape(-1, w[0].size)
        y = columns @ w.reshape(len(w), -1).T
        return y.reshape(*views.shape[:3], len(w)).transpose(0, 3, 1, 2)

    return call
