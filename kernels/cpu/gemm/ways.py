"""How the elements of a filter lie in memory, which decides how it is packed."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any

import numpy as np

from implicit_conv.kernels.cpu.gemm.layout import SPAN
from implicit_conv.kernels.cpu.tile.extents import FEW


class Way(IntEnum):
    """How the elements of a filter lie in memory."""

    TAPS = 0  # a filter's taps are contiguous, and so are its channels: KCRS
    FILTERS = 1  # filters are contiguous: RSCK
    ROWS = 2  # a channel's filters are near, and so are the taps of each filter row
    SPANS = 3  # a channel's filters are near, and so are all taps
    CHANNELS = 4  # channels are contiguous: KRSC
    ANY = 5
    WORDS = 6  # several channels make one element of a panel


def way_of(w: Any, channels: int) -> Way:
    """The fastest way to pack `w`, a filter with the axes (k, c, t, r, s), of which `channels`
    channels make an element of a panel.
    """
    if channels > 1:
        return Way.WORDS
    taps, element = w.shape[2:], w.itemsize
    steps = [stride // element for stride in w.strides]
    if steps[1] == math.prod(taps) and w[:1, :1].flags.c_contiguous:
        return Way.TAPS
    if steps[0] == 1:
        return Way.FILTERS
    reaches = [abs(step) * (extent - 1) for step, extent in zip(steps[2:], taps, strict=True)]
    span = sum(reaches) + 1
    if span <= min(steps[0], SPAN * math.prod(taps)) and _are_apart(taps, steps[2:]):
        has_gaps = math.prod(taps) < span or span <= FEW
        return Way.ROWS if has_gaps and reaches[-1] < FEW else Way.SPANS
    return Way.CHANNELS if steps[1] == 1 else Way.ANY


def _are_apart(taps: tuple[int, ...], steps: list[int]) -> bool:
    """Whether no two taps share an element, as those of a broadcast filter do."""
    places = sum(
        np.arange(extent).reshape([-1 if other == axis else 1 for other in range(len(taps))]) * step
        for axis, (extent, step) in enumerate(zip(taps, steps, strict=True))
    )
    return len(np.unique(places)) == math.prod(taps)
