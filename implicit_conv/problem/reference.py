"""The reference: convolution and its gradients by their definitions, in float64 or int64; it shares
no arithmetic with the engines.

y[n, k, p, q] = sum over c, r, s of w[k, c, r, s] *
    padded[n, g * C/groups + c, p*stride_h + r*dilation_h, q*stride_w + s*dilation_w],

where g is the group of filter k; with one or three spatial axes there are as many letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Pair = tuple[int, int]
# The modes of numpy.pad by the words of padding_mode.
MODES: dict[str, Any] = {
    "zeros": "constant",
    "reflect": "reflect",
    "symmetric": "symmetric",
    "replicate": "edge",
    "circular": "wrap",
}


def pad_or_crop(x: Array, pads: Sequence[Pair], padding_mode: str = "zeros") -> Array:
    """`x` (N, C, spatial axes) with padding around each image; negative padding crops, and what it
    crops is not repeated.

    Parameters
    ----------
    pads : (low, high) of each spatial axis
    padding_mode : str
        One of MODES.
    """
    grown = [(0, 0), (0, 0), *((max(lo, 0), max(hi, 0)) for lo, hi in pads)]
    zeros = padding_mode == "zeros"
    if zeros:  # first, since more pixels may be cropped than x has
        x = np.pad(x, grown)
    for axis, (lo, hi) in enumerate(pads, start=2):
        x = x.take(range(max(-lo, 0), x.shape[axis] - max(-hi, 0)), axis)
    return x if zeros else np.pad(x, grown, MODES[padding_mode])


def conv(
    x: Array,
    w: Array,
    *,
    stride: Sequence[int],
    pads: Sequence[Pair],
    dilation: Sequence[int],
    groups: int = 1,
    padding_mode: str = "zeros",
    magnitude: bool = False,
    dtype: str = "float64",
) -> Array:
    """The convolution of `x` (N, C, H, W) with `w` (K, C/groups, R, S), in `dtype`.

    x and w have one to three spatial axes.

    Parameters
    ----------
    stride, pads, dilation : one for each spatial axis; a pad is (low, high)
    padding_mode : str
        One of MODES.
    magnitude : bool
        Return the sum of |x||w| instead, which scales the error measure.
    dtype : "float64", "int64" or "complex128"

    Returns
    -------
    y : array (N, K, P, Q) of dtype `dtype`
    """
    x, w = _numbers(x, w, magnitude, dtype)
    filters, group_c, *kernel = w.shape
    windows = _windows(x, kernel, stride, pads, dilation, padding_mode)
    windows = windows.reshape(len(x), groups, group_c, *windows.shape[2:])
    grouped = w.reshape(groups, filters // groups, group_c, *kernel)
    pixels, taps = _letters(len(kernel))
    sums = f"ngc{pixels}{taps},gkc{taps}->ngk{pixels}"
    y: Array = np.einsum(sums, windows, grouped, optimize=True)
    return y.reshape(len(x), filters, *y.shape[3:])


def weight_grad(
    x: Array,
    dy: Array,
    kernel: Sequence[int],
    *,
    stride: Sequence[int],
    pads: Sequence[Pair],
    dilation: Sequence[int],
    groups: int = 1,
    padding_mode: str = "zeros",
    magnitude: bool = False,
    dtype: str = "float64",
) -> Array:
    """The gradient of w, where `dy` (N, K, P, Q) is that of ``conv(x, w)``.

    Parameters
    ----------
    kernel : (R, S)
    stride, pads, dilation, groups, padding_mode, magnitude, dtype
        As in `conv`.

    Returns
    -------
    dw : array (K, C/groups, R, S) of dtype `dtype`
    """
    x, dy = _numbers(x, dy, magnitude, dtype)
    batch, filters, *output = dy.shape
    windows = _windows(x, kernel, stride, pads, dilation, padding_mode)
    windows = windows.reshape(batch, groups, x.shape[1] // groups, *windows.shape[2:])
    grouped = dy.reshape(batch, groups, filters // groups, *output)
    pixels, taps = _letters(len(kernel))
    sums = f"ngc{pixels}{taps},ngk{pixels}->gkc{taps}"
    dw: Array = np.einsum(sums, windows, grouped, optimize=True)
    return dw.reshape(filters, *dw.shape[2:])


def _numbers(first: Array, second: Array, magnitude: bool, dtype: str) -> tuple[Array, Array]:
    """Both arrays in `dtype`, or their magnitudes."""
    first, second = first.astype(dtype), second.astype(dtype)
    return (np.abs(first), np.abs(second)) if magnitude else (first, second)


def _windows(
    x: Array,
    kernel: Sequence[int],
    stride: Sequence[int],
    pads: Sequence[Pair],
    dilation: Sequence[int],
    padding_mode: str,
) -> Array:
    """The pixels that each tap reads for each output: (N, C, P, Q, R, S), a view."""
    padded = pad_or_crop(x, pads, padding_mode)
    reach = [(taps - 1) * step + 1 for taps, step in zip(kernel, dilation, strict=True)]
    axes = tuple(range(2, 2 + len(kernel)))
    windows: Array = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=axes)
    steps: Any = (..., *(slice(None, None, step) for step in (*stride, *dilation)))
    read: Array = windows[steps]
    return read


def _letters(rank: int) -> tuple[str, str]:
    """The axes of pixels of y, and of taps."""
    return "zpq"[:rank], "trs"[:rank]


def input_grad(
    dy: Array,
    w: Array,
    shape: Sequence[int],
    *,
    stride: Sequence[int],
    pads: Sequence[Pair],
    dilation: Sequence[int],
    groups: int = 1,
    padding_mode: str = "zeros",
    magnitude: bool = False,
    dtype: str = "float64",
) -> Array:
    """The gradient of x, of shape `shape`, where ``dy`` (N, K, P, Q) is that of ``conv(x, w)``.

    Each tap adds its multiple of dy to the pixels that it reads. This is also the transposed
    convolution of `dy` with `w`, whose axes are then called C and K / groups.

    Parameters
    ----------
    w : array (K, C/groups, R, S)
    shape : (N, C, H, W)
        dy may have any extents: pixels of x that no tap reads get 0, and those outside x are left
        out.
    stride, pads, dilation, groups, padding_mode, magnitude, dtype
        As in `conv`.

    Returns
    -------
    dx : array of shape `shape` and dtype `dtype`
    """
    dy, w = _numbers(dy, w, magnitude, dtype)
    filters, group_c, *kernel = w.shape
    batch, _, *output = dy.shape
    axes = list(zip(output, stride, kernel, dilation, strict=True))
    spans = [(pixels - 1) * step + 1 for pixels, step, _, _ in axes]
    reach = [span + (axis[2] - 1) * axis[3] for span, axis in zip(spans, axes, strict=True)]
    grouped = dy.reshape(batch, groups, filters // groups, *output)
    taps_of = w.reshape(groups, filters // groups, group_c, *kernel)
    padded = np.zeros((batch, groups, group_c, *reach), dy.dtype)
    for tap in np.ndindex(*kernel):
        first = [index * step for index, step in zip(tap, dilation, strict=True)]
        read = tuple(
            slice(at, at + span, step) for at, span, step in zip(first, spans, stride, strict=True)
        )
        multiple = np.einsum("ngk...,gkc->ngc...", grouped, taps_of[(..., *tap)])
        padded[(slice(None),) * 3 + read] += multiple
    padded = padded.reshape(batch, groups * group_c, *reach)
    if padding_mode == "zeros":
        crops = zip(pads, shape[2:], reach, strict=True)
        return pad_or_crop(padded, [(-low, size + low - n) for (low, _), size, n in crops])
    whole = [low + size + high for (low, high), size in zip(pads, shape[2:], strict=True)]
    dx = pad_or_crop(padded, [(0, size - n) for size, n in zip(whole, reach, strict=True)])
    for axis, (size, pair) in enumerate(zip(shape[2:], pads, strict=True), start=2):
        # Each pixel of the padded image adds to the pixel that it repeats.
        repeated = pad_or_crop(np.arange(size)[None, None], [pair], padding_mode)[0, 0]
        folded = np.zeros((size, *np.delete(dx.shape, axis)), dx.dtype)
        np.add.at(folded, repeated, np.moveaxis(dx, axis, 0))
        dx = np.moveaxis(folded, 0, axis)
    return dx
