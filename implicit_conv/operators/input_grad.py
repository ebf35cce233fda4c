"""Input gradients of convolutions, and their plans."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike, DTypeLike

from implicit_conv.arrays.arrays import Array, Operand, Y, dtype_name
from implicit_conv.cpu.engines import dgrad
from implicit_conv.errors import DTypeError, ShapeError
from implicit_conv.operators.dispatch import (
    CONVOLUTION,
    LAYOUTS,
    Operator,
    Options,
    Shape,
    Task,
    gradient_on_gpu,
    known_keywords,
    make_plan,
    refuse,
    run,
    with_rank,
)
from implicit_conv.operators.plan import Engine, Plan
from implicit_conv.problem.operand_checks import check_dtypes
from implicit_conv.problem.options import Algorithm, Layout, PaddingMode, Precision, WeightLayout
from implicit_conv.problem.parse import Ints, Padding, parse_shape, shape_tuple
from implicit_conv.problem.problem import Problem

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from implicit_conv.operators.dispatch import NoKeywords


@known_keywords
def conv2d_input_grad(
    dy: Operand[Y],
    w: ArrayLike,
    input_shape: Sequence[int],
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    *,
    layout: Layout | None = None,
    weight_layout: WeightLayout | None = None,
    padding_mode: PaddingMode = "zeros",
    out: Array | None = None,
    out_dtype: DTypeLike | None = None,
    precision: Precision = "standard",
    algorithm: Algorithm = "auto",
    max_workspace: int | None = None,
    device: str | None = None,
    **other: Unpack[NoKeywords],
) -> Y:
    """The gradient of a loss with respect to the input `x` of ``y = conv2d(x, w)``.

    ``dx[n, c, h, w]`` is the sum of ``dy[n, k, p, q] * w[k, c, r, s]`` over all outputs (k, p, q)
    and taps (r, s) that read this pixel. The options are those that were given to `conv2d`.

    Parameters
    ----------
    dy : array of shape (N, K, P, Q), or in `layout`; the batch axis may be missing
        The gradient of the loss with respect to y: float32, float64, float16 or bfloat16.
    w : array of shape (K, C / groups, R, S), or in `weight_layout`, of the dtype of `dy`
    input_shape : sequence of ints
        The shape of `x`: (N, C, H, W), or in `layout`; without N where `dy` has none.
    stride, padding, dilation, groups, layout, weight_layout, padding_mode, out
        As in `conv2d`.
    precision, algorithm, max_workspace
        As in `conv2d`.
    out_dtype : dtype, optional
        float32, float64 or the dtype of `dy` (default).
    device : None, "cpu", "cuda" or "cuda:1"
        As in `conv2d`. GPUs copy a plain filter in every call; ``plan.pack(w)`` does it once.

    Returns
    -------
    dx : array of `input_shape`, of the library of `dy` as in `conv2d`

    Raises
    ------
    ShapeError
        Shapes, strides, padding or layouts do not match, such as that of `dy` (a ValueError).
    DTypeError, PlanError, DriverError
        As in `conv2d`.

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
    if other:
        refuse(INPUT_GRAD2D.name, other)
    window = stride, padding, dilation, groups
    shape = shape_tuple("input_shape", input_shape)
    own = layout, weight_layout, padding_mode, shape, out_dtype
    method = precision, algorithm, max_workspace, device
    return run(INPUT_GRAD2D, dy, w, None, None, None, out, window, own, method)  # type: ignore[no-any-return]


conv1d_input_grad = with_rank(
    conv2d_input_grad,
    1,
    """
>>> import numpy as np
>>> from implicit_conv import conv1d_input_grad
>>> dy, w = np.ones((1, 3), np.float32), np.array([[[1, 10, 100]]], np.float32)
>>> conv1d_input_grad(dy, w, (1, 5))
array([[  1.,  11., 111., 110., 100.]], dtype=float32)
""",
)
conv3d_input_grad = with_rank(
    conv2d_input_grad,
    3,
    """
>>> import numpy as np
>>> from implicit_conv import conv3d_input_grad
>>> dy, w = np.ones((1, 8, 6, 6, 6), np.float32), np.ones((8, 4, 3, 3, 3), np.float32)
>>> conv3d_input_grad(dy, w, (1, 4, 8, 8, 8)).shape
(1, 4, 8, 8, 8)
""",
)


@known_keywords
def plan_conv2d_input_grad(
    dy_shape: Sequence[int],
    w_shape: Sequence[int],
    input_shape: Sequence[int],
    dtype: DTypeLike = "float32",
    *,
    w_dtype: DTypeLike | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    layout: Layout | None = None,
    weight_layout: WeightLayout | None = None,
    padding_mode: PaddingMode = "zeros",
    out_dtype: DTypeLike | None = None,
    precision: Precision = "standard",
    algorithm: Algorithm = "auto",
    max_workspace: int | None = None,
    device: str | None = None,
    **other: Unpack[NoKeywords],
) -> Plan:
    """Plan how `conv2d_input_grad` computes arrays of these shapes.

    The errors raised are those of `conv2d_input_grad`; a shape that is no sequence is a TypeError.

    Parameters
    ----------
    dy_shape : sequence of ints
        The shape of `dy`: (N, K, P, Q), or in `layout`; the batch axis may be missing.
    w_shape : sequence of ints
        The shape of `w`: (K, C / groups, R, S), or in `weight_layout`.
    input_shape : sequence of ints
        The shape of `x`: (N, C, H, W), or in `layout`.
    dtype, w_dtype : dtypes of `dy` and `w`
        They are the same.
    stride, padding, dilation, groups, layout, weight_layout, padding_mode, out_dtype
        As in `conv2d_input_grad`.
    precision, algorithm, max_workspace, device
        As in `conv2d_input_grad`.

    Returns
    -------
    plan : Plan
        ``plan(dy, w)`` computes the gradient, with a filter that is plain or comes from
        ``plan.pack(w)``.

    Examples
    --------
    >>> from implicit_conv import plan_conv2d_input_grad
    >>> plan = plan_conv2d_input_grad((1, 64, 56, 56), (64, 32, 3, 3), (1, 32, 58, 58))
    >>> plan.problem.input_shape
    (1, 32, 58, 58)
    """
    return make_plan(INPUT_GRAD2D, **locals())


plan_conv1d_input_grad = with_rank(
    plan_conv2d_input_grad,
    1,
    """
>>> from implicit_conv import plan_conv1d_input_grad
>>> plan_conv1d_input_grad((1, 8, 98), (8, 4, 3), (1, 4, 100)).problem.input_shape
(1, 4, 100)
""",
)
plan_conv3d_input_grad = with_rank(
    plan_conv2d_input_grad,
    3,
    """
>>> from implicit_conv import plan_conv3d_input_grad
>>> plan_conv3d_input_grad((1, 8, 6, 6, 6), (8, 4, 3, 3, 3), (1, 4, 8, 8, 8)).problem.input_shape
(1, 4, 8, 8, 8)
""",
)


def _plan(task: Task) -> Engine:
    problem = _problem(task.rank, task.shapes, task.dtypes, task.options)
    return dgrad.plan(problem, task.arch, task.request, out_dtype=task.options.out_dtype)


def _plan_on_gpu(
    rank: int, shapes: tuple[Shape, Shape], dtypes: tuple[Any, Any], options: Options
) -> Plan:
    """Plan an input gradient with one or two spatial axes on a GPU."""
    names = dtype_name(dtypes[0]), dtype_name(dtypes[1])
    return gradient_on_gpu(_problem(rank, shapes, names, options), options, transposed=False)


def _problem(
    rank: int, shapes: tuple[Shape, Shape], dtypes: tuple[str, str], options: Options
) -> Problem:
    """The convolution whose input gradient is asked for."""
    (dy_shape, w_shape), (dtype, w_dtype) = shapes, dtypes
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
    return problem


OWN = (*LAYOUTS, "padding_mode", "input_shape", "out_dtype")
INPUT_GRAD1D, INPUT_GRAD2D, INPUT_GRAD3D = (
    Operator(
        f"conv{rank}d_input_grad",
        rank,
        OWN,
        _plan,
        ("dy", "w"),
        None if rank == 3 else partial(_plan_on_gpu, rank),
        result="input_shape",
    )
    for rank in (1, 2, 3)
)
