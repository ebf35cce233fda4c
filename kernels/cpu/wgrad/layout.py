"""Sizes of weight gradients: row buffers, panels of dy, sums and their levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.runtime.layout import Layout, ScratchLayout, buffer_bytes, round_up
from implicit_conv.kernels.geometry import Geometry

RADIX_BITS = 6  # a level of sums adds up to 2^6 sums of the level below
MOST_LEVELS = 4  # levels in memory; they hold 2^18 load tiles before the last one grows longer
# Bytes between pixels that are read in place, at most: with 1,024 bytes reading in place took 2 to
# 25 % less time than copies, with 2,048 up to 15 % more (AMD EPYC, Zen 4, 2026-11).
NEAR_PIXEL_BYTES = 1024


@dataclass(frozen=True)
class WeightGradLayout(Layout):
    """Sizes of a weight gradient whose lanes are filters.

    A load tile is one chain of every sum: its pixels are added one by one.

    Attributes
    ----------
    parts : int
        Ranges of load tiles that are summed by different work items, and added at the end.
    joined : bool
        Whether the channels of all columns of a filter row are rows of one matrix, which is
        possible where image rows are buffered without gaps.
    strided : bool
        Whether the channels of x, which is read in place, may be any stride apart.
    """

    parts: int = 1
    joined: bool = False
    strided: bool = False

    @property
    def group_bytes(self) -> int:
        """Nothing is packed."""
        return 0

    @property
    def part_tiles(self) -> int:
        """Load tiles of a part."""
        return schedule.ceil_div(schedule.tile_count(self.g), self.parts)

    @property
    def items(self) -> int:
        """Work items of a part: groups x channel blocks x chunks of panels."""
        g = self.g
        chunks = schedule.ceil_div(schedule.panel_count(g), self.chunk)
        return g.groups * schedule.block_count(g) * chunks

    @property
    def panel_bytes(self) -> int:
        """Bytes of a panel of dy."""
        g = self.g
        return g.tile_n * g.tile_p * g.tile_q * g.tile_k * self.itemsize

    @property
    def panel_sums(self) -> int:
        """Bytes of the sums of a panel and a channel block."""
        g = self.g
        return schedule.taps(g) * min(g.C, g.tile_c) * g.tile_k * self.itemsize

    @property
    def item_sums(self) -> int:
        """Bytes of the sums of a work item."""
        return round_up(self.chunk * self.panel_sums)

    @property
    def levels(self) -> int:
        """Levels of sums, of which each adds up to 2^RADIX_BITS sums of the level below."""
        levels, tiles = 1, self.part_tiles
        while tiles > 1 << RADIX_BITS and levels < MOST_LEVELS:
            levels, tiles = levels + 1, schedule.ceil_div(tiles, 1 << RADIX_BITS)
        return levels

    @property
    def partial_bytes(self) -> int:
        """Bytes of the sums of all parts, if there are several."""
        return self.parts * self.items * self.item_sums if self.parts > 1 else 0

    def scratch(self, packs: bool) -> ScratchLayout:
        """Row buffers of x unless it is read in place, the panels of dy, and the sums."""
        g, itemsize = self.g, self.itemsize
        return ScratchLayout(
            buffer=0 if self.in_place else buffer_bytes(g, itemsize),
            panel=self.chunk * self.panel_bytes,
            staging=self.levels * self.item_sums,
        )


LANE_TAPS = 7  # taps of a register tile at most, each with an address of its own


@dataclass(frozen=True)
class LanesLayout(WeightGradLayout):
    """Sizes of a weight gradient whose vectors have filters of several groups.

    The geometry has the channels and filters of all groups in one; a channel block is the channels
    that a panel needs, and a work item has one panel.

    Attributes
    ----------
    group_channels, group_filters : int
        Channels and filters of a group.
    """

    group_channels: int = 1
    group_filters: int = 1

    @property
    def items(self) -> int:
        """Work items of a part: panels."""
        return schedule.panel_count(self.g)

    @property
    def panel_sums(self) -> int:
        """Bytes of the sums of a panel."""
        g = self.g
        return schedule.taps(g) * self.group_channels * g.tile_k * self.itemsize

    def scratch(self, packs: bool) -> ScratchLayout:
        """Row buffers of x, one of its channels expanded, one panel of dy, and the sums.

        The last vectors of a pixel may reach beyond its channels.
        """
        g, itemsize = self.g, self.itemsize
        if self.in_place:
            return ScratchLayout(staging=self.levels * self.item_sums)
        pixels = schedule.tile_rows(g) * schedule.row_pitch(g)
        single = self.group_channels == self.group_filters == 1
        return ScratchLayout(
            buffer=buffer_bytes(g, itemsize) + g.tile_k * itemsize,
            panel=self.panel_bytes,
            staging=self.levels * self.item_sums,
            boxes=0 if single else pixels * g.tile_k * itemsize,
        )


@dataclass(frozen=True)
class PlanesLayout(WeightGradLayout):
    """Sizes of a weight gradient of depthwise filters whose lanes are pixels; a panel is a channel.

    Attributes
    ----------
    pass_rows, pass_columns : int
        Filter rows and columns of a pass over the pixels at most: each tap has a sum in a register.
    """

    pass_rows: int = 1
    pass_columns: int = 1

    @property
    def items(self) -> int:
        """Work items of a part: chunks of channels."""
        return int(schedule.ceil_div(self.g.K, self.chunk))

    @property
    def panel_sums(self) -> int:
        """Bytes of the sums of a channel: a vector for each tap."""
        return int(schedule.taps(self.g)) * self.lanes * self.itemsize

    def scratch(self, packs: bool) -> ScratchLayout:
        """The sums; x and dy are read in place."""
        return ScratchLayout(staging=self.levels * self.item_sums)


class PlaneTaps(NamedTuple):
    """What a microkernel of planes is compiled for: the taps of a pass, and steps along a row."""

    rows: int
    columns: int
    stride: int
    dilation: int

    @property
    def loads(self) -> list[tuple[int, dict[int, int]]]:
        """(first column, {tap: remainder}) of each load from a row for a vector of outputs, of as
        many vectors as the stride.

        With a stride of 2 neighbouring taps share the even and the odd columns of two vectors. A
        tap that is left alone takes the odd ones, so that no column beyond its last one is loaded.
        """
        found: list[tuple[int, dict[int, int]]] = []
        together = 2 if self.stride == 2 and self.dilation == 1 else 1
        for s in range(0, self.columns, together):
            place = s * self.dilation
            if s + together > self.columns or (self.stride == 2 and together == 1 and s > 0):
                found.append((place - 1, {s: 1}) if s > 0 else (place, {s: 0}))
            else:
                found.append((place, {s + i: i for i in range(together)}))
        return found


def panel_channels(filters: int, group_filters: int, group_channels: int, groups: int) -> int:
    """Channels of the groups that a panel of `filters` filters belongs to, at most."""
    return min(groups, (filters - 2) // group_filters + 2) * group_channels


def block_rows(g: Geometry, channels: int, joined: bool) -> int:
    """Rows of the matrix of a tap and `channels` channels: those of all columns if `joined`."""
    return channels * (g.S if joined else 1)


def tile_height(g: Geometry, vectors: int) -> int:
    """Rows of a register tile of `vectors` vectors, at most."""
    return 2 * g.tile_m // vectors


def register_tiles(g: Geometry, lanes: int, joined: bool) -> set[tuple[int, int]]:
    """All (rows, vectors) of the register tiles of `g`."""
    channels = {min(g.C, g.tile_c), g.C % g.tile_c} - {0}
    filters = {min(g.K, g.tile_k), g.K % g.tile_k} - {0}
    widths = {schedule.ceil_div(count, lanes) for count in filters}
    return {
        (height, vectors)
        for vectors in widths
        for count in channels
        for height, tiles in schedule.cuts(block_rows(g, count, joined), tile_height(g, vectors))
        if tiles
    }


@dataclass(frozen=True)
class RegisterTile:
    """Shape of one microkernel: rows by `vectors` vectors of `lanes`."""

    rows: int
    vectors: int
    lanes: int
    itemsize: int
    fma: bool
    taps: bool = False  # whether rows are taps
    strided: bool = False  # whether rows are any stride apart in A, else contiguous

    @property
    def vector_bytes(self) -> int:
        """Bytes of a vector."""
        return self.lanes * self.itemsize
