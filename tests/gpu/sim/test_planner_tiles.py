"""The tiles that the planner considers; other tests use the small tiles of the families."""

import numpy as np
import pytest

from implicit_conv.gpu.arch import gpu_arch
from implicit_conv.gpu.families import family_name
from implicit_conv.gpu.planner import choose, variants
from implicit_conv.testing import Case, to_nchw
from implicit_conv.verify.simulate import simulate
from implicit_conv.verify.testing import EVERYTHING, loaded, problem_of, stored

# 162 pixels, two channel blocks, and more filters than the widest tile has
CASE = Case(
    N=6, C=72, K=264, size=(3, 9), padding=((1, 1), (1, 1)), layout="NHWC", weight_layout="KRSC"
)
DEVICES = {"wgmma": "sm_90", "mma": "sm_100"}


def kernels():
    """Every tile of every family that loads by tensor copies; cp.async has the same consumers.

    All but the largest and the smallest tile of a family are slow.
    """
    able = [v for v in variants(problem_of(CASE, "bfloat16"), 0, plain=True) if v.producer == "tma"]
    largest = {family_name(v): v for v in reversed(able)}
    smallest = {family_name(v): v for v in able}
    for v in able:
        quick = v in (largest[family_name(v)], smallest[family_name(v)])
        marks = () if quick else pytest.mark.slow
        yield pytest.param(v, id=f"{family_name(v)} {v.tile_m}x{v.tile_n}", marks=marks)


@pytest.mark.parametrize("v", list(kernels()))
def test_tile_equals_oracle(v):
    made = choose(
        problem_of(CASE, "bfloat16"), gpu_arch(DEVICES[v.consumer]), variant=v, options=EVERYTHING
    )
    assert min(made.tiles[1:]) >= 2
    x, w = CASE.inputs(2, integers=True)
    arrays = (stored(array, v.dtype) for array in CASE.arrange(x, w))
    y = to_nchw(loaded(simulate(made, *arrays, blocks=2), v.dtype), "NHWC")
    assert np.array_equal(y, loaded(stored(CASE.reference(x, w), v.dtype), v.dtype))
