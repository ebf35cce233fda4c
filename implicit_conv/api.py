"""The public functions: they check arguments, look up or make a plan, and run it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from implicit_conv import cache
from implicit_conv.activation import Activation
from implicit_conv.arrays import Array, as_array, dtype_name
from implicit_conv.cache import CALLS, PLANS, keep_call
from implicit_conv.cpu import engine as cpu_engine
from implicit_conv.cpu.arch import cpu_arch
from implicit_conv.cpu.candidate import Request
from implicit_conv.errors import DTypeError
from implicit_conv.plan import Plan
from implicit_conv.problem import Padding, Problem, frozen
from implicit_conv.settings import current


def conv2d(
    x: Any,
    w: Any,
    bias: object = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str | None = None,
    weight_layout: str | None = None,
    activation: Activation = None,
    residual: object = None,
    out: Array | None = None,
    out_dtype: object = None,
    precision: str = "standard",
    algorithm: str = "auto",
    device: str | None = None,
) -> Array:
    """2-d convolution: ``y = activation(conv(x, w) + bias + residual)``.

    This is cross-correlation, as in all deep-learning libraries: the filter is NOT flipped
    (``scipy.signal.correlate``, not ``convolve``). The padding is zeros.

    Parameters
    ----------
    x : array of shape (N, C, H, W), or in `layout`; the batch axis may be missing
        float32, float64, float16 or bfloat16 (from ml_dtypes), with any strides and byte order.
        The 16-bit types are summed in float32, and the result is rounded once, to nearest even.
        An array on a GPU (__cuda_array_interface__ or DLPack; float16, bfloat16 or float32) is
        convolved there, on its library's stream.
    w : array of shape (K, C / groups, R, S), or in `weight_layout`
        The filters, of the same dtype as `x`.
    bias : array of shape (K,), optional
        It is added in the dtype of the sum: for 16-bit `x` and `w` it may be float32.
    stride, dilation : int, or one for each of H, W
    padding : int, one for each of H, W, a (low, high) pair for each, or a name
        Negative values crop. "valid" pads nothing. "same" pads so that the output has
        ceil(size / stride) pixels, and puts an odd pixel on the high side; "same_lower" puts it on
        the low side. "full" keeps every window that touches the image. "causal" pads the low side
        only.
    groups : int
        C and K are divided into `groups` equal parts, and each part of y depends on one part of x.
    layout : "NCHW" (default) or "NHWC", of x, y and residual
    weight_layout : "KCRS" (default), "KRSC" or "RSCK"
    activation : None, "relu", "relu6", "silu", "gelu", "sigmoid", "tanh", "hardswish",
        ("leaky_relu", slope) or ("clamp", low, high)
    residual : array of the output's shape and the dtype of `x`, optional
    out : array of the output's shape and dtype, optional
        The result is written to it, and it is returned.
    out_dtype : dtype, optional
        float32, float64 or the dtype of `x` (default). The sum is float64 if `x` is, else float32,
        and is rounded to `out_dtype` once.
    precision : "strict", "standard" (default) or "fast"
        "strict" fixes the order of every sum, so that a result has the same bits for any batch
        size and thread count. "fast" also allows Winograd F4, whose error is larger.
    algorithm : "auto" (default), "implicit_gemm", "pointwise", "depthwise", "winograd_f2",
        "winograd_f4", "winograd_f2_stride2" or "gemm_im2col"
        "gemm_im2col" is a baseline for comparison: numpy multiplies a matrix of windows.
    device : None, "cpu", "cuda" or "cuda:1"
        The device that convolves numpy arrays. None means the CPU, unless `config` or the
        environment names a GPU. An array on a GPU is convolved on that GPU.

    Returns
    -------
    y : array of shape (N, K, P, Q), or in `layout`, of the library of `x`
        P = (H + pad_low + pad_high - (R - 1) * dilation - 1) // stride + 1; the same formula with
        W and S gives Q.

    Raises
    ------
    ShapeError
        Shapes, strides, padding or layouts do not match (a ValueError).
    DTypeError
        A dtype is not supported, or `x` and `w` have different dtypes (a TypeError).
    PlanError
        An option is unknown, the algorithm does not support the problem, or no GPU or driver
        supports it (a ValueError).
    DriverError
        The CUDA driver refuses a call, for example for lack of memory (a RuntimeError).

    Notes
    -----
    A NaN or an infinity in `x` shows in the outputs whose windows hold it and in no others. There,
    Winograd F2 may turn an infinity into a NaN. Winograd F4, which "fast" allows, may spread either
    over every block of 4 x 4 outputs that holds such an output. A NaN or an infinity in `w` shows
    in the outputs of its filter; it is not specified whether it shows in outputs for which that tap
    reads only padding.

    The float32 activations "sigmoid", "silu" and "tanh" have errors of at most 3 units in the last
    place, and "gelu" of at most 8, also in the tails. The float64 activations are those of the C
    library.

    Subnormals are preserved, except by bfloat16 dot-product instructions. Some CPUs take over a
    hundred times as long for sums with subnormals: ``config(subnormals="flush")`` treats them as
    zero.

    With precision "strict", a sum differs from the exact one by at most 16 * eps * sum|x||w| on
    normally distributed data, where eps = 2^-24 (float64: 2^-53). The error can be larger for sums
    of thousands of values of one sign. A 16-bit result differs by that and by half a unit in its
    last place. If the CPU has bfloat16 dot-product instructions (`Plan.explain` says so), bfloat16
    values of `x` and `w`, and their sums, are treated as zero below 2^-126. AVX512_BF16 adds each
    product with one rounding, and the products of a pair of channels in descending order; AMX adds
    the products of 32 channels in its own order.

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
    key = None
    if type(x) is type(w) is np.ndarray and residual is None and out is None:
        settings = current()
        key = (
            x.shape,
            x.strides,
            x.dtype,
            w.shape,
            w.strides,
            w.dtype,
            bias is None,
            stride if type(stride) is int else frozen("stride", stride),
            padding if type(padding) is int else frozen("padding", padding),
            dilation if type(dilation) is int else frozen("dilation", dilation),
            groups if type(groups) is int else frozen("groups", groups),
            layout,
            weight_layout,
            activation,
            out_dtype,
            precision,
            algorithm,
            device,
            settings.device,
            settings.algorithm,
            settings.num_threads,
            settings.subnormals,
        )
        try:
            call = CALLS.get(key)
        except TypeError:  # an option is not hashable: plan_conv2d names it
            key = call = None
        if call is not None and x.flags.aligned and w.flags.aligned:
            result: Array = call(x, w, bias)
            return result
    given = x, w
    if isinstance(x, np.ndarray):
        x, w = as_array("x", x), as_array("w", w)
    else:
        x, w, device = _foreign(x, w, device)
    if x.dtype != w.dtype:
        raise DTypeError(
            f"x is {x.dtype} but w is {w.dtype}; convert one, as in x.astype('{w.dtype}')"
        )
    plan = plan_conv2d(
        x.shape,
        w.shape,
        x.dtype,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        layout=layout,
        weight_layout=weight_layout,
        activation=activation,
        out_dtype=out_dtype,
        precision=precision,
        algorithm=algorithm,
        device=device,
    )
    y: Array = plan.engine.run(x, w, bias, residual, out)
    if key is not None and x is given[0] and w is given[1]:
        call = plan.engine.ready(x, w, y, bias is not None)
        if call is not None:
            keep_call(CALLS, key, call)
    return y


def _foreign(x: object, w: object, device: str | None) -> tuple[Any, Any, str | None]:
    """(x, w, device) for an `x` of another library: arrays on its GPU, or numpy arrays."""
    from implicit_conv.gpu.arrays import device_operands, is_device_array

    if is_device_array(x):
        return device_operands(x, w, device)
    return as_array("x", x), as_array("w", w), device


def plan_conv2d(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    dtype: object = "float32",
    *,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str | None = None,
    weight_layout: str | None = None,
    activation: Activation = None,
    out_dtype: object = None,
    precision: str = "standard",
    algorithm: str = "auto",
    device: str | None = None,
) -> Plan:
    """Plan how `conv2d` computes arrays of these shapes.

    The other parameters, and the errors raised, are those of `conv2d`. `device` may also name the
    target of a GPU that this machine does not have, such as "sm_90a" or "sm_120".

    Parameters
    ----------
    x_shape : sequence of 4 ints, or 3 without the batch axis, in `layout`
    w_shape : sequence of 4 ints, in `weight_layout`
    dtype : dtype of `x` and `w`

    Returns
    -------
    plan : Plan
        ``plan(x, w, bias)`` convolves, with a filter that is plain or comes from ``plan.pack(w)``;
        ``plan.explain()`` says what runs, and ``plan.trace()`` lists its loads.

    Raises
    ------
    TypeError
        An array is given instead of its shape, or an option is not hashable.

    Examples
    --------
    >>> from implicit_conv import plan_conv2d
    >>> plan = plan_conv2d((1, 64, 56, 56), (64, 64, 3, 3), padding=1)
    >>> plan.problem.output
    (56, 56)
    """
    settings = current()
    options = (
        frozen("stride", stride),
        frozen("padding", padding),
        frozen("dilation", dilation),
        frozen("groups", groups),
        layout,
        weight_layout,
    )
    algorithm = settings.algorithm if algorithm == "auto" else algorithm
    choices = (activation, out_dtype, precision, algorithm, device or settings.device)
    try:
        if choices[-1] in (None, "cpu"):
            return _cpu_plan(
                tuple(x_shape),
                tuple(w_shape),
                cpu_engine.dtype_key(dtype),
                options,
                *choices[:-1],
                settings.num_threads,
                settings.subnormals,
            )
        from implicit_conv.gpu.candidate import Request as GpuRequest
        from implicit_conv.gpu.engine import plan as gpu_plan

        request = GpuRequest(*choices[:-1])
        shapes = tuple(x_shape), tuple(w_shape)
        return Plan(gpu_plan(*shapes, dtype, options, request, choices[-1]))
    except TypeError:
        _check_shapes(x_shape=x_shape, w_shape=w_shape)
        _check_hashable(OPTIONS, options + choices)
        raise


OPTIONS = (
    "stride",
    "padding",
    "dilation",
    "groups",
    "layout",
    "weight_layout",
    "activation",
    "out_dtype",
    "precision",
    "algorithm",
    "device",
)


def _check_shapes(**shapes: object) -> None:
    """Raise TypeError if an array is given instead of its shape."""
    for name, value in shapes.items():
        shape = getattr(value, "shape", ())
        if len(shape) > 1:
            raise TypeError(f"{name} must be a shape, not an array; pass {tuple(shape)}")


def _check_hashable(names: Sequence[str], values: Sequence[object]) -> None:
    """Raise TypeError that names the option which is not hashable."""
    for name, value in zip(names, values, strict=True):
        try:
            hash(value)
        except TypeError:
            raise TypeError(
                f"{name} is {value!r}; it must be a name, a number or a tuple of these"
            ) from None


@PLANS
def _cpu_plan(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    dtype: str | np.dtype[Any],
    options: tuple[Any, ...],
    activation: Activation,
    out_dtype: object,
    precision: str,
    algorithm: str,
    threads: int | None,
    subnormals: str,
) -> Plan:
    stride, padding, dilation, groups, layout, weight_layout = options
    problem = Problem.parse(
        x_shape,
        w_shape,
        dtype_name(dtype),
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        layout=layout,
        weight_layout=weight_layout,
    )
    return Plan(
        cpu_engine.plan(
            problem,
            cpu_arch(threads),
            Request(precision, algorithm, subnormals == "flush"),
            activation=activation,
            out_dtype=out_dtype,
            unbatched=len(x_shape) == 3,
        )
    )


def plan_cache_size() -> int:
    """The number of plans that `conv2d` and `plan_conv2d` keep: at most 512 for each engine."""
    return len(PLANS)


def clear_plan_cache() -> None:
    """Drop all cached plans, their compiled operators, and the calls that `conv2d` prepared.

    A plan that the caller holds keeps the calls that were prepared with it.
    """
    cache.clear()
