"""The operator of fprop with channels as vector lanes."""

from __future__ import annotations

from typing import Any

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.channel_lanes import fprop
from implicit_conv.kernels.cpu.channel_lanes.layout import ChannelLanesLayout
from implicit_conv.kernels.cpu.operator import Build, Operator
from implicit_conv.kernels.cpu.runtime import table


class ChannelLanes(Operator):
    """Dot products over channels; x and filters are read in place."""

    transposes = False

    def __init__(self, layout: ChannelLanesLayout, lanes: int, build: Build) -> None:
        self._tile_filters = layout.tile_filters
        super().__init__(layout, lanes, build)
        self.constant["tile_filters"] = layout.tile_filters

    def _own_parts(self) -> dict[int, Any]:
        g, lanes = self.g, self.lanes
        chained = g.C > lanes * schedule.CHAIN
        tile = fprop.RegisterTile(g.tile_m, self._tile_filters, self.form.x, chained)
        compiled = fprop.compile_microkernel(tile, lanes, self.itemsize, self.fma)
        return {table.CHANNEL_LANES: compiled}

    def _entry(self) -> int:
        return int(fprop.compile_channel_lanes().address)
