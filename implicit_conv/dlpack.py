"""DLPack capsules read by their C structure, for arrays that numpy itself cannot import."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from implicit_conv.errors import DTypeError
from implicit_conv.options import GPU_DTYPES, ITEMSIZES

DTYPES = {(2, 16): "float16", (2, 32): "float32", (4, 16): "bfloat16"}  # by (type code, bits)


def packed_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Byte strides of a C-contiguous array."""
    strides = [itemsize]
    for size in shape[:0:-1]:
        strides.insert(0, strides[0] * size)
    return tuple(strides)


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


def read_capsule(owner: Any, capsule: Any, name: str) -> ForeignArray:
    """The array that a capsule of `owner` describes; `name` is its name in messages.

    The capsule is not consumed, so its own destructor frees it.

    Raises
    ------
    DTypeError
        The element type is not supported.
    """
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = ctypes.cast(pointer_of(capsule, b"dltensor"), ctypes.POINTER(_Tensor)).contents
    dtype = DTYPES.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        raise DTypeError(
            f"{name} is a {type(owner).__name__} of DLPack type ({tensor.code}, {tensor.bits} "
            f"bits), which is not supported here; convert it to one of {', '.join(GPU_DTYPES)}"
        )
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = packed_strides(shape, ITEMSIZES[dtype])
    if tensor.strides:
        strides = tuple(tensor.strides[i] * ITEMSIZES[dtype] for i in range(tensor.ndim))
    address = (tensor.data or 0) + tensor.byte_offset
    return ForeignArray(address, shape, strides, dtype, owner, capsule)
