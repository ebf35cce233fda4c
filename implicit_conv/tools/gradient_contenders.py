"""Contenders for weight gradients: this engine and torch on one case, checked and timed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from implicit_conv.settings import config
from implicit_conv.testing import Array, Case, error_units, from_nchw, to_nchw
from implicit_conv.timing import interleave
from implicit_conv.tools.contenders import (
    CONTROL,
    LIMIT_UNITS,
    Contender,
    Measurement,
    WrongResultError,
    tensor_of,
)
from implicit_conv.weight_grad import conv2d_weight_grad, plan_conv2d_weight_grad


def gradient_inputs(case: Case, seed: int = 0) -> tuple[Array, Array]:
    """(x, dy), normally distributed, as contiguous arrays in the layout of the case."""
    x, _ = case.inputs(seed)
    shape = (case.N, case.K * case.groups, *case.output)
    dy = np.random.default_rng(seed + 1).standard_normal(shape).astype(x.dtype)
    x, dy = (np.ascontiguousarray(from_nchw(array, case.layout)) for array in (x, dy))
    return x, dy


def measure_weight_grad(
    case: Case, against: Sequence[str], threads: int, rounds: int
) -> Measurement:
    """Check "call", "plan" and torch on one case, then time them in turn.

    torch in float64 is the oracle.

    Parameters
    ----------
    case : Case
        dw has the weight layout of the case.
    against : names of rivals
        Only torch has weight gradients; others are left out.
    threads, rounds : int

    Raises
    ------
    WrongResultError
        An error exceeds LIMIT_UNITS.
    """
    x, dy = gradient_inputs(case)
    shape = case.problem.weight_shape
    with config(num_threads=threads):
        plan = plan_conv2d_weight_grad(x.shape, dy.shape, shape, x.dtype, **case.options)
        contenders: dict[str, Contender] = {
            "call": lambda: conv2d_weight_grad(x, dy, shape, **case.options),
            "plan": lambda: plan(x, dy),
        }
        if "torch" in against:
            contenders["torch"] = torch_weight_grad(case, x, dy, threads)
        errors = _check(case, contenders, x, dy, threads)
        contenders[CONTROL] = contenders["call"]
        return Measurement(plan, errors, interleave(contenders, rounds))


def _check(
    case: Case, contenders: dict[str, Contender], x: Array, dy: Array, threads: int
) -> dict[str, float]:
    """Largest error of each contender's result, in units of eps * sum|x||dy|."""
    wide = x.astype(np.float64), dy.astype(np.float64)
    exact = torch_weight_grad(case, *wide, threads)().numpy()
    sizes = abs(wide[0]), abs(wide[1])
    scale = torch_weight_grad(case, *sizes, threads)().numpy()
    errors = {}
    for name, function in contenders.items():
        dw = np.asarray(function())
        if name != "torch":
            dw = dw.transpose([case.weight_layout.index(letter) for letter in "KCRS"])
        errors[name] = error_units(dw, exact, scale, case.dtype)
        if not errors[name] <= LIMIT_UNITS:
            raise WrongResultError(
                f"{name} is {errors[name]:.3g} units of eps * sum|x||dy| from the oracle on "
                f"{case}; at most {LIMIT_UNITS:g} are allowed"
            )
    return errors


def torch_weight_grad(case: Case, x: Array, dy: Array, threads: int) -> Contender:
    """The weight gradient by torch (oneDNN), with axes K, C, R, S; for NHWC, tensors are
    channels_last.

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
    x_t, dy_t = (tensor_of(to_nchw(array, case.layout)) for array in (x, dy))
    w_t = torch.empty((case.K * case.groups, case.C, *case.kernel), dtype=x_t.dtype)
    if case.layout == "NHWC":
        w_t = w_t.contiguous(memory_format=torch.channels_last)
    backward: Any = torch.ops.aten.convolution_backward
    sizes = (case.stride, (pad_h, pad_w), case.dilation, False, (0, 0), case.groups)

    def call() -> Any:
        with torch.inference_mode():
            return backward(dy_t, x_t, w_t, None, *sizes, (False, True, False))[1]

    return call
