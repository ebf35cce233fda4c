"""Integers and a filter of float32: sums of float32, and results that may be rounded to integers.

x is converted first: float32 holds every integer of at most 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from implicit_conv.arrays.arrays import Array, check_out
from implicit_conv.errors import DTypeError

INTEGERS = ("uint8", "int8", "uint16", "int16")
RESULTS = ("float32", *INTEGERS)


def is_mixed(x: Any, w: Any) -> bool:
    """Whether the dtypes are those of integers of at most 16 bits and of a filter of float32."""
    return str(w) == "float32" and str(x) in INTEGERS


def convolve(
    convolved: Callable[..., Array],
    x: Array,
    added: tuple[Any, Any, Any, Array | None],
    out_dtype: Any,
) -> Array:
    """The result of `convolved`, which gets x, bias, scale, residual and out of float32; integers
    are rounded half to even, and saturate.

    Raises
    ------
    DTypeError
        The result has another dtype than can be asked for.
    ShapeError, DTypeError
        See `check_out`.
    """
    bias, scale, residual, out = added
    dtype = np.dtype(np.float32 if out_dtype is None else out_dtype)
    if dtype.name not in RESULTS:
        raise DTypeError(
            f"out_dtype {dtype} is not supported for {x.dtype} x and a filter of float32; use one "
            f"of {', '.join(RESULTS)}"
        )
    if isinstance(residual, np.ndarray) and residual.dtype == x.dtype:
        residual = residual.astype(np.float32)
    floats = x.astype(np.float32)
    if dtype == np.float32:
        return convolved(floats, bias, scale, residual, out)
    y = convolved(floats, bias, scale, residual, None)
    if out is None:
        out = np.empty_like(y, dtype)
    else:
        check_out(out, y.shape, dtype.name)
    limits = np.iinfo(dtype)
    np.clip(np.rint(y, out=y), limits.min, limits.max, out=y)
    with np.errstate(invalid="ignore"):  # NaN
        np.copyto(out, y, casting="unsafe")
    return out
