"""Extents of the tiles and register tiles that a Geometry is cut into, and of windows of x."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.geometry import Geometry

FEW = 4  # columns of the small blocks that packing transposes, at most
WINDOW_ELEMENTS = 32  # of a window at most: elements of 16 bits that one instruction copies


class Window(NamedTuple):
    """The window of an output column along an image row.

    `before` counts the pixels of padding on the low side, and `columns` the pixels of the row.
    """

    channels: int
    taps: int
    stride: int
    before: int
    columns: int

    @property
    def elements(self) -> int:
        """Elements of a window."""
        return self.channels * self.taps

    @property
    def shape(self) -> tuple[int, int, int]:
        """What compiled code depends on: channels, taps and stride."""
        return self[:3]


def tile_extents(g: Geometry) -> list[tuple[int, int, int]]:
    """All (planes, rows, columns) that load tiles of `g` have: whole ones and the last ones."""
    axes = ((g.Z if g.Z > 1 else g.N, g.tile_n), (g.P, g.tile_p), (g.Q, g.tile_q))
    sizes = [sorted({min(size, tile), size % tile} - {0}) for size, tile in axes]
    return [(n, p, q) for n, p, q in itertools.product(*sizes)]


def register_heights(g: Geometry, pixels: int) -> set[int]:
    """Heights of the register tiles that `pixels` pixels are cut into."""
    return {height for height, count in schedule.cuts(pixels, g.tile_m) if count}


def tap_in_phase(g: Geometry, s: int) -> tuple[int, int]:
    """(phase buffer, pixel in it) that output column 0 reads for filter column s."""
    b = s % g.phases_w
    return b, int(schedule.tap_column(g, s) - schedule.buffer_column(g, b))
