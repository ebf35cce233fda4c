"""Filters that order elements and that scipy's C computes in less time: they are left to it.

The limits were measured against scipy 1.17.1, as medians of calls in turns in one process, on one
thread of a Zen 4 with AVX-512 that other programs shared (2026-11).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from implicit_conv.arrays.arrays import Array

FEWEST = 16  # elements of an image whose extrema of several axes are computed here
FEWEST_ALONG = 3000  # of one whose extrema are along an axis: scipy's C has little to do before
FEWEST_RANKED = 2048  # elements of all windows, of which those of a rank are computed here
# Elements from the last axis on along which windows have several: a row of fewer takes a vector.
SHORTEST, SHORTEST_RANKED = 4, 8


def _row(x: Array, kernel: Sequence[int]) -> int:
    """The elements of a row."""
    last = max((axis for axis, size in enumerate(kernel) if size > 1), default=0)
    return math.prod(x.shape[last:])


def box(x: Array) -> bool:
    """Whether extrema along several axes may take less time here, before their window is known."""
    return x.size >= FEWEST


def wide(x: Array, kernel: Sequence[int]) -> bool:
    """Whether they do."""
    return _row(x, kernel) >= SHORTEST


def along(x: Array, axis: int) -> bool:
    """Whether extrema along an axis take less time here."""
    return x.size >= FEWEST_ALONG and math.prod(x.shape[axis:]) >= SHORTEST


def ranked(x: Array, kernel: Sequence[int]) -> bool:
    """Whether elements of a rank take less time here."""
    few = x.size * math.prod(kernel) < FEWEST_RANKED
    return not few and _row(x, kernel) >= SHORTEST_RANKED
