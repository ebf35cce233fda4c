"""Complex convolutions: integers are exact, in every layout, rank and operator."""

import pickle

import numpy as np
import pytest

import implicit_conv as ic
from implicit_conv.problem.options import SPACE

GROUPS = [(1, 3, 5), (2, 4, 6), (4, 4, 4)]  # groups, channels, filters


def integers(rng, shape, dtype):
    return (rng.integers(-3, 4, shape) + 1j * rng.integers(-3, 4, shape)).astype(dtype)


def by_parts(function, x, w, **options):
    """Four real convolutions in float64."""
    re, im = [
        [function(a, b, **options) for b in (w.real.copy(), w.imag.copy())]
        for a in (x.real, x.imag)
    ]
    return re[0] - im[1] + 1j * (re[1] + im[0])


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("name", ["conv{}d", "conv_transpose{}d"])
def test_integers_are_exact(name, rank, last, dtype):
    function, plan = getattr(ic, name.format(rank)), getattr(ic, "plan_" + name.format(rank))
    rng = np.random.default_rng(rank)
    for groups, channels, filters in GROUPS:
        x = integers(rng, (2, channels, *[6] * rank), dtype)
        shape = (filters, channels // groups)
        if "transpose" in name:
            shape = (channels, filters // groups)
        w = integers(rng, (*shape, *[3] * rank), dtype)
        bias = integers(rng, filters, dtype)
        options = {"stride": 2, "padding": 1, "groups": groups}
        expected = by_parts(function, x.astype("complex128"), w.astype("complex128"), **options)
        expected += bias.reshape(-1, *[1] * rank)
        if last:
            x, expected = (np.moveaxis(array, 1, -1) for array in (x, expected))
            options["layout"] = "N" + SPACE[rank] + "C"
        y = function(np.ascontiguousarray(x), w, bias, **options)
        assert y.dtype == dtype
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(function(x, w, bias, **options), expected)  # strided, known
        made = plan(x.shape, w.shape, dtype, **options)
        packed = made.pack(w)
        for _ in range(2):
            np.testing.assert_array_equal(made(x, packed, bias), expected)
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(made))(x, w, bias), expected)
        out = np.zeros((*y.shape[:-1], 2 * y.shape[-1]), dtype)[..., ::2]
        assert function(x, w, bias, out=out, **options) is out
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_scale_residual_and_out_dtype(layout):
    rng = np.random.default_rng(5)
    axes = (0, 1, 2, 3) if layout == "NCHW" else (0, 2, 3, 1)
    x = integers(rng, (2, 4, 7, 8), "complex64").transpose(axes)
    w, scale = integers(rng, (5, 4, 3, 3), "complex64"), np.float32([1, 2, 4, 0.5, 8])
    plain = ic.conv2d(x, w, layout=layout)
    residual = integers(rng, plain.shape, "complex64")
    y = ic.conv2d(x, w, scale=scale, residual=residual, layout=layout, out_dtype="complex128")
    assert y.dtype == "complex128"
    factors = scale[:, None, None] if layout == "NCHW" else scale
    np.testing.assert_array_equal(y, plain * factors + residual)


def test_a_filter_is_real_elsewhere():
    x = np.ones((1, 1, 4, 4), "complex64")
    with pytest.raises(ic.DTypeError, match=r"x is complex64 but w is float32.*w.astype|x.astype"):
        ic.conv2d(x, np.ones((1, 1, 3, 3), "float32"))
    with pytest.raises(ic.PlanError, match="not defined for complex numbers"):
        ic.conv2d(x, x[..., :3, :3], activation="relu")
    with pytest.raises(ic.DTypeError, match="use one of complex64, complex128"):
        ic.conv2d(x, x[..., :3, :3], out_dtype="float32")
    with pytest.raises(ic.DTypeError, match="it must be real"):
        ic.conv2d(x, x[..., :3, :3], scale=np.ones(1, "complex64"))
    with pytest.raises(ic.DTypeError, match="not supported"):
        ic.conv2d_input_grad(x, x[..., :1, :1], (1, 1, 4, 4))
    assert (
        "real and imaginary parts" in ic.plan_conv2d(x.shape, (1, 1, 3, 3), "complex64").explain()
    )


def test_parts_of_arrays_in_any_order_of_memory():
    """numpy keeps the order of memory in many copies; calls are bound to that of new arrays."""
    rng = np.random.default_rng(3)
    x, w = integers(rng, (3, 5, 6, 7), "complex64"), integers(rng, (4, 5, 3, 3), "complex64")
    expected = ic.conv2d(x, w)
    residual = integers(rng, expected.shape, "complex64")
    for order in ((0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 3, 2)):
        back = np.argsort(order)
        moved, taps, added = (
            np.ascontiguousarray(array.transpose(order)).transpose(back)
            for array in (x, w, residual)
        )
        np.testing.assert_array_equal(ic.conv2d(moved, taps), expected)
        np.testing.assert_array_equal(ic.conv2d(moved, taps, residual=added), expected + residual)
