"""Sizes of fprop whose vector lanes are pixels, of rows or of one flat row."""

from __future__ import annotations

from dataclasses import dataclass

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.runtime.layout import LOAD_BYTES, Layout, ScratchLayout
from implicit_conv.kernels.geometry import Geometry

FAR_INPUT_BYTES = 1 << 20  # bytes of planes in all above which they come from beyond L2
FAR_PLANE_BYTES = 1 << 10  # bytes of a plane above which prefetchers lose it from one to the next
AHEAD_BYTES = 12 << 10  # bytes of the next register tile's pixels that L1 keeps: a quarter of it
WAITING_FILTERS = 64  # filters of an NHWC staging tile at most: whole cache lines of y
WAITING_BYTES = 128 << 10  # bytes of an NHWC staging tile at most: it stays in L2


@dataclass(frozen=True)
class PixelLanesLayout(Layout):
    """Sizes of rows of all channels, in whole vectors; filters are read in place.

    A single filter tap makes the pixels of a tile one flat row.
    """

    channels_last: bool = False

    @property
    def flat(self) -> bool:
        """Whether all pixels of a load tile are one row of lanes."""
        return bool(schedule.is_single_tap(self.g))

    @property
    def packs_in_loop(self) -> bool:
        """Nothing is packed."""
        return True

    @property
    def group_bytes(self) -> int:
        """Bytes of one group's filters, which are copied as they are."""
        g = self.g
        return g.K * g.C * g.R * g.S * self.itemsize

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
            loads=8 + LOAD_BYTES * rows,
        )

    def _flat_scratch(self) -> ScratchLayout:
        """One row of pixels for each channel, unless x is read in place.

        The vector that loads an image row may run over its end: into rows that are loaded later,
        and over the end of the last one.
        """
        g, itemsize, waiting = self.g, self.itemsize, self.waiting_filters
        row = flat_row_bytes(g, itemsize, self.lanes)
        transposed = waiting * g.tile_p * g.tile_q * itemsize if self.channels_last else 0
        return ScratchLayout(
            buffer=0 if self.in_place else g.C * row + self.lanes * itemsize,
            staging=waiting * row + transposed,
            loads=0 if self.in_place else 8 + LOAD_BYTES * schedule.image_rows(g),
            tail=tail_pixels(self.lanes) * (g.C + g.tile_k) * itemsize,
        )

    @property
    def waiting_filters(self) -> int:
        """Filters of a flat row's staging tile: one panel, or several transposed together."""
        g = self.g
        if not self.channels_last:
            return g.tile_k
        near = WAITING_BYTES // flat_row_bytes(g, self.itemsize, self.lanes)
        return max(1, min(WAITING_FILTERS, near) // g.tile_k) * g.tile_k

    @property
    def asks_ahead(self) -> bool:
        """Whether the next register tile's pixels are worth prefetching.

        They are if they come from far, or if L1 keeps them beside this tile's. Else they would come
        from L2 twice.
        """
        tile = self.g.C * schedule.pixel_rows(self.g) * self.lanes * self.itemsize
        return is_far(self.g, self.itemsize) or bool(tile <= AHEAD_BYTES)


def is_far(g: Geometry, itemsize: int) -> bool:
    """Whether planes that are read in place come from beyond L2, too late without a prefetch."""
    plane = g.H * g.W * itemsize
    return plane >= FAR_PLANE_BYTES and g.N * g.groups * g.C * plane > FAR_INPUT_BYTES


def flat_row_bytes(g: Geometry, itemsize: int, lanes: int) -> int:
    """The pixels of a load tile as one row, in whole vectors."""
    return int(schedule.ceil_div(g.tile_p * g.tile_q, lanes)) * lanes * itemsize


def tail_pixels(lanes: int) -> int:
    """Pixels of a flat row beyond whole vectors that dot products take at most; more make a vector
    of their own.
    """
    return lanes // 4


def tail_filters(g: Geometry, lanes: int) -> int:
    """Filters of a register tile of those dot products: a power of two."""
    return min(lanes, 1 << (min(g.K, g.tile_k).bit_length() - 1))
