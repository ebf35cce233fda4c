"""How the axes of an image become rows and planes, and how rows are cut into tiles.

The last axis that is filtered is the row, with all axes behind it, or these alone are the row if
they are long enough. The filtered axis before it counts the rows of windows, others their planes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.kernels.cpu.images.layout import BLOCK_BYTES, CONSTANT, NOWHERE, Cut

LONG_ROW = 32  # elements of a row behind the last filtered axis, at least
LINE = 64  # bytes; tiles begin on a multiple
SHORT = 8  # elements of a run that are copied within the row rather than loaded
ITEMS_PER_THREAD = 4
MOST_PLACES = 1 << 16  # words of tables for an image of any size; of larger ones, an eighth


def first_axis(shape: Sequence[int], last: int, alone: bool) -> int:
    """The first axis of rows, where `last` is the last one that is filtered; `alone` says that
    those behind it may be a row.
    """
    return last + (alone and math.prod(shape[last + 1 :]) >= LONG_ROW)


class Tables:
    """Arrays, which own what addresses point to."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []

    def __call__(self, values: Any, dtype: Any = np.int64) -> int:
        """The address of a contiguous array with these values; integers wrap."""
        found = np.ascontiguousarray(values)
        if np.dtype(dtype) == np.int16:
            found = found.astype(np.int64)
        self.arrays.append(found.astype(dtype))
        return int(self.arrays[-1].ctypes.data)


class Images(NamedTuple):
    """What is filtered, and how it goes on beyond its borders.

    Attributes
    ----------
    shape : sequence of int
    x_strides, y_strides : sequences of int
        In bytes.
    x, loaded, y : str
        The dtypes of x, of its rows once they are loaded, and of y.
    kernel : sequence of int
        The extents of the window, by axis.
    sources : sequence of arrays
        For each axis the pixels that positions repeat, from the first one that is read on; CONSTANT
        is outside the image.
    constant : number
        The element that is there.
    """

    shape: Sequence[int]
    x_strides: Sequence[int]
    y_strides: Sequence[int]
    x: str
    loaded: str
    y: str
    kernel: Sequence[int]
    sources: Sequence[Array]
    constant: Any


class Rows:
    """The rows of images, of which some axes are filtered; `start` is the first axis of a row.

    `along` has the extent of windows along rows, and the sources there; it is None if rows are not
    filtered.

    Attributes
    ----------
    columns, inner : int
        The elements of a row, and those of a pixel of a row that is filtered; else 1.
    lines, halo : int
        The pixels, and the elements, that loaded rows have more than results.
    axis : int
        The axis that counts rows; -1 if there is one row.
    plane_axes : list of int
        Other axes along which windows have more than one row.
    rows, window, planes, size : int
        Rows, those of a window in each of its planes, these planes, and bytes of loaded elements.

    Raises
    ------
    ValueError
        Rows are not contiguous in x or y.
    """

    def __init__(
        self, images: Images, axes: Sequence[int], start: int, along: tuple[int, Array] | None
    ) -> None:
        shape, self._images = images.shape, images
        for strides, dtype in ((images.x_strides, images.x), (images.y_strides, images.y)):
            step = np.dtype(dtype).itemsize
            for size, stride in reversed([*zip(shape, strides, strict=True)][start:]):
                if size > 1 and stride != step:
                    raise ValueError("rows are not contiguous")
                step *= size
        self.columns = math.prod(shape[start:])
        self.inner = 1 if along is None else math.prod(shape[start + 1 :])
        extent, pixels = along or (1, np.arange(self.columns))
        self._pixels: Array = pixels
        self.lines = extent - 1
        self.halo = self.lines * self.inner
        before = [axis for axis in axes if axis < start]
        self.axis = before[-1] if before else start - 1
        self.plane_axes = before[:-1]
        self.rows = self.window = 1
        self._sources: Any = [0]
        self._steps = [0, 0]
        if self.axis >= 0:
            self.rows, self.window = shape[self.axis], images.kernel[self.axis]
            self._sources = images.sources[self.axis]
            self._steps = [images.x_strides[self.axis], images.y_strides[self.axis]]
        self._outer = self._offsets([axis for axis in range(start) if axis != self.axis])
        self.planes = self._outer.shape[1] - 1
        self.size = np.dtype(images.loaded).itemsize

    def _offsets(self, axes: Sequence[int]) -> Array:
        """For each index of some axes the byte offset in y, then those of all planes of its window
        in x; NOWHERE is that of a plane outside the image.
        """
        images, places = self._images, np.zeros(1, np.int64)
        for axis in axes:
            steps = np.arange(images.shape[axis]) * images.y_strides[axis]
            places = (places[:, None] + steps).ravel()
        found = [places]
        for firsts in itertools.product(*(range(images.kernel[axis]) for axis in axes)):
            offset, outside = np.zeros(1, np.int64), np.zeros(1, bool)
            for axis, first in zip(axes, firsts, strict=True):
                read = images.sources[axis][first : first + images.shape[axis]]
                offset = (offset[:, None] + read * images.x_strides[axis]).ravel()
                outside = (outside[:, None] | (read == CONSTANT)).ravel()
            found.append(np.where(outside, NOWHERE, offset))
        return np.stack(found, axis=1)

    @property
    def are_short(self) -> bool:
        """Whether tables of where rows begin would be large for the image."""
        elements = self.rows * len(self._outer) * self.columns
        return self.rows + self._outer.size > max(MOST_PLACES, elements // 8)

    @property
    def read_constant(self) -> bool:
        """Whether windows read the constant along rows."""
        return bool((self._pixels == CONSTANT).any())

    def tile(self, room: int) -> int:
        """Columns of a tile: whole pixels, of about `room` bytes."""
        pieces = max(1, round(self.columns * self.size / room))
        step = math.lcm(self.inner, LINE // self.size)
        return min(self.columns, -(-self.columns // (pieces * step)) * step)

    def pitch(self, tile: int) -> int:
        """Bytes from row to row in scratch memory; there is room for a block behind each."""
        return -(-((tile + self.halo) * self.size) // BLOCK_BYTES) * BLOCK_BYTES + BLOCK_BYTES

    def strip(self, tile: int, threads: int) -> int:
        """Rows of a strip at most, so that all threads have work."""
        if threads == 1:
            return self.rows
        others = len(self._outer) * -(-self.columns // tile)
        return -(-self.rows // -(-ITEMS_PER_THREAD * threads // others))

    def cut(self, tables: Tables, tile: int, strip: int) -> tuple[Cut, int]:
        """What items read, and their number."""
        images, starts, pitch = self._images, range(0, self.columns, tile), self.pitch(tile)
        cut = Cut(
            outer=tables(self._outer),
            tiles=len(starts),
            tile=tile,
            columns=self.columns,
            borders=tables([tables(self._border(first, tile)) for first in starts]),
            strips=-(-self.rows // strip),
            strip=strip,
            rows=self.rows,
            sources=tables(self._sources),
            x_row=self._steps[0],
            y_row=self._steps[1],
            x_size=np.dtype(images.x).itemsize,
            y_size=np.dtype(images.y).itemsize,
            size=self.size,
            planes=self.planes,
            window=self.window,
            halo=self.halo,
            pitch=pitch,
            constant=tables(np.full(pitch // self.size, images.constant), images.loaded),
        )
        return cut, len(self._outer) * cut.strips * cut.tiles

    def _border(self, first: int, tile: int) -> Array:
        """The table of a tile that begins with column `first`; see `compiled.tiles`."""
        inner, end = self.inner, min(first + tile, self.columns)
        read = self._pixels[first // inner : end // inner + self.lines]
        pieces = runs_of(read)
        longest = max(pieces, key=lambda piece: (piece[1] != CONSTANT, piece[2]))
        runs, copies = list[tuple[int, int, int]](), list[tuple[int, int]]()
        for piece in pieces:
            begin, source, count = piece
            shift = source - longest[1]
            inside = longest[1] != CONSTANT and 0 <= shift and shift + count <= longest[2]
            if piece == longest or source == CONSTANT or count * inner > SHORT or not inside:
                origin = CONSTANT if source == CONSTANT else source * inner
                runs.append((begin * inner, origin, count * inner))
            else:
                at = longest[0] + shift
                copies += [(begin * inner + i, at * inner + i) for i in range(count * inner)]
        present = np.flatnonzero(read != CONSTANT)
        low, high = (present[0], len(read) - 1 - present[-1]) if len(present) else (len(read), 0)
        flat = [len(runs), len(copies), low * inner, high * inner]
        return np.array([*flat, *itertools.chain(*runs), *itertools.chain(*copies)], np.int64)


def runs_of(pixels: Array) -> list[tuple[int, int, int]]:
    """Runs of neighbouring pixels: (place of the first, pixel or CONSTANT, number)."""
    absent, step = pixels == CONSTANT, np.diff(pixels)
    follows = np.where(absent[:-1] | absent[1:], step == 0, step == 1)
    cuts = [0, *(np.flatnonzero(~follows) + 1).tolist(), len(pixels)]
    return [(begin, int(pixels[begin]), end - begin) for begin, end in itertools.pairwise(cuts)]
