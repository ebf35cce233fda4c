"""Kernels on the CUDA cores: when they are chosen, what they refuse, and what arrays they take."""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

from implicit_conv import plan_conv2d, ptx
from implicit_conv.errors import PlanError
from implicit_conv.gpu.cuda.arch import KNOWN, gpu_arch
from implicit_conv.gpu.plan.candidate import Choice
from implicit_conv.gpu.plan.direct import MOST_VALUES, direct_variant, direct_variants, values
from implicit_conv.gpu.plan.explain import explain
from implicit_conv.gpu.plan.families import family_name
from implicit_conv.gpu.plan.planner import choose
from implicit_conv.gpu.plan.trace import trace
from implicit_conv.gpu.run.engine import GpuEngine
from implicit_conv.kernels.gpu.variant import Strip
from implicit_conv.operators.plan import Plan
from implicit_conv.testing import Case, to_nchw
from implicit_conv.testing.gpu.problems import loaded, problem_of, stored, with_epilogue
from perf.bringup.interpret import interpret, ptx_of
from perf.bringup.sass import tool

COMPILERS = importlib.util.find_spec("numba_cuda") is not None and tool("nvdisasm") is not None
DEPTHWISE = Case(
    N=8,
    C=1,
    K=1,
    groups=64,
    size=(28, 30),
    padding=((1, 1), (1, 1)),
    layout="NHWC",
    weight_layout="KRSC",
)
RESNEXT = replace(DEPTHWISE, C=4, K=4, groups=32)


def chosen(case, dtype="bfloat16", device="sm_90") -> Choice:
    return choose(problem_of(case, dtype), gpu_arch(device))


@pytest.mark.parametrize("device", [f"sm_{number}" for number in KNOWN])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("case", [DEPTHWISE, RESNEXT, replace(RESNEXT, K=8)])
def test_narrow_groups_are_multiplied_on_the_cuda_cores(case, dtype, device):
    made = chosen(case, dtype, device)
    assert (made.variant.consumer, made.variant.producer) == ("direct", "vectors")
    others = [c.cycles for c in made.candidates if not c.variant.strip and c.estimate]
    assert others and made.estimate.cycles * 4 < min(others)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"C": 0}, "there are no channels or no filters to multiply"),
        ({"K": 0}, "there are no channels or no filters to multiply"),
        ({"C": 16, "K": 1}, "a group has 16 channels and 1 filters"),
        ({"K": 64}, "a group has 1 channels and 64 filters; the CUDA cores multiply groups of at"),
        ({"C": 3, "K": 8}, "the 8 filters of a thread read 6 bytes of channels"),
        ({"K": 3}, "8 filters of a thread are no whole groups of 3 filters"),
        ({"groups": 9}, "a pixel of y has 18 bytes of filters"),
        ({"layout": "NCHW"}, "vectors of channels need a channels-last x (NHWC), not NCHW"),
        ({"kernel": (127, 127), "size": (127, 127)}, "the filters of a panel do not fit 232448"),
    ],
)
def test_refusals_give_their_reason(change, reason):
    made = chosen(replace(DEPTHWISE, **change))
    refused = {c.reason for c in made.candidates if c.variant.strip and c.reason}
    assert [words for words in refused if words.startswith(reason)], refused
    assert reason in explain(made)


def test_what_vectors_cannot_load_goes_element_by_element():
    for change in ({"C": 3, "K": 8}, {"K": 3}, {"groups": 9}, {"layout": "NCHW"}):
        made = chosen(replace(DEPTHWISE, **change))
        assert (made.variant.consumer, made.variant.producer) == ("direct", "elements"), change
        assert "element by element" in explain(made)


def test_a_kernel_of_other_groups_or_columns_is_refused():
    v = direct_variant("vectors", "bfloat16", Strip(4, 3, 1, 1, 1, 1), 64, 4)
    for case, reason in (
        (RESNEXT, "it is compiled for groups of 1 channels and 1 filters"),
        (replace(DEPTHWISE, stride=(1, 2)), "for 3 filter columns of stride 1 and dilation 1"),
    ):
        with pytest.raises(PlanError, match=reason):
            choose(problem_of(case, "bfloat16"), gpu_arch("sm_80"), variant=v)
    choose(problem_of(replace(DEPTHWISE, stride=(2, 1)), "bfloat16"), gpu_arch("sm_80"), variant=v)


def test_a_strip_shares_the_pixels_of_its_columns():
    assert Strip(4, 3, 1, 1, 1, 1).positions == (0, 1, 2, 3, 4, 5)
    assert Strip(2, 3, 2, 1, 1, 1).positions == (0, 1, 2, 3, 4)
    assert Strip(2, 2, 2, 3, 1, 1).positions == (0, 2, 3, 5)
    assert Strip(3, 1, 1, 1, 1, 1).positions == (0, 1, 2)
    for columns in (1, 2, 3, 7, 15, 16, 31):
        for stride in (1, 2, 3):
            one_row = replace(DEPTHWISE, size=(1, 64), padding=((0, 0), (0, 0)))
            case = replace(one_row, kernel=(1, columns), stride=(1, stride))
            for v in direct_variants(problem_of(case, "bfloat16")):
                assert values(v.strip, v.filters) <= MOST_VALUES
                assert v.strip.columns in (1, columns)


def test_explain_and_evidence():
    text = explain(chosen(replace(DEPTHWISE, N=256)))
    for words in (
        "384 threads, each with 8 filters of 4 output pixels",
        "the filters of a panel",
        "6 pixels into registers, 16 bytes a load, for 3 filter taps of 4 output pixels",
        "direct is assembled for sm_90a by CI",
    ):
        assert words in text
    usual = replace(DEPTHWISE, C=64, K=64, groups=1)
    assert "the CUDA cores multiply groups of at most 8 and 32" in explain(chosen(usual))


def test_a_trace_has_each_filter_row_of_each_tile():
    case = replace(RESNEXT, N=1, size=(5, 6))
    made = chosen(case)
    loads = trace(made)
    panels, tiles, _ = made.tiles
    assert len(loads) == 2 * panels * tiles * 3
    v, strip = made.variant, made.variant.strip
    pixels = [load for load in loads if load.operand == "x"]
    assert {load.offsets for load in pixels} == {(r, 0) for r in range(3)}
    assert {load.coords[:3] for load in pixels if load.coords[3] == 0} >= {(0, -1, -1)}
    strips = v.tile_m // strip.pixels
    assert {load.rows for load in pixels} == {strips * len(strip.positions)}
    assert {load.bytes for load in pixels} == {pixels[0].rows * v.tile_n * 2}


def test_arrays_that_vectors_cannot_load_take_elements(recorder, device_array, caplog):
    case = replace(DEPTHWISE, N=2)
    made = Plan(GpuEngine(chosen(case, "float16")))
    shape, filters = (2, 28, 30, 64), device_array(1 << 24, (64, 3, 3, 1))
    x, y = device_array(4096, shape), device_array(1 << 20, shape)
    made(x, filters, out=y)
    assert recorder.variants[-1].producer == "vectors"
    planes = (28 * 30 * 64 * 2, 30 * 2, 2, 28 * 30 * 2)
    for name, moved, out in (
        ("x is not aligned", device_array(4098, shape), y),
        ("out is not aligned", x, device_array((1 << 20) + 2, shape)),
        ("x is not contiguous", device_array(4096, shape, np.float16, planes), y),
    ):
        with caplog.at_level("DEBUG", logger="implicit_conv"):
            made(moved, filters, out=out)
        v = recorder.variants[-1]
        assert (v.consumer, v.producer) == ("direct", "elements")
        assert name in caplog.text
    assert v.tile_n == 1  # lanes are pixels of a plane


def test_filters_too_large_for_a_panel_of_elements_go_to_a_gemm(
    recorder, device_array, monkeypatch
):
    monkeypatch.setattr(recorder, "convolve", lambda *_: None)  # it would take minutes
    case = replace(DEPTHWISE, N=2, size=(40, 40), kernel=(37, 37), padding=((18, 18), (18, 18)))
    made = Plan(GpuEngine(chosen(case, "float16")))
    assert made.engine.variant.tile_n < 64
    x, w = device_array(4098, (2, 40, 40, 64)), device_array(1 << 24, (64, 37, 37, 1))
    made(x, w, out=device_array(1 << 20, (2, 40, 40, 64)))
    v = recorder.variants[-1]
    assert (v.consumer, v.producer, v.packed) == ("mma", "elements", True)


def test_a_plan_names_the_family():
    made = plan_conv2d((8, 64, 28, 28), (64, 1, 3, 3), "float16", groups=64, device="sm_120")
    assert family_name(made.engine.variant) == "direct"


@pytest.mark.slow
@pytest.mark.skipif(not COMPILERS, reason="needs pip install '.[cu13,assemble]' in a checkout")
@pytest.mark.parametrize(
    ("dtype", "change"),
    [
        ("bfloat16", {"kernel": (7, 7), "padding": ((3, 3), (3, 3)), "groups": 16}),
        ("float16", {"C": 8, "K": 8, "groups": 3, "stride": (2, 2)}),
        ("float32", {"C": 1, "K": 32, "groups": 1, "kernel": (2, 17), "padding": ((0, 1), (8, 9))}),
        ("bfloat16", {"C": 3, "K": 6, "groups": 3, "dilation": (2, 4)}),
    ],
)
def test_the_planners_kernel_equals_the_oracle(dtype, change):
    case = replace(DEPTHWISE, N=1, size=(9, 23), **change)
    plan = with_epilogue(chosen(case, dtype, "sm_80"), True, False)
    assert plan.variant.consumer == "direct"
    x, w = case.inputs(0, integers=True)
    bias = np.arange(case.K * case.groups, dtype=np.float32) % 9
    arrays = (stored(array, dtype) for array in (*case.arrange(x, w), bias))
    kernel = ptx.parse(ptx_of(plan.variant, plan.arch.cc))
    y = to_nchw(loaded(interpret(plan, kernel, *arrays, blocks=2), dtype), "NHWC")
    expected = (case.reference(x, w) + bias[:, None, None]).astype(np.float32)
    np.testing.assert_array_equal(y, loaded(stored(expected, dtype), dtype))
