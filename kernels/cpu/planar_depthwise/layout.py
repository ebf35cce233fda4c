"""Sizes of depthwise convolution over planes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.depthwise.layout import DepthwiseLayout
from implicit_conv.kernels.cpu.runtime.layout import ScratchLayout, load_table_bytes
from implicit_conv.kernels.geometry import Geometry

PLANE_ROWS = 8  # output rows of a register tile, whose sums hide the latency of an FMA
ROWS_TOGETHER = 8  # filter rows of a pass at most: each has an element in a register
TAPS_TOGETHER = 128  # taps of a pass at most, since they are unrolled; at least a filter row
ROW_TAPS = 1024  # taps of a filter row at most: such a kernel takes 4 s to compile (EPYC 9005)


@dataclass(frozen=True)
class PlanarDepthwiseLayout(DepthwiseLayout):
    """Sizes for one channel at a time: two buffers that alternate, with rows of whole vectors."""

    @property
    def unloaded_bytes(self) -> int:
        """The two buffers: a vector is shifted in from beyond the row."""
        return self.scratch(packs=False).buffer

    def scratch(self, packs: bool) -> ScratchLayout:
        """Scratch memory of a thread."""
        g = self.g
        rows = schedule.image_rows(g) * g.phases_w
        vectors = schedule.plane_vectors(g, self.lanes)
        return (
            super()
            .scratch(packs)
            ._replace(
                buffer=2 * rows * vectors * self.lanes * self.itemsize,
                runs=16 * schedule.filter_rows(g),
                loads=load_table_bytes(g),
            )
        )


def plane_pass_rows(g: Geometry) -> int:
    """Filter rows of a pass of the microkernels, which unroll its taps.

    The last pass of a filter plane may have fewer, unless there are more planes.
    """
    most = min(ROWS_TOGETHER, max(1, TAPS_TOGETHER // g.S))
    if g.T == 1:
        return -(-g.R // -(-g.R // most))
    while g.R % most > 0:
        most -= 1
    return most


class PlaneFilter(NamedTuple):
    """Positions of a filter's taps in the buffers of a tile, relative to the start of a pass."""

    passes: int
    rows: tuple[tuple[int, int, int], ...]  # (row phase, shift, image row) of a pass's filter rows
    last: tuple[tuple[int, int, int], ...]  # the same of the last pass, which may have fewer rows
    columns: tuple[tuple[int, int], ...]  # (phase buffer, shift) of each filter column
    stride: int  # image rows between output rows

    @property
    def chained(self) -> bool:
        """Whether the filter has more taps than a chain."""
        return self.passes * len(self.rows) * len(self.columns) > schedule.CHAIN

    @property
    def row_phases(self) -> int:
        """Row phases, each of which has one entry per pass in the row table."""
        return 1 + max(phase for phase, *_ in self.rows)
