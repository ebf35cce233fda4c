"""What lies beyond the borders of an image, as scipy extends arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.engines import image_filters
from implicit_conv.problem.options import PaddingMode

OUTSIDE = image_filters.CONSTANT  # as the pixel of a position
# The codes of scipy's modes, as its C functions take them.
NEAREST, WRAP, REFLECT, MIRROR, CONSTANT = range(5)
MODES = (NEAREST, WRAP, REFLECT, MIRROR, CONSTANT)
GRID_WRAP, GRID_CONSTANT = 5, 6
PADDING_MODES: dict[int, PaddingMode] = {  # by their names of convolutions
    NEAREST: "replicate",
    WRAP: "circular",
    REFLECT: "symmetric",
    MIRROR: "reflect",
    CONSTANT: "zeros",
}
SYNONYMS = {GRID_WRAP: WRAP, GRID_CONSTANT: CONSTANT}  # of filters; interpolation tells them apart


def pixels(positions: Array, size: int, mode: int) -> Any:
    """The pixels that positions along an axis of `size` pixels repeat; OUTSIDE is the constant."""
    inside = (positions >= 0) & (positions < size)
    if mode == CONSTANT:
        return np.where(inside, positions, OUTSIDE)
    if mode == NEAREST:
        return np.clip(positions, 0, size - 1)
    if mode == WRAP:
        return positions % size
    if mode == REFLECT:
        folded = positions % (2 * size)
        return np.minimum(folded, 2 * size - 1 - folded)
    folded = positions % max(1, 2 * size - 2)
    return np.minimum(folded, max(0, 2 * size - 2) - folded)
