"""conv3d on a GPU: planes of volumes are stacked, and producers alone know of them."""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

from implicit_conv import PlanError, ShapeError, conv3d, plan_conv3d, ptx
from implicit_conv.gpu.cuda.arch import KNOWN, gpu_arch
from implicit_conv.gpu.plan.candidate import gpu_geometry, refusal
from implicit_conv.gpu.plan.families import FAMILIES
from implicit_conv.gpu.plan.planner import choose, variants
from implicit_conv.gpu.plan.views import images, patches, planes, stacked
from implicit_conv.kernels.geometry import CLAMP
from implicit_conv.kernels.gpu.variant import Variant
from implicit_conv.problem.options import LAYOUTS_OF, PADDING_MODES, WEIGHT_LAYOUTS_OF
from implicit_conv.problem.problem import Problem
from implicit_conv.testing import Case, to_nchw
from implicit_conv.testing.gpu.problems import (
    loaded,
    plan_small,
    problem_of,
    stored,
    with_epilogue,
)
from perf.bringup.interpret import interpret, ptx_of
from perf.bringup.sass import tool

COMPILERS = importlib.util.find_spec("numba_cuda") is not None and tool("nvdisasm") is not None
LAST = {"layout": "NDHWC", "weight_layout": "KTRSC"}
FIRST = {"layout": "NCDHW", "weight_layout": "KCTRS"}
EACH = ((1, 0), (0, 2), (2, 1))  # asymmetric padding of planes, rows and columns


def volume(N, C, K, size, kernel, **options):
    own = {"stride": (1, 1, 1), "dilation": (1, 1, 1), "padding": ((0, 0),) * 3}
    return Case(N=N, C=C, K=K, size=size, kernel=kernel, **own | FIRST | options)


CASES = {
    "3x3x3": volume(2, 16, 24, (4, 5, 7), (3, 3, 3), padding=((1, 1),) * 3),
    "steps": volume(3, 8, 10, (7, 8, 9), (2, 3, 2), stride=(3, 1, 2), dilation=(2, 1, 3)),
    "asymmetric": volume(1, 5, 8, (3, 6, 7), (3, 2, 3), padding=EACH, stride=(1, 2, 1)),
    "groups": volume(2, 8, 16, (3, 4, 6), (2, 2, 2), groups=2),
    "one plane": volume(2, 8, 8, (1, 6, 7), (3, 3, 3), padding=((1, 1),) * 3),
    "colours": volume(1, 3, 16, (5, 9, 11), (3, 3, 3), stride=(1, 2, 2), padding=((1, 1),) * 3),
    "planes alone": volume(2, 16, 8, (4, 5, 6), (1, 3, 3), padding=((0, 0), (1, 1), (1, 1))),
    "time alone": volume(2, 16, 8, (6, 5, 6), (3, 1, 1), padding=((1, 1), (0, 0), (0, 0))),
    "1x1x1": volume(2, 16, 8, (3, 4, 5), (1, 1, 1)),
    "tubelets": volume(2, 3, 8, (4, 8, 8), (2, 4, 4), stride=(2, 4, 4)),
    "patches of planes": volume(2, 16, 8, (4, 8, 8), (1, 4, 4), stride=(1, 4, 4)),
}


def own_options(case):
    names = "stride", "dilation", "padding", "groups", "padding_mode"
    return {name: getattr(case, name) for name in names}


def inputs(case, dtype):
    """(x, w, bias, y by the oracle) of a case: N, C, D, H, W and K, C, T, R, S."""
    x, w = case.inputs(0, integers=True)
    bias = np.arange(case.K * case.groups, dtype=np.float64)
    y = case.reference(x, w) + bias[:, None, None, None]
    return *(a.astype(dtype) for a in (x, w, bias)), y.astype(dtype)


@pytest.mark.parametrize("layout", LAYOUTS_OF[3])
@pytest.mark.parametrize("weight_layout", WEIGHT_LAYOUTS_OF[3])
@pytest.mark.parametrize("name", CASES)
def test_numpy_volumes_of_any_layout(recorder, name, layout, weight_layout):
    """The recorded driver convolves the volumes that the params blob describes."""
    case, dtype = CASES[name], "float32" if layout == "NDHWC" else "float16"
    x, w, bias, expected = inputs(case, dtype)
    axes = tuple(map("NCDHW".index, layout))
    given = x.transpose(axes), w.transpose(*map("KCTRS".index, weight_layout))
    options = {**own_options(case), "layout": layout, "weight_layout": weight_layout}
    y = conv3d(*given, bias, device="cuda", **options)
    np.testing.assert_array_equal(y, expected.transpose(axes))
    made = plan_conv3d(*(a.shape for a in given), dtype, device="cuda", **options)
    np.testing.assert_array_equal(made(given[0], made.pack(given[1]), bias), y)
    one = conv3d(given[0][1 % case.N], given[1], bias, device="cuda", **options)
    np.testing.assert_array_equal(one, y[1 % case.N])


NDHWC = 0, 2, 3, 4, 1


@pytest.mark.parametrize(
    ("order", "gap", "producer"),
    [
        (NDHWC, 0, "tma"),
        ((0, 1, 2, 3, 4), 0, "elements"),
        (NDHWC, 8, "cp_async"),
        ((2, 3, 0, 4, 1), 0, "cp_async"),
        (NDHWC, 1, "elements"),
    ],
)
def test_device_volumes_are_read_in_place(recorder, placed, fetched, order, gap, producer):
    """Memory order decides: channels last under the names N, C, D, H, W by tensor copies."""
    case = replace(CASES["3x3x3"], stride=(2, 1, 1))
    x, w, bias, expected = inputs(case, "float16")
    residual = np.arange(expected.size).reshape(expected.shape).astype("float16") % 7
    arrays = placed(x, order, gap), placed(w, NDHWC), placed(bias)
    y = placed(np.full(expected.shape, np.nan, "float16"), order, gap)
    options = {"activation": "relu", "residual": placed(residual, order, gap)}
    assert conv3d(*arrays, out=y, **options, **own_options(case)) is y
    assert (recorder.variants[-1].producer, recorder.variants[-1].volume) == (producer, True)
    np.testing.assert_array_equal(fetched(y), np.maximum(expected + residual, 0))


@pytest.mark.parametrize("name", ["planes alone", "time alone", "patches of planes", "3x3x3"])
def test_rows_with_gaps_between_planes(recorder, placed, fetched, device_array, name):
    """Part of the rows of each plane: planes cannot be stacked, but are images or rows in place."""
    case = CASES[name]
    x, w, bias, expected = inputs(case, "float16")
    whole = placed(np.pad(x, [(0, 0)] * 3 + [(0, 2), (0, 0)], constant_values=9), NDHWC)
    given = whole.__cuda_array_interface__
    part = device_array(given["data"][0], x.shape, x.dtype, given["strides"])
    y = placed(np.full(expected.shape, np.nan, "float16"), NDHWC)
    arrays, options = (part, placed(w, NDHWC), placed(bias)), own_options(case)
    if name != "3x3x3":
        conv3d(*arrays, out=y, **options)
        assert not recorder.variants[-1].volume
        np.testing.assert_array_equal(fetched(y), expected)
        return
    for _ in range(2):
        with pytest.raises(ShapeError, match=r"planes that do not follow .* contiguous array"):
            conv3d(*arrays, out=y, **options)


def test_filters_whose_planes_do_not_follow_each_other_are_named(placed):
    """They are read in place where no library can pack them."""
    case = CASES["3x3x3"]
    x, w, _, expected = inputs(case, "float16")
    with pytest.raises(ShapeError, match="x, w, out or residual has planes"):
        conv3d(placed(x), placed(w, (0, 3, 2, 4, 1)), out=placed(expected), **own_options(case))


@pytest.mark.parametrize("rows", [1, 2])
def test_planes_of_one_row_need_not_follow_each_other(
    recorder, placed, fetched, device_array, rows
):
    """The result has one row of each plane, next to which there may be another."""
    case = volume(1, 16, 8, (4, 1, 7), (3, 1, 3))
    x, w, bias, expected = inputs(case, "float16")
    whole = placed(np.repeat(np.full_like(expected, np.nan), rows, 3), NDHWC)
    given = whole.__cuda_array_interface__
    y = device_array(given["data"][0], expected.shape, expected.dtype, given["strides"])
    conv3d(placed(x, NDHWC), placed(w, NDHWC), placed(bias), out=y)
    assert recorder.variants[-1].volume and recorder.variants[-1].linear == (rows == 1)
    np.testing.assert_array_equal(fetched(y), expected)


def test_planes_as_images_and_rows():
    problem = images(problem_of(CASES["planes alone"], "float16"))
    assert planes(problem).input_shape == (8, 5, 6, 16)
    assert planes(problem).weight_shape == (8, 3, 3, 16)
    problem = images(problem_of(CASES["time alone"], "float16"))
    assert planes(problem).input_shape == (2, 6, 30, 16)
    assert planes(problem).output_shape == (2, 6, 30, 8)
    assert planes(images(problem_of(CASES["3x3x3"], "float16"))) is None
    for pads in ((1, 0), (0, 1)):
        padded = replace(CASES["planes alone"], padding=(pads, (0, 0), (0, 0)))
        assert planes(images(problem_of(padded, "float16"))) is None
    tubelets = patches(images(problem_of(CASES["tubelets"], "float16")))
    assert tubelets.input_shape == (2, 4, 8, 2, 12)
    assert tubelets.kernel == (2, 4, 1) and tubelets.output == (2, 2, 2)
    assert stacked(tubelets.input_shape, "NDHWC") == (2, 32, 2, 12)


def test_a_plan_says_what_it_does():
    made = plan_conv3d(
        *((32, 64, 8, 28, 28), (256, 64, 3, 3, 3), "bfloat16"), padding=1, device="sm_90a"
    )
    text = made.explain()
    assert "volume TMA im2col + wgmma by descriptor" in text
    assert "im2col::w + mma bfloat16 128x128x64: needs" in text
    assert "im2col-w (permuted) + wgmma bfloat16 128x64x64: its loads read images" in text
    assert "volume-tma-wgmma is assembled for sm_90a by CI" in text
    loads = made.trace()
    assert loads[0].coords == (0, -1, -1, -1, 0) and loads[0].offsets == (0, 0, 0)
    (last,) = {load.offsets for load in loads[-2:]} - {None}
    assert last == (2, 2, 2) and loads[-1].coords[1:] == (2, 2, 2, 0)
    assert sum(load.operand == "x" for load in loads) == 27 * np.prod(made.engine.choice.tiles)
    single = plan_conv3d((2, 64, 8, 14, 14), (64, 64, 1, 3, 3), "bfloat16", device="sm_90a")
    assert "view        x is viewed as (16, 14, 14, 64), w as (64, 3, 3, 64)" in single.explain()
    assert "on planes" in single.explain()


def test_estimates_grow_with_planes():
    def seconds(planes, taps):
        pad = (taps // 2, 1, 1)
        made = plan_conv3d(
            *((8, 64, planes, 56, 56), (64, 64, taps, 3, 3), "bfloat16"),
            padding=pad,
            precision="strict",
            device="sm_90a",
        )
        return made.facts()["milliseconds"]

    assert 1.8 < seconds(32, 3) / seconds(16, 3) < 2.2
    assert 2.3 < seconds(16, 3) / seconds(16, 1) < 3.1


FAR = {
    "upper_corner": volume(1, 64, 64, (40, 9, 9), (3, 3, 3), dilation=(16, 1, 1)),
    "traversal_stride": volume(1, 64, 64, (20, 9, 9), (3, 3, 3), stride=(9, 1, 1)),
}


@pytest.mark.parametrize("name", FAR)
def test_limits_of_tensor_maps_are_reasons(name):
    """Offsets of five axes have 5 bits, corners too, and strides are at most 8."""
    problem = images(problem_of(FAR[name], "bfloat16"))
    v = Variant("im2col", "tma", "mma", "bfloat16", 64, 64, volume=True)
    assert name in refusal(problem, gpu_arch("sm_90a"), v)
    assert choose(problem, gpu_arch("sm_90a")).variant.producer == "cp_async"


def test_rows_of_all_planes_are_counted_in_32_bits():
    problem = Problem.parse(
        *((1, 1 << 17, 1 << 15, 1, 8), (8, 1, 1, 3, 8), "bfloat16"),
        **LAST,
        rank=3,
        stride=(1 << 16, 1, 1),
        padding=((0, 0), (0, 0), (1, 1)),
        dtypes=("bfloat16",),
    )
    with pytest.raises(PlanError, match="a row of planes of 4294967296 exceeds 2147483647"):
        choose(problem, gpu_arch("sm_80"))


INTERPRETED = {  # case, variant, target, what the plan has besides
    "planes first": ("asymmetric", "elements", {}),
    "groups": ("groups", "cp_async", {}),
    "folded": ("colours", "folded", {}),
    "steps": ("steps", "cp_async", {"N": 2}),
    "one plane": ("one plane", "tma", {}),
    "asymmetric": ("asymmetric", "tma", {"N": 2, "C": 40}),
    "tubelets": ("tubelets", "elements", {}),
}
SMALL = {
    "elements": Variant("im2col", "elements", "mma", "bfloat16", 32, 32, 64, 2, 1, volume=True),
    "cp_async": Variant(
        *("im2col", "cp_async", "mma", "float16", 32, 32, 64, 2, 1), volume=True, linear=True
    ),
    "folded": Variant(
        *("im2col", "elements", "mma", "bfloat16", 32, 32, 64, 2, 1), folded=True, volume=True
    ),
    "tma": Variant(
        *("im2col", "tma", "wgmma", "bfloat16", 64, 32, 64, 4, 1), descriptors=True, volume=True
    ),
}
needs_compilers = pytest.mark.skipif(
    not COMPILERS, reason="needs pip install '.[cu13,assemble]' in a checkout"
)


def interpreted_is_exact(case, v):
    """With bias, residual and a clamp, on two blocks."""
    number = 80 if v.producer != "tma" else 90
    family = FAMILIES["volume-mma" if number == 80 else "volume-tma-wgmma"]
    limits = (float(CLAMP), -40.0, 50.0)
    made = with_epilogue(plan_small(case, family, v, activation=limits), True, True)
    x, w = case.inputs(3, integers=True)
    bias = np.arange(case.K * case.groups, dtype=np.float32) % 9
    shape = made.view.output_shape
    residual = np.arange(np.prod(shape)).reshape(shape).astype(np.float32) % 7
    arrays = (stored(array, v.dtype) for array in (*case.arrange(x, w), bias, residual))
    kernel = ptx.parse(ptx_of(made.variant, KNOWN[number].cc))
    y = to_nchw(loaded(interpret(made, kernel, *arrays, blocks=2), v.dtype), case.layout)
    expected = case.reference(x, w) + bias[:, None, None, None] + to_nchw(residual, case.layout)
    expected = np.clip(expected, -40, 50).astype(np.float32)
    np.testing.assert_array_equal(y, loaded(stored(expected, v.dtype), v.dtype))
    return made


@pytest.mark.slow
@needs_compilers
@pytest.mark.xdist_group("volumes")
@pytest.mark.parametrize("name", INTERPRETED)
def test_kernels_of_volumes_equal_the_oracle(name):
    case, kind, changes = INTERPRETED[name]
    layouts = FIRST if kind == "elements" else LAST
    made = interpreted_is_exact(replace(CASES[case], **changes, **layouts), SMALL[kind])
    assert made.tiles[1] >= 2 or case == "tubelets"


@pytest.mark.slow
@needs_compilers
@pytest.mark.xdist_group("volumes")
@pytest.mark.parametrize("mode", PADDING_MODES[1:])
@pytest.mark.parametrize("kind", ["cp_async", "elements"])
def test_padding_that_repeats_planes(kind, mode):
    """Up to a whole axis, with strides and dilation."""
    padding, layouts = ((2, 3), (3, 1), (0, 4)), FIRST if kind == "elements" else LAST
    case = volume(
        *(2, 8, 8, (4, 5, 6), (3, 2, 3)),
        **{"stride": (2, 1, 2), "dilation": (2, 2, 1), "padding": padding},
        **{**layouts, "padding_mode": mode},
    )
    v = replace(SMALL[kind], padding_mode=PADDING_MODES.index(mode))
    assert interpreted_is_exact(case, v).tiles[1] >= 2


def test_variants_of_volumes_compute_volumes_alone():
    last = {**LAST, "padding": ((1, 1),) * 3}
    problem = images(problem_of(replace(CASES["3x3x3"], **last), "bfloat16"))
    assert gpu_geometry(problem, SMALL["tma"]).T == 3
    found = list(variants(problem, CLAMP, plain=True))
    assert all(v.volume or v.wide for v in found) and any(v.wide for v in found)
    image = problem_of(Case(2, 16, 24, layout="NHWC", weight_layout="KRSC"), "bfloat16")
    assert refusal(image, gpu_arch("sm_90a"), SMALL["tma"]) == "its loads read volumes"
    with pytest.raises(ValueError, match="the w walk reads a single plane"):
        Variant("w", "tma", "mma", "bfloat16", 64, 64, volume=True)
