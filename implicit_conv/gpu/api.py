"""conv2d for device arrays, and for numpy arrays on the GPU: check -> plan -> one launch.

What decides is how arrays lie in memory, not how their axes are called: torch's channels_last
tensor has the shape N, C, H, W and is read as the channels-last array it is. A filter that lies
otherwise is rearranged by its own library first; x never is.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from implicit_conv.activation import Activation, parse_activation
from implicit_conv.errors import DTypeError
from implicit_conv.gpu import driver, launch
from implicit_conv.gpu.arch import GpuArch
from implicit_conv.gpu.arrays import (
    Operand,
    current_stream,
    empty_like,
    is_device_array,
    library,
    operand,
)
from implicit_conv.gpu.candidates import Options
from implicit_conv.gpu.plan import GpuPlan, plan
from implicit_conv.gpu.transfer import run_numpy
from implicit_conv.problem import GPU_DTYPES, LAYOUTS, WEIGHT_LAYOUTS, Padding, Problem

BACK = {"NHWC": (0, 1, 2, 3), "NCHW": (0, 3, 1, 2)}  # a layout's axes, taken from n, h, w, c


@functools.lru_cache(maxsize=512)
def _planned(
    problem: Problem, arch: GpuArch, activation: tuple[float, float, float] | None, options: Options
) -> GpuPlan:
    return plan(problem, arch, activation=activation, options=options)


def conv2d(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str | None = None,
    weight_layout: str | None = None,
    activation: Activation = None,
    residual: Any = None,
    out: Any = None,
    options: Options | None = None,
) -> Any:
    """As `implicit_conv.conv2d`, on the GPU that holds x, or on the current one for numpy arrays.

    Parameters
    ----------
    x, w, bias, residual, out : device arrays, or numpy arrays, all of one kind
        float16, bfloat16 or float32.
    options : Options
        What to admit before hardware has proved it.

    Returns
    -------
    array of x's library, on the stream that library works on

    Raises
    ------
    ShapeError, DTypeError, PlanError, DriverError
        Arrays, options, a GPU or a driver that cannot serve; see each.
    """
    conv = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    kind = None if activation is None and residual is None else parse_activation(activation)
    settings = kind, options or Options()
    names = layout or "NCHW", weight_layout or "KCRS"
    run = _on_device if is_device_array(x) else _from_numpy
    return run((x, w, bias, residual, out), conv, names, settings)


def _parsed(
    x: tuple[int, ...], w: tuple[int, ...], dtype: str, names: tuple[str, str], conv: dict[str, Any]
) -> Problem:
    return Problem.parse(
        x, w, dtype, layout=names[0], weight_layout=names[1], dtypes=GPU_DTYPES, **conv
    )


def _on_device(
    arrays: tuple[Any, ...], conv: dict[str, Any], names: tuple[str, str], settings: tuple[Any, ...]
) -> Any:
    x, w, bias, residual, out = arrays
    source, filters = operand(x), operand(w)
    filters.expect("w", filters.shape, source.dtype)
    given = _parsed(source.shape, filters.shape, source.dtype, names, conv)
    images, axes = _batched(source), LAYOUTS[given.layout]
    channels_last = images.view(axes).packed
    if channels_last:
        filters, order = _krsc(w, filters, given.weight_layout)
        names = "NHWC", order
    else:
        axes = (0, 1, 2, 3)
    problem = _parsed(images.view(axes).shape, filters.shape, source.dtype, names, conv)
    made = _planned(problem, driver.current_arch(), *settings)
    if out is None:
        out = _new(x, given, len(source.shape) == 3, channels_last)
    pieces = launch.Arrays(
        images.view(axes), filters, _image(out, axes, problem, "out"),
        None if bias is None else operand(bias).expect("bias", (problem.K,), problem.dtype),
        None if residual is None else _image(residual, axes, problem, "residual"),
    )  # fmt: skip
    if 0 not in problem.output_shape:
        launch.launch(made, pieces, current_stream(x))
    return out


def _batched(array: Operand) -> Operand:
    """The array with a batch axis; its own, or one image."""
    shape, strides = array.shape, array.strides
    if len(shape) == 3:
        shape, strides = (1, *shape), (0, *strides)
    return replace(array, shape=shape, strides=strides).view((0, 1, 2, 3))


def _image(array: Any, axes: tuple[int, ...], problem: Problem, name: str) -> Operand:
    """An array like the output, its axes in the problem's order."""
    return _batched(operand(array)).view(axes).expect(name, problem.output_shape, problem.dtype)


def _krsc(w: Any, filters: Operand, weight_layout: str) -> tuple[Operand, str]:
    """The filter as K, R, S, C side by side, if it lies so or its library can rearrange it."""
    k, c, r, s = WEIGHT_LAYOUTS[weight_layout]
    axes = (k, r, s, c)
    if filters.view(axes).packed:
        return filters.view(axes), "KRSC"
    if library(w) == "torch":
        return operand(w.permute(axes).contiguous()), "KRSC"
    if library(w) == "cupy":
        return operand(w.transpose(axes).copy()), "KRSC"
    return filters, weight_layout


def _new(x: Any, given: Problem, unbatched: bool, channels_last: bool) -> Any:
    """A result array of x's library: in memory as x lies, in shape as its layout says."""
    if not channels_last or given.layout == "NHWC":
        shape = given.output_shape
        return empty_like(x, shape[1:] if unbatched else shape, given.dtype)
    n, (p, q) = given.N, given.output
    made = empty_like(x, (n, p, q, given.K), given.dtype)
    move = getattr(made, "permute", None) or made.transpose
    turned = move(0, 3, 1, 2)
    return turned[0] if unbatched else turned


def _from_numpy(
    arrays: tuple[Any, ...], conv: dict[str, Any], names: tuple[str, str], settings: tuple[Any, ...]
) -> Any:
    """Rearranged to channels-last on the way there and back."""
    x, w, bias, residual, out = (None if a is None else np.asarray(a) for a in arrays)
    assert x is not None and w is not None
    if x.dtype != w.dtype:
        raise DTypeError(f"x is {x.dtype} but w is {w.dtype}; convert one")
    given = _parsed(x.shape, w.shape, x.dtype.name, names, conv)
    k, c, r, s = WEIGHT_LAYOUTS[given.weight_layout]
    whole = x if x.ndim == 4 else x[None]
    problem = _parsed(
        tuple(whole.shape[a] for a in LAYOUTS[given.layout]),
        tuple(w.shape[a] for a in (k, r, s, c)), x.dtype.name, ("NHWC", "KRSC"), conv,
    )  # fmt: skip
    made = _planned(problem, driver.current_arch(), *settings)
    if residual is not None:
        residual = (residual if residual.ndim == 4 else residual[None]).transpose(
            LAYOUTS[given.layout]
        )
    y = run_numpy(
        made, whole.transpose(LAYOUTS[given.layout]), w.transpose(k, r, s, c), bias, residual
    ).transpose(BACK[given.layout])
    y = y if x.ndim == 4 else y[0]
    if out is None:
        return np.ascontiguousarray(y)
    np.copyto(out, y, casting="no")
    return out
