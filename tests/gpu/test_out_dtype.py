"""y of float32 where x has 16-bit elements: sums are stored as they are."""

import numpy as np
import pytest

from implicit_conv import conv2d, conv2d_input_grad, conv_transpose2d, plan_conv2d
from implicit_conv.arrays.arrays import numpy_dtype
from implicit_conv.errors import DTypeError, ShapeError
from implicit_conv.gpu.cuda.arch import gpu_arch
from implicit_conv.gpu.run import run

WIDE = {"out_dtype": "float32"}


@pytest.fixture
def drawn():
    rng = np.random.default_rng(0)
    return lambda dtype, *shape: rng.integers(-19, 20, shape).astype(numpy_dtype(dtype))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("scaled", [False, True])
def test_numpy_arrays_equal_the_cpu(recorder, drawn, dtype, scaled):
    """Sums exceed what 16 bits hold, so that one that is rounded differs."""
    recorder.convolved.append("bfloat16")
    x, w, bias = drawn(dtype, 2, 40, 7, 6), drawn(dtype, 12, 40, 3, 3), drawn(dtype, 12)
    added = drawn(dtype, 2, 12, 7, 6)
    given = {"residual": added, "padding": 1, "activation": "relu", **WIDE}
    if scaled:
        given["scale"], bias = np.full(12, 0.5, np.float32), bias.astype(np.float32)
    want = conv2d(x, w, bias, **given)
    assert want.dtype == np.float32 and (want.astype(x.dtype) != want).any()
    y = conv2d(x, w, bias, **given, device="cuda")
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, want)
    out = np.empty_like(want)
    assert conv2d(x, w, bias, **given, device="cuda", out=out) is out
    np.testing.assert_array_equal(out, want)
    with pytest.raises(DTypeError, match="out is"):
        conv2d(x, w, bias, **given, device="cuda", out=np.empty(want.shape, x.dtype))


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_gradients_and_transposed_convolutions_equal_the_cpu(recorder, drawn, stride):
    """With a stride of 3 some pixels have no taps, and are set to float32 zeros."""
    recorder.convolved.append("bfloat16")
    dy, w = drawn("bfloat16", 2, 40, 5, 6), drawn("bfloat16", 40, 8, 2, 2)
    options = {"stride": stride, **WIDE}
    want = conv_transpose2d(dy, w, **options)
    np.testing.assert_array_equal(conv_transpose2d(dy, w, **options, device="cuda"), want)
    shape = (2, 8, *want.shape[2:])
    options["input_shape"] = shape
    want = conv2d_input_grad(dy, w, **options)
    found = conv2d_input_grad(dy, w, **options, device="cuda")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, want)


def test_a_residual_of_16_bits_is_not_y_itself(recorder, device_array):
    """Its elements would be overwritten before they are read."""
    x, w = device_array(4096, (2, 8, 1, 1)), device_array(1 << 17, (8, 8, 1, 1))
    y = device_array(1 << 20, (2, 8, 1, 1), np.float32)
    residual = device_array(1 << 20, (2, 8, 1, 1), strides=(32, 4, 4, 4))
    with pytest.raises(ShapeError, match="out overlaps residual"):
        conv2d(x, w, residual=residual, out=y, **WIDE)


def test_results_are_made_in_float32(recorder, placed, fetched, drawn, monkeypatch):
    def maker(owner, shape, axes, dtype):
        return lambda x: placed(np.full(shape, np.nan, dtype).transpose(axes))

    monkeypatch.setattr(run, "result_maker", maker)
    x, w = drawn("float16", 1, 8, 3, 3), drawn("float16", 4, 8, 1, 1)
    y = fetched(conv2d(placed(x), placed(w), **WIDE))
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, conv2d(x, w, **WIDE))


def test_the_plan_counts_the_bytes_of_y():
    options = {"device": gpu_arch("sm_90a").target, "layout": "NHWC", "weight_layout": "KRSC"}
    sizes = (2, 8, 8, 64), (64, 3, 3, 64), "bfloat16"
    narrow, wide = plan_conv2d(*sizes, **options), plan_conv2d(*sizes, **options, **WIDE)
    assert wide.peak_bytes - narrow.peak_bytes == 2 * 64 * 6 * 6 * 2
    assert "float32 y" in wide.explain() and "float32 y" not in narrow.explain()
