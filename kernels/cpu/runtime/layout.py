"""What a launch needs besides its arrays, from integers alone: scratch memory and packed filters.

Each family of kernels has a `Layout` of its own. Planner and operator read the same one, so that a
forecast of memory and the memory that is borrowed cannot differ. Nothing here imports Numba.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.geometry import Geometry

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
    tail: int = 0  # flat pixel lanes: channels of a tile's last pixels, and their sums

    @property
    def total(self) -> int:
        """Bytes of one thread's scratch memory."""
        return sum(map(round_up, self))

    def offsets(self) -> dict[str, int]:
        """Byte offset of each part but the row buffers, by name: these are at offset 0."""
        starts = itertools.accumulate(map(round_up, self))
        return dict(zip(self._fields[1:], starts, strict=False))


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
    def packs_in_loop(self) -> bool:
        """Whether a plain filter is packed panel by panel, just before the only item that uses it.

        A panel is then still in L2 when it is used, and no packed filter is kept.
        """
        return bool(schedule.tile_count(self.g) == 1)

    @property
    def chain(self) -> int:
        """Elements whose products one chain of a sum adds up at most."""
        return schedule.CHAIN

    @property
    def unloaded_bytes(self) -> int:
        """Bytes of a thread's row buffers if vectors read elements that no load writes, else 0.

        The products of such elements are never stored, but a subnormal that another launch left
        there could make them take a hundred times as long. They are zero before the first item.
        """
        return 0

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
    pixels = g.tile_n * schedule.image_rows(g) * schedule.row_pitch(g)
    return int(pixels * min(g.C, g.tile_c) * itemsize)


def load_table_bytes(g: Geometry) -> int:
    """The table of a tile's loads of planes, and of its columns of padding that repeat pixels."""
    loads = schedule.image_rows(g) * g.phases_w
    return int(TABLE_BYTES + LOAD_BYTES * loads + EDGE_BYTES * schedule.edge_columns(g))
