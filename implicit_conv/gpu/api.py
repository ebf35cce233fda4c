"""Plans of the public functions for a GPU: its own checks, and where the plan will run."""

from __future__ import annotations

import functools
import logging
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from implicit_conv.activation import Activation, parse_activation
from implicit_conv.errors import DTypeError, PlanError
from implicit_conv.gpu.arch import GpuArch, device_number, gpu_arch, is_target
from implicit_conv.gpu.candidates import Options
from implicit_conv.gpu.cuda import driver
from implicit_conv.gpu.plan import GpuPlan, plan
from implicit_conv.options import ALGORITHMS, PRECISIONS
from implicit_conv.problem import GPU_DTYPES, Problem

LOG = logging.getLogger("implicit_conv")


class Demands(NamedTuple):
    """What `conv2d` is asked for besides the convolution itself."""

    activation: Activation = None
    out_dtype: object = None
    precision: str = "standard"
    algorithm: str = "auto"
    options: Options = Options()


def plan_conv2d(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    dtype: object,
    conv: tuple[Any, ...],
    demands: Demands,
    device: str | GpuArch,
) -> Any:
    """A plan for a GPU at hand ("cuda", "cuda:1") or for any by its target ("sm_90a").

    Parameters
    ----------
    conv : (stride, padding, dilation, groups, layout, weight_layout), hashable
        As in `implicit_conv.conv2d`.

    Returns
    -------
    GpuPlan

    Raises
    ------
    ShapeError, DTypeError, PlanError
        Sizes that do not fit, a dtype, device or demand that is not served.
    """
    number = None
    if isinstance(device, str) and is_target(device):
        device = gpu_arch(device)
    elif isinstance(device, str):
        number = device_number(device)
        device = driver.current_arch() if number is None else driver.device_arch(number)
    return _planned(x_shape, w_shape, _dtype_name(dtype), conv, demands, device, number)


def _dtype_name(dtype: object) -> str:
    """numpy's name; "bfloat16" as it is, which numpy may lack."""
    if isinstance(dtype, str) and dtype in GPU_DTYPES:
        return dtype
    return str(np.dtype(dtype).name)  # type: ignore[call-overload]


@functools.lru_cache(maxsize=512)
def _planned(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    dtype: str,
    conv: tuple[Any, ...],
    demands: Demands,
    arch: GpuArch,
    device: int | None,
) -> GpuPlan:
    _check_demands(demands, dtype)
    names = ("stride", "padding", "dilation", "groups", "layout", "weight_layout")
    given = Problem.parse(
        x_shape, w_shape, dtype, dtypes=GPU_DTYPES, **dict(zip(names, conv, strict=True))
    )
    options = replace(demands.options, strict=demands.precision == "strict")
    made = plan(
        replace(given, layout="NHWC", weight_layout="KRSC"), arch, options=options,
        activation=None if demands.activation is None else parse_activation(demands.activation),
    )  # fmt: skip
    LOG.debug("%s: %s on %s", given, made.variant.name, arch.target)
    return replace(made, given=given, unbatched=len(x_shape) == 3, device=device)


def _check_demands(demands: Demands, dtype: str) -> None:
    if demands.precision not in PRECISIONS:
        raise PlanError(f"precision {demands.precision!r} is none of {', '.join(PRECISIONS)}")
    if demands.algorithm not in ("auto", "implicit_gemm"):
        known = "runs on the CPU alone" if demands.algorithm in ALGORITHMS else "is not known"
        raise PlanError(
            f"algorithm {demands.algorithm!r} {known}; a GPU takes 'auto' or 'implicit_gemm'"
        )
    if demands.out_dtype is not None and _dtype_name(demands.out_dtype) != dtype:
        raise DTypeError(
            f"out_dtype {_dtype_name(demands.out_dtype)}: on a GPU y has the dtype of x, {dtype}; "
            "convert y"
        )
