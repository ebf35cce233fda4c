"""Swizzles: how a copy permutes the bytes of shared memory, by bits of absolute addresses.

A line is 128 bytes of shared memory. A swizzle exchanges atoms within the spans of a line, by the
number of the line. The permutation is its own inverse. PTX ISA 5.5.7.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

LINE_BITS = 7  # of the position in a line of 128 bytes


class Swizzle(NamedTuple):
    """One swizzle: `span` and `atom` in bytes; `flip` also exchanges halves of 16 bytes."""

    span: int
    atom: int
    flip: bool = False

    @property
    def lines(self) -> int:
        """Lines after which the pattern repeats."""
        return max(1, self.span // self.atom)

    @property
    def pattern(self) -> int:
        """Bytes after which the pattern repeats; a buffer should begin at a multiple of it."""
        return self.lines << LINE_BITS

    def place(self, address: Any) -> Any:
        """The address of the byte that a copy without swizzle puts at `address`."""
        line = address >> LINE_BITS
        moved = address ^ (line & (self.lines - 1)) * self.atom
        return moved ^ (line & 1) * 8 if self.flip else moved


SWIZZLES = {
    "none": Swizzle(0, 16),
    "32B": Swizzle(32, 16),
    "64B": Swizzle(64, 16),
    "128B": Swizzle(128, 16),
    "128B_ATOM_32B": Swizzle(128, 32),
    "128B_ATOM_32B_FLIP_8B": Swizzle(128, 32, flip=True),
    "128B_ATOM_64B": Swizzle(128, 64),
}


class RowLayout(NamedTuple):
    """Rows of a tensor copy in shared memory.

    `dst` is the shared address of the first row, `pitch` the bytes from one row to the next, and
    `row_bytes` those that the copy writes.
    """

    dst: int
    pitch: int
    swizzle: str
    rows: int
    row_bytes: int
    itemsize: int

    def addresses(self, rows: npt.NDArray[np.int64], byte: Any) -> npt.NDArray[np.int64]:
        """The shared addresses of bytes `byte` of rows; the two broadcast."""
        plain = self.dst + rows * self.pitch + byte
        return np.asarray(SWIZZLES[self.swizzle].place(plain))
