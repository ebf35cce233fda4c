"""Transposed convolutions and their plans."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike, DTypeLike

from implicit_conv.arrays.arrays import Array, Operand, Y, dtype_name
from implicit_conv.cpu.engines import dgrad
from implicit_conv.operators.dispatch import (
    LAYOUTS,
    WINDOW,
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
from implicit_conv.problem.options import (
    Activation,
    Algorithm,
    Layout,
    Precision,
    Swapped,
    WeightLayout,
)
from implicit_conv.problem.parse import Ints, Padding, hashable
from implicit_conv.problem.transposed_problem import parse_transposed

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from implicit_conv.operators.dispatch import NoKeywords


@known_keywords
def conv_transpose2d(
    x: Operand[Y],
    w: ArrayLike,
    bias: ArrayLike | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
    *,
    output_size: Ints | None = None,
    layout: Layout | None = None,
    weight_layout: WeightLayout | Swapped | None = None,
    activation: Activation = None,
    scale: ArrayLike | None = None,
    residual: ArrayLike | None = None,
    out: Array | None = None,
    out_dtype: DTypeLike | None = None,
    precision: Precision = "standard",
    algorithm: Algorithm = "auto",
    max_workspace: int | None = None,
    device: str | None = None,
    **other: Unpack[NoKeywords],
) -> Y:
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
    padding : int, one for each of (H, W), a (low, high) pair for each, or a name
        The pixels that are removed from the borders of y; negative values add zeros there. "valid"
        removes none. "same" removes as many as make y `stride` times as large as `x`, and an odd
        pixel on the high side; "same_lower" removes it on the low side (ONNX: auto_pad).
    output_padding : int, or one for each of (H, W)
        Pixels that are added on the high side of y; less than the stride or the dilation.
    output_size : int, or one for each of (H, W), optional
        The size of y, from which output_padding follows.
    weight_layout : "CKRS" (default), "CRSK" or "RSKC", or a layout of `conv2d`
    bias, stride, dilation, groups, layout, activation, scale, residual, out, out_dtype
        As in `conv2d`.
    precision, algorithm, max_workspace, device
        As in `conv2d`. GPUs copy a plain filter in every call; ``plan.pack(w)`` does it once.

    Returns
    -------
    y : array of shape (N, K, P, Q), or in `layout`, of the library of `x`
        Q = (W - 1) * stride - pad_low - pad_high + (S - 1) * dilation + 1 + output_padding, and so
        along each axis.

    Raises
    ------
    ShapeError
        Shapes, padding or layouts do not match, y has no pixels, output_padding or output_size is
        out of range, or a number is too large (a ValueError).
    DTypeError, PlanError, DriverError
        As in `conv2d`.

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
    if other:
        refuse(CONV_TRANSPOSE2D.name, other)
    window = stride, padding, dilation, groups
    sizes = hashable("output_padding", output_padding), hashable("output_size", output_size)
    own = layout, weight_layout, *sizes, activation, out_dtype
    method = precision, algorithm, max_workspace, device
    return run(CONV_TRANSPOSE2D, x, w, bias, scale, residual, out, window, own, method)  # type: ignore[no-any-return]


conv_transpose1d = with_rank(
    conv_transpose2d,
    1,
    """
>>> import numpy as np
>>> from implicit_conv import conv_transpose1d
>>> conv_transpose1d(np.array([[1, 2, 3]], np.float32), np.ones((1, 1, 2), np.float32), stride=2)
array([[1., 1., 2., 2., 3., 3.]], dtype=float32)
""",
)
conv_transpose3d = with_rank(
    conv_transpose2d,
    3,
    """
>>> import numpy as np
>>> from implicit_conv import conv_transpose3d
>>> x, w = np.ones((1, 8, 6, 9, 9), np.float32), np.ones((8, 4, 2, 2, 2), np.float32)
>>> conv_transpose3d(x, w, stride=2).shape
(1, 4, 12, 18, 18)
""",
)


@known_keywords
def plan_conv_transpose2d(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    dtype: DTypeLike = "float32",
    *,
    w_dtype: DTypeLike | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
    output_size: Ints | None = None,
    layout: Layout | None = None,
    weight_layout: WeightLayout | Swapped | None = None,
    activation: Activation = None,
    out_dtype: DTypeLike | None = None,
    precision: Precision = "standard",
    algorithm: Algorithm = "auto",
    max_workspace: int | None = None,
    device: str | None = None,
    **other: Unpack[NoKeywords],
) -> Plan:
    """Plan how `conv_transpose2d` computes arrays of these shapes.

    The errors raised are those of `conv_transpose2d`; a shape that is no sequence is a TypeError.

    Parameters
    ----------
    x_shape : sequence of ints
        The shape of `x`: (N, C, H, W), or in `layout`; the batch axis may be missing.
    w_shape : sequence of ints
        The shape of `w`: (C, K / groups, R, S), or in `weight_layout`.
    dtype, w_dtype : dtypes of `x` and `w`
        `w_dtype` is `dtype` by default; only integers may differ.
    stride, padding, output_padding, groups, dilation, output_size, layout, weight_layout
        As in `conv_transpose2d`.
    activation, out_dtype, precision, algorithm, max_workspace, device
        As in `conv_transpose2d`.

    Returns
    -------
    plan : Plan
        ``plan(x, w, bias)`` convolves, with a filter that is plain or comes from ``plan.pack(w)``.

    Examples
    --------
    >>> from implicit_conv import plan_conv_transpose2d
    >>> plan = plan_conv_transpose2d((1, 64, 28, 28), (64, 32, 4, 4), stride=2, padding=1)
    >>> plan.problem.input_shape  # of the convolution whose input gradient this is
    (1, 32, 56, 56)
    """
    return make_plan(CONV_TRANSPOSE2D, **locals())


plan_conv_transpose1d = with_rank(
    plan_conv_transpose2d,
    1,
    """
>>> from implicit_conv import plan_conv_transpose1d
>>> plan_conv_transpose1d((1, 16, 100), (16, 8, 4), stride=2, padding=1).problem.input_shape
(1, 8, 200)
""",
)
plan_conv_transpose3d = with_rank(
    plan_conv_transpose2d,
    3,
    """
>>> from implicit_conv import plan_conv_transpose3d
>>> plan_conv_transpose3d((1, 16, 8, 8, 8), (16, 8, 2, 2, 2), stride=2).problem.input_shape
(1, 8, 16, 16, 16)
""",
)


def _plan(task: Task) -> Engine:
    """Plan a transposed convolution, as an input gradient."""
    given = task.options.part(TRANSPOSED)
    problem = parse_transposed(task.rank, *task.shapes, *task.dtypes, **given)
    own = task.options.part(("activation", "out_dtype"))
    return dgrad.plan(problem, task.arch, task.request, dgrad.TransposedEngine, **own)


def _plan_on_gpu(
    rank: int, shapes: tuple[Shape, Shape], dtypes: tuple[Any, Any], options: Options
) -> Plan:
    """Plan a transposed convolution with one or two spatial axes on a GPU."""
    names = dtype_name(dtypes[0]), dtype_name(dtypes[1])
    problem = parse_transposed(rank, *shapes, *names, **options.part(TRANSPOSED))
    return gradient_on_gpu(problem, options, transposed=True)


TRANSPOSED = (*WINDOW, *LAYOUTS, "output_padding", "output_size")  # what `parse_transposed` takes
OWN = (*LAYOUTS, "output_padding", "output_size", "activation", "out_dtype")
CONV_TRANSPOSE1D, CONV_TRANSPOSE2D, CONV_TRANSPOSE3D = (
    Operator(
        f"conv_transpose{rank}d",
        rank,
        OWN,
        _plan,
        plan_on_gpu=None if rank == 3 else partial(_plan_on_gpu, rank),
        result="output_size",
    )
    for rank in (1, 2, 3)
)
