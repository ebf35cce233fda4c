"""Sizes of fprop with pixels of rows, or of one flat row, as vector lanes."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.runtime.layout import Layout, ScratchLayout, load_table_bytes
from implicit_conv.kernels.geometry import Geometry

FAR_INPUT_BYTES = 1 << 20  # bytes of x above which its planes are read from beyond L2
FAR_PLANE_BYTES = 1 << 10  # bytes of a plane above which prefetchers do not reach the next one
AHEAD_BYTES = 12 << 10  # bytes of prefetched pixels that L1 keeps: a quarter of 48 KiB
WAITING_FILTERS = 64  # filters of an NHWC staging tile at most: whole cache lines of y
WAITING_BYTES = 128 << 10  # bytes of an NHWC staging tile at most, which stays in L2


@dataclass(frozen=True)
class PlanarGemmLayout(Layout):
    """Sizes with rows of all channels in whole vectors, and filters that are read in place.

    With a 1x1 filter the pixels of a tile form one flat row.
    """

    channels_last: bool = False  # whether x and y are NHWC
    keeps: bool = False  # the first panel reads x in place, and copies it for the others

    @property
    def flat(self) -> bool:
        """Whether all pixels of a load tile form one row."""
        return bool(schedule.is_single_tap(self.g))

    @property
    def packs_in_loop(self) -> bool:
        """Filters are never packed."""
        return True

    @property
    def group_bytes(self) -> int:
        """Bytes of the filters of one group, which are read in place."""
        g = self.g
        return g.K * g.C * int(schedule.taps(g)) * self.itemsize

    @property
    def reads_unloaded(self) -> bool:
        """A vector of pixels may run over the end of a row."""
        return True

    def scratch(self, packs: bool) -> ScratchLayout:
        """Row buffers and the sums of a panel."""
        if self.flat:
            return self._flat_scratch()
        g, itemsize = self.g, self.itemsize
        rows = schedule.image_rows(g) * g.phases_w
        vectors = schedule.plane_vectors(g, self.lanes)
        return ScratchLayout(
            buffer=g.C * rows * vectors * self.lanes * itemsize,
            staging=g.tile_k * g.tile_p * g.tile_q * itemsize,
            loads=load_table_bytes(g, rows),
        )

    def _flat_scratch(self) -> ScratchLayout:
        """One row of pixels for each channel, unless all panels read x in place.

        The last vector of an image row may run over the end of the row: into a row that is loaded
        later, or over the end of the buffer, which therefore has one more vector.
        """
        g, itemsize, waiting = self.g, self.itemsize, self.waiting_filters
        row = flat_row_bytes(g, itemsize, self.lanes)
        transposed = waiting * g.tile_p * g.tile_q * itemsize if self.channels_last else 0
        last = 0 if self.keeps else self.lanes * itemsize
        return ScratchLayout(
            buffer=g.C * row + last if self.keeps or not self.in_place else 0,
            staging=waiting * row + transposed,
            loads=0 if self.in_place else load_table_bytes(g, schedule.image_rows(g) * g.phases_w),
            tail=tail_pixels(self.lanes) * (g.C + g.tile_k) * itemsize,
        )

    @property
    def waiting_filters(self) -> int:
        """Filters of the staging tile of a flat row: one panel, or several for one transpose."""
        g = self.g
        if not self.channels_last:
            return g.tile_k
        near = WAITING_BYTES // flat_row_bytes(g, self.itemsize, self.lanes)
        return max(1, min(WAITING_FILTERS, near) // g.tile_k) * g.tile_k

    @property
    def asks_ahead(self) -> bool:
        """Whether microkernels prefetch the pixels of the next register tile.

        They do if x is read from beyond L2, or if L1 has room for the pixels of two tiles.
        Otherwise the prefetched pixels would be read from L2 twice.
        """
        tile = self.g.C * schedule.pixel_rows(self.g) * self.lanes * self.itemsize
        return is_far(self.g, self.itemsize) or bool(tile <= AHEAD_BYTES)


def is_far(g: Geometry, itemsize: int) -> bool:
    """Whether planes read in place come from beyond L2, where they need a prefetch."""
    plane = g.H * g.W * itemsize
    return plane >= FAR_PLANE_BYTES and g.N * g.groups * g.C * plane > FAR_INPUT_BYTES


def flat_row_bytes(g: Geometry, itemsize: int, lanes: int) -> int:
    """Bytes of the pixels of a load tile as one row, in whole vectors."""
    return int(schedule.ceil_div(g.tile_p * g.tile_q, lanes)) * lanes * itemsize


def tail_pixels(lanes: int) -> int:
    """The most pixels beyond whole vectors that dot products compute; more of them take another
    vector.
    """
    return lanes // 4


def tail_filters(g: Geometry, lanes: int) -> int:
    """Filters of a register tile of the dot products, a power of two."""
    return min(lanes, 1 << (min(g.K, g.tile_k).bit_length() - 1))


class Pixels(enum.Enum):
    """Where microkernels find the pixels of an element of the sum."""

    VIEWS = "in planes, at the offsets of a table"
    COPIED = "in planes; each is copied to where microkernels of other filters find it"
    KEPT = "where they were copied: those of a register tile one element after another"


class RegisterTile(NamedTuple):
    """A register tile: `filters` x `height` vectors of pixels, one vector of each output row.

    With `long_row` the vectors are contiguous instead, since all pixels of a plane form one row.
    """

    filters: int
    height: int  # 0: the tail of a long row, which does not fill a vector
    together: bool  # filters are contiguous in the output
    long_row: bool
    ahead: bool  # prefetch the next tile's pixels, from more planes than hardware can follow
    chained: bool  # sums have more elements than a chain
    pixels: Pixels = Pixels.VIEWS

    @property
    def rows(self) -> int:
        """Vectors of pixels for each filter."""
        return max(1, self.height)
