"""The operator of depthwise convolution of planes in place."""

from __future__ import annotations

from typing import Any

from implicit_conv.kernels.cpu.operator import Operator
from implicit_conv.kernels.cpu.runtime import table
from implicit_conv.kernels.cpu.runtime.code import Code, code
from implicit_conv.kernels.cpu.runtime.layout import Layout, tile_extents
from implicit_conv.kernels.cpu.shifted_rows.layout import Variant, variant


class ShiftedRows(Operator):
    """One channel at a time; a chunk is the channels of a work item. x is read in place, and
    filters are packed as by `planar_depthwise`.
    """

    transposes = False
    loads_tiles = False
    stages_planes = True

    def _size(self, layout: Layout) -> None:
        super()._size(layout)
        self.constant["group_channels"] = 1

    def _part_kind(self) -> Any:
        return variant(self.g, self.lanes, 0)

    def _extents(self) -> Any:
        return frozenset(self._variants())

    def _is_direct(self, y: Any) -> bool:
        return bool(y.strides[3] == self.itemsize)

    def _variants(self) -> set[Variant]:
        """The microkernels of all load tiles."""
        return {variant(self.g, self.lanes, rows) for _, rows, _ in tile_extents(self.g)}

    def _own_parts(self) -> dict[int, Code]:
        parts = {
            table.SHIFTED_ROWS + each.rest: code(
                ".shifted_rows.compiled:make_microkernel", each, self.lanes, self.itemsize, self.fma
            )
            for each in self._variants()
        }
        packer = code(".planar_depthwise.compiled:make_pack_planes", self.lanes, self.form)
        return {table.PACK_BLOCK: packer, **parts}

    def _entry(self) -> Code:
        return code(
            ".shifted_rows.compiled:make_shifted_rows", variant(self.g, self.lanes, 0).together
        )

    def _packer(self) -> Code:
        return code(".planar_depthwise.compiled:PACK")
