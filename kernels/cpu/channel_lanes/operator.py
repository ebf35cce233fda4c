"""The operator of fprop with channels as vector lanes."""

from __future__ import annotations

from typing import Any

from implicit_conv.kernels.cpu.channel_lanes import fprop
from implicit_conv.kernels.cpu.channel_lanes.layout import ChannelLanesLayout, register_filters
from implicit_conv.kernels.cpu.operator import Build, Operator
from implicit_conv.kernels.cpu.runtime import table


class ChannelLanes(Operator):
    """Dot products over channels; x and filters are read in place."""

    transposes = False

    def __init__(self, layout: ChannelLanesLayout, lanes: int, build: Build) -> None:
        super().__init__(layout, lanes, build)
        self.constant["tile_filters"] = register_filters(self.g, lanes)

    def _own_parts(self) -> dict[int, Any]:
        filters = register_filters(self.g, self.lanes)
        return {
            table.CHANNEL_LANES: fprop.compile_microkernel(
                self.g.tile_m, filters, self.form.x, self.lanes, self.itemsize, self.fma
            )
        }

    def _entry(self) -> int:
        return int(fprop.compile_channel_lanes().address)
