"""Tables that launches on images read: where rows begin, and which pixels they repeat."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.kernels.cpu.images.layout import CONSTANT, NOWHERE


class Tables:
    """Arrays, which own what addresses point to."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []

    def __call__(self, values: Any, dtype: Any = np.int64) -> int:
        """The address of a contiguous array with these values; integers wrap."""
        found = np.ascontiguousarray(values)
        if np.dtype(dtype) == np.int16:
            found = found.astype(np.int64)
        self.arrays.append(found.astype(dtype))
        return int(self.arrays[-1].ctypes.data)


def offsets_of_planes(
    axes: Sequence[int],
    shape: Sequence[int],
    strides: tuple[Sequence[int], Sequence[int]],
    kernel: Sequence[int],
    sources: Sequence[Array],
) -> Array:
    """For each index of some axes the byte offset in y, then those of all planes of its window in
    x; NOWHERE is that of a plane outside the image.

    `strides` are those of x and of y, in bytes, and `sources` the pixels that positions along each
    axis repeat, from the first one that a window reads on.
    """
    of_x, of_y = strides
    places = np.zeros(1, np.int64)
    for axis in axes:
        places = (places[:, None] + np.arange(shape[axis]) * of_y[axis]).ravel()
    found = [places]
    for firsts in itertools.product(*(range(kernel[axis]) for axis in axes)):
        offset, outside = np.zeros(1, np.int64), np.zeros(1, bool)
        for axis, first in zip(axes, firsts, strict=True):
            read = sources[axis][first : first + shape[axis]]
            offset = (offset[:, None] + read * of_x[axis]).ravel()
            outside = (outside[:, None] | (read == CONSTANT)).ravel()
        found.append(np.where(outside, NOWHERE, offset))
    return np.stack(found, axis=1)


def runs_of(pixels: Array) -> list[tuple[int, int, int]]:
    """Runs of neighbouring pixels: (place of the first, pixel or CONSTANT, number)."""
    absent, step = pixels == CONSTANT, np.diff(pixels)
    follows = np.where(absent[:-1] | absent[1:], step == 0, step == 1)
    cuts = [0, *(np.flatnonzero(~follows) + 1).tolist(), len(pixels)]
    return [(begin, int(pixels[begin]), end - begin) for begin, end in itertools.pairwise(cuts)]
