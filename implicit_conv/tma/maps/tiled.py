"""Tiled tensor maps: what cuTensorMapEncodeTiled encodes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

from implicit_conv.tma.maps.limits import Description, box_counts, integer, integers
from implicit_conv.tma.maps.maps import TensorMap, describe


@dataclass(frozen=True, kw_only=True)
class TiledMap(TensorMap):
    """A tensor map of mode tile: a copy loads a box of the tensor.

    Parameters
    ----------
    shape : sequence of int
        Of the tensor, 1 to 5 dimensions, the last one contiguous.
    dtype : dtype-like
        As in `Im2colMap`.
    box : sequence of int
        Elements from the start on, 1 to 256 along each dimension. The last dimension makes a row
        of shared memory.
    step : sequence of int, or int for all but the last dimension
        Every `step`-th element is loaded, so ``ceil(box / step)`` of them; 1 by default.
    swizzle, oob_fill, strides, address, interleave
        As in `Im2colMap`, whose errors this class raises too.

    Examples
    --------
    >>> from implicit_conv import tma
    >>> tile = tma.TiledMap(
    ...     shape=(64, 64), dtype="float16", box=(8, 64), swizzle="128B"
    ... )
    >>> tile.rows(), tile.row_bytes, tile.arguments["boxDim"]
    (8, 128, (64, 8))
    """

    box: Sequence[int]
    step: Sequence[int] | int = 1
    mode: str = field(default="tiled", init=False, repr=False)

    def __post_init__(self) -> None:
        step = self.step
        if not isinstance(step, Sequence):
            outer = len(integers("shape", self.shape)) - 1
            step = (*(integer("step", step),) * outer, 1)
        self._normalise(box=integers("box", self.box), step=integers("step", step))

    @functools.cached_property
    def description(self) -> Description:
        """The map in the form that the rules check."""
        assert isinstance(self.step, tuple)
        return describe(self, (), (), self.step, tuple(self.box))

    @property
    def channels_per_pixel(self) -> int:
        """Elements of a row of shared memory."""
        return self.box[-1]

    @property
    def columns(self) -> list[int]:
        """Which of four positions of a simulated box the tensor has, besides the last."""
        return list(range(5 - self.rank, 4))

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements that a copy loads along each dimension."""
        return box_counts(self.description)
