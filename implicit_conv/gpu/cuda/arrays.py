"""Device arrays of other libraries, read without copies, and new arrays for results.

They come by torch's attributes, by __cuda_array_interface__ or by DLPack. A call reads each array
once, by `see`: its address, its stream, and its kind, on which all else depends. So whoever keeps
something by the kinds of arrays has forgotten nothing. A result is an array of the library that x
came from, so that the caller's tools keep working.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from implicit_conv.arrays.dlpack import read_capsule
from implicit_conv.arrays.libraries import detached, library
from implicit_conv.errors import DTypeError, PlanError, ShapeError
from implicit_conv.gpu.cuda import driver
from implicit_conv.kernels.gpu.sizes import VECTOR_BYTES
from implicit_conv.problem.options import GPU_DTYPES, ITEMSIZES, contiguous_strides

TYPESTRS = {"<f2": "float16", "<f4": "float32", "<V2": "bfloat16"}  # "<V2" is what ml_dtypes says
LEGACY_STREAM = 1  # the default stream, as the array protocols name it
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
        """The array itself; errors as of `check_form`."""
        check_form(name, self, shape, dtype)
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

    def section(self, slices: Sequence[slice]) -> Operand:
        """The elements that slices with a start and a positive step leave of each axis."""
        shape, strides, address = [], [], self.address
        for size, stride, part in zip(self.shape, self.strides, slices, strict=True):
            start, stop, step = part.indices(size)
            shape.append(len(range(start, stop, step)))
            strides.append(stride * step)
            address += stride * start
        return self._replace(address=address, shape=tuple(shape), strides=tuple(strides))

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return ITEMSIZES[self.dtype]

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


class Seen(NamedTuple):
    """A device array as a call sees it; `owner` and `lent` keep its memory alive."""

    address: int
    kind: tuple[Any, ...]  # shape, strides, dtype and device as its library says; address % 16
    stream: str | int | None  # a handle; "torch" or "cupy": their current one; None: not known
    owner: Any
    lent: Any = None

    @property
    def operand(self) -> Operand:
        """The array with shape, strides and dtype in our words.

        Raises
        ------
        DTypeError
            The elements are none of float16, bfloat16, float32.
        """
        shape, strides, dtype, device = _form(self.kind)
        return Operand(self.address, shape, strides, dtype, self.owner, device, self.lent)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return _form(self.kind)[0]

    @property
    def dtype(self) -> str:
        """The name of the element type; DTypeError as of `operand`."""
        return _form(self.kind)[2]


def check_form(name: str, array: Any, shape: tuple[int, ...], *dtypes: str) -> None:
    """Check an operand, a `Seen` or a numpy array against a plan; `name` is its name in messages.

    Raises
    ------
    ShapeError, DTypeError
        Its shape is another one, or its dtype is none of `dtypes`.
    """
    if str(array.dtype) not in dtypes:
        known = " or ".join(dict.fromkeys(dtypes))
        raise DTypeError(f"{name} is {array.dtype}, but the plan is for {known}; convert it first")
    if array.shape != shape:
        raise ShapeError(f"{name} has shape {array.shape}, but the plan is for {shape}")


def is_device_array(array: Any) -> bool:
    """Whether an array is in the memory of a CUDA device."""
    if getattr(array, "is_cuda", None) is True:  # a tensor
        return True
    if library(array) == "torch":
        return False
    device = getattr(array, "__dlpack_device__", None)
    if device is not None:
        try:
            return int(device()[0]) in CUDA_DEVICES
        except (LookupError, TypeError, ValueError):  # not as DLPack says, so refused elsewhere
            return False
    return _interface(array) is not None


def device_of(x: Seen, device: str | None) -> str:
    """Where an array is computed: "cuda:1", or "cuda" where its library does not say.

    Raises
    ------
    DTypeError
        The element type is not supported.
    PlanError
        `device` names another GPU than the one that holds x.
    """
    number = x.operand.device
    here = "cuda" if number is None else f"cuda:{number}"
    if device not in (None, "cuda", here):
        raise PlanError(f"x is on {here}, not on {device!r}; copy it, or leave device unset")
    return here


def see_both(x: Any, w: Any, names: tuple[str, str]) -> tuple[Seen, Seen] | None:
    """x, with the number of its device, and w; None where x is not on a GPU. Errors as of `see`."""
    return (located(see(x, names[0])), see(w, names[1])) if is_device_array(x) else None


def located(x: Seen) -> Seen:
    """The array with the number of its device, for which the driver is asked if need be."""
    if x.kind[3] is not None or not x.address:
        return x
    kind = *x.kind[:3], driver.device_of(x.address), *x.kind[4:]
    return x._replace(kind=kind)


READERS_KEPT = 64
READERS: dict[type, Callable[[Any, str], Seen]] = {}
new = tuple.__new__  # takes half the time of a NamedTuple's own


def see(array: Any, name: str = "x") -> Seen:
    """A device array; nothing is copied. `name` is its name in messages.

    Raises
    ------
    DTypeError
        The elements are none of float16, bfloat16, float32, or it is no device array at all.
    PlanError
        The array is a tensor that records gradients, or has torch's negative bit.
    """
    kind = type(array)
    if kind is Seen:
        return array  # type: ignore[no-any-return]
    return READERS.get(kind, _see_any)(array, name)


def _see_any(array: Any, name: str) -> Seen:
    """Read an array of a class that has no reader yet; a later one is read by it at once."""
    torch = sys.modules.get("torch")
    tensors = torch is not None and isinstance(array, torch.Tensor)
    if len(READERS) >= READERS_KEPT:
        READERS.clear()
    READERS[type(array)] = reader = _see_tensor if tensors else _see_interface
    return reader(array, name)


def _see_tensor(tensor: Any, name: str = "x") -> Seen:
    if tensor.requires_grad:
        detached(name, tensor)
    if tensor.is_neg():
        raise PlanError(f"{name} has the opposite sign in memory; pass {name}.resolve_neg()")
    return see_tensor(tensor) if tensor.is_cuda else _see_interface(tensor, name)


def see_tensor(tensor: Any) -> Seen:
    """Read a tensor on a GPU by its own attributes: torch's interfaces cost several times a launch.
    Its gradients and its negative bit are the caller's care.

    Raises
    ------
    PlanError
        It has elements, but no memory.
    """
    address = tensor.data_ptr()
    if not address and tensor.numel():
        raise PlanError(f"a {type(tensor).__name__} has no memory; pass a torch.Tensor with data")
    kind = tensor.shape, tensor.stride(), tensor.dtype, tensor.device.index, address % VECTOR_BYTES
    return new(Seen, (address, kind, "torch", tensor, None))


def _see_interface(array: Any, name: str) -> Seen:
    """Read an array by its interface, or else by DLPack."""
    interface = None if getattr(array, "requires_grad", False) else _interface(array)
    if interface is None or interface["typestr"] not in TYPESTRS:
        return _from_dlpack(detached(name, array), name)
    address, strides = int(interface["data"][0]), interface.get("strides")
    if name == "out" and interface["data"][1]:
        raise PlanError("out is read-only; pass another array")
    form = tuple(interface["shape"]), strides and tuple(strides), interface["typestr"]
    package = library(array)  # which packs filters, or does not
    stream = "cupy" if package == "cupy" else interface.get("stream")
    kind = *form, _device_of(array), address % VECTOR_BYTES, package
    return new(Seen, (address, kind, stream, array, None))


@functools.lru_cache(1024)
def _form(kind: tuple[Any, ...]) -> tuple[tuple[int, ...], tuple[int, ...], str, int | None]:
    """Shape, strides in bytes, name of the dtype and device of a `Seen`."""
    shape, strides, dtype, device, *_ = kind
    if dtype in TYPESTRS:
        name = TYPESTRS[dtype]
        strides = strides or contiguous_strides(shape, ITEMSIZES[name])
    elif dtype in GPU_DTYPES:  # read by DLPack
        name = dtype
    else:
        name = str(dtype).removeprefix("torch.")
        if name not in GPU_DTYPES:
            raise DTypeError(
                f"a tensor of {name} is not supported on the GPU; convert it to one of "
                f"{', '.join(GPU_DTYPES)}"
            )
        strides = [step * ITEMSIZES[name] for step in strides]
    return tuple(shape), tuple(strides), name, device


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


def _from_dlpack(array: Any, name: str) -> Seen:
    """Read an array by DLPack; its library makes the legacy default stream wait for its work."""
    if not is_device_array(array):
        raise DTypeError(
            f"{type(array).__name__} is no device array of {', '.join(GPU_DTYPES)}; pass arrays "
            "with __cuda_array_interface__ or __dlpack__, or only numpy arrays"
        )
    if not hasattr(array, "__dlpack__"):
        raise DTypeError(
            f"elements of type {array.__cuda_array_interface__['typestr']} are not supported "
            f"on the GPU; convert them to one of {', '.join(GPU_DTYPES)}"
        )
    found = read_capsule(array, array.__dlpack__(stream=LEGACY_STREAM), name)
    form = found.shape, found.strides, found.dtype
    kind = *form, _device_of(array), found.address % VECTOR_BYTES, library(array)
    return Seen(found.address, kind, 0, array, found.capsule)


def result_maker(
    array: Any, shape: tuple[int, ...], axes: tuple[int, ...], dtype: str
) -> Callable[[Any], Any]:
    """A function that makes a new array like `array`, on the device of the one that it is given.

    Parameters
    ----------
    array : device array
        Its class tells the library.
    shape : tuple of int
        Sizes in the order of memory, in which the result is contiguous.
    axes : tuple of int
        The result is transposed by them.
    dtype : str

    Raises
    ------
    DTypeError
        The library has no known way to make one; the caller must pass `out`.
    """
    package = library(array)
    module = sys.modules.get(package)
    packed = contiguous_strides(shape, 1)
    sizes, steps = (tuple(each[axis] for axis in axes) for each in (shape, packed))
    if package == "torch" and module is not None:
        element = getattr(module, dtype)
        return lambda x: module.empty_strided(sizes, steps, dtype=element, device=x.device)
    if package == "cupy" and module is not None:
        return lambda x: module.empty(shape, dtype).transpose(axes)
    if package == "numba" and module is not None:
        strides = tuple(step * ITEMSIZES[dtype] for step in steps)
        return lambda x: module.cuda.device_array(sizes, dtype, strides, stream=x.stream)
    raise DTypeError(f"no result array can be made for {type(array).__name__}; pass out=")
