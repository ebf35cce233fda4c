"""Arrays of equal values that are stored in other ways: strides, byte order, alignment."""

from __future__ import annotations

import numpy as np

from implicit_conv.testing import Array

WRITABLE = ("contiguous", "strided", "reversed", "permuted", "byte-swapped", "unaligned")
STORAGES = (*WRITABLE, "read-only", "repeated")


def stored(array: Array, storage: str, rng: np.random.Generator) -> Array:
    """A copy of a contiguous `array` in another storage; "repeated" also changes its values.

    Parameters
    ----------
    storage : one of STORAGES
        "strided" has gaps along an axis, "reversed" a negative stride, and "repeated" a stride of 0
        along an axis. The axes of "permuted" are in another order in memory.
    rng : numpy Generator
        Chooses the axis.
    """
    axis = int(rng.integers(array.ndim))
    if storage == "repeated" and array.size:
        return np.broadcast_to(array.take([0], axis), array.shape)
    view = _empty_like(array, storage, axis, rng)
    view[...] = array
    view.flags.writeable = storage in WRITABLE
    return view


def _empty_like(array: Array, storage: str, axis: int, rng: np.random.Generator) -> Array:
    shape, dtype = list(array.shape), array.dtype
    if storage == "strided":
        shape[axis] = max(0, 2 * shape[axis] - 1)
        every_other: tuple[slice, ...] = (slice(None),) * axis + (slice(None, None, 2),)
        return np.empty(shape, dtype)[every_other]
    if storage == "reversed":
        return np.flip(np.empty(shape, dtype), axis)
    if storage == "permuted":
        order = rng.permutation(array.ndim)
        return np.empty([shape[i] for i in order], dtype).transpose(np.argsort(order))
    if storage == "byte-swapped":
        return np.empty(shape, dtype.newbyteorder())
    if storage == "unaligned":
        return np.empty(array.nbytes + 1, np.uint8)[1:].view(dtype).reshape(shape)
    return np.empty(shape, dtype)
