"""Sizes of implicit GEMM: run tables, packed panels, scratch memory and register tiles."""

from __future__ import annotations

from dataclasses import dataclass

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.runtime.layout import Layout, ScratchLayout, buffer_bytes, round_up
from implicit_conv.kernels.cpu.tile.extents import register_heights, tile_extents
from implicit_conv.kernels.geometry import Geometry

RUN_BYTES = 24  # bytes of an entry of a run table, which is (offset in A, length, offset in B)


@dataclass(frozen=True)
class GemmLayout(Layout):
    """Sizes of implicit GEMM."""

    paired: bool = False  # whether an element is a pair of bfloat16 channels

    @property
    def group_bytes(self) -> int:
        """Bytes of one group's panels."""
        return panel_bytes(self.g, self.lanes, self.itemsize, self.g.R * self.g.S)

    def scratch(self, packs: bool) -> ScratchLayout:
        """No row buffer if x is read in place, and no panel if filters are packed before."""
        g, itemsize = self.g, self.itemsize
        slots = self.chunk if schedule.block_count(g) > 1 else 1
        return ScratchLayout(
            buffer=0 if self.in_place else buffer_bytes(g, itemsize),
            staging=slots * g.tile_n * g.tile_p * g.tile_q * g.tile_k * itemsize,
            runs=run_table_bytes(g) * schedule.segment_count(g),
            packing=packing_bytes(g, self.lanes, itemsize, self.paired),
            panel=g.R * g.S * min(g.C, g.tile_c) * g.tile_k * itemsize if packs else 0,
        )

    @property
    def packing_scratch(self) -> ScratchLayout:
        """The table of taps that packing uses."""
        return ScratchLayout(packing=packing_bytes(self.g, self.lanes, self.itemsize, self.paired))


def run_table_bytes(g: Geometry) -> int:
    """Bytes of a run table: the number of runs per filter row, then the runs of all rows."""
    return 8 + RUN_BYTES * g.R * g.S


def panel_bytes(g: Geometry, lanes: int, itemsize: int, taps: int) -> int:
    """Bytes of the packed filters of one group; the last panel has one vector if that suffices."""
    panels, rest = divmod(g.K, g.tile_k)
    width = panels * g.tile_k + schedule.ceil_div(rest, lanes) * lanes
    return int(width * g.C * taps * itemsize)


def packing_bytes(g: Geometry, lanes: int, itemsize: int, paired: bool = False) -> int:
    """Bytes that a thread needs to pack: the table of positions of a vector of channels.

    For pairs of channels they hold the table of taps, and a transposed block whose pairs are not
    joined yet.
    """
    taps, channels = g.R * g.S, min(lanes, max(1, g.C))
    if paired:
        return round_up(8 * taps + taps * channels * lanes * itemsize)
    return round_up(8 * taps * channels)


def register_tiles(g: Geometry) -> list[tuple[int, int]]:
    """All (groups, inner) shapes of the register tiles of `g`."""
    shapes: set[tuple[int, int]] = set()
    for n, p, q in tile_extents(g):
        _, group, inner = schedule.by_role(g, n, p, q)
        for width in _segment_widths(g) if schedule.skips_columns(g) else {inner}:
            shapes |= _stacked(g, group, width)
    return sorted(shapes)


def _stacked(g: Geometry, group: int, inner: int) -> set[tuple[int, int]]:
    """The (groups, inner) shapes of the register tiles of `group` rows of `inner` pixels."""
    heights = register_heights(g, inner)
    band = schedule.rows_together(min(heights), g.tile_m)
    steps = {height: schedule.rows_together(height, g.tile_m) for height in heights}
    return {
        (count, height)
        for height, step in steps.items()
        for rows in {min(band, group), group % band}
        for count in {min(step, rows), rows % step} - {0}
    }


def _segment_widths(g: Geometry) -> set[int]:
    """The numbers of columns of the segments of load tiles' rows."""
    widths: set[int] = set()
    column = 0
    while column < g.Q:
        end = min(g.Q, (column // g.tile_q + 1) * g.tile_q)
        stop, _, _ = schedule.column_segment(g, column, end)
        widths.add(stop - column)
        column = stop
    return widths


def panel_widths(g: Geometry, lanes: int) -> list[int]:
    """The numbers of vectors of the panels: 2, and 1 if the last panel fits in one vector."""
    rest = g.K % g.tile_k
    widths = {g.tile_k // lanes} if g.K >= g.tile_k else set()
    return sorted(widths | ({int(schedule.ceil_div(rest, lanes))} if rest else set()))
