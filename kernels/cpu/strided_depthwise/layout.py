"""Sizes of depthwise input gradients, and the taps of their output columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.depthwise.layout import DepthwiseLayout
from implicit_conv.kernels.cpu.runtime.layout import ScratchLayout
from implicit_conv.kernels.geometry import Geometry

COUNT_BYTES, ENTRY_BYTES = 8, 16  # of the row table: a row's number of entries, and an entry
POSITIONS = 4  # positions of a register tile at most, or vectors of them if pixels are the lanes


@dataclass(frozen=True)
class StridedDepthwiseLayout(DepthwiseLayout):
    """Sizes for a geometry whose input is dy and whose output is dx; its strides, dilations and
    pads are those of the convolution.

    `planar` says that pixels are the lanes, else channels are.
    """

    planar: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes of an output row in the row table."""
        return row_bytes(self.g)

    def scratch(self, packs: bool) -> ScratchLayout:
        """The staging tile, the row table and the packed filter; dy is read in place."""
        g = self.g
        return ScratchLayout(
            staging=g.tile_p * g.tile_q * g.tile_k * self.itemsize,
            runs=g.tile_p * self.row_bytes,
            panel=self.packed_bytes if packs else 0,
        )


def row_bytes(g: Geometry) -> int:
    """Bytes of an output row in the row table: a count, and the filter rows that it meets."""
    return COUNT_BYTES + ENTRY_BYTES * int(schedule.filter_rows(g))


class Tap(NamedTuple):
    """A filter column: output columns with remainder `phase` read dy at their position + shift."""

    shift: int
    column: int
    phase: int


class Variant(NamedTuple):
    """What a microkernel is compiled for.

    Position j has the output columns j * stride ... j * stride + stride - 1; a register tile has
    `positions` of them, which are whole vectors if `planar`.
    """

    planar: bool
    stride: int
    taps: tuple[Tap, ...]  # in the order in which they are added: that of the pixels of dy
    positions: int

    @property
    def shifts(self) -> list[int]:
        """All shifts, in order."""
        return sorted({tap.shift for tap in self.taps})


def variant(layout: StridedDepthwiseLayout) -> Variant:
    """The microkernel of a layout."""
    g = layout.g
    places = [s * g.dilation_w - g.pad_w for s in range(g.S)]
    taps = sorted(Tap(-(at // g.stride_w), s, at % g.stride_w) for s, at in enumerate(places))
    return Variant(layout.planar, g.stride_w, tuple(taps), g.tile_m)
