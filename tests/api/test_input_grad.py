"""Input gradients at the edge of what has a result."""

import numpy as np
import pytest

import implicit_conv as ic


@pytest.mark.parametrize("options", [{}, {"max_workspace": 1 << 20}, {"stride": 2}, {"groups": 2}])
@pytest.mark.parametrize("size", [(0,), (0, 5), (4, 0), (0, 5, 6), (4, 0, 6), (4, 5, 0)], ids=str)
def test_an_image_without_pixels_has_an_empty_gradient(size, options):
    """Its outputs have read padding alone."""
    rank, groups = len(size), options.get("groups", 1)
    x = np.zeros((2, 4, *size), np.float32)
    w = np.ones((8, 4 // groups, *(3,) * rank), np.float32)
    dy = getattr(ic, f"conv{rank}d")(x, w, padding=2, **options)
    assert dy.size
    dx = getattr(ic, f"conv{rank}d_input_grad")(dy, w, x.shape, padding=2, **options)
    assert dx.shape == x.shape
    make = getattr(ic, f"plan_conv{rank}d_input_grad")
    plan = make(dy.shape, w.shape, x.shape, "float32", padding=2, **options)
    assert "pixels that no tap reaches" in plan.explain()
    assert plan(dy, plan.pack(w)).shape == x.shape
