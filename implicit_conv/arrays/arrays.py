"""Check and convert arrays: what users pass, and the numpy arrays that the engine takes."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from implicit_conv.arrays.libraries import check_tensor, detached, library
from implicit_conv.errors import QUOTED, DTypeError, PlanError, ShapeError, install
from implicit_conv.process.preparation import first, imported, imports

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # with defaults, which Python has from 3.13 on

    from implicit_conv.arrays.dlpack import ForeignArray

    Y = TypeVar("Y", default=NDArray[Any])  # the kind of array that comes out
    Y_co = TypeVar("Y_co", covariant=True)

    class NumpyArray(Protocol[Y_co]):
        """An array of numpy: from it comes an array of any dtype."""

        @property
        def base(self) -> Y_co | None:
            """The array whose memory it has."""

    class TorchTensor(Protocol[Y_co]):
        """A tensor of torch: from a Parameter comes a tensor."""

        def contiguous(self) -> Y_co:
            """The tensor, or a contiguous copy."""

    class JaxArray(Protocol[Y_co]):
        """An array of JAX."""

        def block_until_ready(self) -> Y_co:
            """The array, once it is computed."""

    # What comes in where a Y comes out. Each library is known by a method that the others do not
    # have, so that type checkers need none of them, and look at the array alone.
    Operand: TypeAlias = NumpyArray[Y] | TorchTensor[Y] | JaxArray[Y] | Sequence[object]
else:
    from typing import TypeVar

    Y = TypeVar("Y")
    Operand = Y | object  # takes no time to make, and typing.get_type_hints needs it

Array = NDArray[Any]
CPU_DEVICES = (1, 3, 11)  # DLPack's device types of a CPU's memory: plain, pinned by CUDA or ROCm
NO_NUMBERS = "OSTUMm"  # numpy's dtype kinds of objects, text and times


class Binding(NamedTuple):
    """What a prepared call depends on besides its plan: how its arrays are stored.

    Attributes
    ----------
    x, y : tuple of int
        Strides in bytes.
    w : tuple of int or None
        Strides in bytes; None if the filter is packed.
    residual : tuple of int or None
        Strides in bytes; None without a residual.
    biased, scaled : bool
        Whether there is a bias or a scale.
    """

    x: tuple[int, ...]
    w: tuple[int, ...] | None
    y: tuple[int, ...]
    residual: tuple[int, ...] | None = None
    biased: bool = False
    scaled: bool = False


class RepeatedCall(ABC):
    """A call that was made, and can be made again without other checks than its own.

    Attributes
    ----------
    key : tuple or None
        That of the packed filter; None for a plain one.
    """

    def __init__(self, key: tuple[object, ...] | None) -> None:
        self.key = key

    @abstractmethod
    def again(self, x: Any, read: Any, bias: Any, residual: Any, out: Any, w: Any) -> Any:
        """The result; None if an array is not stored like that of the first call, or cannot be read
        and written in place. `read` are the panels of a packed filter `w`, or else `w` itself.
        """


@functools.cache
def numpy_dtype(name: str) -> Any:
    """The numpy dtype of this name; only "bfloat16" imports ml_dtypes.

    Raises
    ------
    DTypeError
        The name is "bfloat16", and ml_dtypes is not installed.
    """
    if name != "bfloat16":
        return np.dtype(name)
    first("ml_dtypes")
    try:
        from ml_dtypes import bfloat16
    except ImportError as error:
        raise DTypeError(f"bfloat16 needs ml_dtypes: {install('ml_dtypes>=0.4')}") from error
    return np.dtype(bfloat16)


def dtype_name(dtype: str | np.dtype[Any]) -> str:
    """The name of a dtype, which does not tell its byte order."""
    if isinstance(dtype, str):
        return dtype
    return dtype.name if dtype.names is None else f"{dtype.name} with fields"


def dtype_key(dtype: object) -> str | np.dtype[Any]:
    """A dtype as a hashable value; the name "bfloat16" is kept, so that it needs no ml_dtypes.

    Raises
    ------
    TypeError
        It is no dtype, but an array or a number, or anything else.
    """
    if isinstance(dtype, (np.number, np.bool_, np.ndarray)):
        kind = type(dtype).__name__
        raise TypeError(f"cannot interpret {kind} as a data type; pass its dtype, {dtype.dtype}")
    try:
        return "bfloat16" if dtype == "bfloat16" else np.dtype(dtype)  # type: ignore[call-overload]
    except (ValueError, SyntaxError):  # numpy reads a text with commas as those of several fields
        raise TypeError(f"data type {dtype!r} not understood") from None


def as_array(name: str, value: object) -> Array:
    """`value` as a numpy array with native byte order and aligned elements.

    It is copied only if its byte order or alignment requires it. `name` is its name in messages.

    Raises
    ------
    DTypeError
        `value` is not an array of numbers, is a masked array, or a tensor that is not strided.
    TypeError
        `value` is a module of torch, or another object of torch that is no tensor.
    PlanError
        `value` is in the memory of a GPU or another device, or records gradients.
    """
    array = np.asarray(value if isinstance(value, np.ndarray) else _from_foreign(name, value))
    if array is not value:
        check_unmasked(name, value)
    check_numbers(name, array, type(value).__name__)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array if array.flags.aligned else array.copy()


def is_masked_array(value: object) -> bool:
    """Whether `value` is one of numpy's arrays with a mask, of which some elements may be none."""
    masked = imported("numpy.ma")  # `np.ma` would import it, while others may fork
    return masked is not None and isinstance(value, masked.MaskedArray)


def check_unmasked(name: str, value: object, filled: str = "{name}.filled(0)") -> None:
    """Refuse an array with a mask; messages advise to pass the text `filled`.

    Raises
    ------
    DTypeError
        It is one.
    """
    if is_masked_array(value):
        raise DTypeError(
            f"{name} is a masked array; sums ignore masks, so pass {filled.format(name=name)}"
        )


def check_unmasked_out(out: object) -> None:
    """Refuse an array with a mask to which a result is to be written.

    Raises
    ------
    DTypeError
        It is one.
    """
    if is_masked_array(out):
        raise DTypeError(
            "out is a masked array, but every element of a result has a value; pass out.data, and "
            "set the mask afterwards"
        )


def check_numbers(name: str, array: Array, kind: str = "ndarray") -> None:
    """Refuse an array of other elements than numbers; messages call its type `kind`.

    Raises
    ------
    DTypeError
        Its elements are objects, text, times, raw bytes, or have fields.
    """
    dtype = array.dtype
    if dtype.kind in NO_NUMBERS:
        raise DTypeError(f"{name} must be an array of numbers, not {kind} of dtype {dtype}")
    if dtype.names is not None or issubclass(dtype.type, np.void):
        raise DTypeError(
            f"{name} must be an array of numbers, not {kind} of dtype {dtype}, which has fields or "
            f"raw bytes; pass one field, or a view such as {name}.view('float32')"
        )


def _from_foreign(name: str, value: Any) -> Array:
    value = detached(name, value)
    if library(value) == "torch":
        check_tensor(name, value)
        value = value.resolve_conj().resolve_neg()  # DLPack knows no such bits
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        if value.__dlpack_device__()[0] in CPU_DEVICES:
            return _from_dlpack(name, value)
    elif not hasattr(value, "__cuda_array_interface__"):
        return np.asarray(value)
    raise PlanError(
        f"{name} is on another device than x, or on one that is not supported; pass numpy arrays, "
        "or arrays that are all on one CUDA device"
    )


def _from_dlpack(name: str, value: Any) -> Array:
    """A numpy array over the memory of `value`."""
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError):  # perhaps for its dtype: numpy cannot import bfloat16
        return _from_capsule(name, value)
    except Exception as error:
        raise _not_exported(name, value, error) from error


@imports
def _read_capsule() -> Any:
    from implicit_conv.arrays.dlpack import read_capsule

    return read_capsule


def _from_capsule(name: str, value: Any) -> Array:
    """A numpy array over the memory of `value`, whose dtype may be bfloat16."""
    kind = type(value).__name__
    try:
        array = _read_capsule()(value, value.__dlpack__(), name)
    except (DTypeError, ShapeError):
        raise
    except Exception as error:
        raise _not_exported(name, value, error) from error
    if array.dtype != "bfloat16":
        raise DTypeError(
            f"{name} is a {kind} of {array.dtype}, which numpy cannot import; convert it to a "
            "supported dtype"
        )
    return np.asarray(_Memory(array)).view(numpy_dtype("bfloat16"))


def _not_exported(name: str, value: Any, error: Exception) -> DTypeError:
    """The error of an array whose own library raises one, of whatever kind."""
    kind, reason = (
        type(value).__name__,
        " ".join(f"{type(error).__name__}: {error}".split())[:QUOTED],
    )
    return DTypeError(
        f"{name} is a {kind} that does not export its memory ({reason}); pass a numpy array"
    )


class _Memory:
    """The memory of another library's array, which numpy imports as 16-bit integers."""

    def __init__(self, array: ForeignArray) -> None:
        self._array = array  # keeps the memory alive
        self.__array_interface__ = {
            "version": 3,
            "typestr": "<u2",
            "shape": array.shape,
            "strides": array.strides,
            "data": (array.address, True),
        }


def with_own_strides(array: Array) -> Array:
    """`array`, or a copy of it if its strides are not those of a new array; numpy calls an array
    contiguous whatever the stride of an axis of one element.
    """
    new = np.empty(array.shape, array.dtype)
    if array.strides == new.strides:
        return array
    new[...] = array
    return new


def ordered(array: Array, axes: tuple[int, ...]) -> Array:
    """A view of `array` whose axes are those at these positions; one at -1 has extent 1."""
    order, index = _taken(axes)
    return array.transpose(order)[index]


@functools.cache
def _taken(axes: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[slice | None, ...]]:
    """The axes that there are, and the index that adds the others."""
    index = (None if axis < 0 else slice(None) for axis in axes)
    return tuple(axis for axis in axes if axis >= 0), tuple(index)


def check_vector(name: str, value: object, count: int, dtype: str) -> Array:
    """A bias, or one number for all filters, as a contiguous array of shape (count,) and dtype
    `dtype`.

    Raises
    ------
    ShapeError, DTypeError
        Its shape is neither (count,) nor (), or its dtype does not convert to `dtype`.
    """
    array = as_array(name, value)
    if not array.ndim:
        array = np.broadcast_to(array, count)
    if array.shape != (count,):
        way = f"; write {name}.reshape({count})" if array.size == count else ""
        raise ShapeError(
            f"{name} has shape {array.shape}; it must have one value for each of K={count} "
            f"filters, and so the shape ({count},), or be one number for all{way}"
        )
    if array.dtype != dtype and not np.can_cast(array.dtype, dtype, "same_kind"):
        raise DTypeError(
            f"{name} is {array.dtype}, which does not convert to {dtype}, the dtype of the sums; "
            f"pass it as {dtype}"
        )
    return np.ascontiguousarray(array, dtype)


def check_like_output(name: str, array: Array, shape: tuple[int, ...], dtype: str) -> None:
    """Check that the array `name`, `residual` or `out`, has the shape and dtype of the output.

    Raises
    ------
    ShapeError, DTypeError
        Its shape or dtype differs.
    """
    if array.shape != shape:
        raise ShapeError(
            f"{name} has shape {array.shape} but the output has {shape}; pass an array of that "
            "shape"
        )
    if array.dtype.newbyteorder("=") != dtype:
        raise DTypeError(
            f"{name} is {array.dtype} but the output is {dtype}; convert it, or pass "
            f"out_dtype={array.dtype.name!r}"
        )


def check_out(out: object, shape: tuple[int, ...], dtype: str) -> None:
    """Check that `out` is a writable numpy array of this shape and dtype, with distinct elements.

    Raises
    ------
    ShapeError, DTypeError
        It is not.
    """
    if not isinstance(out, np.ndarray):
        raise DTypeError(
            f"out must be a numpy array, not {type(out).__name__}; leave it out, or pass a numpy "
            "view of it, such as out.numpy() of a tensor on the CPU"
        )
    check_unmasked_out(out)
    check_numbers("out", out)
    if not out.flags.writeable:
        raise ShapeError("out is read-only; pass a writable array")
    check_like_output("out", out, shape, dtype)
    check_distinct("out", out)


def writable_directly(out: Array, inputs: tuple[Array | None, ...]) -> bool:
    """Whether kernels may write to `out` itself, whose elements are distinct: it must be native and
    aligned, and share no memory with `inputs`.
    """
    if not (out.dtype.isnative and out.flags.aligned):
        return False
    return not any(array is not None and np.may_share_memory(out, array) for array in inputs)


def check_distinct(name: str, array: Array) -> None:
    """Refuse an array of which two elements share memory.

    Raises
    ------
    ShapeError
        By its strides, two of them do.
    """
    if array.size and _elements_overlap(array):
        raise ShapeError(
            f"{name} has the shape {array.shape} and strides of {array.strides} bytes, by which "
            f"several of its elements share memory; pass an array whose elements are distinct, "
            f"such as np.empty({array.shape}, {array.dtype.name!r})"
        )


def _elements_overlap(array: Array) -> bool:
    """Whether two elements share memory; there is at least one element."""
    pairs = zip(array.strides, array.shape, strict=True)
    axes = sorted((abs(stride), size) for stride, size in pairs if size > 1)
    nested, reach = True, array.itemsize  # bytes from the first element to the end of the last
    for stride, size in axes:
        nested = nested and stride >= reach
        reach += stride * (size - 1)
    if nested:
        return False
    if array.nbytes > reach or axes[0][0] < array.itemsize:
        return True
    offsets = np.zeros(1, np.int64)
    for stride, size in axes:
        offsets = np.add.outer(offsets, stride * np.arange(size)).ravel()
    return bool((np.diff(np.sort(offsets)) < array.itemsize).any())
