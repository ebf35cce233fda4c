"""The operator of depthwise convolution over planes."""

from __future__ import annotations

from typing import Any

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.operator import Build, Operator
from implicit_conv.kernels.cpu.planar_depthwise.layout import (
    PLANE_ROWS,
    Passes,
    PlanarDepthwiseLayout,
    PlaneFilter,
    plane_pass_columns,
    plane_pass_rows,
    plane_phases,
)
from implicit_conv.kernels.cpu.runtime import table
from implicit_conv.kernels.cpu.runtime.call import Input
from implicit_conv.kernels.cpu.runtime.code import Code, code
from implicit_conv.kernels.cpu.runtime.layout import Layout, tap_in_phase, tile_extents
from implicit_conv.kernels.cpu.tile.storage import SIZES
from implicit_conv.kernels.cpu.tile.variants import row_loads
from implicit_conv.kernels.geometry import Geometry


class PlanarDepthwise(Operator):
    """One channel at a time; a chunk is the channels of a work item.

    `pixel_step` is the stride in elements between pixels of a plane.
    """

    transposes = False
    loads_tiles = False
    stages_planes = True

    def __init__(
        self, layout: PlanarDepthwiseLayout, lanes: int, build: Build, pixel_step: int
    ) -> None:
        self.pixel_step = pixel_step
        super().__init__(layout, lanes, build)

    def _size(self, layout: Layout) -> None:
        assert isinstance(layout, PlanarDepthwiseLayout)
        super()._size(layout)
        self.constant["group_channels"] = layout.group[0]

    def _part_kind(self) -> Any:
        return self.g.phases_h, self.g.phases_w  # of `plane_filter`, all that differs between sizes

    def _extents(self) -> Any:
        return frozenset(self._heights()), bool(schedule.edge_columns(self.g))

    def _input(self, x: Any) -> Input:
        return super()._input(x)._replace(apart=self.pixel_step * SIZES[self.form.x])

    def _heights(self) -> set[int]:
        """The heights of the register tiles of all load tiles."""
        extents = {rows for _, rows, _ in tile_extents(self.g)}
        return {h for rows in extents for h in (min(rows, PLANE_ROWS), rows % PLANE_ROWS)} - {0}

    def _own_parts(self) -> dict[int, Code]:
        taps = plane_filter(self.g)
        parts = {
            table.PLANES + height: code(
                ".planar_depthwise.compiled:make_microkernel",
                height,
                taps,
                self.lanes,
                self.itemsize,
                self.fma,
                self.form.integers,
            )
            for height in self._heights()
        }
        parts[table.PACK_BLOCK] = code(
            ".planar_depthwise.compiled:make_pack_planes", self.lanes, self.form
        )
        recording = self.build.recording
        return parts | row_loads(self.g, self.pixel_step, self.lanes, self.form, recording)

    def _is_direct(self, y: Any) -> bool:
        return bool(y.strides[3] == self.itemsize)

    def _entry(self) -> Code:
        return code(".planar_depthwise.compiled:PLANAR_DEPTHWISE")

    def _packer(self) -> Code:
        return code(".planar_depthwise.compiled:PACK")


def plane_filter(g: Geometry) -> PlaneFilter:
    """The elements of a buffered plane that the filter taps of `g` read."""
    together, width = plane_pass_rows(g), plane_pass_columns(g)
    groups, last_rows = divmod(schedule.filter_rows(g), together)
    blocks, last_columns = divmod(g.S, width)

    def row(r: int) -> tuple[int, int, int]:
        phase = r % g.phases_h
        return phase, schedule.tap_row(g, r) - schedule.tap_row(g, phase), r * g.dilation_h

    def passes(count: int, rows: int, columns: int) -> Passes:
        return Passes(
            count,
            tuple(map(row, range(rows))),
            tuple(tap_in_phase(g, s) for s in range(columns)),
        )

    found = (
        passes(groups * blocks, together, width),
        passes(1, last_rows, width),
        passes(groups, together, last_columns),
    )
    return PlaneFilter(
        tuple(same for same in found if same.number and same.rows and same.columns),
        phases=plane_phases(g),
        filter_columns=g.S,
        stride=g.stride_h,
    )
