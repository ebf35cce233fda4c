"""Packed panels depend on the numbers in a filter, not on where they lie in memory."""

import itertools

import numpy as np
import pytest

import implicit_conv as ic
from implicit_conv.testing import Array


def lying(w: Array, order: tuple[int, ...], steps: tuple[int, ...]) -> Array:
    """A copy of `w` whose axes lie in memory in this order, outermost first, as every |step|-th
    element of an axis that is longer; a negative step reverses the axis.
    """
    shape = tuple(extent * abs(step) for extent, step in zip(w.shape, steps, strict=True))
    memory = np.full([shape[axis] for axis in order], np.nan, w.dtype)
    view = memory.transpose(np.argsort(order))[tuple(slice(None, None, step) for step in steps)]
    view[...] = w
    return view


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("taps", [(1, 1), (2, 2), (1, 4), (3, 3), (2, 7)], ids=str)
def test_a_filter_is_packed_from_any_strides(taps, dtype):
    rng = np.random.default_rng(0)
    filters = 32 + 9  # a whole panel, and a partial one
    w = rng.standard_normal((filters, 11, *taps)).astype(dtype)
    plan = ic.plan_conv2d((1, 11, 9, 40), w.shape, dtype, algorithm="implicit_gemm")
    expected = plan.pack(w).panels
    orders = [*itertools.permutations(range(4))]
    steps = [(1, 1, 1, 1), (1, 1, -1, -1), (1, 1, -2, 2), (2, 1, 1, 3), (-1, 1, 1, -4)]
    for order, step in itertools.product(orders, steps):
        panels = plan.pack(lying(w, order, step)).panels
        assert np.array_equal(panels, expected), (order, step)
