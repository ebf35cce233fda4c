"""Fast path for tensors of torch on the CPU: a known call takes their addresses and nothing else.

A key says all that a call depends on, so that it replaces the checks of `arrays.as_array`.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import sys
from typing import Any

import numpy as np

from implicit_conv.arrays.arrays import Array, RepeatedCall, numpy_dtype
from implicit_conv.arrays.libraries import as_library_of


@functools.cache
def _numpy_dtype(dtype: Any) -> Any:
    """numpy's form of a dtype of torch."""
    return numpy_dtype(str(dtype).rpartition(".")[2])


PLAIN = ("torch", "Tensor"), ("torch.nn.parameter", "Parameter")


@functools.lru_cache(64)
def _is_plain(kind: type) -> bool:
    """Whether objects are plain tensors: other classes may have no memory, or another meaning."""
    return (kind.__module__, kind.__qualname__) in PLAIN


def tensor_key(*tensors: Any) -> tuple[Any, ...] | None:
    """What a call depends on of these tensors, of which those at the end may be None; None unless
    all hold their values in aligned memory of the CPU, and record no gradients.
    """
    key: tuple[Any, ...] = ()
    for tensor in tensors:
        if tensor is None:
            continue
        if not _is_plain(type(tensor)):  # type: ignore[arg-type]  # mypy takes no type for hashable
            return None
        torch = sys.modules["torch"]
        if (
            tensor.layout is not torch.strided
            or not tensor.is_cpu
            or (tensor.requires_grad and torch.is_grad_enabled())
            or tensor.is_neg()
            or tensor.is_conj()
        ):
            return None
        try:
            address = tensor.data_ptr()
            key += tensor.shape, tensor.stride(), tensor.dtype
        except RuntimeError:  # of nested tensors, and inside torch.func.vmap
            return None
        if not address or address % tensor.element_size():  # functional, empty, or from elsewhere
            return None
    return key


def address(tensor: Any) -> int:
    """The address of the first element, 0 if it has no memory. Whoever asks for it only reads:
    ``tensor.data_ptr()`` would copy the memory of a lazy clone.
    """
    first: int = sys.modules["torch"]._C._data_address(tensor)
    return first and first + tensor.storage_offset() * tensor.element_size()


def tensor_array(tensor: Any) -> Array:
    """The memory of a plain tensor as an array, to be read.

    ``tensor.numpy()`` would forbid for ever to resize that memory, as FSDP does with parameters.
    """
    dtype, shape = _numpy_dtype(tensor.dtype), tuple(tensor.shape)
    strides = [stride * dtype.itemsize for stride in tensor.stride()]
    size = sum(map(operator.mul, shape, strides)) - sum(strides) + dtype.itemsize
    block: Any = (ctypes.c_char * size).from_address(address(tensor))
    block.owner = tensor  # keeps the memory alive
    return np.ndarray(shape, dtype, block, 0, strides)


class RepeatedTensors(RepeatedCall):
    """A call of tensors that has been made before, with tensors of a `tensor_key`."""

    def __init__(self, key: Any, bound: Any, tensors: tuple[Any, ...], y: Array) -> None:
        """`bound` computed the result `y`."""
        super().__init__(key)
        torch = sys.modules["torch"]
        self._bound, self._tensors, self._kind = bound, tensors, torch.Tensor
        self._new = torch.empty_strided  # takes half the time of torch.empty
        strides = tuple(stride // y.itemsize for stride in y.strides)
        self._result, self._dtype = (y.shape, strides), getattr(torch, y.dtype.name)

    def call(self, x: Any, w: Any, bias: Any) -> Any:
        """The result for tensors of the key; `w` may be the operand of a packed filter."""
        y = self._new(*self._result, dtype=self._dtype, device="cpu")
        sums, plain = None if bias is None else tensor_array(bias), type(w) is not int
        if type(y) is not self._kind or not y.data_ptr():  # modes of torch make other tensors
            filters = tensor_array(w) if plain else w
            return as_library_of(x, self._bound(tensor_array(x), filters, sums))
        of_w = w.data_ptr() if plain else w
        self._bound.repeat(x.data_ptr(), of_w, y.data_ptr(), sums)
        return y

    def again(self, x: Any, read: Any, bias: Any, residual: Any, out: Any, w: Any) -> Any:
        """The result for tensors of the key; see `RepeatedCall`."""
        plain, added = w is read, residual is not None or out is not None
        if added or tensor_key(x, w if plain else None, bias) != self._tensors:
            return None
        return self.call(x, w if plain else w.operand, bias)
