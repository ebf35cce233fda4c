"""Calls that scipy's C computes in less time: they are left to it.

The tables were measured against scipy 1.17.1, as medians of calls in turns in one process, on one
thread of a Xeon with AVX-512 that other programs shared (2026-11): images of 32 x 32 to
2000 x 2000 pixels, and volumes.
"""

from __future__ import annotations

import math

import numpy as np

from implicit_conv.arrays.arrays import Array

# Sums along an axis: (products of an output at least, elements of the image at least), by whether
# it is the last axis, whose lines scipy's C reads without gaps, and by the kind of both dtypes.
# With fewer products scipy's C is faster for images of any size.
LAST, OTHER = True, False
FLOATS, INTEGERS = True, False
LINES = {
    (LAST, FLOATS): ((21, 1 << 16), (13, 1 << 18), (9, 1 << 20), (5, 1 << 21)),
    (LAST, INTEGERS): ((21, 1 << 16), (13, 1 << 18), (9, 1 << 21)),
    (OTHER, FLOATS): ((13, 1 << 16), (9, 1 << 17), (5, 1 << 18), (2, 1 << 20)),
    (OTHER, INTEGERS): ((13, 1 << 16), (9, 1 << 18), (5, 1 << 20)),
}
PRODUCTS = 1 << 18  # of a sum along all axes: those of the whole image, at least
# Means along an axis: (elements behind the axis at least, elements of the image at least).
MEANS = ((1 << 12, 1 << 18), (1 << 7, 1 << 21))
FEWEST_IN_MEAN = min(few for _, few in MEANS)
# Pixels of an axis that boxes must not divide, at most: boxes of longer ones are narrow.
MEAN_LENGTH, IN_PLACE_LENGTH = 512, 1024


def products(taps: int) -> int:
    """Products of an output along an axis: the elements of two taps are joined if the filter is
    symmetric or antisymmetric, as most of an odd number of taps are.
    """
    return taps // 2 + 1 if taps % 2 else taps


def _fewest(taps: int) -> float:
    """Elements of an image, at least, of whose lines a sum of `taps` may take less time here."""
    sizes = (size for sizes in LINES.values() for size in sizes)
    return min((few for least, few in sizes if products(taps) >= least), default=math.inf)


FEWEST_IN_LINE = tuple(map(_fewest, range(50)))  # by the number of taps; the last is that of more


def line(x: Array, out: Array, axis: int, taps: int) -> bool:
    """Whether a sum of `taps` along an axis takes less time here."""
    if x.size < FEWEST_IN_LINE[min(taps, len(FEWEST_IN_LINE) - 1)]:
        return False
    last = math.prod(x.shape[axis:]) == x.shape[axis]
    if not last and x.shape[axis] > IN_PLACE_LENGTH and np.may_share_memory(x, out):
        return False
    floats = x.dtype.kind == out.dtype.kind == "f"
    return any(products(taps) >= least and x.size >= few for least, few in LINES[last, floats])


def window(x: Array, taps: int) -> bool:
    """Whether a sum along all axes takes less time here."""
    return x.size * taps >= PRODUCTS


def mean(x: Array, axis: int) -> bool:
    """Whether means along an axis take less time here."""
    if x.size < FEWEST_IN_MEAN:
        return False
    behind = math.prod(x.shape[axis:]) // x.shape[axis]
    return x.shape[axis] <= MEAN_LENGTH and any(
        behind >= columns and x.size >= few for columns, few in MEANS
    )
