"""Sizes of depthwise convolution of planes in place, and what its microkernels are compiled for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.depthwise.layout import DepthwiseLayout
from implicit_conv.kernels.cpu.runtime.layout import ScratchLayout
from implicit_conv.kernels.geometry import Geometry


@dataclass(frozen=True)
class ShiftedRowsLayout(DepthwiseLayout):
    """Sizes for one channel at a time; the buffer is a row of zeros, which padding rows read."""

    @property
    def reads_unloaded(self) -> bool:
        """The row of zeros is never loaded."""
        return True

    def scratch(self, packs: bool) -> ScratchLayout:
        """The row of zeros, the staging tile and the packed filter."""
        g = self.g
        return ScratchLayout(
            buffer=g.W * self.itemsize,
            staging=g.tile_p * g.tile_q * self.itemsize,
            panel=self.packed_bytes if packs else 0,
        )


class Short(NamedTuple):
    """Rows that fit in a vector: lanes are the output columns of one or of two rows."""

    size: int  # pixels of a row of x
    columns: int  # output columns
    first: int  # the pixel that output column 0 reads for filter column 0; negative in the padding
    pair: bool  # whether a vector has two output rows


class Variant(NamedTuple):
    """What a microkernel is compiled for."""

    short: Short | None  # None: a row is cut into vectors, from any column on
    stride: tuple[int, int]  # along H and W
    rows: tuple[int, ...]  # the image row of each filter row, from that of the first one
    columns: tuple[int, ...]  # the pixel of each filter column, from that of the first one
    vectors: int  # vectors of sums of a register tile: of the same columns of consecutive rows
    rest: int  # vectors of sums of the last register tile of a load tile; 0 if all are whole

    @property
    def together(self) -> int:
        """Output rows of a vector."""
        return 2 if self.short and self.short.pair else 1


def short_rows(g: Geometry, lanes: int) -> Short | None:
    """The rows of `g`, if they fit in a vector. A pair of rows needs a lane of zeros, which taps in
    the padding read.
    """
    if max(g.W, g.Q) > lanes:
        return None
    return Short(g.W, g.Q, -g.pad_w, pair=2 * g.Q <= lanes and g.W < lanes and g.P > 1)


def variant(g: Geometry, lanes: int, rows: int) -> Variant:
    """The microkernel of a load tile with `rows` output rows; `tile_m` is that of `g` vectors."""
    short = short_rows(g, lanes)
    vectors = int(schedule.ceil_div(rows, 2 if short and short.pair else 1))
    return Variant(
        short,
        (g.stride_h, g.stride_w),
        tuple(r * g.dilation_h for r in range(g.R)),
        tuple(s * g.dilation_w for s in range(g.S)),
        g.tile_m,
        vectors % g.tile_m,
    )
