"""Arrays of more than 2^31 elements: images so far apart that 32 bits cannot tell the second."""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

from implicit_conv import ptx
from implicit_conv.gpu.cuda.arch import KNOWN
from implicit_conv.gpu.plan import families
from implicit_conv.gpu.plan.families import FAMILIES
from implicit_conv.kernels.gpu import targets
from implicit_conv.testing import Case, to_nchw
from implicit_conv.testing.gpu.problems import (
    family_problems,
    loaded,
    plan_small,
    stored,
    with_epilogue,
)
from perf.bringup.interpret import interpret, ptx_of
from perf.bringup.sass import tool

COMPILERS = importlib.util.find_spec("numba_cuda") is not None and tool("nvdisasm") is not None
APART = (1 << 32) + 4096  # bytes: 2^31 elements of 16 bits, and a page
NUMBERS = {targets.target_name(KNOWN[n].cc): n for n in families.GENERATIONS}


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not COMPILERS, reason="needs pip install '.[cu13,assemble]' in a checkout"),
]


@pytest.mark.parametrize("name", FAMILIES)
def test_images_far_apart_equal_the_oracle(name):
    """x where no tensor map loads it, the residual and y; the memory between is reserved alone."""
    found = ((case, made) for case, made in family_problems(FAMILIES[name], 60, 3) if case.N == 2)
    check(name, *next(found), linear=False)


LINEAR = [  # y of a volume is that of an image
    name for name in FAMILIES if any(v.linear and not v.volume for v in FAMILIES[name].variants)
]


@pytest.mark.parametrize("name", LINEAR)
def test_pixels_far_apart_equal_the_oracle(name):
    """The images have one pixel each, so that pixels of y and the residual have one stride."""
    family = FAMILIES[name]
    v = next(v for v in family.variants if v.linear)
    case = Case(N=2, C=24, K=40, size=(1, 1), kernel=(1, 1), layout="NHWC", weight_layout="KRSC")
    check(name, case, plan_small(case, family, v), linear=True)


def check(name, case, made, linear):
    cc = KNOWN[NUMBERS[families.targets(FAMILIES[name])[0]]].cc
    made = with_epilogue(made, True, True)
    made = replace(made, variant=replace(made.variant, linear=linear))  # as `adapted` would
    rng = np.random.default_rng(0)
    dtype, (x, w) = made.variant.dtype, case.inputs(0, integers=True)
    bias = rng.integers(-8, 9, case.K * case.groups).astype(np.float32)
    residual = rng.integers(-8, 9, made.view.output_shape).astype(np.float32)
    arrays = (stored(array, dtype) for array in (*case.arrange(x, w), bias, residual))
    kernel = ptx.parse(ptx_of(made.variant, cc))
    try:
        y = interpret(made, kernel, *arrays, blocks=2, apart=APART)
    except MemoryError:
        pytest.skip("needs 16 GiB that can be reserved")
    y = to_nchw(loaded(y, dtype), case.layout)
    expected = case.reference(x, w) + bias.reshape(-1, *(1,) * case.rank)
    expected = expected + to_nchw(residual, case.layout)
    np.testing.assert_array_equal(y, loaded(stored(expected.astype(np.float32), dtype), dtype))
