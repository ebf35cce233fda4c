"""How the arrays of a repeated call must be stored: as those of the call that was made before.

A `Record` says it in words, which compiled code (`start.differing`) compares with the fields of
numpy's arrays, or `differing` where it cannot read them. Nothing here imports Numba.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

WORD = 8
RANK = 5  # axes of an array at most


ALIGNED, WRITEABLE = 0x100, 0x400  # bits of the flags
APART = 1 << 62  # bytes to where those of an empty array are: away from all others


class Slot(NamedTuple):
    """What is known of one argument, None or an array.

    `kind` and `dtype` are addresses of objects, which live as long as the record; `data` is 0 if
    the array may be anywhere. Its bytes are those from `low` to before `high`, from its first
    element on. After these words come the shape and the strides.
    """

    kind: int
    rank: int = -1  # of None
    dtype: int = 0
    flags: int = 0  # bits that must be set
    data: int = 0
    low: int = 0
    high: int = 0


SHAPE = len(Slot._fields)
STRIDES = SHAPE + RANK
SLOT_WORDS = STRIDES + RANK


NAMES = ("x", "w", "bias", "residual", "out")


class Record:
    """How x, w, a bias, a residual and an output are stored; each may be None.

    Parameters
    ----------
    arrays : (x, w, bias, residual, out)
        Numpy arrays of at most 5 axes, or None. The output, if there is one, must be writable and
        share no memory with the others.
    fixed : bool
        Whether the arrays must be at the addresses of these, too.
    """

    def __init__(self, *arrays: Any, fixed: bool = False) -> None:
        self._dtypes = tuple(getattr(array, "dtype", None) for array in arrays)
        *inputs, out = arrays
        words = [_words(array, ALIGNED, fixed) for array in inputs]
        self.words = np.array([*words, _words(out, ALIGNED | WRITEABLE, fixed)], np.int64)

    def comparison(self) -> Callable[..., int]:
        """A function of (x, w, bias, residual, out): the place, from 1 on, of the first one that
        differs, or shares memory with the output; 0 if there is none.
        """
        comparison = functools.partial(_compare[0], self.words)
        comparison.__dict__["record"] = self  # its dtypes live as long as their addresses are used
        return comparison


NONE = [*Slot(id(type(None))), *[0] * (SLOT_WORDS - SHAPE)]


def _words(array: Any, flags: int, fixed: bool) -> list[int]:
    """The words of an argument that must have these flags: its slot, shape and strides."""
    if array is None:
        return NONE
    shape, strides, low, high = array.shape, array.strides, 0, array.itemsize
    for stride, size in zip(strides, shape, strict=True):
        if stride < 0:
            low += stride * (size - 1)
        else:
            high += stride * (size - 1)
    if 0 in shape:
        low = high = APART
    data = array.ctypes.data if fixed else 0
    slot = Slot(id(type(array)), len(shape), id(array.dtype), flags, data, low, high)
    rest = [0] * (RANK - len(shape))
    return [*slot, *shape, *rest, *strides, *rest]


def can_record(*arrays: object) -> bool:
    """Whether a `Record` can tell arrays like these: each is None, or just a numpy array."""
    return all(
        array is None or (type(array) is np.ndarray and array.ndim <= RANK) for array in arrays
    )


def use(compare: Callable[..., int]) -> None:
    """Compare records by this function from now on."""
    _compare[:] = [compare]


def differing(words: Any, *arrays: Any) -> int:
    """What `start.differing` returns for the words of a record and arrays; no code is compiled."""
    *rows, last = words.tolist()
    *arguments, out = arrays
    if not _is_stored(last, out):
        return len(arrays)
    for place, (row, array) in enumerate(zip(rows, arguments, strict=True), 1):
        if not _is_stored(row, array) or _overlaps(row, array, last, out):
            return place
    return 0


def _is_stored(row: list[int], array: Any) -> bool:
    """Whether an argument is what its words say."""
    slot = Slot(*row[:SHAPE])
    if array is None or id(type(array)) != slot.kind:
        return id(type(array)) == slot.kind
    has_flags = array.flags.num & slot.flags == slot.flags
    return has_flags and _words(array, slot.flags, slot.data != 0) == row


def _overlaps(row: list[int], array: Any, other_row: list[int], other: Any) -> bool:
    """Whether the bytes of two arrays overlap; None has none."""
    if array is None or other is None:
        return False
    slot, its = Slot(*row[:SHAPE]), Slot(*other_row[:SHAPE])
    data, its_data = array.ctypes.data, other.ctypes.data
    return bool(data + slot.high > its_data + its.low and data + slot.low < its_data + its.high)


_compare: list[Callable[..., int]] = [differing]  # what compares; compiled code, once it is loaded
