"""Tensor maps, and the rows that a tensor copy walks (PTX ISA 5.5; cuTensorMapEncode* in cuda.h).

Coordinates, sizes and strides have the order of the driver's functions: the fastest axis first. The
walks are written from those documents alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from implicit_conv.ptx.errors import PtxError

SPANS = {"none": 0, "32B": 32, "64B": 64, "128B": 128}  # bytes of a swizzle's span
OFFSET_BITS = {1: 16, 2: 8, 3: 5}  # of an im2col offset, by the number of spatial axes
HALO_LIMIT = {"im2col::w": 512, "im2col::w::128": 32}
WIDE_OFFSET_LIMIT = 32
CHUNK = 16  # bytes that a store writes at least
WIDE_128, QUARTER = 128, 32  # pixels of an im2col::w::128 copy without its halo, and of a quarter
Row = tuple[int, ...]
Inside = tuple[int, int, int] | None  # (address, first byte in the row, bytes) of a row, if any


@dataclass(frozen=True)
class TensorMap:
    """The arguments of cuTensorMapEncodeTiled, ...Im2col or ...Im2colWide.

    Parameters
    ----------
    mode : str
        "tile", "im2col", "im2col::w" or "im2col::w::128".
    itemsize : int
        Bytes of an element.
    address : int
        Of the first element.
    dims, strides : tuple of int
        globalDim, and globalStrides in bytes, of dims[1:].
    steps : tuple of int
        elementStrides.
    span : int
        Bytes of the swizzle's span: 0 (none), 32, 64 or 128.
    box : tuple of int
        boxDim, of a tile.
    lower, upper : tuple of int
        Corners of the pixel box, W first; W alone for the wide modes.
    channels, pixels : int
        channelsPerPixel and pixelsPerColumn.
    element : str
        The driver's name of the type of the elements, such as "BFLOAT16", which reductions need.

    Examples
    --------
    A box of 4 columns and 2 rows of a float32 array of shape (16, 64):

    >>> from implicit_conv import ptx
    >>> tile = ptx.TensorMap(
    ...     "tile", 4, 0, dims=(64, 16), strides=(256,), steps=(1, 1), box=(4, 2)
    ... )
    >>> tile.row_bytes, tile.rows((8, 3), (), "tile")
    (16, [(8, 3), (8, 4)])
    """

    mode: str
    itemsize: int
    address: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    steps: tuple[int, ...]
    span: int = 0
    box: tuple[int, ...] = ()
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()
    channels: int = 0
    pixels: int = 0
    element: str = ""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the copy: one pixel's channels, or the box's fastest axis."""
        return (self.box[0] if self.mode == "tile" else self.channels) * self.itemsize

    def rows(self, coordinates: Row, offsets: Row, mode: str) -> list[Row]:
        """The coordinates of each row of a copy, in the order in which they are stored."""
        if mode != self.mode:
            raise PtxError(f"the instruction says {mode}, but its tensor map is for {self.mode}")
        if len(coordinates) != len(self.dims):
            raise PtxError(f"{len(coordinates)} coordinates for a map of rank {len(self.dims)}")
        if mode == "tile":
            return self._tile(coordinates)
        wanted = len(self.dims) - 2 if mode == "im2col" else 2
        if len(offsets) != wanted:
            raise PtxError(f"{len(offsets)} im2col operands where {mode} takes {wanted}")
        if mode == "im2col":
            return self._im2col(coordinates, offsets)
        return self._wide(coordinates, offsets)

    def address_of(self, row: Row, stored: bool = False) -> Inside:
        """What a row has inside the tensor, and where it is `stored` what is written past its end.

        Stores write whole chunks of 16 bytes, also where the extent of the fastest axis ends inside
        one, as an H100 was seen to do (triton issue 11583).
        """
        if any(not 0 <= x < size for x, size in zip(row[1:], self.dims[1:], strict=True)):
            return None
        first = max(row[0], 0)
        end = min(row[0] + self.row_bytes // self.itemsize, self.dims[0])
        if first >= end:
            return None
        at = sum(x * stride for x, stride in zip(row[1:], self.strides, strict=True))
        address = self.address + first * self.itemsize + at
        size = (end - first) * self.itemsize
        if stored:
            left = row[0] * self.itemsize + self.row_bytes - end * self.itemsize
            size += min(-end * self.itemsize % CHUNK, left)
        return address, (first - row[0]) * self.itemsize, size

    def _tile(self, coordinates: Row) -> list[Row]:
        rows: list[Row] = [()]
        for axis in range(1, len(self.dims)):  # later axes are slower
            steps = range(0, self.box[axis], self.steps[axis])
            rows = [(*row, coordinates[axis] + step) for step in steps for row in rows]
        return [(coordinates[0], *row) for row in rows]

    def _im2col(self, coordinates: Row, offsets: Row) -> list[Row]:
        """A walk over the window [lower, dim - 1 + upper] of each spatial axis.

        W is the fastest axis; past the last window comes the next image. Offsets are
        added to what is fetched.
        """
        channel, *at, image = coordinates
        axes = range(len(at))
        last = [self.dims[1 + axis] - 1 + self.upper[axis] for axis in axes]
        for axis in axes:
            self._inside(coordinates, at[axis], self.lower[axis], last[axis])
            if not 0 <= offsets[axis] < 1 << OFFSET_BITS[len(at)]:
                raise PtxError(f"im2col offsets {offsets}: out of range")
        rows = []
        for _ in range(self.pixels):
            rows.append((channel, *(x + o for x, o in zip(at, offsets, strict=True)), image))
            for axis in axes:
                at[axis] += self.steps[1 + axis]
                if at[axis] <= last[axis]:
                    break
                at[axis] = self.lower[axis]
            else:
                image += 1
        return rows

    def _wide(self, coordinates: Row, operands: Row) -> list[Row]:
        """A walk along W alone: past the window's end comes the next image.

        im2col::w takes `halo` pixels more. im2col::w::128 takes 128 pixels, then the first `halo`
        pixels past each quarter of 32: element j of all four quarters, then element j + 1. That
        order of its halo rows is inferred from code that ran on hardware; the ISA does not say it.
        """
        channel, w, *middle, image = coordinates
        halo, offset = operands
        quarters = self.mode == "im2col::w::128"
        if not 0 <= halo < HALO_LIMIT[self.mode] or not 0 <= offset < WIDE_OFFSET_LIMIT:
            raise PtxError(f"w_halo {halo} or w_offset {offset}: out of range")
        last = self.dims[1] - 1 + self.upper[0]
        # The first run may begin left of the window.
        self._inside(coordinates, max(w, self.lower[0]), self.lower[0], last)
        walk = []
        pixels = WIDE_128 if quarters else self.pixels
        for _ in range(pixels + halo):
            walk.append((channel, w + offset, *middle, image))
            w += self.steps[1]
            if w > last:
                w, image = self.lower[0], image + 1
        if not quarters:
            return walk
        ends = range(QUARTER, WIDE_128 + 1, QUARTER)
        return walk[:WIDE_128] + [walk[end + j] for j in range(halo) for end in ends]

    def _inside(self, coordinates: Row, start: int, low: int, high: int) -> None:
        if not low <= start <= high:
            raise PtxError(f"the copy starts at {coordinates}, outside the window {low} to {high}")


def swizzled(address: np.ndarray, span: int) -> np.ndarray:
    """Addresses of 16-byte units after the swizzle (5.5.6).

    A line of 128 bytes exchanges its units by the line's number, 8, 4 or 2 ways.
    """
    ways = max(span // 16, 1)
    line = address // 128
    unit = address // 16 % 8
    place: np.ndarray = line * 128 + (unit ^ (line % ways)) * 16 + address % 16
    return place
