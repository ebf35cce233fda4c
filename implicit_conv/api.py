"""The public functions: check -> plan -> run."""

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

    Cross-correlation, as in all deep-learning libraries: the filter is NOT flipped
    (``scipy.signal.correlate``, not ``convolve``). Padding is zeros.

    Parameters
    ----------
    x : array, N x C x H x W, or in `layout`; the batch axis may be missing
        float32, float64, float16 or bfloat16 (of ml_dtypes), any strides and byte order. The
        16-bit types are summed in float32, and the result is rounded once, to nearest even. An
        array on a GPU (__cuda_array_interface__ or DLPack; float16, bfloat16 or float32) is
        convolved there, on its library's stream.
    w : array, K x C/groups x R x S, or in `weight_layout`
        Same dtype as `x`.
    bias : array of K values, optional
        Added in the dtype of the sum, so it may be float32 beside 16-bit `x` and `w`.
    stride, dilation : int or one for each of H, W
    padding : int, one for each of H, W, a (low, high) pair for each, or a name
        Negative values crop. "valid"; "same" (ceil(size / stride) outputs, the odd pixel behind),
        "same_lower" (before); "full"; "causal" (low side only).
    groups : int
        C and K are cut into `groups` equal parts that do not see each other.
    layout : "NCHW" (default) or "NHWC", of x, y and residual
    weight_layout : "KCRS" (default), "KRSC" or "RSCK"
    activation : None, "relu", "relu6", "silu", "gelu", "sigmoid", "tanh", "hardswish",
        ("leaky_relu", slope) or ("clamp", low, high)
    residual : array of the output's shape and the dtype of `x`, optional
    out : array like the output, optional
        Written and returned.
    out_dtype : dtype, optional
        float32, float64 or the dtype of `x`; the sum is kept in float64 where `x` is, else in
        float32, and rounded once.
    precision : "strict", "standard" (default) or "fast"
        "strict" fixes the order of every sum: the same bits for any batch size and thread count.
    algorithm : "auto" (default), "implicit_gemm", "pointwise", "depthwise", "winograd_f2",
        "winograd_f4", "winograd_f2_stride2" or, to compare with, "gemm_im2col" (numpy multiplies a
        matrix of windows); one that cannot serve the problem is refused with the reason
    device : None, "cpu", "cuda" or "cuda:1"
        Where numpy arrays are computed; None is the CPU, unless `config` or the environment name a
        GPU. Arrays on a GPU stay on theirs.

    Returns
    -------
    y : array, N x K x P x Q, in `layout`, of x's library
        P = (H + pads - (R - 1) * dilation - 1) // stride + 1, Q likewise.

    Raises
    ------
    ShapeError
        Sizes that do not go together (a ValueError).
    DTypeError
        A dtype that is not served, or x and w of different dtypes (a TypeError).
    PlanError
        An option that is unknown or cannot serve the problem (a ValueError); no GPU or driver that
        can.
    DriverError
        A GPU that fails, for want of memory say (a RuntimeError).

    Notes
    -----
    A NaN or an infinity in `x` shows in the outputs whose windows hold it and in no others; under
    Winograd F2 an infinity may become a NaN there, and F4, which "fast" allows, may spread it over
    the blocks of 4 x 4 outputs that such a window belongs to. One in `w` shows in the outputs of
    its filter; whether it does where it meets padding alone is not specified.

    The float32 activations "sigmoid", "silu" and "tanh" are at most 3 units in the last place off,
    "gelu" at most 8, in the tails too; those of float64 are the C library's.

    Subnormal numbers are kept, but by the dot products of bfloat16 that some CPUs have. Where they
    are slow, which other CPUs make them, and mean nothing, ``config(subnormals="flush")`` takes
    them for zeros.

    With precision "strict" a sum differs from the exact one by at most 16 * eps * sum|x||w| on
    normally distributed data, eps = 2^-24 (float64: 2^-53); thousands of values of one sign may
    lose more. A 16-bit result differs by that and half a unit in its last place. Where the CPU
    multiplies bfloat16 itself (`Plan.explain` says so) values of `x`, `w` and of the sums below
    2^-126 count as zeros. AVX512_BF16 adds each product with one rounding, those of a pair of
    channels in descending order; AMX adds those of 32 channels in its own order.

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
        except TypeError:  # an option is not hashable: planning says which one
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
    """(x, w, device) for an x of another library: on its GPU, or as numpy arrays."""
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
    """How `conv2d` would compute arrays of these shapes: a plan that explains itself and can be
    called.

    Parameters are those of `conv2d`, with shapes in place of arrays; so are the errors. `device`
    may also name the target of a GPU that is not at hand, such as "sm_90a" or "sm_120".

    Returns
    -------
    plan : Plan, or for a GPU its like of `implicit_conv.gpu.plan`
        `plan.explain()`, `plan.trace()`, `plan.pack(w)`, `plan(x, w_or_packed, bias)`.

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
    """Tell callers who pass arrays in place of their shapes."""
    for name, value in shapes.items():
        shape = getattr(value, "shape", ())
        if len(shape) > 1:
            raise TypeError(f"{name} must be a shape, not an array; pass {tuple(shape)}")


def _check_hashable(names: Sequence[str], values: Sequence[object]) -> None:
    """Name the option that cannot be part of the cache's key."""
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
            Request(precision, algorithm),
            activation=activation,
            out_dtype=out_dtype,
            subnormals=subnormals,
            unbatched=len(x_shape) == 3,
        )
    )


def plan_cache_size() -> int:
    """How many plans `conv2d` and `plan_conv2d` keep, for every engine: the last 512 of each."""
    return len(PLANS)


def clear_plan_cache() -> None:
    """Drop all plans, the compiled operators made for them, and the calls that are ready to run.

    A plan that somebody holds keeps the calls made with it.
    """
    cache.clear()
