"""DLPack capsules read by their C structure, for arrays that numpy itself cannot import."""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple

from implicit_conv.errors import QUOTED, DTypeError, ShapeError
from implicit_conv.problem.options import GPU_DTYPES, ITEMSIZES, contiguous_strides

DTYPES = {(2, 16): "float16", (2, 32): "float32", (4, 16): "bfloat16"}  # by (type code, bits)
MOST_AXES = 64  # of an array of numpy
WORDS = 1 << 63  # sizes, strides and addresses of numpy are below it


class ForeignArray(NamedTuple):
    """An array in the memory of another library; `owner` and `capsule` keep that memory alive."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes
    dtype: str
    owner: Any
    capsule: Any


class _Tensor(ctypes.Structure):
    """DLTensor of dlpack.h, the first member of DLManagedTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned of dlpack.h, since DLPack 1.0."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


def read_capsule(owner: Any, capsule: Any, name: str) -> ForeignArray:
    """The array that a capsule of `owner` describes; `name` is its name in messages.

    The capsule is not consumed, so its own destructor frees it.

    Raises
    ------
    DTypeError
        It is no capsule of DLPack 0 or 1 that nobody has consumed, or its element type is not
        supported.
    ShapeError
        Its shape, strides or address are those of no array.
    """
    kind = type(owner).__name__
    tensor = _tensor(capsule, f"{name} is a {kind}")
    dtype = DTYPES.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        said = f"DLPack type ({tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes)"
        said = f"dtype {owner.dtype}" if hasattr(owner, "dtype") else said
        raise DTypeError(
            f"{name} is a {kind} of {said}, which is not supported here; convert it to one of "
            f"{', '.join(GPU_DTYPES)}"
        )
    if not 0 <= tensor.ndim <= MOST_AXES or (tensor.ndim and not tensor.shape):
        has = f"{tensor.ndim} axes and {'a' if tensor.shape else 'no'} shape"
        raise ShapeError(f"{name} is a {kind} whose DLPack capsule has {has}; pass a numpy array")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = contiguous_strides(shape, ITEMSIZES[dtype])
    if tensor.strides:
        strides = tuple(tensor.strides[i] * ITEMSIZES[dtype] for i in range(tensor.ndim))
    address = (tensor.data or 0) + tensor.byte_offset
    steps = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    low, high = (address + sum(step for step in steps if sign * step > 0) for sign in (-1, 1))
    placed = 0 in shape or (tensor.data and 0 < low <= high < WORDS)
    counts = math.prod(shape) * ITEMSIZES[dtype], *strides
    if min(shape, default=0) < 0 or max(map(abs, counts)) >= WORDS or not placed:
        raise ShapeError(
            f"{name} is a {kind} whose DLPack capsule has shape {shape}, byte strides {strides} "
            f"and address {address:#x}, which no memory holds; pass a numpy array"
        )
    return ForeignArray(address, shape, strides, dtype, owner, capsule)


def _tensor(capsule: Any, what: str) -> _Tensor:
    """The tensor in a capsule of either form; `what` begins messages."""
    valid, pointer = ctypes.pythonapi.PyCapsule_IsValid, ctypes.pythonapi.PyCapsule_GetPointer
    valid.argtypes = pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    pointer.restype = ctypes.c_void_p
    if valid(capsule, b"dltensor"):
        old = ctypes.cast(pointer(capsule, b"dltensor"), ctypes.POINTER(_Tensor))
        return old.contents
    if not valid(capsule, b"dltensor_versioned"):
        raise DTypeError(
            f"{what} whose __dlpack__ returns {repr(capsule)[:QUOTED]}, which is no capsule "
            "dltensor or dltensor_versioned that is still unused; pass a numpy array"
        )
    new = ctypes.cast(pointer(capsule, b"dltensor_versioned"), ctypes.POINTER(_Versioned)).contents
    if new.major != 1:
        raise DTypeError(
            f"{what} of DLPack {new.major}.{new.minor}, but only version 1 is read; "
            "pass a numpy array"
        )
    tensor: _Tensor = new.tensor
    return tensor
