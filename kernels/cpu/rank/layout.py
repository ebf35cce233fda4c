"""What callers know of filters that order elements: their levels.

A work item is a tile of an image, as `images.layout` says. All its rows are loaded, for each plane
of the window below those of the plane before. Levels follow: each makes rows of the rows before,
and the last one makes those of y.
"""

from __future__ import annotations

from typing import NamedTuple

from implicit_conv.kernels.cpu.images.layout import LOAD, Cut

VECTOR = 64  # bytes; a level computes as many of a row at least
BLOCK = 4 * VECTOR  # bytes of a row that an extremum is computed of at once


class Level(NamedTuple):
    """A step of a tile; rows of scratch memory are `Cut.pitch` bytes apart."""

    offsets: int = 0  # address: for each tap its offset in bytes
    taps: int = 0
    rank: int = 0  # of the element that is selected by counts
    plane: int = 0  # bytes between the rows of sorted columns
    rows: int = 0  # rows that it makes besides those of the tile
    width: int = 0  # bytes of a row that it makes besides those of the tile
    to: int = 0  # where its rows are in scratch memory


class Filter(NamedTuple):
    """What items read."""

    cut: Cut = Cut()
    plane: int = 0  # bytes between the loaded rows of planes
    levels: int = 0  # address
    level_count: int = 0
    checks: int = 0  # 1: loaded elements are checked


MOST_LEVELS = 8
# Slots of the parts: the first of levels.
LEVELS = LOAD + 1
CHECK = LEVELS + MOST_LEVELS
