"""Transposed convolutions and their plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.candidates.candidate import Request
from implicit_conv.cpu.engines import dgrad
from implicit_conv.kernels.preparation import first
from implicit_conv.operators.dispatch import LAYOUTS, WINDOW, Operator, Task, make_plan, run
from implicit_conv.operators.plan import Engine, Plan
from implicit_conv.problem.options import Activation
from implicit_conv.problem.parse import Padding, hashable
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.transposed_problem import parse_transposed


def conv_transpose2d(
    x: Any,
    w: Any,
    bias: object = None,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    output_size: int | Sequence[int] | None = None,
    layout: str | None = None,
    weight_layout: str | None = None,
    activation: Activation = None,
    scale: object = None,
    residual: object = None,
    out: Array | None = None,
    out_dtype: object = None,
    precision: str = "standard",
    algorithm: str = "auto",
    max_workspace: int | None = None,
    device: str | None = None,
) -> Array:
    """2-d transposed convolution: ``activation(scale * conv_transpose(x, w) + bias + residual)``.

    Each pixel of `x` adds its multiple of a filter to y, `stride` pixels apart. This is the input
    gradient of `conv2d`, which some libraries call deconvolution; filters are NOT flipped first.
    What `conv2d` says of dtypes, activations, precision, devices and NaNs holds here too. The
    default dtype of sums of integers counts all taps of the filter, although with a stride each
    pixel meets a part of them; `out_dtype` int32 is accepted wherever these sums fit.

    Parameters
    ----------
    x : array of shape (N, C, H, W), or in `layout`; the batch axis may be missing
    w : array of shape (C, K / groups, R, S), or in `weight_layout`
    bias : array of shape (K,), or one number, optional
    stride, dilation : int, or one for each of H, W
    padding : int, one for each of H, W, a (low, high) pair for each, or a name
        The pixels that are removed from the borders of y; negative values add zeros there. "valid"
        removes none. "same" removes as many as make y `stride` times as large as `x`, and an odd
        pixel on the high side; "same_lower" removes it on the low side (ONNX: auto_pad).
    output_padding : int, or one for each of H, W
        Pixels that are added on the high side of y; less than the stride or the dilation.
    groups : int
    output_size : int, or one for each of H, W, optional
        The size of y, from which output_padding follows.
    layout : "NCHW" (default) or "NHWC"
    weight_layout : "CKRS" (default), "CRSK" or "RSKC", or a layout of `conv2d`
    activation, scale, residual, out, out_dtype, precision, algorithm,
    max_workspace, device
        As in `conv2d`.

    Returns
    -------
    y : array of shape (N, K, P, Q), or in `layout`, of the library of `x`
        P = (H - 1) * stride - pad_low - pad_high + (R - 1) * dilation + 1 + output_padding; the
        same formula with W and S gives Q.

    Raises
    ------
    ShapeError
        Shapes, padding or layouts do not match, y has no pixels, output_padding or output_size is
        out of range, or a number is too large (a ValueError).
    DTypeError, PlanError
        As in `conv2d`. GPUs do not compute this operator.

    Examples
    --------
    >>> import numpy as np
    >>> from implicit_conv import conv_transpose2d
    >>> x = np.array([[1, 2], [3, 4]], np.float32).reshape(1, 1, 2, 2)
    >>> conv_transpose2d(x, np.ones((1, 1, 2, 2), np.float32), stride=2)[0, 0]
    array([[1., 1., 2., 2.],
           [1., 1., 2., 2.],
           [3., 3., 4., 4.],
           [3., 3., 4., 4.]], dtype=float32)
    """
    window = stride, padding, dilation, groups
    sizes = hashable("output_padding", output_padding), hashable("output_size", output_size)
    own = layout, weight_layout, *sizes, activation, out_dtype
    method = precision, algorithm, max_workspace, device
    return run(CONV_TRANSPOSE[2], x, w, bias, scale, residual, out, window, own, method)


def plan_conv_transpose2d(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    dtype: object = "float32",
    *,
    w_dtype: object = None,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    output_size: int | Sequence[int] | None = None,
    layout: str | None = None,
    weight_layout: str | None = None,
    activation: Activation = None,
    out_dtype: object = None,
    precision: str = "standard",
    algorithm: str = "auto",
    max_workspace: int | None = None,
    device: str | None = None,
) -> Plan:
    """Plan how `conv_transpose2d` computes arrays of these shapes; see `plan_conv2d`."""
    return make_plan(CONV_TRANSPOSE[2], **locals())


def conv_transpose1d(
    x: Any,
    w: Any,
    bias: object = None,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    output_size: int | Sequence[int] | None = None,
    layout: str | None = None,
    weight_layout: str | None = None,
    activation: Activation = None,
    scale: object = None,
    residual: object = None,
    out: Array | None = None,
    out_dtype: object = None,
    precision: str = "standard",
    algorithm: str = "auto",
    max_workspace: int | None = None,
    device: str | None = None,
) -> Array:
    """1-d transposed convolution: ``activation(scale * conv_transpose(x, w) + bias + residual)``.

    What `conv_transpose2d` says holds here too, with one spatial axis.

    Parameters
    ----------
    x : array of shape (N, C, W), or in `layout`; the batch axis may be missing
    w : array of shape (C, K / groups, S), or in `weight_layout`
    stride, dilation, output_padding, output_size : int
    padding : int, a (low, high) pair as in ``((1, 0),)``, or a name
    layout : "NCW" (default) or "NWC"
    weight_layout : "CKS" (default), "CSK" or "SKC"
    bias, groups, activation, scale, residual, out, out_dtype, precision, algorithm,
    max_workspace, device
        As in `conv_transpose2d`.

    Returns
    -------
    y : array of shape (N, K, Q), or in `layout`, of the library of `x`

    Raises
    ------
    ShapeError, DTypeError, PlanError
        As in `conv_transpose2d`.

    Examples
    --------
    >>> import numpy as np
    >>> from implicit_conv import conv_transpose1d
    >>> x = np.array([1, 2, 3], np.float32).reshape(1, 1, 3)
    >>> conv_transpose1d(x, np.ones((1, 1, 2), np.float32), stride=2)
    array([[[1., 1., 2., 2., 3., 3.]]], dtype=float32)
    """
    window = stride, padding, dilation, groups
    sizes = hashable("output_padding", output_padding), hashable("output_size", output_size)
    own = layout, weight_layout, *sizes, activation, out_dtype
    method = precision, algorithm, max_workspace, device
    return run(CONV_TRANSPOSE[1], x, w, bias, scale, residual, out, window, own, method)


def plan_conv_transpose1d(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    dtype: object = "float32",
    *,
    w_dtype: object = None,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    output_size: int | Sequence[int] | None = None,
    layout: str | None = None,
    weight_layout: str | None = None,
    activation: Activation = None,
    out_dtype: object = None,
    precision: str = "standard",
    algorithm: str = "auto",
    max_workspace: int | None = None,
    device: str | None = None,
) -> Plan:
    """Plan how `conv_transpose1d` computes arrays of these shapes; see `plan_conv2d`."""
    return make_plan(CONV_TRANSPOSE[1], **locals())


def conv_transpose3d(
    x: Any,
    w: Any,
    bias: object = None,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    output_size: int | Sequence[int] | None = None,
    layout: str | None = None,
    weight_layout: str | None = None,
    activation: Activation = None,
    scale: object = None,
    residual: object = None,
    out: Array | None = None,
    out_dtype: object = None,
    precision: str = "standard",
    algorithm: str = "auto",
    max_workspace: int | None = None,
    device: str | None = None,
) -> Array:
    """3-d transposed convolution: ``activation(scale * conv_transpose(x, w) + bias + residual)``.

    What `conv_transpose2d` says holds here too, with three spatial axes.

    Parameters
    ----------
    x : array of shape (N, C, D, H, W), or in `layout`; the batch axis may be missing
    w : array of shape (C, K / groups, T, R, S), or in `weight_layout`
    stride, dilation, output_padding, output_size : int, or one for each of D, H, W
    padding : int, one for each of D, H, W, a (low, high) pair for each, or a name
    layout : "NCDHW" (default) or "NDHWC"
    weight_layout : "CKTRS" (default), "CTRSK" or "TRSKC"
    bias, groups, activation, scale, residual, out, out_dtype, precision, algorithm,
    max_workspace, device
        As in `conv_transpose2d`.

    Returns
    -------
    y : array of shape (N, K, Z, P, Q), or in `layout`, of the library of `x`

    Raises
    ------
    ShapeError, DTypeError, PlanError
        As in `conv_transpose2d`.

    Examples
    --------
    >>> import numpy as np
    >>> from implicit_conv import conv_transpose3d
    >>> x, w = np.ones((1, 4, 3, 5, 5), np.float32), np.ones((4, 2, 2, 2, 2), np.float32)
    >>> conv_transpose3d(x, w, stride=2).shape
    (1, 2, 6, 10, 10)
    """
    window = stride, padding, dilation, groups
    sizes = hashable("output_padding", output_padding), hashable("output_size", output_size)
    own = layout, weight_layout, *sizes, activation, out_dtype
    method = precision, algorithm, max_workspace, device
    return run(CONV_TRANSPOSE[3], x, w, bias, scale, residual, out, window, own, method)


def plan_conv_transpose3d(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    dtype: object = "float32",
    *,
    w_dtype: object = None,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    output_size: int | Sequence[int] | None = None,
    layout: str | None = None,
    weight_layout: str | None = None,
    activation: Activation = None,
    out_dtype: object = None,
    precision: str = "standard",
    algorithm: str = "auto",
    max_workspace: int | None = None,
    device: str | None = None,
) -> Plan:
    """Plan how `conv_transpose3d` computes arrays of these shapes; see `plan_conv2d`."""
    return make_plan(CONV_TRANSPOSE[3], **locals())


def _plan(task: Task) -> Engine:
    """Plan a transposed convolution, as an input gradient."""
    options, arch, kind = task.options, task.arch, dgrad.TransposedEngine
    activation, out_dtype = options.activation, options.out_dtype
    problem = parse_transposed(task.rank, *task.shapes, *task.dtypes, **options.part(TRANSPOSED))
    if problem.is_complex:
        first("complex numbers")
        from implicit_conv.cpu.engines.complex_numbers import plan_complex

        def plan_real(real: Problem, request: Request, parts: str) -> dgrad.DgradEngine:
            return dgrad.plan(real, arch, request, kind, out_dtype=parts)

        return plan_complex(problem, out_dtype, activation, task.request, plan_real)
    return dgrad.plan(problem, arch, task.request, kind, activation=activation, out_dtype=out_dtype)


TRANSPOSED = (*WINDOW, *LAYOUTS, "output_padding", "output_size")  # what `parse_transposed` takes
OWN = (*LAYOUTS, "output_padding", "output_size", "activation", "out_dtype")
CONV_TRANSPOSE = {rank: Operator(f"conv_transpose{rank}d", rank, OWN, _plan) for rank in (1, 2, 3)}
