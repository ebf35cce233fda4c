"""A CPU plan at work: arrays are checked against it, packed or convolved."""

from __future__ import annotations

import numpy as np

from implicit_conv import cpu, known
from implicit_conv.arrays import (
    Array,
    as_array,
    check_like_output,
    check_vector,
    numpy_dtype,
    writable_directly,
)
from implicit_conv.errors import DTypeError, ShapeError
from implicit_conv.packed import PackedFilter, filter_key
from implicit_conv.plan import Plan


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
    given, key, problem = x, None, chosen.problem
    if type(x) is np.ndarray and isinstance(w, PackedFilter) and residual is None and out is None:
        key = (x.shape, x.strides, x.dtype, w.key, bias is None)
        call = known.find(key, chosen.known)
        if call is not None and x.flags.aligned:
            return call.run_packed(x, w, bias)
    x = as_array("x", x)
    if chosen.unbatched and x.ndim == 3:
        x = x[None]
    if x.dtype != problem.dtype:
        raise DTypeError(f"x is {x.dtype} but the plan was made for {problem.dtype}")
    if x.shape != problem.input_shape:
        raise ShapeError(f"x has shape {x.shape} but the plan was made for {problem.input_shape}")
    if not isinstance(w, PackedFilter):
        w = _check_filter(chosen, w)
    elif w.key != filter_key(chosen):
        raise ShapeError(
            "w was packed in another order than this plan reads: for another problem, or by a plan "
            "that chose another algorithm or tile; pack it with this plan"
        )
    y = convolve(chosen, x, w, bias, residual, out)
    if key is not None and x is given:
        known.remember(key, chosen, x, w, y, bias is not None, chosen.known)
    return y


def convolve(
    chosen: Plan,
    x: Array,
    w: PackedFilter | Array,
    bias: object,
    residual: object,
    out: Array | None,
) -> Array:
    """Convolve an x and a filter that fit the plan; what is added and written is checked here."""
    problem = chosen.problem
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
        and writable_directly(out, (x, filters, bias, residual))
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
