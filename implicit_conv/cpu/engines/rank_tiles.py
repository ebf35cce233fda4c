"""Rows of images and their tiles, for filters that order the elements of windows.

The last axis that is filtered is the row, with all axes behind it, or these alone are the row if
they are long enough. The filtered axis before it counts the rows of windows, others their planes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.engines.image_tables import (
    Tables,
    has_short_rows,
    offsets_of_planes,
    runs_of,
)
from implicit_conv.kernels.cpu.rank import operator
from implicit_conv.kernels.cpu.rank.layout import HEADER, OUTSIDE, VECTOR, Filter, Level
from implicit_conv.kernels.cpu.rank.operator import RankLaunch
from implicit_conv.kernels.preparation import prepare

LONG_ROW = 32  # elements of a row behind the last filtered axis, at least
TILE_BYTES = 4 << 10  # of a row of a tile, about
SCRATCH_BYTES = 256 << 10  # of a tile with its levels, about: a part of L2
LEAST_BLOCK = 8  # rows of a tile
SPARE = 4 * VECTOR  # bytes behind rows, which levels may read
ITEMS_PER_THREAD = 4


@dataclass(frozen=True)
class Images:
    """What is filtered, and how it goes on beyond its borders.

    Attributes
    ----------
    shape : tuple of int
    x_strides, y_strides : tuple of int
        In bytes. The axes from the last filtered one on are contiguous.
    dtype : str
        Integers without or with signs, or floats.
    kernel : tuple of int
        The extents of the window, by axis.
    sources : tuple of arrays
        For each axis the pixels that positions repeat, from the first one that is read on; CONSTANT
        is outside the image.
    constant : bytes
        The element that is there.
    checked : bool
        Whether floats of x are checked: NaN has no order, and zeros of both signs none for ranks.
    """

    shape: tuple[int, ...]
    x_strides: tuple[int, ...]
    y_strides: tuple[int, ...]
    dtype: str
    kernel: tuple[int, ...]
    sources: tuple[Array, ...]
    constant: bytes
    checked: bool


class Tiling:
    """The rows of images, and their tiles. Levels keep a row for each loaded one, or as many as a
    window has if they sort columns. Where rows behind a single filtered axis are long, `long_rows`
    lets it count them.
    """

    def __init__(self, images: Images, sorts: bool, long_rows: bool, threads: int) -> None:
        shape, self.size = images.shape, np.dtype(images.dtype).itemsize
        filtered = [axis for axis, extent in enumerate(images.kernel) if extent > 1]
        last = filtered[-1]
        inner = math.prod(shape[last + 1 :])
        alone = long_rows and len(filtered) == 1 and inner >= LONG_ROW
        self.images, self.threads = images, threads
        self.start = last + 1 if alone else last
        self.columns = math.prod(shape[self.start :])
        before = [axis for axis in filtered if axis < self.start]
        self.rows_axis = before[-1] if before else self.start - 1
        self.window = images.kernel[self.rows_axis] if before else 1
        self.planes = math.prod(images.kernel[axis] for axis in before[:-1])
        self.taps = 1 if alone else images.kernel[last]  # pixels of a row of a window
        self.pixel = (1 if alone else inner) * self.size  # bytes
        self.halo = (self.taps - 1) * self.pixel
        self.rows = shape[self.rows_axis] if self.rows_axis >= 0 else 1
        self.tile = self._tile()
        wide = self.tile * self.size + self.halo
        self.pitch = -(-wide // SPARE) * SPARE + SPARE
        axes = [axis for axis in range(self.start) if axis != self.rows_axis]
        strides = images.x_strides, images.y_strides
        self.outer = offsets_of_planes(axes, shape, strides, images.kernel, images.sources, OUTSIDE)
        results = self.window if sorts else 1
        kept = self.planes * (1 + results) * self.pitch
        self.block = min(self.rows, self._block(SCRATCH_BYTES // kept))
        self.loaded = self.block + self.window - 1  # rows of a plane
        self.plane = self.loaded * self.pitch  # bytes
        self.area = self.planes * self.plane + SPARE  # bytes of loaded rows
        self.scratch = HEADER + self.area + results * self.planes * self.plane + SPARE

    @property
    def has_short_rows(self) -> bool:
        """Whether tables of where rows begin would be about as large as the image."""
        return has_short_rows(self.rows, self.outer, self.columns)

    def _tile(self) -> int:
        """Columns of a tile: whole pixels."""
        room = max(TILE_BYTES, 2 * self.halo)
        pieces = max(1, round(self.columns * self.size / room))
        step = math.lcm(self.pixel, VECTOR) // self.size
        steps = -(-self.columns // (pieces * step))
        return min(self.columns, steps * step)

    def _block(self, room: int) -> int:
        """Rows of a tile, of which there is room for so many with those around them."""
        block = max(LEAST_BLOCK, self.window, room - self.window + 1)
        if self.threads > 1:
            others = len(self.outer) * -(-self.columns // self.tile)
            blocks = -(-ITEMS_PER_THREAD * self.threads // others)
            block = min(block, max(LEAST_BLOCK, self.window, -(-self.rows // blocks)))
        return block

    def along_planes(self, rows: int) -> list[int]:
        """The byte offsets of the elements of a window in loaded rows, of so many in each plane."""
        steps = (
            [i * step for i in range(extent)]
            for extent, step in (
                (self.planes, self.plane),
                (rows, self.pitch),
                (self.taps, self.pixel),
            )
        )
        return [sum(place) for place in itertools.product(*steps)]

    def _border(self, first: int, columns: int) -> Array:
        """The table of a tile that begins with column `first`; see `compiled.tiles`."""
        if self.taps == 1:
            return np.array(
                [1, 0, first * self.size // self.pixel, columns * self.size // self.pixel]
            )
        pixels = columns * self.size // self.pixel + self.taps - 1
        read = self.images.sources[self.start][first * self.size // self.pixel :][:pixels]
        runs = runs_of(read)
        return np.array([len(runs), *itertools.chain(*runs)])

    def launch(
        self,
        parts: Sequence[tuple[Any, ...]],
        levels: Sequence[tuple[Level, Sequence[int]]],
        zeros: bool,
    ) -> RankLaunch:
        """The launch of parts, of which each has a level and the byte offsets of its taps; `zeros`
        says whether -0.0 has no order.
        """
        images, tables = self.images, Tables()
        rows = [level._replace(offsets=tables(taps), taps=len(taps)) for level, taps in levels]
        starts = range(0, self.columns, self.tile)
        borders = [
            tables(self._border(first, min(self.tile, self.columns - first))) for first in starts
        ]
        strided = self.rows_axis >= 0
        checked = images.checked and images.dtype[0] == "f"
        check = operator.check(images.dtype, zeros) if checked else None
        fields = Filter(
            outer=tables(self.outer),
            tiles=len(starts),
            tile=self.tile,
            columns=self.columns,
            borders=tables(borders),
            blocks=-(-self.rows // self.block),
            block=self.block,
            rows=self.rows,
            sources=tables(images.sources[self.rows_axis] if strided else [0]),
            x_row=images.x_strides[self.rows_axis] if strided else 0,
            y_row=images.y_strides[self.rows_axis] if strided else 0,
            size=self.size,
            pixel=self.pixel,
            planes=self.planes,
            plane=self.plane,
            window=self.window,
            halo=self.halo,
            pitch=self.pitch,
            constant=tables(
                np.frombuffer(images.constant * (self.pitch // self.size), np.uint8), np.uint8
            ),
            levels=tables(rows),
            level_count=len(rows),
            checks=int(check is not None),
        )
        items = len(self.outer) * fields.blocks * fields.tiles
        threads = min(self.threads, items)
        return prepare(
            RankLaunch, parts, check, fields, items, self.scratch, threads, tables.arrays
        )
