"""Sizes of Winograd F(m x m, R x S): scratch memory, transformed filters, register tiles."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.gemm.layout import RUN_BYTES, packing_bytes, panel_bytes
from implicit_conv.kernels.cpu.runtime.layout import (
    LINE,
    Layout,
    ScratchLayout,
    buffer_bytes,
    register_heights,
    tile_extents,
)
from implicit_conv.kernels.geometry import Geometry


@dataclass(frozen=True)
class WinogradLayout(Layout):
    """Sizes of F(m x m, R x S); the output of `g` is rounded up to whole tiles."""

    m: int = 2  # outputs of a tile along an axis
    end: tuple[int, int] = (0, 0)

    @property
    def group_bytes(self) -> int:
        """Bytes of the transformed filters of a group, with a spare cache line per product."""
        g, products = self.g, schedule.box_products(self.g, self.m)
        gaps = schedule.panel_count(g) * products * LINE
        return panel_bytes(g, self.lanes, self.itemsize, products * g.T) + int(gaps)

    @property
    def reads_unloaded(self) -> bool:
        """Unless channels fill vectors, the last pixel's vector runs over the end of a row."""
        return self.g.C % self.lanes > 0

    def scratch(self, packs: bool) -> ScratchLayout:
        """Row buffers, transformed input, its products, and a transformed panel."""
        g, itemsize, lanes = self.g, self.itemsize, self.lanes
        scratch = tile_scratch(g, self.m, itemsize, lanes, self.chain)
        if not packs:
            return scratch
        few = schedule.taps(g) * min(g.C, lanes) * g.tile_k * itemsize
        panel = g.T * g.C * g.tile_k * itemsize + LINE
        transformed = schedule.box_products(g, self.m) * panel
        packing = packing_bytes(g, lanes, itemsize)
        return scratch._replace(packing=packing, panel=few, transformed=transformed)

    @property
    def packing_scratch(self) -> ScratchLayout:
        """The table of taps, and a few channels of a panel that are not transformed yet."""
        scratch = self.scratch(packs=True)
        return ScratchLayout(packing=scratch.packing, panel=scratch.panel)


@functools.lru_cache(64)
def tile_scratch(g: Geometry, m: int, itemsize: int, lanes: int, chain: int) -> ScratchLayout:
    """Scratch memory of a thread that reads packed filters. The planner asks first: whether it is
    small enough.
    """
    in_plane = g.tile_p * g.tile_q // schedule.box_outputs(g, m)
    boxes, outputs = schedule.buffered_planes(g, g.tile_n) * in_plane, g.tile_n * in_plane
    xis = schedule.box_products(g, m)
    channels = schedule.ceil_div(g.C, lanes) * lanes
    return ScratchLayout(
        buffer=buffer_bytes(g, itemsize) + lanes * itemsize,  # the last vector may run over it
        staging=g.tile_n * g.tile_p * g.tile_q * g.tile_k * itemsize,
        runs=RUN_BYTES * g.T * schedule.chain_parts(g.C, chain),
        boxes=xis * (boxes * channels * itemsize + LINE),
        products=xis * (outputs * g.tile_k * itemsize + LINE),
    )


def box_tiles(g: Geometry, m: int) -> list[tuple[int, int]]:
    """All (groups, inner) shapes of register tiles, whose pixels are Winograd tiles."""
    outputs = schedule.box_outputs(g, m)
    counts = {schedule.planes_together(g, n) * p * q // outputs for n, p, q in tile_extents(g)}
    return sorted({(1, height) for count in counts for height in register_heights(g, count)})
