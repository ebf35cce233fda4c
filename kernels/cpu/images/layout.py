"""What callers know of filters of images: how images are cut into tiles, and the orders of sums.

A row is contiguous along the last axis, and its elements are the lanes of vectors. A window has
`window` rows of each of `planes` planes. Work items are tiles of rows: (outer axes, strip of rows,
tile of columns). All filters are cut and loaded alike, those that order elements too; a filter of
sums goes on with

    load      rows of x, converted to the dtype of the sums, with what surrounds the image
    before    sums along rows, of windows one row high (none, unless it is the first of two passes)
    middle    sums of windows
    after     sums along rows (none, unless it is the second of two passes)
    store     rows, converted to the dtype of y

Between passes elements are rounded to those of y, as if the first pass had been stored. A thread
keeps `batch` rows of the middle pass at once, and moves those that the next ones share.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

BLOCK_BYTES = 256  # of a block: 4 sums in vectors of 64 bytes hide the latency of an addition
CONSTANT = -1  # as the pixel of a position: what lies outside the image
NOWHERE = 1 << 62  # as the offset of a plane: it is outside the image; offsets may be negative


class Order(enum.Enum):
    """How a sum is made of taps and elements."""

    TAPS = "products are added to zero"
    LINE = "products are added to the first one"
    MIRRORED = "a product; then pairs of elements are added, multiplied, and added to it"
    OPPOSED = "a product; then pairs of elements are subtracted, multiplied, and added to it"
    # By the only weight, sums of float64 are divided, and others multiplied: those of integers are
    # multiplied by 2^16 over the number of elements, and lose 16 bits.
    MEAN = "elements are added, and the sum is divided"
    # Of float64. A window has an element more, the first one, which the last sum had.
    RUNNING = "means of elements below each other: the next one enters the sum, the first leaves"
    ALONG = "means of elements beside each other: the next one enters the sum, the first leaves"


class Cut(NamedTuple):
    """How images are cut into tiles; sizes of rows are in elements, pitches in bytes."""

    outer: int = 0  # address: for each index the offset of y, then those of the planes of x
    tiles: int = 0
    tile: int = 0  # columns of a tile
    columns: int = 0
    borders: int = 0  # address: that of the table of each tile; see `compiled.tiles`
    strips: int = 0
    strip: int = 0  # rows of a strip
    rows: int = 0
    sources: int = 0  # address: the row of x that each position repeats, from the first one on
    x_row: int = 0  # byte strides of rows
    y_row: int = 0
    x_size: int = 0  # bytes of elements
    y_size: int = 0
    size: int = 0  # bytes of elements of loaded rows
    planes: int = 1
    window: int = 1
    halo: int = 0  # columns that loaded rows have more than a tile
    pitch: int = 0  # of rows in scratch memory
    constant: int = 0  # address: a row of what lies outside the image


class Taps(NamedTuple):
    """The taps of a pass, by the addresses of their offsets in bytes, two a tap, and weights."""

    number: int = 0
    offsets: int = 0
    weights: int = 0


class Filter(NamedTuple):
    """What items of a filter of sums read."""

    cut: Cut = Cut()
    batch: int = 1
    together: int = 1  # rows of which the last pass makes sums at once
    rounds: int = 0  # 1: elements are rounded between passes
    outside: int = 0  # 1: the last pass reads the constant where it is outside the image
    before: Taps = Taps()
    middle: Taps = Taps()
    after: Taps = Taps()


RUNS, COPIES, BEHIND, BEYOND, TABLE_HEADER = range(5)  # the first words of the table of a tile
# Slots of the parts: LOAD is that of all filters.
LOAD, ROUND, STORE, SUMS, SLOTS = 0, 1, 2, 3, 6
BEFORE, MIDDLE, AFTER = range(SUMS, SLOTS)
