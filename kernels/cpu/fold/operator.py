"""The operator of folds."""

from __future__ import annotations

from typing import Any

from implicit_conv.kernels.cpu.fold.layout import FoldLayout
from implicit_conv.kernels.cpu.operator import Build, Operator
from implicit_conv.kernels.cpu.runtime import table
from implicit_conv.kernels.cpu.runtime.call import Bias
from implicit_conv.kernels.cpu.runtime.code import Code, code


class Fold(Operator):
    """x is the tile of products, whose channels are the windows of all filters; pixels of y are
    contiguous along rows.
    """

    transposes = False
    stages_planes = True

    def __init__(self, layout: FoldLayout, lanes: int, build: Build) -> None:
        self._windows = layout.windows
        super().__init__(layout, lanes, build)

    def _parts(self) -> dict[int, Code]:
        """The sums of whole strides: those that all windows of a row reach, and others."""
        made = self._windows, self.lanes, self.itemsize
        return {
            table.FOLD_INSIDE: code(".fold.compiled:make_inside", *made),
            table.FOLD_EDGE: code(".fold.compiled:make_edge", *made),
        }

    def _entry(self) -> Code:
        return code(".fold.compiled:make_fold")

    def _load_tile(self, x: Any) -> int:
        """Nothing is loaded before it is added."""
        return 0

    def _bias(self, biased: bool) -> Bias:
        """The initial sum of each filter, or a zero that all share."""
        return Bias(self.zeros.ctypes.data, panel=self.itemsize if biased else 0)

    def initial_sums(self, bias: Any) -> Any:
        """The bias of each filter."""
        return bias
