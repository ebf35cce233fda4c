"""Launches made ready for arrays of fixed strides: what a plan keeps between calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from implicit_conv.kernels.cpu.runtime.pool import POOL

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.operator import Operator
    from implicit_conv.kernels.cpu.runtime.launch import Launch


@dataclass(frozen=True, slots=True)
class Prepared:
    """An operator and its launches for arrays of fixed strides."""

    operator: Operator
    main: Launch
    packing: Launch | None  # a launch of its own where no single tile uses each panel
    swapped: bool = False  # they take filters as x and one image's pixels as w

    def run(self, x, w, y, bias=None, residual=None):
        """Run on 4-d arrays x, w, y: a plain filter is packed as a whole, or in the main launch."""
        sums = None if bias is None else self.operator.initial_sums(bias)
        if self.packing is None:
            self.main.run(x, w, y, 0, sums, residual)
            return
        panels = POOL.take(self.operator.packed_bytes)
        try:
            self.packing.run(w, w, w, panels.address)
            self.main.run(x, x, y, panels.address, sums, residual)
        finally:
            POOL.give(panels)

    def run_packed(self, x, panels, y, bias=None, residual=None):
        """Run on packed `panels`, an address."""
        sums = None if bias is None else self.operator.initial_sums(bias)
        self.main.run(x, x, y, panels, sums, residual)
