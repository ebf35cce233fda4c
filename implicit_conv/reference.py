"""The float64 reference: convolution by its definition; it shares no arithmetic with the engines.

y[n, k, p, q] = sum over c, r, s of w[k, c, r, s] *
    padded[n, g * C/groups + c, p*stride_h + r*dilation_h, q*stride_w + s*dilation_w],

where g is the group of filter k.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Pair = tuple[int, int]


def pad_or_crop(x: Array, pads: tuple[Pair, Pair]) -> Array:
    """`x` (N, C, H, W) with zeros around each image; negative padding crops.

    Parameters
    ----------
    pads : ((low, high) of H, (low, high) of W)
    """
    grown = [(0, 0), (0, 0), *((max(lo, 0), max(hi, 0)) for lo, hi in pads)]
    padded = np.pad(x, grown)
    for axis, (lo, hi) in enumerate(pads, start=2):
        size = padded.shape[axis]
        padded = padded.take(range(max(-lo, 0), size - max(-hi, 0)), axis)
    return padded


def conv2d(
    x: Array,
    w: Array,
    *,
    stride: Pair = (1, 1),
    pads: tuple[Pair, Pair] = ((0, 0), (0, 0)),
    dilation: Pair = (1, 1),
    groups: int = 1,
    magnitude: bool = False,
) -> Array:
    """The convolution of `x` (N, C, H, W) with `w` (K, C/groups, R, S), in float64.

    Parameters
    ----------
    magnitude : bool
        Return the sum of |x||w| instead, which scales the error measure.

    Returns
    -------
    y : float64 array (N, K, P, Q)
    """
    x, w = x.astype(np.float64), w.astype(np.float64)
    if magnitude:
        x, w = np.abs(x), np.abs(w)
    filters, group_c, taps_h, taps_w = w.shape
    padded = pad_or_crop(x, pads)
    windows = np.lib.stride_tricks.sliding_window_view(
        padded, ((taps_h - 1) * dilation[0] + 1, (taps_w - 1) * dilation[1] + 1), axis=(2, 3)
    )
    windows = windows[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]
    windows = windows.reshape(len(x), groups, group_c, *windows.shape[2:])
    grouped = w.reshape(groups, filters // groups, group_c, taps_h, taps_w)
    y: Array = np.einsum("ngcpqrs,gkcrs->ngkpq", windows, grouped, optimize=True)
    return y.reshape(len(x), filters, *y.shape[3:])
