"""Arrays in and out: what may be handed to a convolution, and what the engine is given."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from implicit_conv.dlpack import ForeignArray, read_capsule
from implicit_conv.errors import DTypeError, PlanError, ShapeError

Array = NDArray[Any]
CPU_DEVICE = 1  # of DLPack
NO_NUMBERS = "OSUMm"  # numpy's kinds of objects, texts and times


@functools.cache
def numpy_dtype(name: str) -> Any:
    """The numpy dtype of this name; ml_dtypes, which bfloat16 needs, is imported for it alone.

    Raises
    ------
    DTypeError
        bfloat16 without ml_dtypes.
    """
    if name != "bfloat16":
        return np.dtype(name)
    try:
        from ml_dtypes import bfloat16
    except ImportError as error:
        raise DTypeError("bfloat16 needs the package ml_dtypes; install it") from error
    return np.dtype(bfloat16)


def dtype_name(dtype: str | np.dtype[Any]) -> str:
    """The name of a dtype, byte order aside."""
    return dtype if isinstance(dtype, str) else dtype.name


def as_array(name: str, value: object) -> Array:
    """`value` as a numpy array with native byte order and aligned elements, copied only if it must
    be.

    Raises
    ------
    DTypeError
        What is no array of numbers, or has masked elements.
    PlanError
        An array in the memory of a device.
    """
    array = np.asarray(value if isinstance(value, np.ndarray) else _from_foreign(name, value))
    if isinstance(value, np.ma.MaskedArray):
        raise DTypeError(f"{name} is masked, which sums would ignore; pass {name}.filled(0), say")
    if array.dtype.kind in NO_NUMBERS:
        raise DTypeError(
            f"{name} must be an array of numbers, not {type(value).__name__} of dtype {array.dtype}"
        )
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array if array.flags.aligned else array.copy()


def _from_foreign(name: str, value: object) -> Array:
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        if value.__dlpack_device__()[0] == CPU_DEVICE:
            return _from_dlpack(value)
    elif not hasattr(value, "__cuda_array_interface__"):
        return np.asarray(value)
    raise PlanError(
        f"{name} lies on a device on which x does not, or which is not served; give numpy arrays, "
        "or arrays that all lie on one CUDA device"
    )


def _from_dlpack(value: Any) -> Array:
    """An array over the memory of `value`; numpy itself cannot import bfloat16."""
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError):
        array = read_capsule(value, value.__dlpack__())
    if array.dtype != "bfloat16":
        raise DTypeError(f"numpy has no {array.dtype} for a {type(value).__name__}")
    return np.asarray(_Memory(array)).view(numpy_dtype("bfloat16"))


class _Memory:
    """Memory of another library as numpy takes it: 16-bit integers in place of bfloat16."""

    def __init__(self, array: ForeignArray) -> None:
        self._array = array  # keeps the memory alive
        self.__array_interface__ = {
            "version": 3,
            "typestr": "<u2",
            "shape": array.shape,
            "strides": array.strides,
            "data": (array.address, True),
        }


def check_vector(name: str, value: object, count: int, dtype: str) -> Array:
    """A bias: one value for each of `count` filters, contiguous, in `dtype`."""
    array = as_array(name, value)
    if array.shape != (count,):
        raise ShapeError(
            f"{name} has shape {array.shape}; it must have one value for each of K={count} filters"
        )
    if array.dtype != dtype and not np.can_cast(array.dtype, dtype, "same_kind"):
        raise DTypeError(f"{name} is {array.dtype}, which does not convert to {dtype} of x and w")
    return np.ascontiguousarray(array, dtype)


def check_like_output(name: str, array: Array, shape: tuple[int, ...], dtype: str) -> None:
    """Shape and dtype of an array that must match the output: `residual` or `out`."""
    if array.shape != shape:
        raise ShapeError(f"{name} has shape {array.shape} but the output has {shape}")
    if array.dtype.newbyteorder("=") != dtype:
        raise DTypeError(
            f"{name} is {array.dtype} but the output is {dtype}; convert it, or pass out_dtype"
        )


def writable_directly(out: Array, inputs: tuple[Array | None, ...]) -> bool:
    """Whether kernels may write `out` itself: no foreign byte order, no overlap, not read while
    written.
    """
    if not (out.dtype.isnative and out.flags.aligned):
        return False
    if any(stride == 0 and size > 1 for stride, size in zip(out.strides, out.shape, strict=True)):
        return False
    return not any(array is not None and np.may_share_memory(out, array) for array in inputs)
