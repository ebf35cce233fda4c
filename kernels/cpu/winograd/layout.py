"""Sizes of Winograd F(m x m, R x S): scratch memory, transformed filters, register tiles."""

from __future__ import annotations

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
        g, m, itemsize, lanes = self.g, self.m, self.itemsize, self.lanes
        in_plane = g.tile_p * g.tile_q // schedule.box_outputs(g, m)
        boxes, outputs = schedule.buffered_planes(g, g.tile_n) * in_plane, g.tile_n * in_plane
        xis = schedule.box_products(g, m)
        channels = schedule.ceil_div(g.C, lanes) * lanes
        panel = g.T * g.C * g.tile_k * itemsize
        few = schedule.taps(g) * min(g.C, lanes) * g.tile_k * itemsize
        return ScratchLayout(
            buffer=buffer_bytes(g, itemsize) + lanes * itemsize,  # the last vector may run over it
            staging=g.tile_n * g.tile_p * g.tile_q * g.tile_k * itemsize,
            runs=RUN_BYTES * g.T * schedule.chain_parts(g.C, self.chain),
            packing=packing_bytes(g, lanes, itemsize) if packs else 0,
            panel=few if packs else 0,
            boxes=xis * (boxes * channels * itemsize + LINE),
            products=xis * (outputs * g.tile_k * itemsize + LINE),
            transformed=xis * (panel + LINE) if packs else 0,
        )

    @property
    def packing_scratch(self) -> ScratchLayout:
        """The table of taps, and a few channels of a panel that are not transformed yet."""
        scratch = self.scratch(packs=True)
        return ScratchLayout(packing=scratch.packing, panel=scratch.panel)


def box_tiles(g: Geometry, m: int) -> list[tuple[int, int]]:
    """All (groups, inner) shapes of register tiles, whose pixels are Winograd tiles."""
    outputs = schedule.box_outputs(g, m)
    counts = {schedule.planes_together(g, n) * p * q // outputs for n, p, q in tile_extents(g)}
    return sorted({(1, height) for count in counts for height in register_heights(g, count)})
