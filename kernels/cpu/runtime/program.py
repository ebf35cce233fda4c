"""A program: the launches of one call, as words that compiled code runs without Python.

A call tells its launches by the views of arrays that it would run on. Those of a program are
`reserved`: they have addresses, and zeros, but no memory of their own, and a run exchanges their
addresses for those of its buffers.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from implicit_conv.kernels.cpu.runtime.layout import round_up

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.runtime.launch import Launch

# Places: nothing, the three arrays, and the room for what launches pass to each other.
NOTHING, X, W, Y, ROOM = range(5)
ROOM_ADDRESS = 1 << 62  # of the room; no memory of a process is there
ROOM_BYTES, BLOCK_BYTES, STEPS = range(3)  # the words before the steps
HEADER = 3
# The words of a step. One without an entry copies SCRATCH_BYTES from BLOB to where y is.
BLOB, ENTRY, THREADS, SCRATCH_BYTES, OPERANDS = range(5)
STEP = OPERANDS + 2 * 4  # x, w, y and panels have two words each: place and offset


def reserved(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """An array whose elements cannot be written, in pages that take no memory."""
    size = max(1, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory: Any = mmap.mmap(-1, size, flags=flags, prot=mmap.PROT_READ)
    return np.ndarray(shape, dtype, memory)


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


class Program:
    """The steps of one call, in their order.

    Attributes
    ----------
    words : array of int64
        What compiled code reads; see `compiled.program`.
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
        words = [room.size, room.size + scratch, len(steps)]
        for launch, *operands in steps:
            if isinstance(launch, np.ndarray):
                words += launch.ctypes.data, 0, 0, launch.nbytes
            else:
                words += launch.words
            words += [word for address in operands for word in _placed(address, arrays)]
        self.words = np.array(words, np.int64)


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
