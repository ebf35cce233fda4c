"""The operator of fprop with channels as vector lanes."""

from __future__ import annotations

from typing import Any

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.few_outputs.layout import FewOutputsLayout, RegisterTile
from implicit_conv.kernels.cpu.operator import Operator
from implicit_conv.kernels.cpu.runtime import table
from implicit_conv.kernels.cpu.runtime.code import Code, code
from implicit_conv.kernels.cpu.runtime.layout import Layout


class FewOutputs(Operator):
    """Dot products over channels; x and filters are read in place."""

    transposes = False

    def _size(self, layout: Layout) -> None:
        assert isinstance(layout, FewOutputsLayout)
        self._tile_filters = layout.tile_filters
        super()._size(layout)
        self.constant["tile_filters"] = layout.tile_filters

    def _part_kind(self) -> Any:
        return self.g.tile_m, self._tile_filters

    def _own_parts(self) -> dict[int, Code]:
        g, lanes = self.g, self.lanes
        chained = g.C > lanes * schedule.CHAIN
        tile = RegisterTile(g.tile_m, self._tile_filters, self.form.x, chained)
        vectors = lanes, self.itemsize, self.fma
        return {table.FEW_OUTPUTS: code(".few_outputs.compiled:make_microkernel", tile, *vectors)}

    def _entry(self) -> Code:
        return code(".few_outputs.compiled:FPROP")
