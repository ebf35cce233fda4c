"""Arrays of more than 2^31 elements: what is so far apart that 32 bits cannot tell the second."""

import importlib.util
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from implicit_conv import ptx
from implicit_conv.gpu.cuda.arch import KNOWN
from implicit_conv.gpu.plan import families
from implicit_conv.gpu.plan.families import FAMILIES
from implicit_conv.gpu.plan.views import stacked
from implicit_conv.gpu.run.launch import Arrays, misfit, unaligned
from implicit_conv.kernels.gpu import targets
from implicit_conv.problem.options import LAYOUTS, WEIGHT_LAYOUTS, contiguous_strides
from implicit_conv.testing import Case, to_nchw
from implicit_conv.testing.gpu.problems import (
    family_problems,
    loaded,
    plan_small,
    stored,
    with_epilogue,
)
from perf.bringup.interpret import FAR, interpret, ptx_of
from perf.bringup.sass import tool

COMPILERS = importlib.util.find_spec("numba_cuda") is not None and tool("nvdisasm") is not None
NUMBERS = {targets.target_name(KNOWN[n].cc): n for n in families.GENERATIONS}


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not COMPILERS, reason="needs pip install '.[cu13,assemble]' in a checkout"),
]


def problem(name, number=None):
    """Of two images; of the variant of a number, or any."""
    family = FAMILIES[name]
    if number is not None:
        family = replace(family, variants=family.variants[number : number + 1])
    return next((case, made) for case, made in family_problems(family, 60, 3) if case.N == 2)


@pytest.mark.parametrize("name", FAMILIES)
def test_images_far_apart_equal_the_oracle(name):
    """x where no tensor map loads it, the residual and y."""
    case, made = problem(name)
    loaded_by_map = made.variant.producer == "tma"
    far = {"residual": 0, "y": 0, **({} if loaded_by_map else {"x": 0})}
    check(name, case, made, far, linear=False)


LINEAR = [  # y of a volume is that of an image
    name for name in FAMILIES if any(v.linear and not v.volume for v in FAMILIES[name].variants)
]


@pytest.mark.parametrize("name", LINEAR)
def test_pixels_far_apart_equal_the_oracle(name):
    """The images have one pixel each, so that pixels of y and the residual have one stride."""
    family = FAMILIES[name]
    v = next(v for v in family.variants if v.linear)
    case = Case(N=2, C=24, K=40, size=(1, 1), kernel=(1, 1), layout="NHWC", weight_layout="KRSC")
    far = {"residual": 0, "y": 0}
    check(name, case, plan_small(case, family, v), far, linear=True)


def takes(made, shapes, far):
    """Whether a kernel loads and stores arrays that are far apart along these axes."""
    v, view = made.variant, made.view
    n, h, w, c = LAYOUTS[view.layout.replace("D", "")]
    k, channel, r, s = WEIGHT_LAYOUTS[view.weight_layout.replace("T", "")]
    order = {**dict.fromkeys(shapes, (n, h, w, c)), "w": (k, r, s, channel)}

    def operand(name):
        shape, axis = shapes[name], far.get(name)
        others = [extent for at, extent in enumerate(shape) if at != axis]
        strides = [*contiguous_strides(others, v.itemsize)]
        if axis is not None:
            strides.insert(axis, FAR)
        shape, strides = (tuple(values[at] for at in order[name]) for values in (shape, strides))
        given = {"address": 0, "itemsize": v.itemsize, "packed": axis is None}
        return SimpleNamespace(shape=shape, strides=strides, **given)

    arrays = {name: operand(name) for name in shapes}
    stores = [arrays["y"], arrays["residual"]] if v.packed and not v.strip else []
    return not misfit(v, Arrays(**arrays)) and not any(unaligned(y, v.itemsize) for y in stores)


PRODUCERS = [  # the first variant of each
    (name, number)
    for name, family in FAMILIES.items()
    for number, v in enumerate(family.variants)
    if v.producer not in {other.producer for other in family.variants[:number]}
]


@pytest.mark.parametrize(("name", "number"), PRODUCERS)
def test_each_axis_far_apart_equals_the_oracle(name, number):
    """Rows, columns and channels of x, y and the residual, filters and taps of w, one after the
    other, where a kernel takes such strides.
    """
    case, made = problem(name, number)
    shapes = {
        "x": stacked(made.view.input_shape, made.view.layout),
        "w": stacked(made.view.weight_shape, made.view.weight_layout),
        "y": stacked(made.view.output_shape, made.view.layout),
    }
    shapes["residual"] = shapes["y"]
    tried = 0
    for axis in range(4):
        far = {name: axis for name in shapes}
        for operands in (("x", "w", "y", "residual"), ("x",), ("w",), ("y", "residual")):
            some = {name: far[name] for name in operands if shapes[name][axis] > 1}
            if some and takes(made, shapes, some):
                check(name, case, made, some, linear=False)
                tried += 1
                if len(operands) == 4:
                    break
    assert tried


def check(name, case, made, far, linear):
    cc = KNOWN[NUMBERS[families.targets(FAMILIES[name])[0]]].cc
    made = with_epilogue(made, True, True)
    made = replace(made, variant=replace(made.variant, linear=linear))  # as `adapted` would
    rng = np.random.default_rng(0)
    dtype, (x, w) = made.variant.dtype, case.inputs(0, integers=True)
    bias = rng.integers(-8, 9, case.K * case.groups).astype(np.float32)
    residual = rng.integers(-8, 9, made.view.output_shape).astype(np.float32)
    arrays = (stored(array, dtype) for array in (*case.arrange(x, w), bias, residual))
    kernel = ptx.parse(ptx_of(made.variant, cc))
    y = interpret(made, kernel, *arrays, blocks=2, far=far)
    y = to_nchw(loaded(y, dtype), case.layout)
    expected = case.reference(x, w) + bias.reshape(-1, *(1,) * case.rank)
    expected = expected + to_nchw(residual, case.layout)
    np.testing.assert_array_equal(y, loaded(stored(expected.astype(np.float32), dtype), dtype))
