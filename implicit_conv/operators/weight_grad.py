"""Weight gradients of convolutions, and their plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike, DTypeLike

from implicit_conv.arrays.arrays import Array, Operand, Y, dtype_name
from implicit_conv.cpu.engines import wgrad
from implicit_conv.errors import PlanError, ShapeError
from implicit_conv.operators.dispatch import (
    CONVOLUTION,
    LAYOUTS,
    WINDOW,
    Operator,
    Options,
    Shape,
    Task,
    known_keywords,
    make_plan,
    refuse,
    run,
    with_rank,
)
from implicit_conv.operators.plan import Engine, Plan
from implicit_conv.problem.operand_checks import check_dtypes
from implicit_conv.problem.options import (
    FLOAT_DTYPES,
    GPU_DTYPES,
    Layout,
    PaddingMode,
    Precision,
    WeightLayout,
)
from implicit_conv.problem.parse import (
    Ints,
    Padding,
    parse_max_workspace,
    parse_padding_mode,
    shape_tuple,
)
from implicit_conv.problem.problem import Problem

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from implicit_conv.operators.dispatch import NoKeywords


@known_keywords
def conv2d_weight_grad(
    x: Operand[Y],
    dy: ArrayLike,
    weight_shape: Sequence[int],
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
    max_workspace: int | None = None,
    device: str | None = None,
    **other: Unpack[NoKeywords],
) -> Y:
    """The gradient of a loss with respect to the filter `w` of ``y = conv2d(x, w)``.

    ``dw[k, c, r, s]`` is the sum over n, p, q of ``dy[n, k, p, q]`` times the pixel of x that tap
    (r, s) of channel c reads for output (p, q), padding included. The options are those that were
    given to `conv2d`. The page "Numbers" of the documentation bounds the error, and says where NaNs
    show.

    Parameters
    ----------
    x : array of shape (N, C, H, W), or in `layout`; the batch axis may be missing
        What was convolved. float32, float64, float16 or bfloat16, with any strides and byte order;
        one on a GPU (float16, bfloat16 or float32) is summed there. The 16-bit types are summed in
        float32, and the result is rounded once, to nearest even.
    dy : array of shape (N, K, P, Q), or in `layout`, of the dtype of `x`
        The gradient of the loss with respect to y.
    weight_shape : sequence of ints
        The shape of `w`: (K, C / groups, R, S), or in `weight_layout`.
    stride, padding, dilation, groups, layout, weight_layout, padding_mode, out
        As in `conv2d`.
    out_dtype : dtype, optional
        float32, float64 or the dtype of `x` (default). The sum is float64 if `x` is, else float32.
    precision : "strict", "standard" (default) or "fast"
        With any of them, the order of every sum depends on the problem, not on the threads.
    max_workspace : int, optional
        The most bytes of scratch memory that a call takes, by the choice of tilings and threads.
    device : None, "cpu", "cuda" or "cuda:1"
        As in `conv2d`. On a GPU dw is float32, or has the dtype of `x`; two calls have the same
        bits.

    Returns
    -------
    dw : array of `weight_shape`, of the library of `x` as in `conv2d`

    Raises
    ------
    ShapeError
        Shapes, strides, padding or layouts do not match, such as that of `dy` (a ValueError).
    DTypeError
        A dtype is not supported, or `x` and `dy` have different dtypes (a TypeError).
    PlanError
        An option is unknown, `max_workspace` is too small, or no GPU or driver supports it (a
        ValueError).
    DriverError
        The CUDA driver refuses a call, for example for lack of memory (a RuntimeError).

    Examples
    --------
    >>> import numpy as np
    >>> from implicit_conv import conv2d_weight_grad
    >>> x, dy = np.ones((1, 1, 3, 3), np.float32), np.ones((1, 1, 3, 3), np.float32)
    >>> conv2d_weight_grad(x, dy, (1, 1, 3, 3), padding=1)[0, 0]
    array([[4., 6., 4.],
           [6., 9., 6.],
           [4., 6., 4.]], dtype=float32)
    """
    if other:
        refuse(WEIGHT_GRAD2D.name, other)
    window = stride, padding, dilation, groups
    shape = shape_tuple("weight_shape", weight_shape)
    own = layout, weight_layout, padding_mode, shape, out_dtype
    method = precision, "auto", max_workspace, device
    return run(WEIGHT_GRAD2D, x, dy, None, None, None, out, window, own, method)  # type: ignore[no-any-return]


conv1d_weight_grad = with_rank(
    conv2d_weight_grad,
    1,
    """
>>> import numpy as np
>>> from implicit_conv import conv1d_weight_grad
>>> x, dy = np.array([[1, 2, 3, 4, 5]], np.float32), np.ones((1, 3), np.float32)
>>> conv1d_weight_grad(x, dy, (1, 1, 3))
array([[[ 6.,  9., 12.]]], dtype=float32)
""",
)
conv3d_weight_grad = with_rank(
    conv2d_weight_grad,
    3,
    """
>>> import numpy as np
>>> from implicit_conv import conv3d_weight_grad
>>> x, dy = np.ones((1, 4, 8, 8, 8), np.float32), np.ones((1, 8, 6, 6, 6), np.float32)
>>> conv3d_weight_grad(x, dy, (8, 4, 3, 3, 3)).shape
(8, 4, 3, 3, 3)
""",
)


@known_keywords
def plan_conv2d_weight_grad(
    x_shape: Sequence[int],
    dy_shape: Sequence[int],
    weight_shape: Sequence[int],
    dtype: DTypeLike = "float32",
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    layout: Layout | None = None,
    weight_layout: WeightLayout | None = None,
    padding_mode: PaddingMode = "zeros",
    out_dtype: DTypeLike | None = None,
    precision: Precision = "standard",
    max_workspace: int | None = None,
    device: str | None = None,
    **other: Unpack[NoKeywords],
) -> Plan:
    """Plan how `conv2d_weight_grad` computes arrays of these shapes.

    The errors raised are those of `conv2d_weight_grad`; a shape that is no sequence is a TypeError.

    Parameters
    ----------
    x_shape : sequence of ints
        The shape of `x`: (N, C, H, W), or in `layout`; the batch axis may be missing.
    dy_shape : sequence of ints
        The shape of `dy`: (N, K, P, Q), or in `layout`.
    weight_shape : sequence of ints
        The shape of `w`: (K, C / groups, R, S), or in `weight_layout`.
    dtype : dtype of `x` and `dy`
    stride, padding, dilation, groups, layout, weight_layout, padding_mode, out_dtype
        As in `conv2d_weight_grad`.
    precision, max_workspace, device
        As in `conv2d_weight_grad`.

    Returns
    -------
    plan : Plan
        ``plan(x, dy)`` computes the gradient. Nothing is packed.

    Examples
    --------
    >>> from implicit_conv import plan_conv2d_weight_grad
    >>> plan = plan_conv2d_weight_grad((1, 64, 56, 56), (1, 64, 56, 56), (64, 64, 3, 3), padding=1)
    >>> plan.problem.weight_shape
    (64, 64, 3, 3)
    """
    return make_plan(WEIGHT_GRAD2D, **locals())


plan_conv1d_weight_grad = with_rank(
    plan_conv2d_weight_grad,
    1,
    """
>>> from implicit_conv import plan_conv1d_weight_grad
>>> plan_conv1d_weight_grad((1, 4, 100), (1, 8, 98), (8, 4, 3)).problem.weight_shape
(8, 4, 3)
""",
)
plan_conv3d_weight_grad = with_rank(
    plan_conv2d_weight_grad,
    3,
    """
>>> from implicit_conv import plan_conv3d_weight_grad
>>> shapes = (1, 4, 8, 8, 8), (1, 8, 6, 6, 6), (8, 4, 3, 3, 3)
>>> plan_conv3d_weight_grad(*shapes).problem.weight_shape
(8, 4, 3, 3, 3)
""",
)


def _plan(task: Task) -> Engine:
    """Plan a weight gradient; algorithms of convolutions do not concern it."""
    rank, options, (x_shape, dy_shape) = task.rank, task.options, task.shapes
    weight_shape = options.weight_shape
    check_dtypes(*task.dtypes, FLOAT_DTYPES, names=("x", "dy"))
    problem = Problem.parse(
        x_shape, weight_shape, task.dtypes[0], rank=rank, **options.part(CONVOLUTION)
    )
    if dy_shape != problem.output_shape:
        raise ShapeError(
            f"dy has shape {dy_shape}, but the convolution of x {x_shape} with w {weight_shape} "
            f"has an output of shape {problem.output_shape}; check weight_shape, stride, padding, "
            "dilation and layout"
        )
    request = replace(task.request, algorithm="auto")
    return wgrad.plan(problem, task.arch, request, out_dtype=options.out_dtype)


def _plan_on_gpu(
    rank: int, shapes: tuple[Shape, Shape], dtypes: tuple[Any, Any], options: Options
) -> Plan:
    """Plan a weight gradient with one or two spatial axes on a GPU."""
    from implicit_conv.gpu.run.wgrad import plan as gpu_plan

    if parse_padding_mode(options.padding_mode) != "zeros":
        raise PlanError(
            f"device {options.device!r} computes padding_mode 'zeros', not "
            f"{options.padding_mode!r}; use device='cpu', with numpy arrays"
        )
    check_dtypes(dtype_name(dtypes[0]), dtype_name(dtypes[1]), GPU_DTYPES, names=NAMES)
    assert options.device is not None
    made = gpu_plan(
        rank,
        shapes,
        dtypes[0],
        options.part((*WINDOW, *LAYOUTS)),
        tuple(options.weight_shape),
        out_dtype=options.out_dtype,
        precision=options.precision,
        limit=parse_max_workspace(options.max_workspace),
        device=options.device,
    )
    return Plan(made)


OWN = (*LAYOUTS, "padding_mode", "weight_shape", "out_dtype")
NAMES = ("x", "dy")
WEIGHT_GRAD1D = Operator("conv1d_weight_grad", 1, OWN, _plan, NAMES, partial(_plan_on_gpu, 1))
WEIGHT_GRAD2D = Operator("conv2d_weight_grad", 2, OWN, _plan, NAMES, partial(_plan_on_gpu, 2))
WEIGHT_GRAD3D = Operator("conv3d_weight_grad", 3, OWN, _plan, NAMES)
