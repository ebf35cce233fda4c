"""Where objects of Python have what compiled code reads by their addresses.

numpy states the fields of its arrays, CPython states nothing: Python 3.14 has a hash before the
items of a tuple. So all offsets stand here, and `differing` compares them with what ctypes reads
from objects of this process. Where one differs, functions of Python do without it.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

WORD = 8  # bytes
LOW_HALF = (1 << 32) - 1  # of a word, which C calls an int
LEAST_ADDRESS = 1 << 16  # Linux maps nothing below it


class Fields(NamedTuple):
    """Offsets of the fields of an array in bytes.

    `kind` is that of any object, and `data` that of an object of ctypes, too.
    """

    kind: int
    data: int
    rank: int
    shape: int
    strides: int
    dtype: int
    flags: int


class ListFields(NamedTuple):
    """Offsets of the fields of a list in bytes."""

    length: int
    items: int


DATA = object.__basicsize__
FIELDS = Fields(DATA - 8, DATA, DATA + 8, DATA + 16, DATA + 24, DATA + 40, DATA + 48)
LIST_FIELDS = ListFields(DATA, DATA + 8)
TUPLE_ITEMS = tuple.__basicsize__  # the items themselves are there


def address(array: Any) -> int:
    """The address of the elements of an array, or of the memory of an object of ctypes."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else ctypes.addressof(array))


def word(of: object, offset: int) -> int:
    """The word at this offset of an object."""
    return ctypes.c_int64.from_address(id(of) + offset).value


def offset_of(objects: Sequence[object], words: Sequence[int]) -> int | None:
    """The offset at which each of these objects of another library has its word, if it is the first
    or the second one behind what all objects have.
    """
    for offset in (DATA, DATA + WORD):
        if [word(each, offset) for each in objects] == [*words]:
            return offset
    return None


def stated() -> str:
    """What compiled code depends on of objects, as text."""
    return repr((FIELDS, LIST_FIELDS, TUPLE_ITEMS, differing()))


@functools.cache
def differing() -> tuple[str, ...]:
    """What this Python stores in another way than stated here: "array", "list" or "tuple"."""
    as_stated = {
        "array": _arrays_are_as_stated(),
        "list": _lists_are_as_stated(),
        "tuple": _tuples_are_as_stated(),
    }
    found = tuple(name for name, is_so in as_stated.items() if not is_so)
    if found:
        logging.getLogger("implicit_conv").info("%s", sentence(found))
    return found


def sentence(found: tuple[str, ...]) -> str:
    """What is said of this Python where something differs."""
    return (
        f"this Python differs in {', '.join(found)} from what compiled code reads, so Python makes "
        "the calls that come again"
    )


def _arrays_are_as_stated() -> bool:
    array = np.zeros((3, 4), np.float32)[:, ::2]
    fields = Fields(*(word(array, offset) for offset in FIELDS))
    bytes_ = ctypes.c_char.from_address(array.ctypes.data)
    return (
        (fields.kind, fields.data) == (id(np.ndarray), array.ctypes.data)
        and fields.dtype == id(array.dtype)
        and (fields.rank & LOW_HALF, fields.flags & LOW_HALF) == (array.ndim, array.flags.num)
        and _words_at(fields.shape, array.ndim) == array.shape
        and _words_at(fields.strides, array.ndim) == array.strides
        and word(bytes_, FIELDS.data) == ctypes.addressof(bytes_)
    )


def _lists_are_as_stated() -> bool:
    values = [object(), object(), object()]
    return word(values, LIST_FIELDS.length) == len(values) and _words_at(
        word(values, LIST_FIELDS.items), len(values)
    ) == tuple(map(id, values))


def _tuples_are_as_stated() -> bool:
    values = object(), object()
    found = (word(values, TUPLE_ITEMS + WORD * place) for place in range(len(values)))
    return tuple(found) == tuple(map(id, values))


def _words_at(pointer: int, count: int) -> tuple[int, ...]:
    """The words at an address; none at what can be no address, such as a hash."""
    if pointer % WORD or pointer < LEAST_ADDRESS:
        return ()
    return tuple((ctypes.c_int64 * count).from_address(pointer))
