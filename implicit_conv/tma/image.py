"""Shared memory after a tensor copy, byte by byte: pitch, swizzle, halo rows, unwritten gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from implicit_conv.kernels import walk as steps
from implicit_conv.tma.limits import SPANS
from implicit_conv.tma.maps import TensorMap
from implicit_conv.tma.simulate import HALO_ORDER, Array, load_rows


@dataclass(frozen=True, eq=False)
class SmemImage:
    """What one copy leaves in shared memory.

    Attributes
    ----------
    bytes : uint8 array
        Shared memory from `dst` on, in the order of addresses; unwritten bytes are zero.
    written : bool array of the same length
        Which bytes the copy wrote; False marks the gaps of rows narrower than the swizzle span.
    dst : int
        Shared address of the first byte; swizzles act on such absolute addresses.
    pitch : int
        Bytes from one row to the next.
    span : int
        Bytes of a swizzled line; 0 if there is no swizzle.
    rows : int
        Number of rows, including the halo.
    channels : int
        Elements of a row.
    dtype : numpy dtype
        Type of an element.
    """

    bytes: npt.NDArray[np.uint8]
    written: npt.NDArray[np.bool_]
    dst: int
    pitch: int
    span: int
    rows: int
    channels: int
    dtype: np.dtype[Any]

    def view(self, first: int = 0, count: int | None = None) -> Array:
        """Rows `first` .. `first + count - 1` as values, count x channels.

        This undoes the layout as a matrix instruction does: a shifted view reads the same memory
        from a different first row.
        """
        count = self.rows - first if count is None else count
        if not 0 <= first <= first + count <= self.rows:
            raise IndexError(f"rows {first} .. {first + count - 1} of an image of {self.rows} rows")
        return self.take(np.arange(first, first + count))

    def take(self, rows: npt.NDArray[np.int64]) -> Array:
        """The given rows as values, len(rows) x channels."""
        size = self.channels * self.dtype.itemsize
        where = places(self.dst, self.pitch, self.span, rows, size)
        return self.bytes[where].view(self.dtype)

    def row(self, r: int) -> Array:
        """The channels of row r."""
        return np.asarray(self.view(r, 1)[0])

    def owner(self, address: int) -> tuple[int, int] | None:
        """(row, byte within the row) of the byte at a shared address; None in a gap."""
        if not self.written[address - self.dst]:
            return None
        plain = steps.swizzle(address, steps.swizzle_mask(self.span)) - self.dst
        return plain // self.pitch, plain % self.pitch


def places(
    dst: int, pitch: int, span: int, rows: npt.NDArray[np.int64], size: int
) -> npt.NDArray[np.int64]:
    """Offsets from dst of the first `size` bytes of each row: rows x size."""
    plain = dst + rows.reshape(-1, 1) * pitch + np.arange(size)
    return np.asarray(steps.swizzle(plain, steps.swizzle_mask(span)) - dst)


def smem_image(
    map: TensorMap,
    x: Array,
    coords: Sequence[int],
    dst: int = 0,
    offsets: Sequence[int] | None = None,
    w_halo: int = 0,
    w_offset: int = 0,
    *,
    halo_order: str = HALO_ORDER,
) -> SmemImage:
    """The bytes of shared memory that one tensor copy writes, in the order of addresses.

    Row r begins at ``dst + r * pitch``; the swizzle then moves 16-byte units by the bits of the
    absolute address (PTX ISA 5.5.7): ``a ^ ((a >> 7) & 7) << 4`` for 128B. The mask is 3 for 64B
    and 1 for 32B.

    Parameters
    ----------
    dst : int
        Shared address of the destination, a multiple of 128.
    map, x, coords, offsets, w_halo, w_offset, halo_order
        As in `load`.

    Raises
    ------
    TensorMapError
        The load breaks rules, or dst is misaligned; the message lists all (a ValueError).
    ValueError
        The swizzle is legal but not simulated.
    """
    if map.swizzle not in SPANS:
        raise ValueError(
            f"swizzle {map.swizzle} is not simulated; choose one of {', '.join(SPANS)}"
        )
    values = load_rows(map, x, map.start(coords, offsets, w_halo, w_offset, dst), halo_order)
    rows, span = len(values), SPANS[map.swizzle]
    image = SmemImage(
        bytes=np.zeros(rows * map.pitch, np.uint8),
        written=np.zeros(rows * map.pitch, bool),
        dst=dst,
        pitch=map.pitch,
        span=span,
        rows=rows,
        channels=map.channels_per_pixel,
        dtype=map.dtype,
    )
    where = places(dst, map.pitch, span, np.arange(rows), map.row_bytes)
    image.bytes[where] = values.view(np.uint8)
    image.written[where] = True
    return image
