"""Patches: rows of windows that tile an image, viewed as channels."""

import importlib.util
import random
import warnings
from dataclasses import replace

import numpy as np
import pytest

from implicit_conv import conv2d, plan_conv2d, ptx
from implicit_conv.gpu.cuda.arch import KNOWN, gpu_arch
from implicit_conv.gpu.plan.families import FAMILIES
from implicit_conv.gpu.plan.planner import choose
from implicit_conv.gpu.plan.views import patches, reshaped
from implicit_conv.testing import Case, to_nchw
from implicit_conv.testing.gpu.problems import loaded, problem_of, stored, with_epilogue
from perf.bringup.interpret import interpret, ptx_of
from perf.bringup.sass import tool

COMPILERS = importlib.util.find_spec("numba_cuda") is not None and tool("nvdisasm") is not None
LAST = {"layout": "NHWC", "weight_layout": "KRSC"}
VIT = (256, 3, 224, 224), (768, 3, 16, 16)


def tiles(N, P, Q, C, K, R, S, stride=None, rest=0, padding=0, **options):
    """A problem of P x Q windows of R x S pixels that tile each row; `rest` pixels a column do not.

    A stride of rows other than R makes rows of windows overlap.
    """
    down = stride or R
    size = ((P - 1) * down + R + rest - 2 * padding, Q * S)
    options = {**LAST, **options}
    pads = ((padding, padding), (0, 0))
    return Case(N, C, K, 1, size, (R, S), (down, S), padding=pads, **options)


CASES = {
    "16x16/16 on 3": (tiles(2, 3, 3, 3, 8, 16, 16), (6, 16, 3, 48), (8, 16, 1, 48)),
    "overlapping rows": (tiles(2, 3, 5, 8, 4, 3, 2, 1), (2, 5, 5, 16), (4, 3, 1, 16)),
    "rows left over": (tiles(2, 2, 3, 8, 8, 4, 2, rest=1), (2, 9, 3, 16), (8, 4, 1, 16)),
    "padded rows": (tiles(2, 3, 2, 8, 8, 4, 4, padding=2), (2, 8, 2, 32), (8, 4, 1, 32)),
    "one column of windows": (tiles(2, 3, 1, 3, 8, 4, 4), (6, 1, 1, 48), (8, 1, 1, 48)),
    "one row of a window": (tiles(2, 3, 4, 3, 8, 1, 8), (2, 3, 4, 24), (8, 1, 1, 24)),
    "one column of a window": (tiles(2, 3, 4, 8, 8, 9, 1), (6, 9, 4, 8), (8, 9, 1, 8)),
    "windows are whole images": (tiles(3, 1, 1, 8, 4, 3, 5), (3, 1, 1, 120), (4, 1, 1, 120)),
}


@pytest.mark.parametrize("name", CASES)
def test_views_of_the_same_memory_have_the_same_convolution(name):
    case, x_shape, w_shape = CASES[name]
    view = patches(problem_of(case, "float32"))
    assert (view.input_shape, view.weight_shape) == (x_shape, w_shape)
    x, w = case.inputs(0, integers=True)
    given, filters = case.arrange(x, w)
    pads = [*zip(view.pad_lo, view.pad_hi, strict=True)]
    y = conv2d(
        given.reshape(x_shape), filters.reshape(w_shape), stride=view.stride, padding=pads, **LAST
    )
    assert y.shape == view.output_shape
    y = to_nchw(y.reshape(problem_of(case, "float32").output_shape), "NHWC")
    np.testing.assert_array_equal(y, case.reference(x, w))


@pytest.mark.parametrize(
    "case",
    [
        tiles(1, 3, 3, 3, 8, 4, 4, layout="NCHW"),
        tiles(1, 3, 3, 3, 8, 4, 4, weight_layout="RSCK"),
        Case(1, 4, 8, 2, size=(8, 8), kernel=(4, 4), stride=(4, 4), **LAST),
        Case(1, 4, 8, size=(8, 9), kernel=(4, 4), stride=(4, 4), **LAST),
        Case(1, 4, 8, size=(8, 8), kernel=(4, 4), stride=(4, 4), padding=((0, 0), (1, 0)), **LAST),
        Case(1, 4, 8, size=(8, 8), kernel=(4, 4), stride=(4, 3), **LAST),
        Case(1, 4, 8, size=(8, 8), kernel=(2, 2), stride=(2, 1), **LAST),
        Case(1, 4, 8, size=(8, 8), kernel=(2, 2), stride=(2, 2), dilation=(1, 2), **LAST),
        Case(1, 4, 8, size=(8, 8), kernel=(1, 1), **LAST),
        Case(1, 4, 8, size=(8, 8), kernel=(1, 1), stride=(2, 2), **LAST),
    ],
)
def test_other_problems_have_no_such_view(case):
    assert patches(problem_of(case, "float16")) is None


def test_shapes_that_need_no_copy_are_those_of_numpy():
    """numpy refuses to assign a shape that would need a copy."""
    draw, kept = random.Random(0), 0
    for _ in range(2000):
        base = np.zeros([draw.choice([1, 2, 3, 4, 6]) for _ in range(draw.randint(1, 4))], "u2")
        steps = tuple(slice(None, None, draw.choice([1, 1, 1, 2, -1])) for _ in base.shape)
        array = base.transpose(draw.sample(range(base.ndim), base.ndim))[steps]
        rest, other = array.size, []
        while rest > 1:
            other.append(draw.choice([n for n in range(1, rest + 1) if rest % n == 0]))
            rest //= other[-1]
        made, view = reshaped(array.shape, array.strides, 2, tuple(other)), array.view()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                view.shape = tuple(other)
        except AttributeError:
            assert made is None
            continue
        kept += 1
        assert made is not None
        sizes = zip(other, made, view.strides, strict=True)
        assert all(extent == 1 or ours == theirs for extent, ours, theirs in sizes)
    assert 500 < kept < 1900


def test_patches_of_vit_are_loaded_by_tensor_copies():
    """0.111 ms, where the best kernel without the view is estimated at 0.845 ms."""
    made = plan_conv2d(*VIT, "bfloat16", stride=16, device="sm_90a")
    facts, choice = made.facts(), made.engine.choice
    assert facts["milliseconds"] <= 0.15 and choice.variant.producer == "tma"
    assert facts["kernel"] == f"{choice.variant.name} on patches"
    assert facts["kernel"] == facts["candidates"][0]["kernel"]
    assert choice.view.input_shape == (3584, 16, 14, 48)
    assert choice.fallback.variant.band and choice.fallback.fallback is None
    text = made.explain()
    assert "x is viewed as (3584, 16, 14, 48), w as (768, 16, 1, 48), y as (3584, 1, 14" in text
    assert f"go to {choice.fallback.variant.name}" in text


def test_loads_are_traced_in_coordinates_of_the_view():
    made = plan_conv2d((2, 6, 32, 48), (64, 6, 16, 16), "bfloat16", stride=16, device="sm_90a")
    assert made.engine.choice.view.input_shape == (4, 16, 3, 96)
    loads = [load for load in made.trace() if load.operand == "x"]
    assert [load.offsets for load in loads][:32:2] == [(r, 0) for r in range(16)]
    assert {load.coords for load in loads} == {(0, 0, 0, 0), (0, 0, 0, 64)}


@pytest.mark.parametrize(
    ("x", "w", "stride"),
    [
        ((256, 3, 224, 224), (1280, 3, 14, 14), 14),
        ((256, 3, 224, 224), (96, 3, 4, 4), 4),
        ((256, 3, 224, 224), (96, 3, 2, 2), 2),
    ],
)
def test_the_view_is_taken_only_where_it_is_faster(x, w, stride):
    """Rows of 84, 24 and 12 bytes would be copied 4 or 8 at a time; kernels by rows are faster."""
    made = plan_conv2d(x, w, "bfloat16", stride=stride, device="sm_90a")
    choice = made.engine.choice
    assert choice.variant.band and choice.fallback is None
    (least, *_) = (c for c in made.facts()["candidates"] if c["kernel"].endswith("on patches"))
    assert least["milliseconds"] > made.facts()["milliseconds"]
    assert "is viewed as" not in made.explain()


def test_strict_keeps_the_order_of_taps():
    made = plan_conv2d(*VIT, "bfloat16", stride=16, device="sm_90a", precision="strict")
    assert not any("on patches" in c["kernel"] for c in made.facts()["candidates"])


# On the recorded driver: it convolves what the params blob says.

SMALL = tiles(2, 3, 3, 6, 64, 4, 8)
SHAPES = {"x": (2, 12, 24, 6), "w": (64, 4, 8, 6), "y": (2, 3, 3, 64)}
ORDERS = [("NCHW", "KCRS"), ("NCHW", "KRSC"), ("NHWC", "KRSC"), ("NHWC", "RSCK")]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("layout", "weight_layout"), ORDERS)
def test_numpy_arrays_of_any_layout_are_sent_as_patches(recorder, layout, weight_layout, dtype):
    case = replace(SMALL, layout=layout, weight_layout=weight_layout)
    x, w = (a.astype(dtype) for a in case.inputs(0, integers=True))
    given = case.arrange(x, w)
    bias = np.arange(64, dtype=dtype)
    made = plan_conv2d(*(a.shape for a in given), dtype, device="cuda", **case.options)
    assert made.engine.choice.fallback
    expected = (case.reference(x, w) + bias[:, None, None]).astype(dtype)
    for filters in (given[1], made.pack(given[1])):
        y = made(given[0], filters, bias)
        _, g, *_ = recorder.launched()
        assert (g.N, g.H, g.W, g.C, g.S) == (6, 4, 3, 48, 1)
        np.testing.assert_array_equal(to_nchw(y, layout), expected)


@pytest.mark.parametrize(
    ("x", "out", "views"),
    [
        ({"order": (0, 2, 3, 1)}, {"order": (0, 2, 3, 1)}, True),
        ({}, {}, False),
        ({"order": (0, 2, 3, 1)}, {}, False),
        ({}, {"order": (0, 2, 3, 1)}, False),
        ({"order": (0, 2, 3, 1), "gap": 1}, {"order": (0, 2, 3, 1)}, False),
        ({"order": (0, 2, 3, 1)}, {"order": (0, 2, 3, 1), "gap": 8}, True),
        ({"order": (2, 0, 3, 1)}, {"order": (0, 2, 3, 1)}, False),
    ],
)
def test_device_arrays_with_other_strides_go_to_the_fallback(
    recorder, placed, fetched, x, out, views
):
    """Memory in planes, with gaps between pixels, or rows of all images first; and results so."""
    given, w = (a.astype("float16") for a in SMALL.inputs(0, integers=True))
    made = plan_conv2d(given.shape, w.shape, "float16", stride=(4, 8), device="cuda")
    assert made.engine.choice.fallback and made.problem.layout == "NCHW"
    source = placed(given, **x)
    filters = placed(w, order=(0, 2, 3, 1))
    bias = placed(np.arange(64, dtype="float16"))
    y = placed(np.full((2, 64, 3, 3), np.nan, "float16"), **out)
    made(source, filters, bias, out=y)
    _, g, *_ = recorder.launched()
    assert (g.N == 6) == views
    expected = SMALL.reference(given, w) + np.arange(64)[:, None, None]
    np.testing.assert_array_equal(fetched(y), expected.astype("float16"))


def test_a_residual_is_read_in_the_shape_of_y(recorder, placed):
    case = SMALL
    x, w = (a.astype("float16") for a in case.inputs(0, integers=True))
    made = plan_conv2d(SHAPES["x"], SHAPES["w"], "float16", device="cuda", **SMALL.options)
    xs, ws = (placed(a) for a in case.arrange(x, w))
    y, residual = (placed(np.zeros((2, 3, 3, 64), "float16"), gap=gap) for gap in (0, 8))
    made(xs, ws, residual=residual, out=y)
    call, g, *_ = recorder.launched()
    assert (g.N, g.P, g.Q) == (6, 1, 3)
    assert (call.y_n, call.y_q, call.y_k) == (384, 128, 2)
    assert (call.residual_n, call.residual_q, call.residual_k) == (432, 144, 2)


@pytest.mark.parametrize("address", [4096 + 2, 4096 + 8])
def test_unaligned_patches_go_to_the_fallback(recorder, device_array, address):
    made = plan_conv2d(SHAPES["x"], SHAPES["w"], "float16", device="cuda", **SMALL.options)
    x, w = device_array(address, SHAPES["x"]), device_array(1 << 17, SHAPES["w"])
    made(x, w, out=device_array(1 << 20, (2, 3, 3, 64)))
    _, g, *_ = recorder.launched()
    assert g.N == 2


INTERPRETED = [
    ("tma-wgmma", "sm_90", 0, tiles(3, 4, 6, 3, 40, 4, 8)),
    ("tma-w-mma", "sm_120", 0, tiles(2, 3, 9, 3, 40, 4, 8, 3)),
    ("cp_async-words", "sm_80", 0, tiles(2, 4, 5, 3, 40, 3, 14)),
]


@pytest.mark.slow
@pytest.mark.skipif(not COMPILERS, reason="needs pip install '.[cu13,assemble]' in a checkout")
@pytest.mark.parametrize(("family", "device", "number", "case"), INTERPRETED)
def test_kernels_on_patches_equal_the_oracle(family, device, number, case):
    v = FAMILIES[family].variants[number]
    problem = problem_of(case, v.dtype)
    made = choose(problem, gpu_arch(device), view=patches(problem), variant=v)
    made = with_epilogue(made, True, True)
    view, rng = made.view, np.random.default_rng(1)
    x, w = case.inputs(0, integers=True)
    residual = rng.integers(-8, 9, view.output_shape).astype(np.float32)
    bias = np.arange(case.K, dtype=np.float32) % 9
    given, filters = case.arrange(x, w)
    arrays = given.reshape(view.input_shape), filters.reshape(view.weight_shape), bias, residual
    kernel = ptx.parse(ptx_of(made.variant, KNOWN[int(device[3:])].cc))
    y = interpret(made, kernel, *(stored(array, v.dtype) for array in arrays), blocks=2)
    shape = problem.output_shape
    y, residual = (to_nchw(a.reshape(shape), "NHWC") for a in (loaded(y, v.dtype), residual))
    expected = (case.reference(x, w) + bias[:, None, None] + residual).astype(np.float32)
    np.testing.assert_array_equal(y, loaded(stored(expected, v.dtype), v.dtype))
