"""Input gradients of depthwise convolutions with a stride: all stride phases in one pass."""

import contextlib
import itertools
from dataclasses import replace

import numpy as np
import pytest
from sampling import count, resampled

import implicit_conv as ic
from implicit_conv.cpu.methods.strided_depthwise import ROW_ELEMENTS, StridedDepthwise
from implicit_conv.problem import reference
from implicit_conv.testing import Case
from implicit_conv.testing.storage import STORAGES, stored

KERNELS = ((1, 2), (2, 2), (3, 3), (4, 4), (5, 3), (7, 7))
STRIDES = ((2, 2), (1, 2), (2, 1), (3, 3), (2, 4))
PADDINGS = (((0, 0), (0, 0)), ((1, 1), (1, 1)), ((2, 0), (0, 3)), ((-1, 2), (3, -1)))
SIZES = ((14, 37), (15, 22), (13, 7))
CASE = Case(N=2, groups=19, size=(9, 21), stride=(2, 2), padding=((1, 1), (1, 1)))


def arrays(case, seed=0):
    """dy and w of small integers, whose sums are exact, with the axes of `Case.shapes`."""
    random = np.random.default_rng(seed)
    return [random.integers(-4, 5, case.shapes[name]).astype(case.dtype) for name in "yw"]


def oracle(case, dy, w):
    options = {"stride": case.stride, "pads": case.padding, "dilation": case.dilation}
    return reference.input_grad(dy, w, case.shapes["x"], groups=case.groups, **options)


def laid_out(case, array):
    """An array (N, C, spatial axes) in the layout of the case."""
    moved = np.moveaxis(array, 1, -1) if case.layout.endswith("C") else array
    return np.ascontiguousarray(moved)


def channels_second(case, array):
    return np.moveaxis(array, -1, 1) if case.layout.endswith("C") else array


def options(case):
    names = ("stride", "padding", "dilation", "groups", "layout")
    return {name: getattr(case, name) for name in names}


def plan(case, **more):
    make = getattr(ic, f"plan_conv{case.rank}d_input_grad")
    shapes = {name: laid_out(case, np.empty(case.shapes[name])).shape for name in "xy"}
    return make(shapes["y"], case.shapes["w"], shapes["x"], case.dtype, **options(case), **more)


def is_one_pass(plan):
    best = getattr(plan.engine, "best", None)
    return best is not None and type(best.method) is StridedDepthwise


def check(case, seed=0):
    """The gradient must equal the oracle's, and one pass must compute it."""
    dy, w = arrays(case, seed)
    planned = plan(case)
    assert is_one_pass(planned), planned.explain()
    out = np.full(planned.engine.y_shape, np.nan, case.dtype)
    planned(laid_out(case, dy), w, out=out)
    np.testing.assert_array_equal(channels_second(case, out), oracle(case, dy, w), str(case))


@resampled
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_every_stride_and_padding(kernel, layout):
    """Odd sizes, pixels that no tap reaches, and padding that crops."""
    dilations = ((1, 1), (2, 1), (3, 2))
    for stride, padding, dilation in itertools.product(STRIDES, PADDINGS, dilations):
        for size in SIZES[:: count(3, 1, 1)]:
            case = replace(
                CASE,
                kernel=kernel,
                stride=stride,
                padding=padding,
                dilation=dilation,
                size=size,
                layout=layout,
            )
            if min(case.output) >= 1:
                check(case, seed=sum(size))


@pytest.mark.parametrize("layout", ["NCDHW", "NDHWC"])
def test_volumes_and_signals(layout):
    for stride in (2, 2, 2), (2, 1, 1), (1, 2, 3):
        case = Case(
            N=2,
            groups=18,
            size=(5, 6, 9),
            kernel=(3, 2, 3),
            stride=stride,
            dilation=(1, 1, 1),
            padding=((1, 1), (0, 1), (1, 0)),
            layout=layout,
        )
        check(case)
    signal = {"layout": {"NCDHW": "NCW", "NDHWC": "NWC"}[layout], "dilation": (1,)}
    for taps, stride, pad in (5, 2, 2), (4, 4, 0), (16, 3, 7):
        kind = {"kernel": (taps,), "stride": (stride,), "padding": ((pad, pad),)}
        check(Case(groups=17, size=(2 * ROW_ELEMENTS + 77,), **kind, **signal))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_large_strides(layout):
    """Upsampling by 5 to 32, whose phases are more than vectors have lanes, or than registers."""
    for stride, kernel in (5, 7), (6, 3), (7, 14), (8, 16), (16, 32), (32, 64):
        case = replace(CASE, stride=(2, stride), kernel=(3, kernel), size=(7, 9 * stride + kernel))
        check(replace(case, layout=layout, padding=((1, 1), (stride // 2, stride // 2))))
    if layout == "NHWC":
        check(replace(CASE, layout=layout, stride=(9, 11), size=(20, 71)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_transposed_convolution_with_an_epilogue(layout, dtype):
    """The bilinear upsampling of FCN, k4 s2 p1, and output_padding."""
    random = np.random.default_rng(1)
    channels = 24
    w = random.integers(-3, 4, (channels, 1, 4, 4)).astype(dtype)
    x = random.integers(-3, 4, (2, channels, 6, 11)).astype(dtype)
    bias = random.integers(-3, 4, channels).astype(dtype)
    for more in 0, 1:
        size = tuple(2 * n + more for n in x.shape[2:])
        pads = {"stride": (2, 2), "pads": ((1, 1 - more),) * 2, "dilation": (1, 1)}
        expected = reference.input_grad(x, w, (2, channels, *size), groups=channels, **pads)
        added = random.integers(-3, 4, expected.shape).astype(dtype)
        case = replace(CASE, layout=layout)
        given = {
            "stride": 2,
            "padding": 1,
            "output_padding": more,
            "groups": channels,
            "layout": layout,
        }
        y = ic.conv_transpose2d(
            laid_out(case, x), w, bias, activation=("clamp", -5.0, 9.0), **given
        )
        sums = expected + bias[:, None, None]
        np.testing.assert_array_equal(channels_second(case, y), sums.clip(-5, 9))
        y = ic.conv_transpose2d(
            laid_out(case, x),
            w,
            bias,
            residual=laid_out(case, added),
            activation=("leaky_relu", 0.5),
            **given,
        )
        sums = sums + added
        np.testing.assert_array_equal(channels_second(case, y), np.where(sums < 0, sums / 2, sums))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_packed_filters_and_all_strides(layout):
    """A dy whose pixels or channels have gaps is copied first."""
    case, random = replace(CASE, layout=layout), np.random.default_rng(2)
    dy, w = arrays(case)
    expected = oracle(case, dy, w)
    planned = plan(case)
    filters = w, planned.pack(w)
    for storage, given in itertools.product(STORAGES, filters):
        if storage != "repeated":  # which has other values
            y = planned(stored(laid_out(case, dy), storage, random), given)
            np.testing.assert_array_equal(channels_second(case, y), expected, storage)


def test_a_copy_counts_for_max_workspace():
    dy, w = arrays(CASE)
    planned = plan(CASE, max_workspace=plan(CASE).engine.call_bytes)
    np.testing.assert_array_equal(planned(dy, w), oracle(CASE, dy, w))
    assert not any(c.method.copies for c in planned.candidates if not c.parts)
    gaps = np.repeat(dy, 2, -1)[..., ::2]
    with contextlib.suppress(ic.PlanError):  # where phases take more memory, too
        np.testing.assert_array_equal(planned(gaps, w), oracle(CASE, dy, w))


def test_strict_keeps_the_bits_of_phases():
    """The order of a sum is that of the convolution of its phase."""
    planned = plan(CASE, precision="strict")
    assert not is_one_pass(planned)
    reason = "its order of sums is not that of precision 'strict'; ask for 'standard'"
    assert f"depthwise in one pass: {reason}" in planned.explain()


def test_it_says_where_it_does_not_run():
    for change, reason in (
        ({"stride": (2, 9)}, "it needs a stride of 1, 2, 3, 4, 5, 6, 7, 8, 16, 32 along W, not 9"),
        ({"kernel": (31, 33), "size": (40, 41)}, "it needs at most 128 taps of a phase, not 272"),
        ({"layout": "NHWC", "groups": 3}, "it needs channels that fill a vector"),
        ({"dtype": "float16"}, "it supports float32 and float64, not float16"),
    ):
        planned = plan(replace(CASE, **change))
        assert not is_one_pass(planned)
        assert f"depthwise in one pass: {reason}" in planned.explain()


def test_a_nan_stays_in_its_channel_and_its_window():
    dy, w = arrays(replace(CASE, kernel=(3, 3)))
    dy[1, 4, 2, 3] = np.nan
    wrong = np.isnan(plan(CASE)(dy, w))
    assert wrong[1, 4, 3:6, 5:8].all()
    assert wrong.sum() == 9
