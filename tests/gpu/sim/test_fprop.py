"""Every kernel family in the simulator equals the float64 oracle bit for bit on integer data."""

import functools

import numpy as np
import pytest

from implicit_conv.gpu import evidence
from implicit_conv.gpu.families import FAMILIES
from implicit_conv.kernels import schedule
from implicit_conv.testing import Case, to_nchw
from implicit_conv.verify.simulate import simulate
from implicit_conv.verify.testing import family_problems, loaded, plan_small, stored

PROBLEMS = evidence.SIMULATED_PROBLEMS
QUICK = 12  # problems of a family that are not slow
NUMBERS = [
    *range(QUICK),
    *(pytest.param(number, marks=pytest.mark.slow) for number in range(QUICK, PROBLEMS)),
]
BLOCKS = 2


@functools.cache
def problems(name):
    """(case, plan) of the problems of a family; cached."""
    return list(family_problems(FAMILIES[name], PROBLEMS, seed=len(name)))


def run(case, plan, seed):
    x, w = case.inputs(seed, integers=True)
    dtype = plan.variant.dtype
    arrays = (stored(array, dtype) for array in case.arrange(x, w))
    y = to_nchw(loaded(simulate(plan, *arrays, blocks=BLOCKS, seed=seed), dtype), case.layout)
    expected = case.reference(x, w).astype(np.float32)
    return y, loaded(stored(expected, dtype), dtype)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("name", FAMILIES)
def test_family_equals_oracle(name, number):
    case, plan = problems(name)[number]
    y, expected = run(case, plan, number)
    np.testing.assert_array_equal(y, expected, err_msg=f"{plan.variant.name}: {case}")


@pytest.mark.parametrize("name", FAMILIES)
def test_problems_span_what_they_should(name):
    """Every problem has two tiles along each GEMM axis; each difficulty occurs in some problems."""
    seen = set()
    for case, plan in problems(name):
        v, g = plan.variant, plan.geometry
        groups, m, n = plan.tiles
        assert m >= 2 and n >= 2 and schedule.block_count(g) >= 2
        loads = groups * m * n // BLOCKS * (g.R * g.S if not v.wide else g.R)
        seen.add("rings turn" if loads > 2 * plan.layout.a_stages else "")
        seen.add(f"stride {case.stride[1]}")
        seen.add("dilation" if max(case.dilation) > 1 else "")
        seen.add("padding" if case.padding != ((0, 0), (0, 0)) else "")
        seen.add("C tail" if g.C % v.tile_c else "")
        seen.add("K tail" if g.K % v.tile_n else "")
        seen.add("images in a tile" if v.tile_m > (g.slots if v.wide else g.P * g.Q) else "")
        seen.add("row wrap" if v.tile_m > g.Q else "")
        seen.add("groups" if g.groups > 1 else "")
        if v.wide:
            seen.add("junk slots" if g.slots > g.Q else "")
            seen.add(f"{g.phases_w} phases")
            seen.add("skipped rows" if schedule.load_rows(g, 1, 0)[0] else "")
    wanted = {
        "rings turn",
        "stride 1",
        "stride 2",
        "stride 3",
        "dilation",
        "padding",
        "C tail",
        "K tail",
        "images in a tile",
        "row wrap",
    }
    if "w" in name.split("-"):
        wanted |= {"junk slots", "1 phases", "2 phases", "3 phases", "skipped rows"}
    if len(FAMILIES[name].groups) > 1:
        wanted.add("groups")
    assert wanted <= seen


@pytest.mark.parametrize("name", ["elements-mma", "fma"])
def test_no_channels_sum_to_zero(name):
    """The consumer waits for one k-block even then, so the producer fills it with zeros."""
    family = FAMILIES[name]
    case = Case(N=1, C=0, K=40, size=(5, 9), layout="NHWC", weight_layout="KRSC")
    y, expected = run(case, plan_small(case, family, family.variants[-1]), 0)
    assert np.array_equal(y, expected) and not y.any()
