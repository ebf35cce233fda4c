"""Winograd of volumes, whose filters have several planes: exactness, error bounds, load tiles."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sampling import count, examples, resampled

from implicit_conv import PlanError, conv3d, conv3d_input_grad, plan_conv3d, plan_conv3d_input_grad
from implicit_conv.arrays.arrays import numpy_dtype
from implicit_conv.cpu.candidates.query import Request
from implicit_conv.cpu.candidates.tiling import Near, met_planes
from implicit_conv.cpu.machine.arch import REGISTER_PIXELS, cpu_arch, nearest_costs
from implicit_conv.cpu.methods import winograd
from implicit_conv.problem import reference
from implicit_conv.problem.options import LAYOUTS_OF, PADDING_MODES, WEIGHT_LAYOUTS_OF
from implicit_conv.testing import Case, error_units, plan_of, to_nchw

PRECISION = {
    "winograd_f2": "standard",
    "winograd_f2_stride2": "standard",
    "winograd_f4": "fast",
    "winograd_f6": "fast",
}
EXACT = ("winograd_f2", "winograd_f2_stride2")
# In units of eps * sum over t and c of max|x_tc| * max|w_tc|: the bounds of images, whose sums are
# over channels alone. The largest errors of 300 random cases were 33 for F2, 31 at stride 2, 43 for
# F4 and 306 for F6.
UNITS = {"winograd_f2": 64, "winograd_f2_stride2": 64, "winograd_f4": 160, "winograd_f6": 2400}
# In units of eps * sum|x||w| for normal and for uniform positive data with 64 channels; the largest
# errors were 24, 27 and 53.
ORDINARY_UNITS = {"winograd_f2": 32, "winograd_f4": 40, "winograd_f6": 96}
FILTERS = {name: [(3, 3)] for name in UNITS}  # as (R, S)
FILTERS["winograd_f2"] = [(3, 3), *winograd.SMALL_FILTERS]
BOX = {"winograd_f4": 4, "winograd_f6": 6}  # outputs along H and W that share an error
VOLUME = Case(
    C=20,
    K=40,
    size=(5, 11, 13),
    kernel=(3, 3, 3),
    stride=(1, 1, 1),
    dilation=(1, 1, 1),
    padding=((1, 1),) * 3,
    layout="NCDHW",
    weight_layout="KCTRS",
)


@st.composite
def cases(draw, algorithm, dtypes=("float32", "float64", "bfloat16", "float16")):
    step = 2 if algorithm == "winograd_f2_stride2" else 1
    depth = st.sampled_from([(-1, 0), (0, 0), (1, 1), (2, 0), (0, 3), (1, -1), (3, 3)])
    plane = st.sampled_from([(-1, 1), (0, 0), (1, 1), (2, 0), (0, 3)])
    case = Case(
        N=draw(st.integers(1, 3)),
        C=draw(st.sampled_from([1, 3, 16, 17, 33, 70, 150])),
        K=draw(st.sampled_from([1, 5, 16, 17, 33, 40])),
        size=(draw(st.integers(1, 7)), *draw(st.sampled_from([(3, 4), (8, 7), (9, 14), (6, 19)]))),
        kernel=(draw(st.sampled_from([2, 3, 3, 3, 5])), *draw(st.sampled_from(FILTERS[algorithm]))),
        stride=(draw(st.sampled_from([1, 1, 1, 2, 3])), step, step),
        dilation=(draw(st.sampled_from([1, 1, 1, 2])), 1, 1),
        padding=(draw(depth), draw(plane), draw(plane)),
        layout=draw(st.sampled_from(LAYOUTS_OF[3])),
        weight_layout=draw(st.sampled_from(WEIGHT_LAYOUTS_OF[3])),
        dtype=draw(st.sampled_from(dtypes)),
        padding_mode=draw(st.sampled_from(["zeros", *PADDING_MODES])),
    )
    assume(case.is_valid)
    return case


def plan(case, algorithm, planes):
    """A plan whose load tiles have at most so many output planes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(winograd, "PLANES", (planes,))
        return plan_of(case, algorithm=algorithm, precision=PRECISION[algorithm])


PLANES = st.sampled_from([1, 2, 3, 7])


@resampled
@pytest.mark.parametrize("algorithm", EXACT)
def test_f2_is_exact_on_small_integers(algorithm):
    @examples(20, 400, 60)
    @given(case=cases(algorithm), seed=st.integers(0, 2**31), planes=PLANES)
    def check(case, seed, planes):
        x, w = case.inputs(seed, integers=True)
        made = plan(case, algorithm, planes)
        out = np.full(made.problem.output_shape, np.nan, numpy_dtype(case.dtype))
        made(*case.arrange(x, w), out=out)
        expected = case.rounded(case.reference(x, w))
        np.testing.assert_array_equal(to_nchw(out, case.layout).astype(float), expected)

    check()


def scale(case, x, w, reach):
    """Sum over t and c of max|x_tc| * max|w_tc|; x over the windows of outputs up to `reach`
    away in their plane.
    """
    padded = np.abs(reference.pad_or_crop(x, case.padding, case.padding_mode)).astype(np.float64)
    padded = np.pad(padded, ((0, 0),) * 3 + ((reach, reach),) * 2)
    extents = [taps + 2 * reach for taps in case.kernel[1:]]
    windows = np.lib.stride_tricks.sliding_window_view(padded, extents, axis=(3, 4))
    most = windows[:, :, :, :: case.stride[1], :: case.stride[2]].max(axis=(5, 6))
    planes = np.abs(w.astype(float)).max(axis=(3, 4))
    return sum(
        np.einsum(
            "ncdhw,kc->nkdhw",
            most[:, :, t * case.dilation[0] :: case.stride[0]][:, :, : case.output[0]],
            planes[:, :, t],
        )
        for t in range(case.kernel[0])
    )


@resampled
@pytest.mark.parametrize("algorithm", UNITS)
def test_error_bound_on_ordinary_and_wild_inputs(algorithm):
    @examples(8, 200, 20)
    @given(
        case=cases(algorithm, ("float32", "float64")),
        seed=st.integers(0, 2**31),
        planes=PLANES,
        spread=st.sampled_from([0, 0, 4]),
    )
    def check(case, seed, planes, spread):
        rng = np.random.default_rng(seed)
        x, w = (
            (a * np.exp(rng.normal(0, spread, a.shape))).astype(a.dtype) for a in case.inputs(seed)
        )
        y = to_nchw(plan(case, algorithm, planes)(*case.arrange(x, w)), case.layout)
        bound = scale(case, x, w, reach=BOX.get(algorithm, 1) - 1)
        assert error_units(y, case.reference(x, w), bound, case.dtype) <= UNITS[algorithm]

    check()


@pytest.mark.parametrize("algorithm", UNITS)
@pytest.mark.parametrize("layout", LAYOUTS_OF[3])
def test_epilogue_and_packed_filter(algorithm, layout):
    step = 2 if algorithm == "winograd_f2_stride2" else 1
    case = replace(VOLUME, N=2, layout=layout, stride=(1, step, step))
    x, w = case.inputs(0, integers=True)
    rng = np.random.default_rng(0)
    bias = rng.integers(-9, 9, case.K).astype(np.float32)
    sums = case.reference(x, w) + bias[:, None, None, None]
    residual = rng.integers(-9, 9, sums.shape).astype(np.float32)
    added = residual if layout == "NCDHW" else residual.transpose(0, 2, 3, 4, 1).copy()
    made = plan(case, algorithm, 2)
    x, w = case.arrange(x, w)
    close = {"rtol": 0, "atol": 0 if algorithm in EXACT else 0.05}
    y = to_nchw(made(x, made.pack(w), bias), layout)
    np.testing.assert_allclose(y, sums, **close)
    y = to_nchw(made(x, w, bias, residual=added), layout)
    np.testing.assert_allclose(y, sums + residual, **close)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("planes", [1, 2, 5])
def test_what_is_not_finite_stays_in_the_output_planes_that_read_it(value, planes):
    x, w = VOLUME.inputs(3)
    x[0, 7, 3, 5, 6] = value
    y = plan(VOLUME, "winograd_f2", planes)(x, w)
    expected = VOLUME.reference(~np.isfinite(x), np.ones_like(w)) > 0
    assert np.array_equal(~np.isfinite(y), expected)


def test_strides_and_dilations_of_depth_alone_are_free():
    shapes = (1, 16, 9, 9, 9), (16, 16, 3, 3, 3)
    for options in {"stride": (2, 1, 1)}, {"dilation": (2, 1, 1)}:
        made = plan_conv3d(*shapes, algorithm="winograd_f2", **options)
        assert made.algorithm == "winograd_f2"
    for options in {"stride": (1, 2, 1)}, {"dilation": (1, 1, 2)}:
        with pytest.raises(PlanError, match="needs a filter of at most 3x3 taps"):
            plan_conv3d(*shapes, algorithm="winograd_f2", **options)
    with pytest.raises(PlanError, match="1 to 682 channels of filters with 3 planes, not 683"):
        plan_conv3d((1, 683, 5, 9, 9), (8, 683, 3, 3, 3), algorithm="winograd_f2")


@pytest.mark.parametrize(
    "layer", [(64, 64, 16, 56), (128, 128, 16, 56), (256, 256, 8, 28), (512, 512, 4, 14)]
)
def test_auto_weighs_the_algorithms(layer):
    channels, filters, depth, size = layer
    x, w = (1, channels, depth, size, size), (filters, channels, 3, 3, 3)
    chosen = {
        p: plan_conv3d(x, w, padding=1, precision=p).algorithm for p in ("strict", "standard")
    }
    assert chosen == {"strict": "implicit_gemm", "standard": "winograd_f2"}
    y = (1, filters, depth, size, size)
    made = plan_conv3d_input_grad(y, w, x, padding=1)
    assert "winograd_f2" in str(made.explain())


@pytest.mark.parametrize("bits", [256, 512])
@pytest.mark.parametrize("sizes", [(3, 8), (4, 4), (64, 4)])
@pytest.mark.parametrize("layout", LAYOUTS_OF[3])
def test_few_channels_or_filters_do_not_pay_for_the_transforms(bits, sizes, layout):
    pixels, costs = REGISTER_PIXELS[bits, bits // 16], nearest_costs(bits)
    arch = replace(cpu_arch(1), vector_bits=bits, tile_pixels=pixels, costs=costs)
    channels, filters = sizes
    case = replace(VOLUME, C=channels, K=filters, size=(16, 32, 32), layout=layout)
    assert plan_of(case, arch).algorithm == "implicit_gemm"
    case = replace(case, C=64, K=64)
    assert plan_of(case, arch).algorithm == "winograd_f2"


def test_input_gradient_is_that_of_the_reference():
    case = replace(VOLUME, size=(4, 7, 9), C=33, K=20)
    x, w = case.inputs(0, integers=True)
    dy = np.random.default_rng(1).integers(-4, 5, case.shapes["y"]).astype(np.float32)
    dx = conv3d_input_grad(dy, w, x.shape, padding=1, algorithm="winograd_f2")
    # The inner product of x with dx is that of conv(x, w) with dy, for every x.
    for seed in range(count(3, 30)):
        x, _ = case.inputs(seed, integers=True)
        assert (x.astype(float) * dx).sum() == (case.reference(x, w) * dy).sum()


def test_another_size_takes_over_the_planes_of_a_load_tile():
    problem = replace(VOLUME, size=(12, 20, 20)).problem
    request = Request("standard", "winograd_f2")
    (c,) = winograd.Winograd.candidates(problem, cpu_arch(1), request)
    g = c.geometry._replace(tile_n=4)
    near = Near(c.method, g, winograd.Estimate(c.cycles, c.chunk, c.packing), 12 * 400)
    longer = replace(VOLUME, size=(21, 20, 22)).problem
    (other,) = winograd.Winograd.candidates(longer, cpu_arch(1), replace(request, near=near))
    assert other.geometry.tile_n == 4


@pytest.mark.parametrize("padding", [(0, 0), (1, 1), (2, 2), (3, 3)])
def test_the_share_of_filter_planes_that_meet_the_image(padding):
    case = replace(VOLUME, size=(2, 5, 5), padding=(padding, (1, 1), (1, 1)))
    if not case.is_valid:
        case = replace(case, size=(3, 5, 5))
    g = plan(case, "winograd_f2", 1).engine.best.geometry
    x = np.ones((1, 1, *case.size))
    ones = replace(case, C=1, K=1).reference(x, np.ones((1, 1, *case.kernel)))
    inside = ones[0, 0, :, 2, 2] / 9
    assert met_planes(g) == pytest.approx(inside.mean() / 3)


@pytest.mark.parametrize("algorithm", ORDINARY_UNITS)
def test_error_on_ordinary_data(algorithm):
    """The errors that the documentation states."""
    case = replace(VOLUME, C=64, K=32, size=(4, 28, 28))
    rng = np.random.default_rng(0)
    options = {"algorithm": algorithm, "precision": PRECISION[algorithm]}
    for draw in rng.standard_normal, rng.random:
        x, w = (draw(case.shapes[name]).astype(np.float32) for name in "xw")
        y = conv3d(x, w, padding=1, **options)
        magnitude = case.reference(x, w, magnitude=True)
        assert (
            error_units(y, case.reference(x, w), magnitude, "float32") <= ORDINARY_UNITS[algorithm]
        )


@pytest.mark.parametrize(("channels", "planes"), [(680, 3), (3, 600), (150, 13)])
def test_equal_terms_are_summed_in_chains(channels, planes):
    """One chain of so many would lose hundreds of units: all additions round alike."""
    case = replace(
        VOLUME,
        C=channels,
        K=8,
        size=(planes, 6, 6),
        kernel=(planes, 3, 3),
        padding=((0, 0),) * 3,
    )
    x, w = case.inputs(0)
    for value in 0.1, 0.7, 1.1:
        x[...], w[...] = value, value
        exact = 9 * channels * planes * float(x.flat[0]) ** 2
        y = plan(case, "winograd_f2", 1)(x, w)
        assert error_units(y, np.full(y.shape, exact), exact, "float32") <= 64


def test_volumes_without_filters_or_channels_are_planned():
    """Their estimates divide by no panel, also where the only tile is larger than L2."""
    size = (1, 28, 28)
    assert plan_conv3d((1, 8, *size), (0, 8, 3, 3, 3), padding=1).problem.K == 0
    dy, w = np.ones((1, 8, *size), np.float32), np.ones((8, 0, 3, 3, 3), np.float32)
    assert conv3d_input_grad(dy, w, (1, 0, *size), padding=1).size == 0
