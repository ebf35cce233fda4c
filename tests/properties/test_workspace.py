"""Forecasts of memory agree with memory that calls take, and `max_workspace` limits it.

Blocks of scratch memory are counted with the size that was asked for, because the pool rounds them
up with pages that are never touched; all other arrays are counted by tracemalloc.
"""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

import implicit_conv as ic
from perf.counting import memory_of

OBJECTS = 12 << 10  # bytes of Python objects, parameters of launches and short vectors of a call

CONVOLUTIONS = {  # name: (operator, shape of x or dy, shape of w, options)
    "image": ("conv2d", (2, 64, 56, 56), (64, 64, 3, 3), {"padding": 1}),
    "image, channels last": (
        "conv2d",
        (2, 56, 56, 64),
        (64, 3, 3, 64),
        {"padding": 1, "layout": "NHWC", "weight_layout": "KRSC"},
    ),
    "pointwise": ("conv2d", (4, 64, 28, 28), (256, 64, 1, 1), {}),
    "one tile": ("conv2d", (1, 128, 8, 8), (256, 128, 3, 3), {"padding": 1}),
    "grouped": ("conv2d", (2, 128, 28, 28), (128, 4, 3, 3), {"groups": 32, "padding": 1}),
    "depthwise": ("conv2d", (2, 128, 56, 56), (128, 1, 3, 3), {"groups": 128, "padding": 1}),
    "im2col": (
        "conv2d",
        (1, 64, 12, 12),  # the copy of the filter is the largest part
        (256, 3, 3, 64),
        {"weight_layout": "KRSC", "algorithm": "gemm_im2col"},
    ),
    "winograd": ("conv2d", (1, 64, 56, 56), (64, 64, 3, 3), {"algorithm": "winograd_f2"}),
    "few filters, KRSC": ("conv2d", (1, 256, 40, 40), (6, 3, 3, 256), {"weight_layout": "KRSC"}),
    "signal": ("conv1d", (4, 64, 4000), (128, 64, 3), {"dilation": 4, "padding": 4}),
    "depthwise signal": ("conv1d", (2, 256, 2048), (256, 1, 4), {"groups": 256, "padding": 3}),
    "volume": ("conv3d", (1, 32, 8, 28, 28), (64, 32, 3, 3, 3), {"padding": 1}),
    "pooled volume": ("conv3d", (1, 16, 8, 32, 32), (64, 16, 1, 3, 3), {"stride": (1, 2, 2)}),
    "transposed": ("conv_transpose2d", (2, 128, 28, 28), (128, 64, 4, 4), {"stride": 2}),
    "transposed, groups": (
        "conv_transpose2d",
        (1, 64, 8, 8),  # the copy of the filter is as large as the result
        (64, 64, 3, 3),
        {"stride": 2, "groups": 2},
    ),
    "transposed, conv2d's filter": (
        "conv_transpose2d",
        (1, 256, 40, 40),
        (6, 256, 3, 3),
        {"padding": 1, "weight_layout": "KCRS"},
    ),
    "transposed signal": ("conv_transpose1d", (2, 256, 300), (256, 128, 16), {"stride": 8}),
    "transposed volume": ("conv_transpose3d", (1, 64, 8, 16, 16), (64, 32, 2, 2, 2), {"stride": 2}),
    "gradient of images": ("conv2d_input_grad", (2, 64, 28, 28), (64, 64, 3, 3), {"padding": 1}),
    "gradient, pixels without taps": (
        "conv2d_input_grad",
        (1, 256, 14, 14),
        (256, 128, 1, 1),
        {"stride": 2},
    ),
    "gradient of groups": (
        "conv2d_input_grad",
        (1, 128, 28, 28),
        (128, 8, 3, 3),
        {"padding": 1, "groups": 16},
    ),
    "gradient of signals": ("conv1d_input_grad", (2, 128, 2000), (128, 128, 5), {"padding": 2}),
    "gradient of volumes": ("conv3d_input_grad", (1, 32, 6, 28, 28), (32, 16, 3, 3, 3), {}),
}

# The others compile kernels of their own, which takes too long for the default tests.
QUICK = ("image", "one tile", "depthwise", "im2col", "transposed, groups", "gradient of signals")
NAMES = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CONVOLUTIONS
]


def arrays(name, dtype="float32", w_dtype=None):
    """(plan of arguments, x or dy, w, call) of a convolution of CONVOLUTIONS."""
    operator, shape, w_shape, options = CONVOLUTIONS[name]
    x, w = np.ones(shape, dtype), np.ones(w_shape, w_dtype or dtype)
    given = input_shape(operator, shape, w_shape, options)

    def plan(**more):
        made = getattr(ic, f"plan_{operator}")
        return made(shape, w_shape, *given, x.dtype, w_dtype=w.dtype, **options, **more)

    def call(**more):
        return getattr(ic, operator)(x, w, *given, **options, **more)

    return plan, x, w, call


def input_shape(operator, shape, w_shape, options):
    """The arguments between w and the options: the shape of x, for an input gradient."""
    if not operator.endswith("input_grad"):
        return ()
    stride, pad = options.get("stride", 1), options.get("padding", 0)
    channels = w_shape[1] * options.get("groups", 1)
    sizes = zip(shape[2:], w_shape[2:], strict=True)
    return ((shape[0], channels, *((n - 1) * stride + r - 2 * pad for n, r in sizes)),)


def agree(measured, forecast):
    """Whether measured bytes are within 5 % of a forecast, or differ by Python objects alone."""
    return abs(measured - forecast) <= max(0.05 * forecast, OBJECTS)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_peak_memory_is_as_forecast(name, threads):
    with ic.config(num_threads=threads):
        plan, _, _, call = arrays(name)
        forecast = plan().peak_bytes
        peak = memory_of(call).peak
    assert agree(peak, forecast), (peak, forecast)


@pytest.mark.parametrize("name", NAMES)
def test_packed_filters_have_the_size_forecast(name):
    plan, x, w, _ = arrays(name)
    made = plan()
    packed = made.pack(w)
    assert packed.panels.nbytes == made.packed_bytes
    memory = memory_of(lambda: made(x, packed))
    assert memory.peak <= made.peak_bytes + OBJECTS


DTYPES = [
    ("float64", None),
    ("float16", None),
    ("int8", None),
    ("uint8", "int8"),
    ("int16", "int8"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "w_dtype"), DTYPES)
@pytest.mark.parametrize("name", ["image", "signal", "transposed"])
def test_peak_memory_of_dtypes_is_as_forecast(name, dtype, w_dtype):
    plan, _, _, call = arrays(name, dtype, w_dtype)
    made = plan()
    assert agree(memory_of(call).peak, made.peak_bytes)


@pytest.mark.parametrize("out_dtype", ["float32", "float64"])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_peak_memory_with_scale_and_converted_output_is_as_forecast(dtype, out_dtype):
    plan, _, w, call = arrays("image", dtype)
    made = plan(out_dtype=out_dtype)
    sums = out_dtype if dtype == "int8" else "float32"
    scale, bias = np.ones((2, len(w)), sums)
    memory = memory_of(lambda: call(scale=scale, bias=bias, out_dtype=out_dtype))
    assert agree(memory.peak, made.peak_bytes), (memory, made.peak_bytes)


WEIGHT_GRADIENTS = {  # name: (shape of x, shape of dy, options)
    "copied": ((2, 40, 18, 18), (2, 80, 18, 18), {"weight_shape": (80, 40, 3, 3), "padding": 1}),
    "in place": (
        (2, 28, 28, 48),
        (2, 28, 28, 64),
        {"weight_shape": (1, 1, 48, 64), "layout": "NHWC", "weight_layout": "RSCK"},
    ),
    "in parts": ((2, 3, 70, 70), (2, 8, 68, 68), {"weight_shape": (8, 3, 3, 3)}),
    "depthwise": (
        (2, 48, 30, 30),
        (2, 48, 28, 28),
        {"weight_shape": (48, 1, 3, 3), "groups": 48},
    ),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", WEIGHT_GRADIENTS)
def test_peak_memory_of_weight_gradients_is_as_forecast(name, threads):
    x_shape, dy_shape, options = WEIGHT_GRADIENTS[name]
    x, dy = np.ones(x_shape, "f4"), np.ones(dy_shape, "f4")
    with ic.config(num_threads=threads):
        forecast = ic.plan_conv2d_weight_grad(x_shape, dy_shape, **options).peak_bytes
        peak = memory_of(lambda: ic.conv2d_weight_grad(x, dy, **options)).peak
    assert agree(peak, forecast), (peak, forecast)


def test_a_limit_chooses_smaller_tilings_of_weight_gradients():
    x_shape, dy_shape, options = WEIGHT_GRADIENTS["copied"]
    with ic.config(num_threads=1):
        free = ic.plan_conv2d_weight_grad(x_shape, dy_shape, **options)
        half = free.workspace_bytes // 2
        tight = ic.plan_conv2d_weight_grad(x_shape, dy_shape, **options, max_workspace=half)
    assert tight.workspace_bytes <= half
    assert f"max_workspace is {half / 1024:.0f} KiB" in tight.explain()


def test_a_weight_gradient_of_strides_that_need_more_memory_than_the_limit_is_refused():
    x_shape, dy_shape, options = WEIGHT_GRADIENTS["in place"]
    x, dy = np.ones((*x_shape[:3], 96), "f4")[..., ::2], np.ones(dy_shape, "f4")
    with ic.config(num_threads=1):
        expected = ic.conv2d_weight_grad(x, dy, **options)
        with pytest.raises(ic.PlanError) as error:
            ic.plan_conv2d_weight_grad(x_shape, dy_shape, **options, max_workspace=0)
        limit = int(re.search(r"at least (\d+) ", str(error.value))[1])
        np.testing.assert_array_equal(
            ic.conv2d_weight_grad(x.copy(), dy, max_workspace=limit, **options), expected
        )
        with pytest.raises(ic.PlanError, match=f"max_workspace is {limit} bytes") as error:
            ic.conv2d_weight_grad(x, dy, max_workspace=limit, **options)
        least = int(re.search(r"max_workspace=(\d+)", str(error.value))[1])
        dw = ic.conv2d_weight_grad(x, dy, max_workspace=least, **options)
    np.testing.assert_array_equal(dw, expected)


SMALL = [  # (operator, both shapes, options): quick to compile and to compute
    ("conv2d", (2, 16, 30, 30), (24, 16, 3, 3), {"padding": 1}),
    ("conv2d", (2, 30, 30, 16), (24, 3, 3, 16), {"layout": "NHWC", "weight_layout": "KRSC"}),
    ("conv2d", (2, 32, 28, 28), (64, 32, 1, 1), {}),
    ("conv2d", (1, 64, 30, 30), (64, 1, 3, 3), {"groups": 64}),
    ("conv1d", (2, 16, 999), (24, 16, 5), {"stride": 2}),
    ("conv_transpose2d", (1, 16, 20, 20), (16, 8, 4, 4), {"stride": 2}),
    ("conv_transpose2d", (1, 16, 20, 20), (16, 8, 3, 3), {"stride": 2, "groups": 2}),
    ("conv2d_input_grad", (1, 16, 20, 20), (16, 24, 3, 3), {"padding": 1}),
    ("conv2d_input_grad", (1, 16, 20, 20), (16, 24, 1, 1), {"stride": 2}),
    *(("conv2d_weight_grad", *rest) for rest in WEIGHT_GRADIENTS.values()),
]


@examples(25, 2000)
@given(
    st.sampled_from(SMALL),
    st.integers(10, 22).flatmap(lambda power: st.integers(0, 1 << power)),
    st.sampled_from(["standard", "strict"]),
    st.integers(1, 2),
)
def test_calls_honour_max_workspace_or_say_what_they_need(convolution, limit, precision, threads):
    operator, shape, w_shape, options = convolution
    rng = np.random.default_rng(limit)
    x, w = (rng.integers(-3, 4, extents).astype("f4") for extents in (shape, w_shape))
    given = input_shape(operator, shape, w_shape, options)
    options = {**options, "precision": precision}
    with ic.config(num_threads=threads):

        def call(limit):
            return getattr(ic, operator)(x, w, *given, **options, max_workspace=limit)

        expected = call(None)
        try:
            y = call(limit)
        except ic.PlanError as error:
            numbers = re.match(r"max_workspace is (\d+) bytes, but .* at least (\d+) ", str(error))
            named, least = map(int, numbers.groups())
            assert named == limit < least
            limit = least
            y = call(limit)
        np.testing.assert_array_equal(y, expected)
        assert memory_of(lambda: call(limit)).peak <= limit + expected.nbytes + OBJECTS


def test_a_limit_chooses_smaller_tilings_and_fewer_threads_and_explains_them():
    shape, w_shape = (8, 64, 56, 56), (64, 64, 3, 3)
    with ic.config(num_threads=4):
        free = ic.plan_conv2d(shape, w_shape, padding=1)
        half = free.workspace_bytes // 2
        tight = ic.plan_conv2d(shape, w_shape, padding=1, max_workspace=half)
        with pytest.raises(ic.PlanError, match="max_workspace is 1 bytes") as error:
            ic.plan_conv2d(shape, w_shape, padding=1, max_workspace=1)
        least = int(re.search(r"at least (\d+) ", str(error.value))[1])
        least_plan = ic.plan_conv2d(shape, w_shape, padding=1, max_workspace=least)
    assert tight.workspace_bytes <= half
    assert f"max_workspace is {half / 1024:.0f} KiB" in tight.explain()
    assert least_plan.candidates[0].threads == 1
    assert least_plan.engine.call_bytes == least


@pytest.mark.parametrize("limit", [-1, 1.5, True, "1 MB"])
def test_a_limit_that_is_no_number_of_bytes_is_refused(limit):
    x, w = np.ones((1, 1, 4, 4), "f4"), np.ones((1, 1, 3, 3), "f4")
    with pytest.raises(ic.ShapeError, match="max_workspace"):
        ic.conv2d(x, w, max_workspace=limit)
    with pytest.raises(ic.ShapeError, match="max_workspace"):
        ic.conv_transpose2d(x, w, max_workspace=limit)
    with pytest.raises(ic.ShapeError, match="max_workspace"):
        ic.conv2d_weight_grad(x, w, (1, 1, 2, 2), max_workspace=limit)


def test_strides_that_need_more_memory_than_the_limit_are_refused():
    x, w = np.ones((1, 64, 64, 32), "f4"), np.ones((32, 32, 1, 1), "f4")
    with ic.config(num_threads=1):
        with pytest.raises(ic.PlanError) as error:
            ic.plan_conv2d(x.shape, w.shape, layout="NHWC", max_workspace=0)
        least = int(re.search(r"at least (\d+) ", str(error.value))[1])
        expected = ic.conv2d(x, w, layout="NHWC", max_workspace=least)
        strided = np.ones((1, 64, 64, 64), "f4")[..., ::2]
        try:
            y = ic.conv2d(strided, w, layout="NHWC", max_workspace=least)
        except ic.PlanError as refusal:
            assert "contiguous" in str(refusal)
        else:
            np.testing.assert_array_equal(y, expected)
