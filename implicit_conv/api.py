"""The public functions: check -> plan -> run."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from implicit_conv import cpu
from implicit_conv.activation import Activation, parse_activation
from implicit_conv.arch import cpu_arch
from implicit_conv.arrays import (
    Array,
    as_array,
    check_like_output,
    check_vector,
    dtype_name,
    numpy_dtype,
    writable_directly,
)
from implicit_conv.cpu import PackedFilter
from implicit_conv.errors import DTypeError, PlanError, ShapeError
from implicit_conv.plan import Plan, plan
from implicit_conv.problem import Padding, Problem
from implicit_conv.settings import current

LOG = logging.getLogger("implicit_conv")


def conv2d(
    x: object,
    w: object,
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
        16-bit types are summed in float32, and the result is rounded once, to nearest even.
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
    algorithm : "auto" (default), "implicit_gemm", "pointwise", "depthwise", "winograd_f2" or
        "winograd_f4"; one that cannot serve the problem is refused with the reason
    device : None or "cpu"

    Returns
    -------
    y : array, N x K x P x Q, in `layout`
        P = (H + pads - (R - 1) * dilation - 1) // stride + 1, Q likewise.

    Raises
    ------
    ShapeError
        Sizes that do not go together (a ValueError).
    DTypeError
        A dtype that is not served, or x and w of different dtypes (a TypeError).
    PlanError
        An option that is unknown or cannot serve the problem (a ValueError).

    Notes
    -----
    With precision "strict" a sum differs from the exact one by at most 16 * eps * sum|x||w| on
    normal data, eps = 2^-24 (float64: 2^-53); a 16-bit result by that and half a unit in its last
    place. Where the CPU multiplies bfloat16 by dot products (AVX512_BF16; `Plan.explain` says so)
    each product is still added with one rounding, those of a pair of channels in descending order,
    but values of `x`, `w` and of the sums below 2^-126 count as zeros.

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
    x, w = as_array("x", x), as_array("w", w)
    if x.dtype != w.dtype:
        raise DTypeError(
            f"x is {x.dtype} but w is {w.dtype}; convert one, the engine does not guess"
        )
    chosen = plan_conv2d(
        x.shape, w.shape, x.dtype,
        stride=stride, padding=padding, dilation=dilation, groups=groups, layout=layout,
        weight_layout=weight_layout, activation=activation, out_dtype=out_dtype,
        precision=precision, algorithm=algorithm, device=device,
    )  # fmt: skip
    return run_plan(chosen, x, w, bias, residual, out)


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

    Parameters are those of `conv2d`, with shapes in place of arrays; so are the errors.

    Returns
    -------
    plan : Plan
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
        _hashable("stride", stride), _hashable("padding", padding),
        _hashable("dilation", dilation), _hashable("groups", groups), layout, weight_layout,
    )  # fmt: skip
    return _plan_conv2d(
        tuple(x_shape), tuple(w_shape), _dtype_key(dtype), options, activation,
        out_dtype, precision, settings.algorithm if algorithm == "auto" else algorithm,
        device or settings.device, settings.num_threads,
    )  # fmt: skip


def _dtype_key(dtype: object) -> str | np.dtype:
    """A dtype as the plan cache's key; "bfloat16" needs no ml_dtypes to be planned for."""
    return "bfloat16" if dtype == "bfloat16" else np.dtype(dtype)  # type: ignore[call-overload]


def _hashable(name: str, value: object) -> object:
    """An option as the plan cache's key: lists and arrays as tuples; True and 1.0 are not 1."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return tuple(_hashable(name, entry) for entry in value)
    if isinstance(value, (bool, float)):
        raise ShapeError(f"{name} must be an integer, not {value!r}")
    return value


@functools.lru_cache(maxsize=512)
def _plan_conv2d(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    dtype: str | np.dtype,
    options: tuple[object, ...],
    activation: Activation,
    out_dtype: object,
    precision: str,
    algorithm: str,
    device: str | None,
    threads: int | None,
) -> Plan:
    if device not in (None, "cpu"):
        raise PlanError(f"device {device!r} is not served by this version; use None or 'cpu'")
    stride, padding, dilation, groups, layout, weight_layout = options
    problem = Problem.parse(
        x_shape, w_shape, dtype_name(dtype),
        stride=stride, padding=padding, dilation=dilation, groups=groups,  # type: ignore[arg-type]
        layout=layout, weight_layout=weight_layout,  # type: ignore[arg-type]
    )  # fmt: skip
    chosen = plan(problem, cpu_arch(threads), precision, algorithm, collapse=True)
    LOG.debug("%s: %s on %d threads", problem, chosen.algorithm, chosen.threads)
    return replace(
        chosen,
        activation=parse_activation(activation),
        unbatched=len(x_shape) == 3,
        out_dtype=_out_dtype(out_dtype, problem.dtype),
    )


def _out_dtype(out_dtype: object, dtype: str) -> str:
    name = dtype_name(_dtype_key(dtype if out_dtype is None else out_dtype))
    served = dict.fromkeys((dtype, "float32", "float64"))
    if name not in served:
        raise DTypeError(f"out_dtype {name} is not served here; use one of {', '.join(served)}")
    return name


def pack_filter(chosen: Plan, w: object) -> PackedFilter:
    """`w` checked against the plan's problem, and packed."""
    return cpu.pack(chosen, _check_filter(chosen, w))


def _check_filter(chosen: Plan, w: object) -> Array:
    problem = chosen.problem
    array = as_array("w", w)
    if array.dtype != problem.dtype:
        raise DTypeError(f"w is {array.dtype} but the plan was made for {problem.dtype}")
    if array.shape != problem.weight_shape:
        raise ShapeError(
            f"w has shape {array.shape} but the plan was made for {problem.weight_shape}"
        )
    return array


def run_plan(
    chosen: Plan, x: object, w: object, bias: object, residual: object, out: Array | None
) -> Array:
    """The arrays checked against the plan's problem, and convolved."""
    problem = chosen.problem
    x = as_array("x", x)
    if chosen.unbatched and x.ndim == 3:
        x = x[None]
    if x.dtype != problem.dtype:
        raise DTypeError(f"x is {x.dtype} but the plan was made for {problem.dtype}")
    if x.shape != problem.input_shape:
        raise ShapeError(f"x has shape {x.shape} but the plan was made for {problem.input_shape}")
    if not isinstance(w, PackedFilter):
        w = _check_filter(chosen, w)
    elif w.key != cpu.filter_key(chosen):
        raise ShapeError("the packed filter belongs to another problem; pack it with this plan")
    if bias is not None:
        bias = check_vector("bias", bias, problem.K, problem.sum_dtype)
    shape = problem.output_shape[1:] if chosen.unbatched else problem.output_shape
    if residual is not None:
        residual = as_array("residual", residual)
        check_like_output("residual", residual, shape, problem.dtype)
    if out is not None:
        _check_out(out, shape, chosen.out_dtype or problem.dtype)
    filters = w.panels if isinstance(w, PackedFilter) else w
    direct = (
        out is not None
        and out.dtype == chosen.y_dtype
        and writable_directly(out, (x, filters, residual))
    )
    y = out if direct else np.empty(shape, numpy_dtype(chosen.y_dtype))
    _run(chosen, x, w, y, bias, residual)  # type: ignore[arg-type]
    if out is not None:
        if not direct:
            out[...] = y
        return out
    assert y is not None
    return y if chosen.out_dtype in (None, chosen.y_dtype) else y.astype(chosen.out_dtype)


def _run(
    chosen: Plan,
    x: Array,
    w: PackedFilter | Array,
    y: Array,
    bias: Array | None,
    residual: Array | None,
) -> None:
    """Run the engine on 4-d arrays; without channels the sum is empty, as if of one channel of
    zeros.
    """
    if y.size == 0:
        return
    if chosen.unbatched:
        y, residual = y[None], None if residual is None else residual[None]
    cpu.run(chosen, x, w, y, bias=bias, residual=residual)


def _check_out(out: object, shape: tuple[int, ...], dtype: str) -> None:
    if not isinstance(out, np.ndarray):
        raise DTypeError(f"out must be a numpy array, not {type(out).__name__}")
    if not out.flags.writeable:
        raise ShapeError("out is read-only; pass a writable array")
    check_like_output("out", out, shape, dtype)
