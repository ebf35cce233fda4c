"""Calls that scipy's C computes in less time: they are left to it."""

from __future__ import annotations

from implicit_conv.arrays.arrays import Array

PRODUCTS = (
    1 << 13
)  # of an image and the taps of a step: below, a call here costs more than it saves


def pays(x: Array, taps: int) -> bool:
    """Whether a step of this many taps takes less time here."""
    return x.size * taps >= PRODUCTS
