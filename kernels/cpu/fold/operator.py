"""The operator of folds, and its scratch memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.operator import Operator
from implicit_conv.kernels.cpu.runtime import table
from implicit_conv.kernels.cpu.runtime.call import Bias
from implicit_conv.kernels.cpu.runtime.code import Code, code
from implicit_conv.kernels.cpu.runtime.layout import Layout, ScratchLayout


@dataclass(frozen=True)
class FoldLayout(Layout):
    """Sizes of a fold; `g` is the geometry of the transposed convolution's own axes."""

    @property
    def group_bytes(self) -> int:
        """No filter is packed."""
        return 0

    def scratch(self, packs: bool) -> ScratchLayout:
        """The sums of parts of rows, in whole strides."""
        g = self.g
        rows = schedule.ceil_div(g.tile_p, g.stride_h)
        strides = schedule.ceil_div(g.tile_q, g.stride_w) + 1
        return ScratchLayout(staging=rows * strides * g.stride_w * self.itemsize)


class Fold(Operator):
    """x is the tile of products, whose channels are the windows of all filters; pixels of y are
    contiguous along rows.
    """

    transposes = False
    stages_planes = True

    def _part_kind(self) -> Any:
        return ()

    def _parts(self) -> dict[int, Code]:
        """The sums of whole strides: those that all windows of a row reach, and others."""
        made = self.g.S, self.g.stride_w, self.lanes, self.itemsize
        return {
            table.FOLD_INSIDE: code(".fold.compiled:make_inside", *made),
            table.FOLD_EDGE: code(".fold.compiled:make_edge", *made),
        }

    def _entry(self) -> Code:
        return code(".fold.compiled:FOLD")

    def _load_tile(self, x: Any) -> int:
        """Nothing is loaded before it is added."""
        return 0

    def _bias(self, biased: bool) -> Bias:
        """The initial sum of each filter, or a zero that all share."""
        return Bias(self.zeros.ctypes.data, panel=self.itemsize if biased else 0)

    def initial_sums(self, bias: Any) -> Any:
        """The bias of each filter."""
        return bias
