"""Sizes of folds; what a row of windows looks like to compiled code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.runtime.layout import Layout, ScratchLayout


class Windows(NamedTuple):
    """The windows of a row: each pixel has one of `taps` elements, `stride` elements after that of
    the pixel before it.
    """

    taps: int
    stride: int

    @property
    def overlap(self) -> int:
        """The windows that reach an element at most."""
        return int(schedule.ceil_div(self.taps, self.stride))

    @property
    def last(self) -> int:
        """The elements of a stride that the last of these windows reaches."""
        return self.taps - (self.overlap - 1) * self.stride


@dataclass(frozen=True)
class FoldLayout(Layout):
    """Sizes of a fold; `g` is the geometry of the transposed convolution's own axes."""

    @property
    def windows(self) -> Windows:
        """The windows along a row."""
        return Windows(self.g.S, self.g.stride_w)

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
