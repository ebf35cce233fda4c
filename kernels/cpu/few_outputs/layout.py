"""Sizes of fprop whose vector lanes are channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from implicit_conv.kernels.cpu.runtime.layout import Layout, ScratchLayout
from implicit_conv.kernels.cpu.tile.storage import Stored


@dataclass(frozen=True)
class FewOutputsLayout(Layout):
    """Sizes if x and filters are both read in place."""

    stored: int = 4  # bytes of an element of x and w
    tile_filters: int = 1  # filters of a register tile: a power of two

    @property
    def packs_in_loop(self) -> bool:
        """Filters are never packed."""
        return True

    @property
    def group_bytes(self) -> int:
        """Bytes of the filter, which is read in place."""
        return self.g.K * self.g.C * self.stored

    def scratch(self, packs: bool) -> ScratchLayout:
        """The sums of a panel."""
        return ScratchLayout(staging=self.g.tile_q * self.g.tile_k * self.itemsize)


class RegisterTile(NamedTuple):
    """A register tile: `pixels` x `filters` vectors of sums, as many as a vector has lanes at most;
    x and w are stored as `dtype`.
    """

    pixels: int
    filters: int
    dtype: Stored
    chained: bool  # lanes have more elements than a chain
