"""Device arrays of other libraries, read without copies, and new arrays for results.

They come by torch's attributes, by __cuda_array_interface__ or by DLPack. A result is an array of
the library that x came from, so that the caller's tools keep working.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from implicit_conv.arrays.dlpack import read_capsule
from implicit_conv.arrays.libraries import detached, library
from implicit_conv.errors import DTypeError, PlanError, ShapeError
from implicit_conv.problem.options import GPU_DTYPES, ITEMSIZES, contiguous_strides

TYPESTRS = {"<f2": "float16", "<f4": "float32", "<V2": "bfloat16"}  # "<V2" is what ml_dtypes says
CUDA_DEVICES = (2, 13)  # device types of DLPack: kDLCUDA, kDLCUDAManaged


class Operand(NamedTuple):
    """A device array as the engine sees it; `owner` and `lent` keep its memory alive."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes
    dtype: str
    owner: Any
    device: int | None = None  # None: its library does not say
    lent: Any = None  # the DLPack capsule that it was read from

    def expect(self, name: str, shape: tuple[int, ...], dtype: str) -> Operand:
        """The array itself; ShapeError or DTypeError if the plan is for another shape or dtype."""
        if self.dtype != dtype:
            raise DTypeError(
                f"{name} is {self.dtype}, but the plan is for {dtype}; convert it first"
            )
        if self.shape != shape:
            raise ShapeError(f"{name} has shape {self.shape}, but the plan is for {shape}")
        return self

    def view(self, axes: tuple[int, ...]) -> Operand:
        """The same memory with permuted axes; an axis of one element gets its packed stride."""
        shape = tuple(self.shape[axis] for axis in axes)
        packed = contiguous_strides(shape, ITEMSIZES[self.dtype])
        given = (self.strides[axis] for axis in axes)
        strides = (
            own if size > 1 else p for size, own, p in zip(shape, given, packed, strict=True)
        )
        return self._replace(shape=shape, strides=tuple(strides))

    @property
    def packed(self) -> bool:
        """Whether the array is C-contiguous."""
        return self.strides == contiguous_strides(self.shape, ITEMSIZES[self.dtype])

    @property
    def reach(self) -> tuple[int, int]:
        """(first byte, byte past the last) of its memory, as offsets from its address."""
        if 0 in self.shape:
            return 0, 0
        steps = [(n - 1) * step for n, step in zip(self.shape, self.strides, strict=True)]
        low, high = sum(min(0, step) for step in steps), sum(max(0, step) for step in steps)
        return low, high + ITEMSIZES[self.dtype]

    @property
    def kind(self) -> tuple[object, ...]:
        """What a call depends on: all but the address, of which only the alignment counts."""
        return self.shape, self.strides, self.dtype, self.device, self.address % 16


def is_device_array(array: Any) -> bool:
    """Whether an array is in the memory of a CUDA device."""
    if library(array) == "torch":
        return bool(getattr(array, "is_cuda", False))  # modules and shapes have none
    device = getattr(array, "__dlpack_device__", None)
    if device is not None:
        try:
            return int(device()[0]) in CUDA_DEVICES
        except (LookupError, TypeError, ValueError):  # not as DLPack says, so refused elsewhere
            return False
    return _interface(array) is not None


def device_operands(x: Any, w: Any, device: str | None) -> tuple[Operand, Operand, str]:
    """(x, w, where to compute) for an x on a GPU.

    Raises
    ------
    DTypeError
        w is no device array, or an element type is not supported.
    PlanError
        `device` names another GPU than the one that holds x.
    """
    source, filters = operand(x), operand(w, "w")
    here = "cuda" if source.device is None else f"cuda:{source.device}"
    if device not in (None, "cuda", here):
        raise PlanError(f"x is on {here}, not on {device!r}; copy it, or leave device unset")
    return source, filters, here


def operand(array: Any, name: str = "x") -> Operand:
    """A device array's address, shape, strides and dtype; nothing is copied.

    `name` is its name in messages.

    Raises
    ------
    DTypeError
        The elements are none of float16, bfloat16, float32, or it is no device array at all.
    PlanError
        The array is a tensor that records gradients, or has torch's negative bit.
    """
    if isinstance(array, Operand):
        return array
    array = detached(name, array)
    if library(array) == "torch" and is_device_array(array):
        return _from_torch(array, name)
    if not is_device_array(array):
        raise DTypeError(
            f"{type(array).__name__} is no device array of {', '.join(GPU_DTYPES)}; pass arrays "
            "with __cuda_array_interface__ or __dlpack__, or only numpy arrays"
        )
    interface = _interface(array)
    if interface is None or interface["typestr"] not in TYPESTRS:
        return _from_dlpack(array, name)
    shape, dtype = tuple(interface["shape"]), TYPESTRS[interface["typestr"]]
    strides = interface.get("strides") or contiguous_strides(shape, ITEMSIZES[dtype])
    return Operand(
        int(interface["data"][0]), shape, tuple(strides), dtype, array, _device_of(array)
    )


def _interface(array: Any) -> dict[str, Any] | None:
    """__cuda_array_interface__, or None: a library may raise where it cannot express an array."""
    try:
        interface: dict[str, Any] | None = getattr(array, "__cuda_array_interface__", None)
    except (TypeError, RuntimeError, KeyError):
        return None
    return interface


def _device_of(array: Any) -> int | None:
    device = getattr(array, "__dlpack_device__", None)
    return None if device is None else int(device()[1])


def _from_torch(tensor: Any, name: str = "x") -> Operand:
    """Read a tensor by its own attributes: torch's interfaces cost several times a launch."""
    if tensor.is_neg():
        raise PlanError(f"{name} has the opposite sign in memory; pass {name}.resolve_neg()")
    dtype = _torch_name(tensor.dtype)
    if dtype not in GPU_DTYPES:
        raise DTypeError(
            f"a tensor of {dtype} is not supported on the GPU; convert it to one of "
            f"{', '.join(GPU_DTYPES)}"
        )
    itemsize = ITEMSIZES[dtype]
    strides = tuple([step * itemsize for step in tensor.stride()])
    shape, device = tuple(tensor.shape), tensor.device.index
    return Operand(tensor.data_ptr(), shape, strides, dtype, tensor, device)


@functools.cache
def _torch_name(dtype: Any) -> str:
    """Our name of a dtype of torch."""
    return str(dtype).removeprefix("torch.")


def _from_dlpack(array: Any, name: str) -> Operand:
    """The operand of an array that offers DLPack."""
    if not hasattr(array, "__dlpack__"):
        raise DTypeError(
            f"elements of type {array.__cuda_array_interface__['typestr']} are not supported "
            f"on the GPU; convert them to one of {', '.join(GPU_DTYPES)}"
        )
    # -1: no synchronisation, since the launch is put on the stream that the library works on.
    found = read_capsule(array, array.__dlpack__(stream=-1), name)
    device = _device_of(array)
    return Operand(
        found.address, found.shape, found.strides, found.dtype, array, device, found.capsule
    )


def current_stream(array: Any) -> int:
    """The stream that the array's library works on, else the array's own, else the default."""
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
        The library has no known way to make one; the caller must pass `out`.
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
