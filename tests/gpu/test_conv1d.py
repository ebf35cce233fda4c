"""conv1d on a GPU: signals are images of one row."""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

from implicit_conv import conv1d, plan_conv1d, ptx
from implicit_conv.gpu.cuda.arch import KNOWN, gpu_arch
from implicit_conv.gpu.plan.families import FAMILIES
from implicit_conv.gpu.plan.planner import choose
from implicit_conv.gpu.plan.views import images
from implicit_conv.problem.problem import Problem
from implicit_conv.testing import Case, to_nchw
from implicit_conv.testing.gpu.problems import loaded, problem_of, stored, with_epilogue
from perf.bringup.interpret import interpret, ptx_of
from perf.bringup.sass import tool

COMPILERS = importlib.util.find_spec("numba_cuda") is not None and tool("nvdisasm") is not None
LAST = {"layout": "NHWC", "weight_layout": "KRSC"}
LONG = (1, 12288, 16384), (12288, 1, 4)


def signal(N, C, K, W, S, groups=1, stride=1, dilation=1, padding=(0, 0)):
    """A problem of images of one row, whose arrays `one_axis` makes signals."""
    steps = {"stride": (1, stride), "dilation": (1, dilation), "padding": ((0, 0), padding)}
    return Case(N, C, K, groups, (1, W), (1, S), **steps)


CASES = {
    "strides": signal(2, 16, 24, 37, 5, stride=2, padding=(3, 1)),
    "dilation": signal(2, 5, 8, 30, 3, dilation=4),
    "depthwise, causal": signal(2, 1, 1, 29, 4, groups=16, padding=(3, 0)),
    "groups": signal(3, 4, 6, 20, 3, groups=3),
    "patches": signal(2, 3, 64, 64, 16, stride=16),
    "one tap": signal(1, 8, 16, 9, 1),
}


def one_axis(case):
    """The keywords of `conv1d` for a case."""
    return {
        "stride": case.stride[1],
        "dilation": case.dilation[1],
        "padding": [case.padding[1]],
        "groups": case.groups,
    }


def inputs(case, dtype):
    """(x, w, bias, y by the oracle) of a case: N, C, W and K, C, S."""
    x, w = case.inputs(0, integers=True)
    bias = np.arange(case.K * case.groups, dtype=np.float64)
    y = (case.reference(x, w) + bias[:, None, None])[:, :, 0]
    return *(a.astype(dtype) for a in (x[:, :, 0], w[:, :, 0], bias)), y.astype(dtype)


@pytest.mark.parametrize("layout", ["NCW", "NWC"])
@pytest.mark.parametrize("weight_layout", ["KCS", "KSC", "SCK"])
@pytest.mark.parametrize("name", CASES)
def test_numpy_signals_of_any_layout(recorder, name, layout, weight_layout):
    """The recorded driver convolves the images that the params blob describes."""
    case, dtype = CASES[name], "float32" if layout == "NWC" else "float16"
    x, w, bias, expected = inputs(case, dtype)
    axes = tuple(map("NCW".index, layout))
    given = x.transpose(axes), w.transpose(*map("KCS".index, weight_layout))
    options = {**one_axis(case), "layout": layout, "weight_layout": weight_layout}
    y = conv1d(*given, bias, device="cuda", **options)
    np.testing.assert_array_equal(y, expected.transpose(axes))
    made = plan_conv1d(*(a.shape for a in given), dtype, device="cuda", **options)
    np.testing.assert_array_equal(made(given[0], made.pack(given[1]), bias), y)
    _, g, *_ = recorder.launched()
    assert (g.R, g.P, g.stride_h, g.pad_h) == (1, 1, 1, 0)
    one = conv1d(given[0][1 % case.N], given[1], bias, device="cuda", **options)
    np.testing.assert_array_equal(one, y[1 % case.N])


@pytest.mark.parametrize(
    ("order", "gap", "producer"),
    [
        ((0, 2, 1), 0, "tma"),
        ((0, 1, 2), 0, "elements"),
        ((0, 2, 1), 8, "cp_async"),
        ((2, 0, 1), 0, "cp_async"),
        ((0, 2, 1), 1, "elements"),
    ],
)
def test_device_signals_are_read_in_place(recorder, placed, fetched, order, gap, producer):
    """Memory order decides: channels last under the names N, C, W are loaded by tensor copies."""
    x, w, bias, expected = inputs(CASES["strides"], "float16")
    arrays = placed(x, order, gap), placed(w, (0, 2, 1)), placed(bias)
    y = placed(np.full(expected.shape, np.nan, "float16"), order, gap)
    assert conv1d(*arrays, out=y, **one_axis(CASES["strides"])) is y
    assert recorder.variants[-1].producer == producer
    np.testing.assert_array_equal(fetched(y), expected)


def test_depthwise_signals_are_convolved_on_the_cuda_cores(recorder, placed, fetched):
    case = CASES["depthwise, causal"]
    x, w, bias, expected = inputs(case, "float16")
    for order, producer in (((0, 2, 1), "vectors"), ((0, 1, 2), "elements")):
        y = placed(np.full(expected.shape, np.nan, "float16"), order)
        conv1d(placed(x, order), placed(w), placed(bias), out=y, **one_axis(case))
        assert recorder.variants[-1].strip and recorder.variants[-1].producer == producer
        np.testing.assert_array_equal(fetched(y), expected)


def test_long_depthwise_filters_are_near_the_rate_of_memory():
    """0.294 ms; x and y are 805 MB, which a copy on an H100 moves in 0.27 ms."""
    made = plan_conv1d(*LONG, "bfloat16", groups=12288, padding="causal", device="sm_90a")
    assert made.facts()["milliseconds"] <= 0.31
    assert made.problem.output == (16384,) and made.problem.layout == "NCW"
    text = made.explain()
    assert "x is viewed as (1, 1, 16384, 12288), w as (12288, 1, 4, 1)" in text
    assert "axes are named NCW, memory is channels-last" in text
    assert "packed to KSC in every call" in text
    last = plan_conv1d(
        (1, 16384, 12288), (12288, 4, 1), "bfloat16", groups=12288, padding="causal",
        device="sm_90a", layout="NWC", weight_layout="KSC",
    )  # fmt: skip
    assert last.engine.choice.view == made.engine.choice.view
    assert "axes are named" not in last.explain() and "packed to" not in last.explain()


def test_loads_have_coordinates_of_the_image():
    made = plan_conv1d((2, 64, 40), (64, 64, 3), "bfloat16", padding=1, device="sm_90a")
    (load, *_) = made.trace()
    assert load.coords == (0, 0, -1, 0)


INTERPRETED = [
    ("tma-w-wgmma", 90, 0, signal(2, 40, 40, 50, 5, stride=2, padding=(3, 1))),
    ("tma-w-mma", 120, 0, signal(2, 40, 40, 25, 3, dilation=4, padding=(4, 2))),
    ("direct", 80, 0, signal(2, 1, 1, 29, 3, groups=40, padding=(3, 0))),
    ("rows-mma", 80, 3, signal(2, 2, 40, 60, 5, stride=2, padding=(1, 0))),
]


@pytest.mark.slow
@pytest.mark.skipif(not COMPILERS, reason="needs pip install '.[cu13,assemble]' in a checkout")
@pytest.mark.parametrize(("family", "number", "at", "case"), INTERPRETED)
def test_kernels_on_one_row_equal_the_oracle(family, number, at, case):
    v, case = FAMILIES[family].variants[at], replace(case, **LAST)
    if v.band:
        v = replace(v, band=replace(v.band, kernel=case.kernel, stride=case.stride))
    problem = problem_of(case, v.dtype)
    (N, _, *x_shape), (K, _, *w_shape) = problem.input_shape, problem.weight_shape
    options = {**one_axis(case), "layout": "NWC", "weight_layout": "KSC", "dtypes": (v.dtype,)}
    signals = Problem.parse((N, *x_shape), (K, *w_shape), v.dtype, rank=1, **options)
    assert images(signals) == problem
    made = choose(problem, gpu_arch(f"sm_{number}"), variant=v)
    made = with_epilogue(made, True, False)
    x, w = case.inputs(0, integers=True)
    bias = np.arange(case.K * case.groups, dtype=np.float32) % 9
    arrays = (stored(array, v.dtype) for array in (*case.arrange(x, w), bias))
    kernel = ptx.parse(ptx_of(made.variant, KNOWN[number].cc))
    y = to_nchw(loaded(interpret(made, kernel, *arrays, blocks=2), v.dtype), "NHWC")
    expected = (case.reference(x, w) + bias[:, None, None]).astype(np.float32)
    np.testing.assert_array_equal(y, loaded(stored(expected, v.dtype), v.dtype))
