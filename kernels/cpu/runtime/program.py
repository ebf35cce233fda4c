"""A program: the launches of one call, as words that compiled code runs without Python.

A call tells its launches by the views of arrays that it would run on. Those of a program are
`reserved`: they have addresses, and zeros, but no memory of their own, and a run exchanges their
addresses for those of its buffers.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from implicit_conv.kernels.cpu.runtime.layout import round_up

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.runtime.launch import Launch

# Places: nothing, the arrays, and the room for what launches pass to each other.
NOTHING, X, W, Y, ROOM = range(5)
ROOM_ADDRESS = 1 << 62  # of the room; no memory of a process is there
ROOM_BYTES, BLOCK_BYTES, MOST_THREADS, STEPS = range(4)  # the words before the steps
HEADER = 4
# The words of a step. One without an entry copies SCRATCH_BYTES from BLOB to where y is. With a
# bias, SUMS are its initial sums: NO_SUMS, the BIAS_ITSELF, or the address of a table of runs.
BLOB, ENTRY, THREADS, SCRATCH_BYTES, SUMS, OPERANDS = range(6)
STEP = OPERANDS + 2 * 4  # x, w, y and panels have two words each: place and offset
NO_SUMS, BIAS_ITSELF = range(2)
# A table: where in the room the sums are, their bytes, the number of runs, then for each run where
# it begins in the sums and in the bias, and its bytes. What is in no run is 0.
SUMS_OFFSET, SUMS_BYTES, RUNS, TABLE_HEADER = range(4)
RUN = 3
LARGEST_KEPT = 25  # the exponent of the largest block of a run that is kept, 32 MiB
MOST_RUNS = 64  # others would take longer than the same sums by numpy


def reserved(
    shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...] | None = None
) -> np.ndarray[Any, Any]:
    """An array whose elements cannot be written, in pages that take no memory; `strides` in bytes
    are at least 0, and those of a contiguous array if they are not given.
    """
    if strides is None:
        size = math.prod(shape) * dtype.itemsize
    else:
        size = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + dtype.itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory: Any = mmap.mmap(-1, max(1, size), flags=flags, prot=mmap.PROT_READ)
    return np.ndarray(shape, dtype, memory, 0, strides)


class Room:
    """The memory of a run that holds what launches pass to each other.

    Attributes
    ----------
    end : int
        Bytes in use; who sets it back gives memory free for the steps that follow.
    size : int
        The most bytes that were in use.
    """

    def __init__(self) -> None:
        self.end = self.size = 0

    def take(self, size: int) -> int:
        """The address of `size` further bytes, which begin on a cache line."""
        begin = self.end
        self.end += round_up(size)
        self.size = max(self.size, self.end)
        return ROOM_ADDRESS + begin


def room_array(
    address: int, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    """An array in the room, whose elements must neither be read nor written here."""
    return np.asarray(_At(address, shape, dtype, strides))


class _At:
    """An array at an address, as numpy imports it."""

    def __init__(self, address: int, shape: Any, dtype: Any, strides: Any) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": dtype.str,
            "shape": shape,
            "strides": strides,
            "data": (address, False),
        }


class Step(NamedTuple):
    """A launch and the addresses that it gets, or an array that is copied to `y`; 0 is nowhere."""

    launch: Launch | np.ndarray[Any, Any]
    x: int
    w: int
    y: int
    panels: int = 0
    sums: Any = None  # of a bias: an array of the numbers of its elements, from 1 on, and zeros


class Access(NamedTuple):
    """What a program reads or writes of one argument: elements of this `dtype`, aligned to their
    size, with this shape and these `strides` in bytes from an address on, and nothing else.

    This is the only place that says so. Who hands the address of an array or a tensor to a program
    asks `takes` first, unless it has asked for an argument that is stored alike.
    """

    dtype: str
    size: int  # of an element, in bytes
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def to(cls, array: np.ndarray[Any, Any]) -> Access:
        """The access to an array like this one."""
        return cls(array.dtype.name, array.itemsize, array.shape, array.strides)

    def takes(
        self, dtype: str, shape: Sequence[int], strides: Sequence[int], address: int = 0
    ) -> bool:
        """Whether it is an access to an argument that is stored so; `strides` are in bytes."""
        steps = zip(self.shape, self.strides, strides, strict=False)
        return (
            dtype == self.dtype
            and tuple(shape) == self.shape
            and all(own == step for extent, own, step in steps if extent > 1)
            and address % self.size == 0
        )


class Program:
    """The steps of one call, in their order.

    Attributes
    ----------
    words : array of int64
        What compiled code reads; see `compiled.program`.
    x, w, y : Access
    bias : Access or None
        None if a run can have no bias.
    """

    def __init__(self, steps: Sequence[Step], room: Room, arrays: Sequence[Any]) -> None:
        """`arrays` are the reserved x, w and y of the call.

        Raises
        ------
        ValueError
            A step reads or writes another array, such as a copy.
        """
        self._steps = steps  # they own the memory that words point to
        scratch = max(0 if isinstance(s.launch, np.ndarray) else s.launch.bytes for s in steps)
        words = list[int]()
        self._tables = list[np.ndarray[Any, Any]]()
        for launch, *operands, sums in steps:
            if isinstance(launch, np.ndarray):
                words += launch.ctypes.data, 0, 0, launch.nbytes
            else:
                words += launch.words
            words.append(self._sums(sums, room))
            words += [word for address in operands for word in _placed(address, arrays)]
        most = max(1, *words[THREADS::STEP])
        header = [room.size, room.size + scratch, most, len(steps)]
        self.words = np.array(header + words, np.int64)
        self.x, self.w, self.y = map(Access.to, arrays)
        self.bias = _access_to_bias([step.sums for step in steps if step.sums is not None])

    @property
    def address(self) -> int:
        """That of the words."""
        return int(self.words.ctypes.data)

    def _sums(self, sums: Any, room: Room) -> int:
        """The word of initial sums.

        Raises
        ------
        ValueError
            They have too many runs.
        """
        if sums is None:
            return NO_SUMS
        if np.array_equal(sums, np.arange(1, len(sums) + 1)):
            return BIAS_ITSELF
        numbers = np.concatenate([[0], sums, [0]]).astype(np.int64)
        follows = (np.diff(numbers) == 1) & (numbers[:-1] > 0)  # the one before, in the bias too
        first = np.flatnonzero((numbers[1:-1] > 0) & ~follows[:-1])
        last = np.flatnonzero((numbers[1:-1] > 0) & ~follows[1:])
        if len(first) > MOST_RUNS:
            raise ValueError("initial sums are spread over a panel")
        size, room.end = sums.itemsize, room.size  # behind what other steps have there
        offset = room.take(sums.nbytes) - ROOM_ADDRESS
        table = [offset, sums.nbytes, len(first)]
        for begin, end in zip(first, last, strict=True):
            table += [begin * size, int(sums[begin] - 1) * size, (end + 1 - begin) * size]
        self._tables.append(np.array(table, np.int64))
        return int(self._tables[-1].ctypes.data)


def _access_to_bias(sums: Sequence[np.ndarray[Any, Any]]) -> Access | None:
    """The access to a bias from which initial sums take elements of these numbers, from 1 on."""
    if not sums:
        return None
    count = max(int(each.max()) for each in sums)
    return Access.to(np.empty(count, sums[0].dtype))


def _placed(address: int, arrays: Sequence[Any]) -> tuple[int, int]:
    """The place of an address, and its offset in bytes."""
    if address == 0:
        return NOTHING, 0
    if address >= ROOM_ADDRESS:
        return ROOM, address - ROOM_ADDRESS
    for place, array in zip((X, W, Y), arrays, strict=True):
        offset = address - array.ctypes.data
        if 0 <= offset < array.nbytes:
            return place, offset
    raise ValueError("a step reads or writes an array that is none of those of the program")
