"""Input gradients of convolutions, and their plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.engines import dgrad, repeated_padding
from implicit_conv.errors import DTypeError, ShapeError
from implicit_conv.operators.dispatch import CONVOLUTION, LAYOUTS, Operator, Task, make_plan, run
from implicit_conv.operators.plan import Engine, Plan
from implicit_conv.problem.operand_checks import check_dtypes
from implicit_conv.problem.parse import Padding, parse_shape, shape_tuple
from implicit_conv.problem.problem import Problem


def conv2d_input_grad(
    dy: Any,
    w: Any,
    input_shape: Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    layout: str | None = None,
    weight_layout: str | None = None,
    padding_mode: str = "zeros",
    out: Array | None = None,
    out_dtype: object = None,
    precision: str = "standard",
    algorithm: str = "auto",
    max_workspace: int | None = None,
    device: str | None = None,
) -> Array:
    """The gradient of a loss with respect to the input `x` of ``y = conv2d(x, w)``.

    ``dx[n, c, h, w]`` is the sum of ``dy[n, k, p, q] * w[k, c, r, s]`` over all outputs (k, p, q)
    and taps (r, s) that read this pixel. The options are those that were given to `conv2d`.

    Parameters
    ----------
    dy : array of shape (N, K, P, Q), or in `layout`; the batch axis may be missing
        The gradient of the loss with respect to y: float32, float64, float16 or bfloat16.
    w : array of shape (K, C / groups, R, S), or in `weight_layout`
        The filters, of the same dtype as `dy`.
    input_shape : sequence of 4 ints, or 3 without the batch axis
        The shape of `x`, in `layout`.
    stride, padding, dilation, groups, layout, weight_layout, padding_mode, precision, algorithm,
    max_workspace
        As in `conv2d`.
    out : array of `input_shape` and the result's dtype, optional
        The result is written to it, and it is returned.
    out_dtype : dtype, optional
        float32, float64 or the dtype of `dy` (default).
    device : None or "cpu"

    Returns
    -------
    dx : array of `input_shape`, of the library of `dy` as in `conv2d`

    Raises
    ------
    ShapeError
        Shapes, strides, padding or layouts do not match, or `dy` has not the shape of y (a
        ValueError).
    DTypeError, PlanError
        As in `conv2d`. GPUs do not compute this operator.

    Examples
    --------
    >>> import numpy as np
    >>> from implicit_conv import conv2d_input_grad
    >>> dy, w = np.ones((1, 1, 2, 2), np.float32), np.ones((1, 1, 2, 2), np.float32)
    >>> conv2d_input_grad(dy, w, (1, 1, 3, 3))[0, 0]
    array([[1., 2., 1.],
           [2., 4., 2.],
           [1., 2., 1.]], dtype=float32)
    """
    window = stride, padding, dilation, groups
    shape = shape_tuple("input_shape", input_shape)
    own = layout, weight_layout, padding_mode, shape, out_dtype
    method = precision, algorithm, max_workspace, device
    return run(INPUT_GRAD[2], dy, w, None, None, None, out, window, own, method)


def plan_conv2d_input_grad(
    dy_shape: Sequence[int],
    w_shape: Sequence[int],
    input_shape: Sequence[int],
    dtype: object = "float32",
    *,
    w_dtype: object = None,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str | None = None,
    weight_layout: str | None = None,
    padding_mode: str = "zeros",
    out_dtype: object = None,
    precision: str = "standard",
    algorithm: str = "auto",
    max_workspace: int | None = None,
    device: str | None = None,
) -> Plan:
    """Plan how `conv2d_input_grad` computes arrays of these shapes; see `plan_conv2d`.

    ``plan(dy, w)`` computes the gradient, with a filter that is plain or comes from
    ``plan.pack(w)``.
    """
    return make_plan(INPUT_GRAD[2], **locals())


def conv1d_input_grad(
    dy: Any,
    w: Any,
    input_shape: Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    layout: str | None = None,
    weight_layout: str | None = None,
    padding_mode: str = "zeros",
    out: Array | None = None,
    out_dtype: object = None,
    precision: str = "standard",
    algorithm: str = "auto",
    max_workspace: int | None = None,
    device: str | None = None,
) -> Array:
    """The gradient of a loss with respect to the input `x` of ``y = conv1d(x, w)``.

    What `conv2d_input_grad` says holds here too.

    Parameters
    ----------
    dy : array of shape (N, K, Q), or in `layout`; the batch axis may be missing
    w : array of shape (K, C / groups, S), or in `weight_layout`
    input_shape : sequence of 3 ints, or 2 without the batch axis
        The shape of `x`, in `layout`.
    stride, padding, dilation, groups, layout, weight_layout, padding_mode, precision, algorithm,
    max_workspace
        As in `conv1d`.
    out, out_dtype, device
        As in `conv2d_input_grad`.

    Returns
    -------
    dx : array of `input_shape`, of the library of `dy` as in `conv2d`

    Raises
    ------
    ShapeError, DTypeError, PlanError
        As in `conv2d_input_grad`.
    """
    window = stride, padding, dilation, groups
    shape = shape_tuple("input_shape", input_shape)
    own = layout, weight_layout, padding_mode, shape, out_dtype
    method = precision, algorithm, max_workspace, device
    return run(INPUT_GRAD[1], dy, w, None, None, None, out, window, own, method)


def plan_conv1d_input_grad(
    dy_shape: Sequence[int],
    w_shape: Sequence[int],
    input_shape: Sequence[int],
    dtype: object = "float32",
    *,
    w_dtype: object = None,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str | None = None,
    weight_layout: str | None = None,
    padding_mode: str = "zeros",
    out_dtype: object = None,
    precision: str = "standard",
    algorithm: str = "auto",
    max_workspace: int | None = None,
    device: str | None = None,
) -> Plan:
    """Plan how `conv1d_input_grad` computes arrays of these shapes; see `plan_conv2d`.

    ``plan(dy, w)`` computes the gradient, with a filter that is plain or comes from
    ``plan.pack(w)``.
    """
    return make_plan(INPUT_GRAD[1], **locals())


def conv3d_input_grad(
    dy: Any,
    w: Any,
    input_shape: Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    layout: str | None = None,
    weight_layout: str | None = None,
    padding_mode: str = "zeros",
    out: Array | None = None,
    out_dtype: object = None,
    precision: str = "standard",
    algorithm: str = "auto",
    max_workspace: int | None = None,
    device: str | None = None,
) -> Array:
    """The gradient of a loss with respect to the input `x` of ``y = conv3d(x, w)``.

    What `conv2d_input_grad` says holds here too.

    Parameters
    ----------
    dy : array of shape (N, K, Z, P, Q), or in `layout`; the batch axis may be missing
    w : array of shape (K, C / groups, T, R, S), or in `weight_layout`
    input_shape : sequence of 5 ints, or 4 without the batch axis
        The shape of `x`, in `layout`.
    stride, padding, dilation, groups, layout, weight_layout, padding_mode, precision, algorithm,
    max_workspace
        As in `conv3d`.
    out, out_dtype, device
        As in `conv2d_input_grad`.

    Returns
    -------
    dx : array of `input_shape`, of the library of `dy` as in `conv2d`

    Raises
    ------
    ShapeError, DTypeError, PlanError
        As in `conv2d_input_grad`.
    """
    window = stride, padding, dilation, groups
    shape = shape_tuple("input_shape", input_shape)
    own = layout, weight_layout, padding_mode, shape, out_dtype
    method = precision, algorithm, max_workspace, device
    return run(INPUT_GRAD[3], dy, w, None, None, None, out, window, own, method)


def plan_conv3d_input_grad(
    dy_shape: Sequence[int],
    w_shape: Sequence[int],
    input_shape: Sequence[int],
    dtype: object = "float32",
    *,
    w_dtype: object = None,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str | None = None,
    weight_layout: str | None = None,
    padding_mode: str = "zeros",
    out_dtype: object = None,
    precision: str = "standard",
    algorithm: str = "auto",
    max_workspace: int | None = None,
    device: str | None = None,
) -> Plan:
    """Plan how `conv3d_input_grad` computes arrays of these shapes; see `plan_conv2d`.

    ``plan(dy, w)`` computes the gradient, with a filter that is plain or comes from
    ``plan.pack(w)``.
    """
    return make_plan(INPUT_GRAD[3], **locals())


def _plan(task: Task) -> Engine:
    """Plan an input gradient."""
    rank, options, (dy_shape, w_shape) = task.rank, task.options, task.shapes
    dtype, w_dtype = task.dtypes
    input_shape = options.input_shape
    check_dtypes(dtype, w_dtype, names=("dy", "w"))
    if not rank < len(parse_shape("input_shape", input_shape)) < rank + 3:
        raise ShapeError(
            f"input_shape has {len(input_shape)} extents {input_shape}; the shape of x has "
            f"{rank + 2}, or {rank + 1} without the batch axis"
        )
    problem = Problem.parse(
        input_shape, w_shape, dtype, w_dtype=w_dtype, rank=rank, **options.part(CONVOLUTION)
    )
    if dy_shape != problem.output_shape:
        raise ShapeError(
            f"dy has shape {dy_shape}, but the convolution of x {input_shape} with w {w_shape} has "
            f"an output of shape {problem.output_shape}; check input_shape, stride, padding, "
            "dilation and layout"
        )
    if problem.is_integer:
        raise DTypeError(
            f"gradients of {problem.dtype} are not supported; convert to a float dtype, as in "
            "dy.astype('float32')"
        )
    plan = repeated_padding.plan if problem.repeats else dgrad.plan
    return plan(problem, task.arch, task.request, out_dtype=options.out_dtype)


OWN = (*LAYOUTS, "padding_mode", "input_shape", "out_dtype")
INPUT_GRAD = {
    rank: Operator(f"conv{rank}d_input_grad", rank, OWN, _plan, ("dy", "w")) for rank in (1, 2, 3)
}
