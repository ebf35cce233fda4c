"""The tiles of images, for filters that order the elements of windows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from implicit_conv.cpu.engines.image_rows import Images, Rows, Tables, first_axis
from implicit_conv.kernels.cpu.images.layout import LOAD
from implicit_conv.kernels.cpu.images.operator import ImageLaunch, copy
from implicit_conv.kernels.cpu.rank import operator
from implicit_conv.kernels.cpu.rank.layout import BLOCK, CHECK, LEVELS, Filter, Level
from implicit_conv.process.preparation import prepare

TILE_BYTES = 4 << 10  # of a row of a tile, about
SCRATCH_BYTES = 256 << 10  # of a tile with its levels, about: a part of L2
LEAST_STRIP = 8  # rows of a tile
MOST_SCRATCH = 16 << 20  # bytes of a tile, which a window may ask for


class Tiling:
    """The rows of images, and their tiles. Levels keep a row for each loaded one, or as many as a
    window has if they sort columns. Where rows behind a single filtered axis are long, `long_rows`
    lets it count them.
    """

    def __init__(self, images: Images, sorts: bool, long_rows: bool, threads: int) -> None:
        axes = [axis for axis, extent in enumerate(images.kernel) if extent > 1]
        last = axes[-1]
        start = first_axis(images.shape, last, long_rows and len(axes) == 1)
        along = (images.kernel[last], images.sources[last]) if start == last else None
        self.rows = rows = Rows(images, axes, start, along)
        self.threads = threads
        self.window, self.planes, self.taps = rows.window, rows.planes, rows.lines + 1
        self.pixel, self.halo = rows.inner * rows.size, rows.halo * rows.size  # bytes
        self.tile = rows.tile(max(TILE_BYTES, 2 * self.halo))
        self.pitch = rows.pitch(self.tile)
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
        check: tuple[Any, ...] | None,
    ) -> ImageLaunch:
        """The launch of parts, of which each has a level and the byte offsets of its taps, and of
        the part that checks elements.
        """
        tables, checks = Tables(), check is not None
        cut, items = self.rows.cut(tables, self.tile, self.strip)
        words = [level._replace(offsets=tables(taps), taps=len(taps)) for level, taps in levels]
        fields = Filter(cut, self.plane, tables(words), len(words), int(checks))
        made = {LOAD: copy(cut.size), **dict(enumerate(parts, LEVELS))}
        if check is not None:
            made[CHECK] = check
        given = operator.FILTER, made, fields, items, self.scratch, min(self.threads, items)
        return prepare(ImageLaunch, *given, tables.arrays, checks=checks)
