"""Filters of float32 images by convolutions, which sum in float32: `precision` other than "strict".

They are correlations whose results are stored as float32, without a constant beyond the border.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from implicit_conv.api import conv1d, conv2d, conv3d
from implicit_conv.arrays import Array
from implicit_conv.ndimage.boxes import CONSTANT, MIRROR, NEAREST, REFLECT, WRAP

PADDING_MODES = {
    NEAREST: "replicate",
    WRAP: "circular",
    REFLECT: "symmetric",
    MIRROR: "reflect",
    CONSTANT: "zeros",
}
CONVOLUTIONS = (conv1d, conv2d, conv3d)


def correlate(
    x: Array,
    weights: Array,
    out: Array,
    mode: int,
    cval: float,
    origins: Sequence[int],
    precision: str,
) -> bool:
    """Compute a correlation of float32 arrays; returns whether they are supported.

    An unfiltered last axis of an image with three axes is its colours, which are a batch.
    """
    if x.dtype != np.float32 or out.dtype != np.float32 or (mode == CONSTANT and cval != 0):
        return False
    before = [size // 2 + origin for size, origin in zip(weights.shape, origins, strict=True)]
    padding = [(low, size - 1 - low) for low, size in zip(before, weights.shape, strict=True)]
    if x.ndim == 3 and weights.shape[-1] == 1:
        images, results = (np.moveaxis(a, -1, 0)[:, None] for a in (x, out))
        weights, padding = weights[..., 0], padding[:2]
    else:
        images, results = x[None, None], out[None, None]
    if weights.ndim > len(CONVOLUTIONS):
        return False
    CONVOLUTIONS[weights.ndim - 1](
        images,
        weights[None, None].astype(np.float32),
        padding=tuple(padding),
        padding_mode=PADDING_MODES[mode],
        out=results,
        precision=precision,
    )
    return True
