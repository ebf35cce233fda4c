"""Filters of several axes of float32 images by convolutions: `precision` other than "strict"."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.ndimage.boxes import CONSTANT, MIRROR, NEAREST, REFLECT, WRAP
from implicit_conv.operators.conv import conv2d, conv3d
from implicit_conv.problem.options import PaddingMode, Precision

PADDING_MODES: dict[int, PaddingMode] = {
    NEAREST: "replicate",
    WRAP: "circular",
    REFLECT: "symmetric",
    MIRROR: "reflect",
    CONSTANT: "zeros",
}
CONVOLUTIONS = {2: conv2d, 3: conv3d}  # by rank
FEWEST_ELEMENTS = 4096  # of an image: scipy's C takes less time for a smaller one than a call


def served(x: Array, weights: Array, out: Array, mode: int, cval: float) -> bool:
    """Whether it is a convolution: a last axis of length 1 would be a loop over colours."""
    return (
        x.dtype == out.dtype == np.float32
        and x.ndim in CONVOLUTIONS
        and x.size >= FEWEST_ELEMENTS
        and weights.shape[-1] > 1
        and (mode != CONSTANT or cval == 0)
    )


def correlate(
    x: Array,
    weights: Array,
    out: Array,
    mode: int,
    cval: float,
    origins: Sequence[int],
    precision: Precision,
) -> None:
    """Compute a correlation."""
    before = [size // 2 + origin for size, origin in zip(weights.shape, origins, strict=True)]
    padding = [(low, size - 1 - low) for low, size in zip(before, weights.shape, strict=True)]
    CONVOLUTIONS[x.ndim](
        x[None, None],
        weights[None, None].astype(np.float32),
        padding=tuple(padding),
        padding_mode=PADDING_MODES[mode],
        out=out[None, None],
        precision=precision,
    )
