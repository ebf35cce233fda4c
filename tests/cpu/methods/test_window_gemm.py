"""Windows of few channels as pixels of implicit GEMM."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sampling import examples
from ways import DOT_PRODUCTS, arch_of

from implicit_conv.cpu.candidates.problem_views import spatial
from implicit_conv.cpu.candidates.query import Refusal, Request
from implicit_conv.cpu.engines.executed_loads import executed_loads
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.methods.window_gemm import WindowGemm
from implicit_conv.operators.plan import Plan
from implicit_conv.problem.problem import Problem
from implicit_conv.testing import Case, plan_of, to_nchw
from perf.counting import memory_of

PAIRS = CpuArch(512, True, 48 << 10, 1 << 20, 1, 14, bfloat16="pairs")
STEM = Case(
    C=3,
    K=64,
    size=(24, 25),
    kernel=(7, 7),
    stride=(2, 2),
    padding=((3, 3), (3, 3)),
    layout="NHWC",
    dtype="bfloat16",
)


def planned(case, way):
    """The plan of a case by this method alone, or () if the method refuses."""
    made = plan_of(case, arch_of(way), algorithm="implicit_gemm").engine
    found = tuple(c for c in made.candidates if isinstance(c.method, WindowGemm))
    return found and Plan(replace(made, choice=replace(made.choice, candidates=found)))


@st.composite
def few_channels(draw):
    """A case with an odd number of channels, windows that overlap or touch, and padding."""
    taps = draw(st.integers(1, 7))
    case = Case(
        N=draw(st.integers(1, 2)),
        C=draw(st.sampled_from([1, 3, 5])),
        K=draw(st.sampled_from([1, 16, 33])),
        size=(draw(st.integers(1, 9)), draw(st.integers(1, 60))),
        kernel=(draw(st.integers(1, 4)), taps),
        stride=(draw(st.integers(1, 3)), draw(st.integers(1, min(taps, 2)))),
        dilation=(draw(st.integers(1, 2)), 1),
        padding=tuple(draw(st.tuples(*[st.sampled_from([0, 0, -1, 1, 4])] * 2)) for _ in "hw"),
        layout="NHWC",
        weight_layout=draw(st.sampled_from(["KCRS", "KRSC", "RSCK"])),
        dtype="bfloat16",
    )
    assume(min(case.output, default=0) >= 1)
    return case


@pytest.mark.parametrize("way", DOT_PRODUCTS)
@examples(150, 600)
@given(
    case=few_channels(), step=st.sampled_from([1, 1, 1, -1, 2]), at=st.sampled_from([0.3, 0.5, 0.7])
)
def test_windows_are_those_of_the_image(way, case, step, at):
    """All around the image is NaN in memory, which a read beyond it would bring into a sum, and one
    element is infinite, which only the windows around it have.
    """
    plan = planned(case, way)
    assume(plan)
    inputs = case.inputs(0, integers=True)
    inputs[0].flat[int(at * inputs[0].size)] = np.inf
    x, w = case.arrange(*inputs)
    n, h, width, c = x.shape
    memory = np.full((n, h + 4, (width + 20) * abs(step), c), np.nan, x.dtype)
    image = memory[:, 2:-2, ::step][:, :, 10:-10]
    image[...] = x
    with np.errstate(invalid="ignore"):
        expected = case.rounded(case.reference(*inputs))
    for filters in (w, plan.pack(w)):
        y = to_nchw(plan(image, filters), "NHWC").astype(float)
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("way", DOT_PRODUCTS)
def test_executed_loads_are_those_of_the_trace(way):
    engine = planned(STEM, way).engine
    x, w = STEM.arrange(*STEM.inputs(0))
    loads = executed_loads(engine, x, w)
    assert loads == sorted(engine.trace())
    assert {load.coords[2] for load in loads if load.operand == "x"} == {-3}


@pytest.mark.parametrize("way", DOT_PRODUCTS)
@pytest.mark.parametrize("size", [(9, 9), (80, 80)])
@pytest.mark.parametrize("weight_layout", ["KCRS", "KRSC", "RSCK"])
def test_the_copy_of_a_filter_counts_as_memory(weight_layout, size, way):
    """A filter of one load tile is packed panel by panel, one of several tiles before."""
    case = replace(STEM, K=1024, size=size, weight_layout=weight_layout)
    plan, (x, w) = planned(case, way), case.arrange(*case.inputs(0))
    peak = memory_of(lambda: plan(x, w)).peak
    assert abs(peak - plan.peak_bytes) < w.nbytes / 8, (peak, plan.peak_bytes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"C": 4}, "fill no more pairs"),
        ({"layout": "NCHW"}, "channels last"),
        ({"groups": 2}, "one group"),
        ({"dilation": (1, 2)}, "dilation 1"),
        ({"padding_mode": "reflect"}, "padding with zeros"),
        ({"C": 5}, "exceed 32 elements"),
    ],
)
def test_refusals(changes, reason):
    case = replace(STEM, **changes)
    found = list(WindowGemm.candidates(spatial(case.problem), PAIRS, Request()))
    assert len(found) == 1 and isinstance(found[0], Refusal) and reason in found[0].reason


def test_windows_of_three_channels_need_a_fifth_fewer_pairs():
    """11 pairs instead of 14 of each filter row."""
    x, w = (1, 800, 800, 3), (64, 3, 7, 7)
    problem = Problem.parse(x, w, "bfloat16", layout="NHWC", stride=2, padding=3)
    (best,) = WindowGemm.candidates(spatial(problem), PAIRS, Request())
    assert best.geometry.C * best.geometry.R == 7 * 11
    plain = replace(PAIRS, bfloat16="widen")
    (refused,) = WindowGemm.candidates(spatial(problem), plain, Request())
    assert "no dot products" in refused.reason
