"""Convolutions and their plans: the public functions of the operator fprop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from implicit_conv import cache
from implicit_conv.activation import Activation
from implicit_conv.arrays import Array, dtype_name
from implicit_conv.cache import PLANS
from implicit_conv.cpu import engine as cpu_engine
from implicit_conv.cpu.candidate import Request
from implicit_conv.cpu.complex_numbers import plan_complex
from implicit_conv.dispatch import (
    CONVOLUTION,
    LAYOUTS,
    WINDOW,
    Operator,
    Options,
    Shape,
    Task,
    make_plan,
    run,
)
from implicit_conv.errors import PlanError
from implicit_conv.options import COMPLEX_PARTS, DTYPES
from implicit_conv.parse import Padding, parse_max_workspace, parse_padding_mode
from implicit_conv.plan import Engine, Plan
from implicit_conv.problem import Problem, check_dtypes


def conv2d(
    x: Any,
    w: Any,
    bias: object = None,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    layout: str | None = None,
    weight_layout: str | None = None,
    padding_mode: str = "zeros",
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
    """2-d convolution: ``y = activation(scale * conv(x, w) + bias + residual)``.

    This is cross-correlation, as in all deep-learning libraries: the filter is NOT flipped
    (``scipy.signal.correlate``, not ``convolve``).

    Parameters
    ----------
    x : array of shape (N, C, H, W), or in `layout`; the batch axis may be missing
        float32, float64, float16, bfloat16 (from ml_dtypes), int8, uint8, int16, complex64 or
        complex128, with any strides and byte order. The 16-bit floats are summed in float32, and
        the result is rounded once, to nearest even. Integers are summed exactly: see Notes.
        An array on a GPU (__cuda_array_interface__ or DLPack; float16, bfloat16 or float32) is
        convolved there, on its library's stream. A tensor of torch, or another array with DLPack,
        on the CPU is read in place. No gradients are recorded.
    w : array of shape (K, C / groups, R, S), or in `weight_layout`
        The filters, of the same dtype as `x`; both may be different ones of int8, uint8, int16.
    bias : array of shape (K,), optional
        It is added in the dtype of the sum: for 16-bit floats `x` and `w` it may be float32, for
        integers `x` and `w` it has integers.
    stride, dilation : int, or one for each of H, W
    padding : int, one for each of H, W, a (low, high) pair for each, or a name
        Negative values crop. "valid" pads nothing. "same" pads so that the output has
        ceil(size / stride) pixels, and puts an odd pixel on the high side; "same_lower" puts it on
        the low side. "full" keeps every window that touches the image. "causal" pads the low side
        only.
    groups : int
        C and K are divided into `groups` equal parts, and each part of y depends on one part of x.
    layout : "NCHW" (default) or "NHWC"
        The axes of `x`, y and `residual`.
    weight_layout : "KCRS" (default), "KRSC" or "RSCK"
    padding_mode : "zeros" (default), "reflect", "symmetric", "replicate" or "circular"
        What padding is made of. The other modes repeat pixels of `x` while it is read, with any
        amount of padding: they are the modes "reflect", "symmetric", "edge" and "wrap" of
        `numpy.pad`. An image that negative padding crops is cropped first, so that the pixels
        repeated are those of ``x[..., 1:]`` for a padding of ``(-1, 2)``. Upper case is accepted.
    activation : None, "relu", "relu6", "silu", "gelu", "sigmoid", "tanh", "hardswish",
        ("leaky_relu", slope) or ("clamp", low, high)
        A result of integers has None, "relu", "relu6" or a clamp to integers or infinities; others
        need `out_dtype` float32 or float64, to which the sum is converted first.
    scale : array of shape (K,), optional
        A factor for each filter, in the dtype of the sum; for integers `x` it is in `out_dtype`,
        float32 or float64, and so is the bias.
    residual : array of the output's shape and the dtype of `x`, optional
        For integers `x` it has the dtype of the output.
    out : array of the output's shape and dtype, optional; a numpy array unless `x` is on a GPU
        The result is written to it, and it is returned. Its elements must not share memory; it may
        share memory with the other arrays.
    out_dtype : dtype, optional
        float32, float64 or the dtype of `x` (default). The sum is float64 if `x` is, else float32,
        and is rounded to `out_dtype` once. For integers `x`: int32 if it holds the largest sum
        (then the default), int64, float32 or float64. For complex `x`: complex64 or complex128.
    precision : "strict", "standard" (default) or "fast"
        "strict" fixes the order of every sum, so that a result has the same bits for any batch
        size and thread count. "fast" also allows Winograd F4 and F6, whose errors are larger: see
        the notes.
    algorithm : "auto" (default), "implicit_gemm", "pointwise", "depthwise", "winograd_f2",
        "winograd_f4", "winograd_f6", "winograd_f2_stride2" or "gemm_im2col"
        "gemm_im2col" is a baseline for comparison: numpy multiplies a matrix of windows.
    max_workspace : int, optional
        The most bytes that a call with a plain filter takes besides its arrays: scratch memory and
        the filter that it packs. Only algorithms and tilings that need at most as much are chosen,
        and fewer threads if none does. Copies of arrays whose byte order, strides or overlap with
        `out` kernels do not take are not counted, nor are vectors such as the bias. A GPU needs no
        such memory.
    device : None, "cpu", "cuda" or "cuda:1"
        The device that convolves numpy arrays. None means the CPU, unless `config` or the
        environment names a GPU. An array on a GPU is convolved on that GPU.

    Returns
    -------
    y : array of shape (N, K, P, Q), or in `layout`, of the library of `x`
        P = (H + pad_low + pad_high - (R - 1) * dilation - 1) // stride + 1; the same formula with
        W and S gives Q. A tensor of torch gives a tensor. Any other array with DLPack gives what
        its library's `from_dlpack` makes of a numpy array; it gives the numpy array itself if that
        function fails or changes the dtype (for example, numpy exports no bfloat16). A result in
        `out` is `out`.

    Raises
    ------
    ShapeError
        Shapes, strides, padding or layouts do not match; or a stride, a dilation, a padding or the
        number of taps R * S exceeds 2^31 - 1; or `x` with its padding, `w` or y has more than 2^47
        elements; or padding has no pixel to repeat (a ValueError).
    DTypeError
        A dtype is not supported, `x` and `w` have different dtypes that are not both integers, sums
        of integers with this `bias` or `residual` could overflow, or a tensor is sparse, quantized
        or `out` (a TypeError).
    PlanError
        An option is unknown, the algorithm does not support the problem or needs more memory than
        `max_workspace`, no GPU or driver supports it, a tensor requires gradients,
        NUMBA_DISABLE_JIT is set, or NUMBA_CPU_FEATURES asks for features that the CPU lacks (a
        ValueError).
    DriverError
        The CUDA driver refuses a call, for example for lack of memory (a RuntimeError).

    Notes
    -----
    Integers are summed exactly with any precision, in any order, and nothing wraps. The dtype of
    the sum follows from shapes and dtypes alone: |sum| is at most B = C / groups * R * S * (the
    largest |product| of the two dtypes, 255 * 128 for uint8 and int8), and the sum is int32 if B <
    2^31, else int64 (`Plan.explain` says which). With `out_dtype` int64 or float64 it is int64 in
    any case. A bias is accepted if B + max|bias| does not exceed the largest integer of the sum's
    dtype, and a residual of integers if B + max|bias| + max|residual| does not. A GPU does not
    support integers.

    Complex numbers are convolved by one real convolution of twice the channels and filters; they
    take a bias and a residual of their dtype, a real scale, and no activation.

    A NaN or an infinity in `x` shows in the outputs whose windows hold it and in no others. There,
    Winograd F2 may turn an infinity into a NaN. Winograd F4 and F6, which "fast" allows, may spread
    either over every block of 4 x 4 or 6 x 6 outputs that holds such an output. A NaN or an
    infinity in `w` shows in the outputs of its filter; it is not specified whether it shows in
    outputs for which that tap reads only padding of zeros.

    The float32 activations "sigmoid", "silu" and "tanh" have errors of at most 3 units in the last
    place, and "gelu" of at most 8, also in the tails. The float64 activations are those of the C
    library.

    Subnormals are preserved, except by bfloat16 dot-product instructions. Some CPUs take over a
    hundred times as long for sums with subnormals: ``config(subnormals="flush")`` treats them as
    zero.

    With precision "strict", and without Winograd with any, a sum of n = C / groups * R * S products
    differs from the exact one by at most min(n, 18 + 16 * log2(n)) * eps * sum|x||w| for any x and
    w, where eps = 2^-24 (float64: 2^-53). Normally distributed data lose at most 16 * eps *
    sum|x||w|. docs/reliability.md, "The bound of sums", derives this, and says what an epilogue
    adds, and what AMX and 64-bit Arm do with bfloat16. A 16-bit result differs by half a unit in
    its last place in addition.

    The largest errors of Winograd were 22 (F2), 17 (F4) and 60 (F6) * eps * sum|x||w| with 64
    channels and 56 x 56 outputs, and 9, 37 and 287 with 3 channels, for normally distributed and
    for uniform positive data, in float32 and in float64. Equal elements are worse, because errors
    of their transforms are equal too: 32, 53 and 569 with 2,000 channels. An element that is far
    larger than its neighbours adds an error in proportion to itself; F4 and F6 add it to all
    outputs of a block. Transforms of float32 may overflow from 1e37 on, those of F6 from 1e36 on.
    A 16-bit result is rounded by more than any of these, because its sums are
    float32.

    If the CPU has bfloat16 dot-product instructions (`Plan.explain` says so), bfloat16 values of
    `x` and `w`, and their sums, are treated as zero below 2^-126. AVX512_BF16 adds each product
    with one rounding, and the products of a pair of channels in descending order; AMX adds the
    products of 32 channels in its own order. BFDOT of 64-bit Arm adds the products of a pair first,
    and rounds to odd; so does BFMMLA, pair after pair, with the same bits.

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
    window = stride, padding, dilation, groups
    own = layout, weight_layout, padding_mode, activation, out_dtype
    method = precision, algorithm, max_workspace, device
    return run(CONV[2], x, w, bias, scale, residual, out, window, own, method)


def conv1d(
    x: Any,
    w: Any,
    bias: object = None,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    layout: str | None = None,
    weight_layout: str | None = None,
    padding_mode: str = "zeros",
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
    """1-d convolution: ``y = activation(scale * conv(x, w) + bias + residual)``.

    This is cross-correlation: the filter is NOT flipped. What `conv2d` says holds here too, with
    one spatial axis.

    Parameters
    ----------
    x : array of shape (N, C, W), or in `layout`; the batch axis may be missing
    w : array of shape (K, C / groups, S), or in `weight_layout`
    bias, activation, scale, residual, out, out_dtype, precision, algorithm,
    max_workspace, device
        As in `conv2d`.
    stride, dilation : int
    padding : int, a (low, high) pair as in ``((2, 0),)``, or a name
        As in `conv2d`; "causal" pads so that no output depends on a later pixel.
    groups : int
    layout : "NCW" (default) or "NWC"
    weight_layout : "KCS" (default), "KSC" or "SCK"
    padding_mode : "zeros" (default), "reflect", "symmetric", "replicate" or "circular"
        As in `conv2d`.

    Returns
    -------
    y : array of shape (N, K, Q), or in `layout`, of the library of `x`
        Q = (W + pad_low + pad_high - (S - 1) * dilation - 1) // stride + 1.

    Raises
    ------
    ShapeError, DTypeError, PlanError
        As in `conv2d`. An array on a GPU, or a GPU as `device`, is a PlanError: GPUs compute conv2d
        alone.

    Examples
    --------
    >>> import numpy as np
    >>> from implicit_conv import conv1d
    >>> x = np.arange(6, dtype=np.float32).reshape(1, 1, 6)
    >>> conv1d(x, np.ones((1, 1, 3), np.float32), padding="causal")
    array([[[ 0.,  1.,  3.,  6.,  9., 12.]]], dtype=float32)
    >>> conv1d(x, np.ones((1, 1, 3), np.float32), padding=1, padding_mode="circular")
    array([[[ 6.,  3.,  6.,  9., 12.,  9.]]], dtype=float32)
    """
    window = stride, padding, dilation, groups
    own = layout, weight_layout, padding_mode, activation, out_dtype
    method = precision, algorithm, max_workspace, device
    return run(CONV[1], x, w, bias, scale, residual, out, window, own, method)


def conv3d(
    x: Any,
    w: Any,
    bias: object = None,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    layout: str | None = None,
    weight_layout: str | None = None,
    padding_mode: str = "zeros",
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
    """3-d convolution: ``y = activation(scale * conv(x, w) + bias + residual)``.

    This is cross-correlation: the filter is NOT flipped. What `conv2d` says holds here too, with
    three spatial axes.

    Parameters
    ----------
    x : array of shape (N, C, D, H, W), or in `layout`; the batch axis may be missing
    w : array of shape (K, C / groups, T, R, S), or in `weight_layout`
    bias, activation, scale, residual, out, out_dtype, precision, algorithm,
    max_workspace, device
        As in `conv2d`.
    stride, dilation : int, or one for each of D, H, W
    padding : int, one for each of D, H, W, a (low, high) pair for each, or a name
        As in `conv2d`.
    groups : int
    layout : "NCDHW" (default) or "NDHWC"
    weight_layout : "KCTRS" (default), "KTRSC" or "TRSCK"
    padding_mode : "zeros" (default), "reflect", "symmetric", "replicate" or "circular"
        As in `conv2d`.

    Returns
    -------
    y : array of shape (N, K, Z, P, Q), or in `layout`, of the library of `x`
        Z = (D + pad_low + pad_high - (T - 1) * dilation - 1) // stride + 1; the same formula gives
        P and Q.

    Raises
    ------
    ShapeError, DTypeError, PlanError
        As in `conv2d`. An array on a GPU, or a GPU as `device`, is a PlanError: GPUs compute conv2d
        alone.

    Examples
    --------
    >>> import numpy as np
    >>> from implicit_conv import conv3d
    >>> x = np.ones((1, 2, 4, 5, 6), np.float32)
    >>> conv3d(x, np.ones((3, 2, 3, 3, 3), np.float32), padding="same").shape
    (1, 3, 4, 5, 6)
    """
    window = stride, padding, dilation, groups
    own = layout, weight_layout, padding_mode, activation, out_dtype
    method = precision, algorithm, max_workspace, device
    return run(CONV[3], x, w, bias, scale, residual, out, window, own, method)


def plan_conv2d(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
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
    activation: Activation = None,
    out_dtype: object = None,
    precision: str = "standard",
    algorithm: str = "auto",
    max_workspace: int | None = None,
    device: str | None = None,
) -> Plan:
    """Plan how `conv2d` computes arrays of these shapes.

    The other parameters, and the errors raised, are those of `conv2d`. `device` may also name the
    target of a GPU that this machine does not have, such as "sm_90a" or "sm_120".

    Parameters
    ----------
    x_shape : sequence of 4 ints, or 3 without the batch axis, in `layout`
    w_shape : sequence of 4 ints, in `weight_layout`
    dtype : dtype of `x`
    w_dtype : dtype of `w`, optional
        It is `dtype` by default; only integers may differ.

    Returns
    -------
    plan : Plan
        ``plan(x, w, bias)`` convolves, with a filter that is plain or comes from ``plan.pack(w)``;
        ``plan.explain()`` says what runs, and ``plan.trace()`` lists its loads.

    Raises
    ------
    TypeError
        A shape is not a sequence, or is the array itself, or an option is not hashable.

    Examples
    --------
    >>> from implicit_conv import plan_conv2d
    >>> plan = plan_conv2d((1, 64, 56, 56), (64, 64, 3, 3), padding=1)
    >>> plan.problem.output
    (56, 56)
    """
    return make_plan(CONV[2], **locals())


def plan_conv1d(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
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
    activation: Activation = None,
    out_dtype: object = None,
    precision: str = "standard",
    algorithm: str = "auto",
    max_workspace: int | None = None,
    device: str | None = None,
) -> Plan:
    """Plan how `conv1d` computes arrays of these shapes.

    The other parameters, and the errors raised, are those of `conv1d`.

    Parameters
    ----------
    x_shape : sequence of 3 ints, or 2 without the batch axis, in `layout`
    w_shape : sequence of 3 ints, in `weight_layout`
    dtype : dtype of `x`
    w_dtype : dtype of `w`, optional
        It is `dtype` by default; only integers may differ.

    Returns
    -------
    plan : Plan
        As in `plan_conv2d`.

    Raises
    ------
    TypeError
        A shape is not a sequence, or is the array itself, or an option is not hashable.
    """
    return make_plan(CONV[1], **locals())


def plan_conv3d(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
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
    activation: Activation = None,
    out_dtype: object = None,
    precision: str = "standard",
    algorithm: str = "auto",
    max_workspace: int | None = None,
    device: str | None = None,
) -> Plan:
    """Plan how `conv3d` computes arrays of these shapes.

    The other parameters, and the errors raised, are those of `conv3d`.

    Parameters
    ----------
    x_shape : sequence of 5 ints, or 4 without the batch axis, in `layout`
    w_shape : sequence of 5 ints, in `weight_layout`
    dtype : dtype of `x`
    w_dtype : dtype of `w`, optional
        It is `dtype` by default; only integers may differ.

    Returns
    -------
    plan : Plan
        As in `plan_conv2d`.

    Raises
    ------
    TypeError
        A shape is not a sequence, or is the array itself, or an option is not hashable.
    """
    return make_plan(CONV[3], **locals())


def _plan(task: Task) -> Engine:
    """Plan a convolution on the CPU."""
    options, arch, (dtype, w_dtype) = task.options, task.arch, task.dtypes
    activation, out_dtype = options.activation, options.out_dtype
    problem = Problem.parse(
        *task.shapes,
        dtype,
        w_dtype=w_dtype,
        rank=task.rank,
        dtypes=(*DTYPES, *COMPLEX_PARTS),
        **options.part(CONVOLUTION),
    )
    if problem.is_complex:

        def plan_real(real: Problem, request: Request, parts: str) -> cpu_engine.CpuEngine:
            return cpu_engine.plan(real, arch, request, out_dtype=parts)

        return plan_complex(problem, out_dtype, activation, task.request, plan_real)
    return cpu_engine.plan(problem, arch, task.request, activation=activation, out_dtype=out_dtype)


def _plan_on_gpu(
    shapes: tuple[Shape, Shape],
    dtypes: tuple[Any, Any],
    options: Options,
) -> Plan:
    """Plan a convolution with two spatial axes on a GPU."""
    from implicit_conv.gpu.candidate import Request as GpuRequest
    from implicit_conv.gpu.engine import plan as gpu_plan

    parse_max_workspace(options.max_workspace)  # kernels of GPUs take no workspace
    if parse_padding_mode(options.padding_mode) != "zeros":
        raise PlanError(
            f"device {options.device!r} computes padding_mode 'zeros', not "
            f"{options.padding_mode!r}; use device='cpu', with numpy arrays"
        )
    request = GpuRequest(
        **options.part(("activation", "out_dtype", "precision", "algorithm")),
        convolution=tuple(options.part((*WINDOW, *LAYOUTS)).items()),
    )
    check_dtypes(*map(dtype_name, dtypes))
    assert options.device is not None
    return Plan(gpu_plan(*shapes, dtypes[0], request, options.device))


OWN = (*LAYOUTS, "padding_mode", "activation", "out_dtype")
CONV = {
    rank: Operator(
        f"conv{rank}d", rank, OWN, _plan, plan_on_gpu=_plan_on_gpu if rank == 2 else None
    )
    for rank in (1, 2, 3)
}


def plan_cache_size() -> int:
    """The number of plans that are kept: at most 512 for each engine."""
    return len(PLANS)


def clear_plan_cache() -> None:
    """Drop all cached plans, their compiled operators, and the calls that were prepared.

    A plan that the caller holds keeps the calls that were prepared with it.
    """
    cache.clear()
