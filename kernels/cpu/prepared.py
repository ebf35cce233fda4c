"""Launches made ready for arrays of fixed strides: what a plan keeps between calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from implicit_conv.kernels.cpu.call import BIAS, RESIDUAL, blob_of
from implicit_conv.kernels.cpu.launch import launch_on
from implicit_conv.kernels.cpu.pool import POOL

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.operator import Operator


class Launch:
    """One entry, ready to run on arrays of fixed strides: a call fills in addresses alone."""

    def __init__(self, entry, g, layout, threads, call, keep=None):
        self._entry, self._threads = entry, threads
        self._bytes = layout.total * threads
        self._blob = blob_of(call, g)
        self._keep = keep  # what the blob's constant addresses point into

    def __call__(self, x, w, y, *, panels=0, sums=None, residual=None):
        """Run on 4-d arrays x, w, y; on packed `panels` (an address) where w is None."""
        blob = self._blob.copy()
        if sums is not None:
            blob[BIAS] = sums.ctypes.data
        if residual is not None:
            blob[RESIDUAL] = residual.ctypes.data
        scratch = POOL.take(self._bytes)
        try:
            launch_on(x, w, y, panels, scratch.address, self._entry, blob, self._threads)
        finally:
            POOL.give(scratch)


class Prepared(NamedTuple):
    """An operator and its launches for arrays of fixed strides."""

    operator: Operator
    main: Launch
    packing: Launch | None  # a launch of its own where no single tile uses each panel
    swapped: bool = False  # they take filters as x and one image's pixels as w

    def run(self, x, w, y, bias=None, residual=None):
        """Run on 4-d arrays x, w, y: a plain filter is packed as a whole, or in the main launch."""
        sums = None if bias is None else self.operator.initial_sums(bias)
        if self.packing is None:
            self.main(x, w, y, sums=sums, residual=residual)
            return
        panels = POOL.take(self.operator.packed_bytes)
        try:
            self.packing(w, w, w, panels=panels.address)
            self.main(x, None, y, panels=panels.address, sums=sums, residual=residual)
        finally:
            POOL.give(panels)

    def run_packed(self, x, panels, y, bias, residual):
        """Run on packed `panels`, an address."""
        sums = None if bias is None else self.operator.initial_sums(bias)
        self.main(x, None, y, panels=panels, sums=sums, residual=residual)
