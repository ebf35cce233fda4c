"""The tiles of images, for filters that order the elements of windows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.engines.image_rows import Rows, first_axis
from implicit_conv.cpu.engines.image_tables import Tables
from implicit_conv.kernels.cpu.images.layout import LOAD
from implicit_conv.kernels.cpu.images.operator import ImageLaunch, copy
from implicit_conv.kernels.cpu.rank import operator
from implicit_conv.kernels.cpu.rank.layout import BLOCK, CHECK, LEVELS, Filter, Level
from implicit_conv.kernels.preparation import prepare

TILE_BYTES = 4 << 10  # of a row of a tile, about
SCRATCH_BYTES = 256 << 10  # of a tile with its levels, about: a part of L2
LEAST_STRIP = 8  # rows of a tile
MOST_SCRATCH = 16 << 20  # bytes of a tile, which a window may ask for


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
    constant : array of shape ()
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
    constant: Array
    checked: bool


class Tiling:
    """The rows of images, and their tiles. Levels keep a row for each loaded one, or as many as a
    window has if they sort columns. Where rows behind a single filtered axis are long, `long_rows`
    lets it count them.
    """

    def __init__(self, images: Images, sorts: bool, long_rows: bool, threads: int) -> None:
        size, kernel, sources = np.dtype(images.dtype).itemsize, images.kernel, images.sources
        axes = [axis for axis, extent in enumerate(kernel) if extent > 1]
        last = axes[-1]
        start = first_axis(images.shape, last, long_rows and len(axes) == 1)
        along = (kernel[last], sources[last]) if start == last else None
        strides = images.x_strides, images.y_strides
        self.rows = rows = Rows(images.shape, strides, kernel, sources, axes, start, along)
        self.images, self.threads = images, threads
        self.window, self.planes, self.taps = rows.window, rows.planes, rows.lines + 1
        self.pixel, self.halo = rows.inner * size, rows.halo * size  # bytes
        self.tile = rows.tile(size, max(TILE_BYTES, 2 * self.halo))
        self.pitch = rows.pitch(self.tile, size)
        results = self.window if sorts else 1
        kept = self.planes * (1 + results) * self.pitch
        least = max(LEAST_STRIP, self.window)
        strip = min(rows.strip(self.tile, threads), SCRATCH_BYTES // kept - self.window + 1)
        self.strip = min(rows.rows, max(least, strip))
        self.loaded = self.strip + self.window - 1  # rows of a plane
        self.plane = self.loaded * self.pitch  # bytes
        self.area = self.planes * self.plane + BLOCK  # bytes of loaded rows, and what levels read
        self.scratch = self.area + results * self.planes * self.plane + BLOCK

    @property
    def fits(self) -> bool:
        """Whether its tables and its scratch memory are not large for the image."""
        return self.scratch <= MOST_SCRATCH and not self.rows.are_short

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

    def launch(
        self,
        parts: Sequence[tuple[Any, ...]],
        levels: Sequence[tuple[Level, Sequence[int]]],
        zeros: bool,
    ) -> ImageLaunch:
        """The launch of parts, of which each has a level and the byte offsets of its taps; `zeros`
        says whether -0.0 has no order.
        """
        images, tables = self.images, Tables()
        dtype, checks = images.dtype, images.checked and images.dtype[0] == "f"
        cut, items = self.rows.cut(
            tables, self.tile, self.strip, (dtype, dtype, dtype), images.constant
        )
        words = [level._replace(offsets=tables(taps), taps=len(taps)) for level, taps in levels]
        fields = Filter(cut, self.plane, tables(words), len(words), int(checks))
        made = {LOAD: copy(cut.size), **dict(enumerate(parts, LEVELS))}
        if checks:
            made[CHECK] = operator.check(dtype, zeros)
        threads, kept = min(self.threads, items), tables.arrays
        return prepare(
            ImageLaunch, operator.FILTER, made, fields, items, self.scratch, threads, kept
        )
