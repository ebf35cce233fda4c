"""Sizes of depthwise convolution over planes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.depthwise.layout import DepthwiseLayout
from implicit_conv.kernels.cpu.runtime.layout import ScratchLayout, load_table_bytes
from implicit_conv.kernels.geometry import Geometry

PLANE_ROWS = 8  # output rows of a register tile at most
# Vectors of sums of a register tile of few rows, which hide most of the latency of an FMA; with 8
# and 16 registers a call took as long, and code twice as long to compile (EPYC, AVX2, 2026-11).
PLANE_SUMS = 4
ROWS_TOGETHER = 8  # filter rows of a pass at most: each has an element in a register
TAPS_TOGETHER = schedule.CHAIN  # taps of a pass at most, which are unrolled and added one by one


@dataclass(frozen=True)
class PlanarDepthwiseLayout(DepthwiseLayout):
    """Sizes for one channel at a time: two buffers that alternate, with rows of whole vectors."""

    @property
    def reads_unloaded(self) -> bool:
        """Vectors are read and shifted in from beyond the row."""
        return True

    def scratch(self, packs: bool) -> ScratchLayout:
        """Scratch memory of a thread."""
        g = self.g
        rows = schedule.image_rows(g) * g.phases_w
        vectors = schedule.plane_vectors(g, self.lanes)
        return (
            super()
            .scratch(packs)
            ._replace(
                buffer=(2 * rows * vectors + PLANE_SUMS - 1) * self.lanes * self.itemsize,
                runs=8 * plane_passes(g) * (1 + plane_phases(g)),
                loads=load_table_bytes(g, rows),
            )
        )


def plane_tile_vectors(height: int) -> int:
    """Vectors of each row of a register tile of `height` output rows."""
    return max(1, PLANE_SUMS // height)


def plane_pass_columns(g: Geometry) -> int:
    """Filter columns of a pass: a longer filter row is cut into blocks of so many, and a rest."""
    return min(g.S, TAPS_TOGETHER)


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


def plane_passes(g: Geometry) -> int:
    """Passes of a filter: the entries of the table of passes."""
    row_groups = schedule.ceil_div(schedule.filter_rows(g), plane_pass_rows(g))
    return row_groups * schedule.ceil_div(g.S, plane_pass_columns(g))


def plane_phases(g: Geometry) -> int:
    """Row phases of a pass, each of which has an offset in the table of passes."""
    return min(plane_pass_rows(g), g.phases_h)


class Passes(NamedTuple):
    """Consecutive passes with taps at the same positions in the buffers of a tile, relative to the
    start of a pass.
    """

    number: int
    rows: tuple[tuple[int, int, int], ...]  # (row phase, shift, image row) of the filter rows
    columns: tuple[tuple[int, int], ...]  # (phase buffer, shift) of each filter column


class PlaneFilter(NamedTuple):
    """The passes over a filter, in the order of summation."""

    passes: tuple[Passes, ...]
    phases: int  # row phases, each of which has an offset in the table of passes
    filter_columns: int  # elements of a packed filter row
    stride: int  # image rows between output rows

    @property
    def chained(self) -> bool:
        """Whether the filter has more taps than a chain."""
        taps = sum(same.number * len(same.rows) * len(same.columns) for same in self.passes)
        return taps > schedule.CHAIN
