"""What callers know of filters that order elements: the record of a launch, and its levels.

A work item is a tile: a block of rows, and some columns of them. Its rows are loaded with what
surrounds them, for each plane of the window below those of the plane before. Levels follow: each
makes rows of the rows before, and the last one makes those of y.

A row is contiguous. It consists of pixels, the positions along the last axis that is filtered.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from implicit_conv.kernels.cpu.runtime.call import BLOB

VECTOR = 64  # bytes; a level computes as many of a row at least
BLOCK = 4 * VECTOR  # bytes of a row that an extremum is computed of at once
CONSTANT = -1  # as the source of a pixel or a row: what lies outside the image
OUTSIDE = -(1 << 63)  # as the byte offset of a plane in x, where all others are possible


class Level(NamedTuple):
    """A step of a tile; rows of scratch memory are `Filter.pitch` bytes apart."""

    offsets: int = 0  # address: for each tap its offset in bytes
    taps: int = 0
    rank: int = 0  # of the element that is selected by counts
    plane: int = 0  # bytes between the rows of sorted columns
    rows: int = 0  # rows that it makes besides those of the tile
    width: int = 0  # bytes of a row that it makes besides those of the tile
    to: int = 0  # where its rows are in scratch memory


class Filter(NamedTuple):
    """What items read; sizes of rows are in elements, pitches in bytes."""

    outer: int = 0  # address: for each index the offset of y, then those of the planes of x
    tiles: int = 0
    tile: int = 0  # columns of a tile
    columns: int = 0
    borders: int = 0  # address: that of the table of each tile; see `compiled.tiles`
    blocks: int = 0
    block: int = 0  # rows of a tile
    rows: int = 0
    sources: int = 0  # address: the row of x that each position repeats, from the first one on
    x_row: int = 0  # byte strides of rows
    y_row: int = 0
    size: int = 0  # bytes of an element
    pixel: int = 0  # bytes of a pixel
    planes: int = 1
    plane: int = 0  # bytes between the loaded rows of planes
    window: int = 1  # rows of a window
    halo: int = 0  # bytes that loaded rows have more than a tile
    pitch: int = 0
    constant: int = 0  # address: a row of what lies outside the image
    levels: int = 0  # address
    level_count: int = 0
    checks: int = 0  # 1: loaded elements are checked


HEADER = 64  # bytes of scratch memory before rows; the first word is not 0 once a check has failed
MOST_LEVELS = 8
CHECK, SLOTS = MOST_LEVELS, MOST_LEVELS + 1  # levels have the slots before
LAUNCH = np.dtype(
    [
        ("item", np.int64),
        ("call", BLOB["call"]),
        ("filter", [(name, np.int64) for name in Filter._fields]),
    ]
)
