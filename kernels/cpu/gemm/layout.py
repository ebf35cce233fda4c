"""Sizes of implicit GEMM: run tables, packed panels, scratch memory and register tiles; and how a
filter is packed, which its strides decide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.runtime.layout import (
    FEW,
    LINE,
    Layout,
    ScratchLayout,
    Window,
    buffer_bytes,
    register_heights,
    round_up,
    tile_extents,
)
from implicit_conv.kernels.cpu.tile.storage import SIZES, Stored
from implicit_conv.kernels.geometry import Geometry

# Bytes of an entry of a run table, which is (offset in A, length, offset in B, number of its chain,
# runs from this one to the last of its chain).
RUN_BYTES = 40
# Bytes of a tap in the table by which all stride phases are packed: (offset of the phase's panels,
# taps of the phase, number of the tap among them, channels of a channel block).
PHASE_TAP_BYTES = 32
# Bytes of a result beyond which the last-level cache does not keep it until it is read: to fetch
# its lines before they are overwritten takes as long as to store them. On Zen 4 (2026-11) a layer
# of 23 MB and the next one took 0.6 to 0.9 of the time so; results of 2 to 13 MB gain nothing, or
# cost the next layer up to twice its time.
STREAMED_BYTES = 16 << 20
# Bytes of a result beyond which L2 does not keep it: its lines are fetched while the sums that go
# there are computed. On Zen 4 (2026-11) results of 1.6 and 3.2 MB that no cache had took 3 to 8 %
# less time so, and as much as before where the last-level cache had them.
FETCHED_BYTES = 1 << 20
MOST_ELEMENTS = 1 << 47  # elements of a filter at most: see implicit_conv.problem.problem

SPAN = 4  # elements among which a filter's taps are, per tap, that packing transposes at most


@dataclass(frozen=True)
class GemmLayout(Layout):
    """Sizes of implicit GEMM."""

    channels: int = 1  # of an element of buffers and panels
    integers: bool = False  # whether sums are integers
    heads: bool = False  # whether panels have heads, rows of sums that begin each channel block
    window: Window | None = None  # that of an output column, if it is a pixel of the buffer

    @property
    def chain(self) -> int:
        """Elements whose products one chain of a sum adds up at most; a pair has two products.

        Integers are exact in any order, so one chain has them all.
        """
        return MOST_ELEMENTS if self.integers else schedule.CHAIN // self.channels

    @property
    def group_bytes(self) -> int:
        """Bytes of one group's panels."""
        panels = panel_bytes(self.g, self.lanes, self.itemsize, schedule.taps(self.g))
        return panels + self.heads * head_bytes(self.g, self.lanes, self.itemsize)

    def scratch(self, packs: bool) -> ScratchLayout:
        """No row buffer if x is read in place, and no panel if filters are packed before."""
        g, itemsize = self.g, self.itemsize
        slots = self.chunk if schedule.block_count(g) > 1 else 1
        parts = schedule.chain_parts(g.S * min(g.C, g.tile_c), self.chain)
        return ScratchLayout(
            buffer=0 if self.in_place else buffer_bytes(g, itemsize),
            staging=slots * g.tile_n * g.tile_p * g.tile_q * g.tile_k * itemsize,
            runs=run_table_bytes(g, parts) * schedule.segment_count(g, self.in_place),
            packing=packing_bytes(g, self.lanes, itemsize, self.channels),
            panel=(schedule.taps(g) * min(g.C, g.tile_c) + self.heads)
            * g.tile_k
            * itemsize
            * packs,
        )

    @property
    def packing_scratch(self) -> ScratchLayout:
        """The table of taps that packing uses."""
        packing = packing_bytes(self.g, self.lanes, self.itemsize, self.channels)
        return ScratchLayout(packing=packing)


def run_table_bytes(g: Geometry, parts: int) -> int:
    """Bytes of a run table: the number of runs per filter row, then the runs of all rows.

    A run ends where its taps are no longer contiguous, or with its chain, of which a filter row has
    `parts`.
    """
    return 8 + RUN_BYTES * g.T * g.R * (g.S + parts - 1)


def panel_bytes(g: Geometry, lanes: int, itemsize: int, taps: int) -> int:
    """Bytes of the packed filters of one group; the last panel has one vector if that suffices."""
    panels, rest = divmod(g.K, g.tile_k)
    width = panels * g.tile_k + schedule.ceil_div(rest, lanes) * lanes
    return int(width * g.C * taps * itemsize)


def head_bytes(g: Geometry, lanes: int, itemsize: int) -> int:
    """Bytes of the heads of one group's panels."""
    width = schedule.ceil_div(g.K, lanes) * lanes
    return int(width * schedule.block_count(g) * itemsize)


def packing_bytes(g: Geometry, lanes: int, itemsize: int, element_channels: int = 1) -> int:
    """Bytes that a thread needs to pack: the table of positions of a vector of channels, or of taps
    and the elements among which they are.

    For words of several channels they hold the table of taps, and a transposed block whose words
    are not joined yet.
    """
    taps, channels = schedule.taps(g), min(lanes, max(1, g.C))
    if element_channels > 1:
        return round_up(8 * taps + taps * channels * lanes * itemsize)
    return round_up(8 * taps * max(channels, 1 + SPAN))


def register_tiles(g: Geometry, in_place: bool, heads: bool = False) -> list[tuple[int, int]]:
    """All (groups, inner) shapes of the register tiles of `g`, whose x may be read in place, and
    whose panels may have heads.
    """
    found = [schedule.by_role(g, *extents)[1:] for extents in tile_extents(g)]
    widths = {inner: {width for width, _ in parts(g, inner, in_place)} for _, inner in found}
    shapes: set[tuple[int, int]] = set()
    for group, width in {(group, width) for group, inner in found for width in widths[inner]}:
        shapes |= _stacked(g, group, width, in_place, heads)
    return sorted(shapes)


def _stacked(
    g: Geometry, group: int, inner: int, in_place: bool, heads: bool
) -> set[tuple[int, int]]:
    """The (groups, inner) shapes of the register tiles of `group` rows of `inner` pixels."""
    by_group = g.P > 1 and g.Q > 1 and not heads
    if schedule.is_column(g, inner, in_place):
        group, inner, by_group = 1, group, False
    heights = register_heights(g, inner)
    band = schedule.rows_together(g, min(heights), in_place)
    steps = {height: schedule.rows_together(g, height, in_place) for height in heights}
    stretches = _stretches(g) if by_group and band > 1 else {group}
    return {
        (count, height)
        for height, step in steps.items()
        for stretch in stretches
        for rows in {min(band, stretch), stretch % band}
        for count in {min(step, rows), rows % step} - {0}
    }


def _stretches(g: Geometry) -> set[int]:
    """The numbers of neighbouring rows of a load tile that multiply the same filter rows."""
    found = set()
    for first in range(0, g.P, g.tile_p):
        p, end = first, min(g.P, first + g.tile_p)
        while p < end:
            rows = schedule.rows_alike(g, p, end - p)
            found.add(rows)
            p += rows
    return found


def parts(g: Geometry, inner: int, in_place: bool) -> list[tuple[int, int]]:
    """(pixels of the inner axis, filter columns that they multiply) of the parts of a load tile
    with `inner` pixels, or of all load tiles if columns leave out taps.
    """
    if not schedule.skips_columns(g, in_place):
        return [(inner, g.S)]
    found = segments(g, in_place)
    return found if g.Q > 1 else [(inner, taps) for _, taps in found]


def segments(g: Geometry, in_place: bool) -> list[tuple[int, int]]:
    """(columns, filter columns that they multiply) of the segments of load tiles' rows."""
    found, column = [], 0
    while column < g.Q:
        end = min(g.Q, (column // g.tile_q + 1) * g.tile_q)
        stop, first, last = schedule.column_segment(g, column, end, in_place)
        found.append((int(stop - column), int(last - first)))
        column = stop
    return found


def panel_widths(g: Geometry, lanes: int) -> list[int]:
    """The numbers of vectors of the panels: 2 or 4, or 1 if the last panel fits in one vector."""
    rest = g.K % g.tile_k
    widths = {g.tile_k // lanes} if g.K >= g.tile_k else set()
    return sorted(widths | ({int(schedule.ceil_div(rest, lanes))} if rest else set()))


@dataclass(frozen=True)
class RegisterTile:
    """Shape of one microkernel: groups x inner pixels by `vectors` vectors of `lanes`."""

    groups: int
    inner: int
    vectors: int
    lanes: int
    itemsize: int
    fma: bool
    # Formats of the channels of an element of A and of B, if it has several of them, which are
    # multiplied by dot products.
    dots: tuple[Stored, Stored] | None = None
    matrices: bool = False  # BFMMLA multiplies, instead of dot products
    integers: bool = False  # sums are integers
    y: Stored = ""  # the 16-bit format that the final sums may be rounded to
    far: bool = False  # activations are far apart in the caller's array, and are prefetched
    fresh: bool = False  # sums begin at zero, not with the initial sums at `c_in`

    @property
    def pixels(self) -> int:
        """Pixels of the tile."""
        return self.groups * self.inner

    @property
    def sums(self) -> int:
        """Vectors of sums: those of the pixels, of which matrices take two at once."""
        return (self.pixels + (self.matrices and self.pixels % 2)) * self.vectors

    @property
    def vector_bytes(self) -> int:
        """Bytes of a vector."""
        return self.lanes * self.itemsize

    @property
    def by_line(self) -> bool:
        """Whether vectors of sums are cache lines of y, if y has the dtype of the sums."""
        return self.vector_bytes == LINE and not self.y and not self.fresh

    @property
    def align(self) -> int:
        """Bytes to which elements of A are aligned: those of a channel."""
        return self.itemsize if self.dots is None else SIZES[self.dots[0]]


class Way(IntEnum):
    """How the elements of a filter lie in memory."""

    TAPS = 0  # a filter's taps are contiguous, and so are its channels: KCRS
    FILTERS = 1  # filters are contiguous: RSCK
    ROWS = 2  # a channel's filters are near, and so are the taps of each filter row
    SPANS = 3  # a channel's filters are near, and so are all taps
    CHANNELS = 4  # channels are contiguous: KRSC
    ANY = 5
    WORDS = 6  # several channels make one element of a panel


def way_of(w: Any, channels: int) -> Way:
    """The fastest way to pack `w`, a filter with the axes (k, c, t, r, s), of which `channels`
    channels make an element of a panel.
    """
    if channels > 1:
        return Way.WORDS
    taps, element = w.shape[2:], w.itemsize
    steps = [stride // element for stride in w.strides]
    if steps[1] == math.prod(taps) and w[:1, :1].flags.c_contiguous:
        return Way.TAPS
    if steps[0] == 1:
        return Way.FILTERS
    reaches = [abs(step) * (extent - 1) for step, extent in zip(steps[2:], taps, strict=True)]
    span = sum(reaches) + 1
    if span <= min(steps[0], SPAN * math.prod(taps)) and _are_apart(taps, steps[2:]):
        has_gaps = math.prod(taps) < span or span <= FEW
        return Way.ROWS if has_gaps and reaches[-1] < FEW else Way.SPANS
    return Way.CHANNELS if steps[1] == 1 else Way.ANY


def _are_apart(taps: tuple[int, ...], steps: list[int]) -> bool:
    """Whether no two taps share an element, as those of a broadcast filter do."""
    places = sum(
        np.arange(extent).reshape([-1 if other == axis else 1 for other in range(len(taps))]) * step
        for axis, (extent, step) in enumerate(zip(taps, steps, strict=True))
    )
    return len(np.unique(places)) == math.prod(taps)
