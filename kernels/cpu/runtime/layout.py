"""What a launch needs besides its arrays, from integers alone: scratch memory and packed filters.

Each family of kernels has a `Layout` of its own. Planner and operator read the same one, so that a
forecast of memory and the memory that is borrowed cannot differ. Nothing here imports Numba.

It also has the extents of the tiles, register tiles and windows that a Geometry is cut into.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.process.cache import cached_property

LINE = 64  # bytes of a cache line; every part of the scratch memory begins on one
# Bytes of the head, of a load and of an edge in the table of loads that the plane loaders read.
TABLE_BYTES, LOAD_BYTES, EDGE_BYTES = 24, 40, 32


class ScratchLayout(NamedTuple):
    """Bytes of the parts of a thread's scratch memory, in their order; row buffers come first."""

    buffer: int = 0
    staging: int = 0  # sums of one panel (of a chunk of panels, where channel blocks add up)
    runs: int = 0  # the run table
    packing: int = 0  # a table of where taps go; for pairs of channels a transposed block too
    panel: int = 0  # one channel block of one panel, packed just before it is used
    boxes: int = 0  # Winograd: transformed input, then products, then a transformed panel
    products: int = 0
    transformed: int = 0
    loads: int = 0  # planes: the table of a tile's loads
    tail: int = 0  # flat planar GEMM: channels of a tile's last pixels, and their sums

    @property
    def total(self) -> int:
        """Bytes of one thread's scratch memory."""
        return self.starts()[-1]

    def starts(self) -> list[int]:
        """The byte offset of each part, in their order, and that of their end."""
        starts = [0]
        for size in self:
            starts.append(starts[-1] - (-size // LINE) * LINE)
        return starts


@dataclass(frozen=True)
class Layout(ABC):
    """Sizes of one family's launch of one Geometry.

    Attributes
    ----------
    g : Geometry
    itemsize : int
        Bytes of an element of buffers, panels and sums.
    lanes : int
        Elements of a vector of sums.
    chunk : int
        Filter panels of a work item.
    in_place : bool
        Whether x is read where it is, without row buffers.
    """

    g: Geometry
    itemsize: int
    lanes: int
    chunk: int = 1
    in_place: bool = False

    @property
    def end(self) -> tuple[int, int]:
        """The true (P, Q); the geometry may be rounded up."""
        return self.g.P, self.g.Q

    @property
    def packs_in_loop(self) -> bool:
        """Whether a plain filter is packed panel by panel, just before the only item that uses it.

        A panel is then still in L2 when it is used, and no packed filter is kept.
        """
        return self.tiles == 1

    @cached_property
    def tiles(self) -> int:
        """Load tiles of a group."""
        return int(schedule.tile_count(self.g))

    @property
    def chain(self) -> int:
        """Elements whose products one chain of a sum adds up at most."""
        return schedule.CHAIN

    @property
    def reads_unloaded(self) -> bool:
        """Whether vectors read elements of row buffers that no load writes.

        The products of such elements are never stored, but a subnormal that another launch left
        there could make them take a hundred times as long. They are zero before the first item.
        """
        return False

    @property
    @abstractmethod
    def group_bytes(self) -> int:
        """Bytes from one group's packed filters to the next one's."""

    @property
    def packed_bytes(self) -> int:
        """Bytes of all packed filters."""
        return self.g.groups * self.group_bytes

    @abstractmethod
    def scratch(self, packs: bool) -> ScratchLayout:
        """Scratch memory of a thread; `packs` says that the launch packs a plain filter."""

    @property
    def packing_scratch(self) -> ScratchLayout:
        """Scratch memory of a thread of the launch that packs a whole filter."""
        return ScratchLayout()


def round_up(size: int) -> int:
    """The next multiple of a cache line."""
    return -(-size // LINE) * LINE


def buffer_bytes(g: Geometry, itemsize: int) -> int:
    """Row buffers of one load tile and channel block."""
    pixels = schedule.tile_rows(g) * schedule.row_pitch(g)
    return int(pixels * min(g.C, g.tile_c) * itemsize)


def load_table_bytes(g: Geometry, loads: int) -> int:
    """The table of a tile's `loads` of planes, and of its columns of padding that repeat pixels."""
    return int(TABLE_BYTES + LOAD_BYTES * loads + EDGE_BYTES * schedule.edge_columns(g))


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
