"""The operator of depthwise input gradients."""

from __future__ import annotations

from typing import Any

from implicit_conv.kernels.cpu.operator import Operator
from implicit_conv.kernels.cpu.runtime import table
from implicit_conv.kernels.cpu.runtime.code import Code, code
from implicit_conv.kernels.cpu.runtime.layout import Layout
from implicit_conv.kernels.cpu.strided_depthwise.layout import StridedDepthwiseLayout, variant


class StridedDepthwise(Operator):
    """x is dy, which is read in place, and y is dx. Filters are packed as depthwise families do."""

    transposes = False
    layout: StridedDepthwiseLayout

    def _size(self, layout: Layout) -> None:
        assert isinstance(layout, StridedDepthwiseLayout)
        self.stages_planes = layout.planar
        super()._size(layout)
        self.constant["group_channels"] = 1

    def _part_kind(self) -> Any:
        return variant(self.layout)

    def _load_tile(self, x: Any) -> int:
        """Nothing loads tiles."""
        return 0

    def _filter_fields(self, w: Any) -> dict[str, Any]:
        if not self.layout.planar:
            self._require(table.TRANSPOSE_FILTERS)
        return super()._filter_fields(w)

    def _own_parts(self) -> dict[int, Code]:
        packer = ".depthwise.compiled.fprop:make_pack_channels"
        if self.layout.planar:
            packer = ".planar_depthwise.compiled:make_pack_planes"
        own = variant(self.layout), self.lanes, self.itemsize, self.fma
        return {
            table.PACK_BLOCK: code(packer, self.lanes, self.form),
            table.STRIDED_ROWS: code(
                ".strided_depthwise.compiled.microkernel:make_microkernel", *own
            ),
        }

    def _entry(self) -> Code:
        return code(".strided_depthwise.compiled.dgrad:make_strided_depthwise", self.layout.planar)

    def _packer(self) -> Code:
        family = ".planar_depthwise.compiled" if self.layout.planar else ".depthwise.compiled.fprop"
        return code(f"{family}:PACK")
