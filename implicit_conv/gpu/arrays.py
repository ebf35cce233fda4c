"""Device arrays of other libraries, without copies: __cuda_array_interface__, DLPack, and results.

A result is an array of the library that x came from, so that the caller's tools keep working.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from implicit_conv.errors import DTypeError, PlanError, ShapeError
from implicit_conv.problem import GPU_DTYPES, ITEMSIZES

TYPESTRS = {"<f2": "float16", "<f4": "float32", "<V2": "bfloat16"}  # the last as in ml_dtypes
CUDA_DEVICES = (2, 13)  # DLPack: kDLCUDA, kDLCUDAManaged
DLPACK_TYPES = {(2, 16): "float16", (2, 32): "float32", (4, 16): "bfloat16"}  # (code, bits)


def packed_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Byte strides of a C-contiguous array."""
    strides = [itemsize]
    for size in shape[:0:-1]:
        strides.insert(0, strides[0] * size)
    return tuple(strides)


@dataclass(frozen=True)
class Operand:
    """A device array as the engine sees it; `owner`, and what it lent, keep the memory alive."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes
    dtype: str
    owner: Any
    device: int | None = None  # None: not told by its library
    lent: Any = None

    def expect(self, name: str, shape: tuple[int, ...], dtype: str) -> Operand:
        """The array itself, if it is what a plan was made for; ShapeError or DTypeError if not."""
        if self.dtype != dtype:
            raise DTypeError(
                f"{name} is {self.dtype}, but the plan is for {dtype}; convert it first"
            )
        if self.shape != shape:
            raise ShapeError(f"{name} has shape {self.shape}, but the plan is for {shape}")
        return self

    def view(self, axes: tuple[int, ...]) -> Operand:
        """The same memory, its axes in another order; an axis of one element strides as packed."""
        shape = tuple(self.shape[axis] for axis in axes)
        packed = packed_strides(shape, ITEMSIZES[self.dtype])
        given = (self.strides[axis] for axis in axes)
        strides = (
            own if size > 1 else p for size, own, p in zip(shape, given, packed, strict=True)
        )
        return replace(self, shape=shape, strides=tuple(strides))

    @property
    def packed(self) -> bool:
        """Whether the elements lie one behind the other in the order of the axes."""
        return self.strides == packed_strides(self.shape, ITEMSIZES[self.dtype])

    @property
    def reach(self) -> tuple[int, int]:
        """(first byte, byte past the last) of its memory, counted from its address."""
        if 0 in self.shape:
            return 0, 0
        steps = [(n - 1) * step for n, step in zip(self.shape, self.strides, strict=True)]
        low, high = sum(min(0, step) for step in steps), sum(max(0, step) for step in steps)
        return low, high + ITEMSIZES[self.dtype]

    @property
    def kind(self) -> tuple[object, ...]:
        """What a launch depends on besides the address: 16-byte copies want an aligned one."""
        return self.shape, self.strides, self.dtype, self.device, self.address % 16


def is_device_array(array: Any) -> bool:
    """Whether an array lies in the memory of a CUDA device."""
    if library(array) == "torch":
        return bool(array.is_cuda)
    device = getattr(array, "__dlpack_device__", None)
    if device is not None:
        return int(device()[0]) in CUDA_DEVICES
    return _interface(array) is not None


def device_operands(x: Any, w: Any, device: str | None) -> tuple[Operand, Operand, str]:
    """(x, w, where to compute) for an x on a GPU.

    Raises
    ------
    DTypeError
        A w that is no device array, or elements that are not served.
    PlanError
        Another `device` than the one that x lies on.
    """
    source, filters = operand(x), operand(w)
    here = "cuda" if source.device is None else f"cuda:{source.device}"
    if device not in (None, "cuda", here):
        raise PlanError(f"x lies on {here}, not on {device!r}; copy it, or leave device unset")
    return source, filters, here


def operand(array: Any) -> Operand:
    """A device array's address, shape, strides and dtype; nothing is copied.

    Raises
    ------
    DTypeError
        Elements that are none of float16, bfloat16, float32, or no device array at all.
    PlanError
        A tensor that records gradients.
    """
    if isinstance(array, Operand):
        return array
    if getattr(array, "requires_grad", False):
        raise PlanError("a tensor requires gradients, which are not recorded; pass x.detach()")
    if not is_device_array(array):
        raise DTypeError(
            f"{type(array).__name__} is no device array of {', '.join(GPU_DTYPES)}; give one with "
            "__cuda_array_interface__ or __dlpack__, or numpy arrays alone"
        )
    if library(array) == "torch":
        return _from_torch(array)
    interface = _interface(array)
    if interface is None or interface["typestr"] not in TYPESTRS:
        return _from_dlpack(array)
    shape, dtype = tuple(interface["shape"]), TYPESTRS[interface["typestr"]]
    strides = interface.get("strides") or packed_strides(shape, ITEMSIZES[dtype])
    return Operand(
        int(interface["data"][0]), shape, tuple(strides), dtype, array, _device_of(array)
    )


def _interface(array: Any) -> dict[str, Any] | None:
    """The interface, or None: a library may raise where it cannot express an array."""
    try:
        interface: dict[str, Any] | None = getattr(array, "__cuda_array_interface__", None)
    except (TypeError, RuntimeError, KeyError):
        return None
    return interface


def _device_of(array: Any) -> int | None:
    device = getattr(array, "__dlpack_device__", None)
    return None if device is None else int(device()[1])


def _from_torch(tensor: Any) -> Operand:
    """By torch's own attributes: its interfaces cost several times a launch."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in GPU_DTYPES:
        raise DTypeError(
            f"a tensor of {dtype} is not served on the GPU; convert to one of "
            f"{', '.join(GPU_DTYPES)}"
        )
    itemsize = ITEMSIZES[dtype]
    strides = tuple(step * itemsize for step in tensor.stride())
    shape, device = tuple(tensor.shape), tensor.device.index
    return Operand(tensor.data_ptr(), shape, strides, dtype, tensor, device)


class _Tensor(ctypes.Structure):
    """DLTensor of dlpack.h, the head of DLManagedTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


def _from_dlpack(array: Any) -> Operand:
    """The operand of an array that offers DLPack."""
    if not hasattr(array, "__dlpack__"):
        raise DTypeError(
            f"elements of type {array.__cuda_array_interface__['typestr']} are not served on the "
            f"GPU; convert to one of {', '.join(GPU_DTYPES)}"
        )
    # The launch is on the caller's stream, so that no other has to wait: -1.
    return operand_of_capsule(array, array.__dlpack__(stream=-1))


def operand_of_capsule(array: Any, capsule: Any) -> Operand:
    """Read `array`'s capsule; it is not consumed, so its own destructor frees it."""
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = ctypes.cast(pointer_of(capsule, b"dltensor"), ctypes.POINTER(_Tensor)).contents
    dtype = DLPACK_TYPES.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        raise DTypeError(
            f"a {type(array).__name__} of DLPack type ({tensor.code}, {tensor.bits} bits) is not "
            f"served here; convert to one of {', '.join(GPU_DTYPES)}"
        )
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = packed_strides(shape, ITEMSIZES[dtype])
    if tensor.strides:
        strides = tuple(tensor.strides[i] * ITEMSIZES[dtype] for i in range(tensor.ndim))
    address = (tensor.data or 0) + tensor.byte_offset
    return Operand(address, shape, strides, dtype, array, _device_of(array), capsule)


def library(array: Any) -> str:
    """The package an array's type comes from: "torch", "cupy", "numba", ..."""
    return type(array).__module__.partition(".")[0]


def current_stream(array: Any) -> int:
    """The caller's stream: the one its library works on, else the array's, else the default."""
    package = library(array)
    module = sys.modules.get(package)
    if package == "torch" and module is not None:
        return int(module.cuda.current_stream(array.device).cuda_stream)
    if package == "cupy" and module is not None:
        return int(module.cuda.get_current_stream().ptr)
    interface = _interface(array) or {}
    return int(interface.get("stream") or 0)


def empty_like(array: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """A new array of `shape` from the library of `array`, on its device.

    Raises
    ------
    DTypeError
        A library that cannot be asked for one; pass `out` then.
    """
    package = library(array)
    makers: dict[str, Callable[[Any], Any]] = {
        "torch": lambda m: m.empty(shape, dtype=getattr(m, dtype), device=array.device),
        "cupy": lambda m: m.empty(shape, dtype),
        "numba": lambda m: m.cuda.device_array(shape, dtype),
    }
    if package not in makers or package not in sys.modules:
        raise DTypeError(f"no result array can be made for {type(array).__name__}; pass out=")
    return makers[package](sys.modules[package])
