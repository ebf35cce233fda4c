"""Convolutions and their plans: the public functions of the operator fprop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike, DTypeLike

from implicit_conv.arrays.arrays import Array, Operand, Y, dtype_name
from implicit_conv.cpu.engines import engine as cpu_engine
from implicit_conv.errors import DTypeError
from implicit_conv.operators.dispatch import (
    CONVOLUTION,
    LAYOUTS,
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
    COMPLEX_PARTS,
    DTYPES,
    GPU_DTYPES,
    Activation,
    Algorithm,
    Layout,
    PaddingMode,
    Precision,
    WeightLayout,
)
from implicit_conv.problem.parse import Ints, Padding, parse_max_workspace
from implicit_conv.problem.problem import Problem
from implicit_conv.process import cache
from implicit_conv.process.cache import PLANS

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from implicit_conv.operators.dispatch import NoKeywords


@known_keywords
def conv2d(
    x: Operand[Y],
    w: ArrayLike,
    bias: ArrayLike | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    *,
    layout: Layout | None = None,
    weight_layout: WeightLayout | None = None,
    padding_mode: PaddingMode = "zeros",
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
    """2-d convolution: ``y = activation(scale * conv(x, w) + bias + residual)``.

    This is cross-correlation, as in all deep-learning libraries: the filter is NOT flipped
    (``scipy.signal.correlate``, not ``convolve``). The pages "Coming from" of the documentation
    translate from other libraries, and "Numbers" says how results are rounded, and what NaNs,
    integers and subnormals do.

    Parameters
    ----------
    x : array of shape (N, C, H, W), or in `layout`; the batch axis may be missing
        float32, float64, float16, bfloat16 (from ml_dtypes), int8, uint8, int16, complex64 or
        complex128, and uint16 next to a filter of float32, with any strides and byte order. A
        tensor of torch, or another array with DLPack, is read in place; one on a GPU (float16,
        bfloat16 or float32) is convolved there. No gradients are recorded.
    w : array of shape (K, C / groups, R, S), or in `weight_layout`
        The filters, of the dtype of `x`; both may be different ones of int8, uint8, int16. Those of
        integers of 8 or 16 bits may be float32, of uint16 they are.
    bias : array of shape (K,), or one number, optional
        It is added in the dtype of the sum: see `out_dtype`.
    stride, dilation : int, or one for each of (H, W)
    padding : int, one for each of (H, W), a (low, high) pair for each, or a name
        Negative values crop. "valid" pads nothing. "same" pads so that the output has
        ceil(size / stride) pixels, and puts an odd pixel on the high side; "same_lower" puts it on
        the low side. "full" keeps every window that touches the image. "causal" pads the low side,
        so that no output depends on a later pixel.
    groups : int
        C and K are divided into `groups` equal parts, and each part of y depends on one part of x.
    layout : "NCHW" (default) or "NHWC"
        The axes of `x`, y and `residual`.
    weight_layout : "KCRS" (default), "KRSC" or "RSCK"
    padding_mode : "zeros" (default), "reflect", "symmetric", "replicate" or "circular"
        What padding is made of; the others repeat pixels of `x`, with any amount of padding.
    activation : None, "relu", "relu6", "silu", "gelu", "sigmoid", "tanh", "hardswish",
        ("leaky_relu", slope) or ("clamp", low, high)
    scale : array of shape (K,), optional
        A factor for each filter, in the dtype of the sum.
    residual : array of the output's shape and the dtype of `x`, optional
    out : array of the output's shape and dtype, optional
        The result is written to it, and it is returned. It may share memory with other arrays.
    out_dtype : dtype, optional
        float32, float64 or the dtype of `x` (default). The sum is float64 if `x` is, else float32,
        and is rounded once. Sums of integers are exact: int32 if it holds the largest one (then the
        default), int64, float32 or float64. For complex `x`: complex64 or complex128. Sums of
        integers and float32 filters are float32 (default), or are rounded half to even, and
        saturate, to int8, uint8, int16 or uint16.
    precision : "strict", "standard" (default) or "fast"
        "strict" fixes the order of every sum: a result has the same bits for any batch size and
        thread count. "fast" also allows Winograd F4 and F6, whose errors are larger.
    algorithm : "auto" (default), "implicit_gemm", "pointwise", "depthwise", "winograd_f2",
        "winograd_f4", "winograd_f6", "winograd_f2_stride2" or "gemm_im2col", a baseline by numpy
    max_workspace : int, optional
        The most bytes of scratch memory and packed filter that a call takes besides its arrays.
    device : None, "cpu", "cuda" or "cuda:1"
        The device that convolves numpy arrays; None is the CPU, unless `config` or the environment
        names a GPU. GPUs compute convolutions and, with one or two spatial axes, their gradients
        and transposed convolutions; all else raises a PlanError.

    Returns
    -------
    y : array of shape (N, K, P, Q), or in `layout`, of the library of `x`; or `out`
        Q = (W + pad_low + pad_high - (S - 1) * dilation - 1) // stride + 1, and so along each
        axis.

    Raises
    ------
    ShapeError
        Shapes, strides, padding or layouts do not match, or a number is too large (a ValueError).
    DTypeError
        A dtype is not supported, or sums of integers could overflow (a TypeError).
    PlanError
        An option is unknown, the algorithm does not support the problem or needs more memory than
        `max_workspace`, or no GPU or driver supports it (a ValueError).
    DriverError
        The CUDA driver refuses a call, for example for lack of memory (a RuntimeError).

    Examples
    --------
    >>> import numpy as np
    >>> from implicit_conv import conv2d
    >>> x = np.ones((1, 1, 3, 3), np.float32)
    >>> conv2d(x, np.ones((1, 1, 3, 3), np.float32), padding="same")[0, 0]
    array([[4., 6., 4.],
           [6., 9., 6.],
           [4., 6., 4.]], dtype=float32)
    """
    if other:
        refuse(CONV2D.name, other)
    window = stride, padding, dilation, groups
    own = layout, weight_layout, padding_mode, activation, out_dtype
    method = precision, algorithm, max_workspace, device
    return run(CONV2D, x, w, bias, scale, residual, out, window, own, method)  # type: ignore[no-any-return]


conv1d = with_rank(
    conv2d,
    1,
    """
>>> import numpy as np
>>> from implicit_conv import conv1d
>>> x = np.array([[1, 2, 3, 4, 5]], np.float32)  # C, W
>>> conv1d(x, np.full((1, 1, 3), 1 / 3, np.float32))  # a moving average
array([[2., 3., 4.]], dtype=float32)
""",
)
conv3d = with_rank(
    conv2d,
    3,
    """
>>> import numpy as np
>>> from implicit_conv import conv3d
>>> x, w = np.ones((1, 1, 3, 3, 3), np.float32), np.ones((1, 1, 3, 3, 3), np.float32)
>>> conv3d(x, w, padding="same")[0, 0, 1]  # the middle one of three planes
array([[12., 18., 12.],
       [18., 27., 18.],
       [12., 18., 12.]], dtype=float32)
""",
)


@known_keywords
def plan_conv2d(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
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
    activation: Activation = None,
    out_dtype: DTypeLike | None = None,
    precision: Precision = "standard",
    algorithm: Algorithm = "auto",
    max_workspace: int | None = None,
    device: str | None = None,
    **other: Unpack[NoKeywords],
) -> Plan:
    """Plan how `conv2d` computes arrays of these shapes.

    The errors raised are those of `conv2d`; a shape that is no sequence is a TypeError.

    Parameters
    ----------
    x_shape : sequence of ints
        The shape of `x`: (N, C, H, W), or in `layout`; the batch axis may be missing.
    w_shape : sequence of ints
        The shape of `w`: (K, C / groups, R, S), or in `weight_layout`.
    dtype, w_dtype : dtypes of `x` and `w`
        `w_dtype` is `dtype` by default; only integers may differ.
    stride, padding, dilation, groups, layout, weight_layout, padding_mode, activation, out_dtype
        As in `conv2d`.
    precision, algorithm, max_workspace
        As in `conv2d`.
    device : None, "cpu", "cuda", "cuda:1", or a target such as "sm_90a" or "sm_120"
        A target plans for a GPU that this machine need not have.

    Returns
    -------
    plan : Plan
        ``plan(x, w, bias)`` convolves, with a filter that is plain or comes from ``plan.pack(w)``;
        ``plan.explain()`` says what runs, and ``plan.trace()`` lists its loads.

    Examples
    --------
    >>> from implicit_conv import plan_conv2d
    >>> plan = plan_conv2d((1, 64, 56, 56), (64, 64, 3, 3), padding=1)
    >>> plan.problem.output
    (56, 56)
    """
    return make_plan(CONV2D, **locals())


plan_conv1d = with_rank(
    plan_conv2d,
    1,
    """
>>> from implicit_conv import plan_conv1d
>>> plan = plan_conv1d((1, 2, 48000), (8, 2, 31), "int16", stride=2)
>>> plan.problem.output
(23985,)
""",
)
plan_conv3d = with_rank(
    plan_conv2d,
    3,
    """
>>> from implicit_conv import plan_conv3d
>>> plan = plan_conv3d((1, 8, 32, 32, 32), (16, 8, 3, 3, 3), padding="same")
>>> plan.problem.output
(32, 32, 32)
""",
)


def _plan(task: Task) -> Engine:
    (dtype, w_dtype), given = task.dtypes, task.options.part(CONVOLUTION)
    served = (*DTYPES, *COMPLEX_PARTS)
    if dtype == "uint16":
        raise DTypeError(
            f"x is uint16, which is supported next to a filter of float32: conv{task.rank}d takes "
            "x and w.astype('float32'), plans are of x.astype('float32') and w.astype('float32')"
        )
    problem = Problem.parse(
        *task.shapes, dtype, w_dtype=w_dtype, rank=task.rank, dtypes=served, **given
    )
    own = task.options.part(("activation", "out_dtype"))
    return cpu_engine.plan(problem, task.arch, task.request, **own)


def _plan_on_gpu(
    rank: int, shapes: tuple[Shape, Shape], dtypes: tuple[Any, Any], options: Options
) -> Plan:
    """Plan a convolution on a GPU."""
    from implicit_conv.gpu.plan.candidate import Request as GpuRequest
    from implicit_conv.gpu.run.engine import plan as gpu_plan

    parse_max_workspace(options.max_workspace)  # kernels of GPUs take no workspace
    request = GpuRequest(
        **options.part(("activation", "out_dtype", "precision", "algorithm")),
        convolution=(("rank", rank), *options.part(CONVOLUTION).items()),
    )
    check_dtypes(dtype_name(dtypes[0]), dtype_name(dtypes[1]), GPU_DTYPES)
    assert options.device is not None
    return Plan(gpu_plan(*shapes, dtypes[0], request, options.device))


OWN = (*LAYOUTS, "padding_mode", "activation", "out_dtype")
CONV1D = Operator("conv1d", 1, OWN, _plan, plan_on_gpu=partial(_plan_on_gpu, 1), mixes=True)
CONV2D = Operator("conv2d", 2, OWN, _plan, plan_on_gpu=partial(_plan_on_gpu, 2), mixes=True)
CONV3D = Operator("conv3d", 3, OWN, _plan, plan_on_gpu=partial(_plan_on_gpu, 3), mixes=True)


def plan_cache_size() -> int:
    """The number of plans that are kept: at most 512 for each engine.

    Examples
    --------
    >>> from implicit_conv import clear_plan_cache, plan_cache_size, plan_conv2d
    >>> clear_plan_cache()
    >>> plan = plan_conv2d((1, 3, 32, 32), (8, 3, 3, 3))
    >>> plan_cache_size()
    1
    """
    return len(PLANS)


def clear_plan_cache() -> None:
    """Drop all cached plans, their compiled operators, and the calls that were prepared.

    A plan that the caller holds keeps the calls that were prepared with it.

    Examples
    --------
    >>> from implicit_conv import clear_plan_cache, plan_cache_size
    >>> clear_plan_cache()
    >>> plan_cache_size()
    0
    """
    cache.clear()
