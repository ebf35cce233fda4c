"""Sizes of depthwise convolution, and of groups of a few channels that share vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.depthwise.row_pieces import Source
from implicit_conv.kernels.cpu.runtime.layout import Layout, ScratchLayout, buffer_bytes
from implicit_conv.kernels.cpu.tile.storage import Stored

DEPTHWISE_PACK_BYTES = 64 << 10  # bytes of filters that a thread packs in about 3 us (EPYC 9005)


@dataclass(frozen=True)
class DepthwiseLayout(Layout):
    """Sizes with the channels of all groups as those of one group in `g`.

    A panel is the filters of a block of channels, and has whole vectors.
    """

    group: tuple[int, int] = (1, 1)  # (channels, filters) of a true group
    by_columns: bool = False  # whether taps are added one by one, column by column

    @property
    def packs_in_loop(self) -> bool:
        """Whether each thread packs the whole filter, which is then faster than another launch."""
        return self.packed_bytes <= DEPTHWISE_PACK_BYTES

    @property
    def group_bytes(self) -> int:
        """Bytes of the packed filters of one block of channels."""
        return self.group[0] * int(schedule.taps(self.g)) * self.g.tile_k * self.itemsize

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed filters of all blocks of channels."""
        return self.group_bytes * int(schedule.block_count(self.g))

    def scratch(self, packs: bool) -> ScratchLayout:
        """Buffers have one more vector: with fewer channels than lanes, loads run over the end."""
        g, itemsize = self.g, self.itemsize
        buffer = buffer_bytes(g, itemsize) + self.lanes * itemsize
        return ScratchLayout(
            buffer=0 if self.in_place else buffer,
            staging=g.tile_n * g.tile_p * g.tile_q * g.tile_k * itemsize,
            runs=16 * (schedule.filter_rows(g) + schedule.taps(g) * (1 + self._edges)),
            panel=self.packed_bytes if packs else 0,
        )

    @property
    def _edges(self) -> int:
        """Output columns of a tile, at most, that may need a tap table of their own: those read in
        place whose windows meet padding that repeats pixels.
        """
        g = self.g
        return min(g.tile_q, schedule.edge_columns(g)) if self.in_place else 0


class Row(NamedTuple):
    """A filter row whose taps share what they read; windows may reach into the padding."""

    taps: int
    stride: int
    before: int = 0  # padding pixels at the beginning of the span of all windows
    after: int = 0  # padding pixels at its end
    sources: tuple[Source, ...] = ()  # what these pixels repeat, in order; empty if they are zeros


class Variant(NamedTuple):
    """What a microkernel is compiled for."""

    pixels: int
    row: Row | None  # None: the tap table lists every tap
    group: tuple[int, int]  # channels and filters of a group
    read_as: Stored  # formats of what is read, of sums and of y, as keys of storage.SIZES
    sum_type: str
    y_type: Stored
    chain: int  # entries of the tap table whose products one chain adds up; 0: all of them

    @property
    def reads(self) -> int:
        """Pixels from the first one that a tile reads to the first one of the next tile."""
        return self.pixels * (self.row.stride if self.row else 1)
