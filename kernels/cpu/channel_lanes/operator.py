"""The operator of fprop with channels as vector lanes."""

from __future__ import annotations

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.channel_lanes.layout import ChannelLanesLayout, RegisterTile
from implicit_conv.kernels.cpu.operator import Build, Operator
from implicit_conv.kernels.cpu.runtime import table
from implicit_conv.kernels.cpu.runtime.code import Code, code


class ChannelLanes(Operator):
    """Dot products over channels; x and filters are read in place."""

    transposes = False

    def __init__(self, layout: ChannelLanesLayout, lanes: int, build: Build) -> None:
        self._tile_filters = layout.tile_filters
        super().__init__(layout, lanes, build)
        self.constant["tile_filters"] = layout.tile_filters

    def _own_parts(self) -> dict[int, Code]:
        g, lanes = self.g, self.lanes
        chained = g.C > lanes * schedule.CHAIN
        tile = RegisterTile(g.tile_m, self._tile_filters, self.form.x, chained)
        vectors = lanes, self.itemsize, self.fma
        return {
            table.CHANNEL_LANES: code(".channel_lanes.compiled:make_microkernel", tile, *vectors)
        }

    def _entry(self) -> Code:
        return code(".channel_lanes.compiled:make_channel_lanes")
