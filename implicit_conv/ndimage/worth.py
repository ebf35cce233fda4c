"""Calls that scipy's C computes in less time: they are left to it.

The tables were measured against scipy 1.17.1, as medians of calls in turns in one process, on one
thread of a Xeon with AVX-512 that other programs shared (2026-11): images of 32 x 32 to
2000 x 2000 pixels, and volumes.
"""

from __future__ import annotations

import math

import numpy as np

from implicit_conv.arrays import Array

# Sums along an axis: (products of an output at least, elements of the image at least), by whether
# it is the last axis, whose lines scipy's C reads without gaps, and by the kind of both dtypes.
# With fewer products scipy's C is faster for images of any size.
LAST, OTHER = True, False
FLOATS, INTEGERS = True, False
LINES = {
    (LAST, FLOATS): ((25, 1 << 16), (13, 1 << 18), (9, 1 << 20), (5, 1 << 21)),
    (LAST, INTEGERS): ((25, 1 << 16), (13, 1 << 18), (9, 1 << 21)),
    (OTHER, FLOATS): ((9, 1 << 17), (5, 1 << 18), (2, 1 << 20)),
    (OTHER, INTEGERS): ((25, 1 << 16), (9, 1 << 18), (5, 1 << 20)),
}
PRODUCTS = 1 << 18  # of a sum along all axes: those of the whole image, at least
# Means along an axis: (elements behind the axis at least, elements of the image at least).
MEANS = ((1 << 12, 1 << 18), (1 << 7, 1 << 21))
# Pixels of an axis that boxes must not divide, at most: boxes of longer ones are narrow.
MEAN_LENGTH, IN_PLACE_LENGTH = 512, 1024


def line(x: Array, out: Array, axis: int, products: int) -> bool:
    """Whether a sum along an axis takes less time here; `products` of an output at most."""
    last = math.prod(x.shape[axis:]) == x.shape[axis]
    if not last and x.shape[axis] > IN_PLACE_LENGTH and np.may_share_memory(x, out):
        return False
    floats = x.dtype.kind == out.dtype.kind == "f"
    return any(products >= least and x.size >= few for least, few in LINES[last, floats])


def window(x: Array, products: int) -> bool:
    """Whether a sum along all axes takes less time here."""
    return x.size * products >= PRODUCTS


def mean(x: Array, axis: int) -> bool:
    """Whether means along an axis of an image with elements take less time here."""
    behind = math.prod(x.shape[axis:]) // x.shape[axis]
    return x.shape[axis] <= MEAN_LENGTH and any(
        behind >= columns and x.size >= few for columns, few in MEANS
    )
