"""Integers and filters of float32: close to float64, and rounded half to even where asked."""

import re

import numpy as np
import pytest

from implicit_conv import (
    DTypeError,
    ShapeError,
    conv1d,
    conv2d,
    conv2d_input_grad,
    conv3d,
    plan_conv2d,
)

CONVOLUTIONS = {1: conv1d, 2: conv2d, 3: conv3d}


def problem(rank, dtype):
    rng = np.random.default_rng(rank)
    limits = np.iinfo(dtype)
    x = rng.integers(limits.min, limits.max, (2, 4, *(7 + rank, 9, 8)[:rank]), dtype, endpoint=True)
    w = (rng.standard_normal((6, 2, *(3, 2, 3)[:rank])) / 4).astype("f")
    return x, w, rng.standard_normal(6).astype("f")


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
@pytest.mark.parametrize("rank", CONVOLUTIONS)
@pytest.mark.parametrize("result", [None, "float32", "uint8", "int8", "uint16", "int16"])
def test_sums_are_those_of_floats(rank, dtype, result):
    x, w, bias = problem(rank, dtype)
    exact = CONVOLUTIONS[rank](x.astype("d"), w.astype("d"), bias.astype("d"), padding=1, groups=2)
    options = {"padding": 1, "groups": 2, "out_dtype": result}
    y = CONVOLUTIONS[rank](x, w, bias, **options)
    assert y.dtype == np.dtype(result or "float32")
    if y.dtype == np.float32:
        np.testing.assert_allclose(y, exact, 1e-5, 1e-5 * abs(exact).max())
        return
    limits = np.iinfo(y.dtype)
    # The sum of float32 may be on either side.
    halves = abs(abs(exact - np.rint(exact)) - 0.5) < max(1e-2, 5e-7 * abs(exact).max())
    expected = np.clip(np.rint(exact), limits.min, limits.max)
    assert ((y == expected) | (halves & (abs(y - expected) <= 1))).all()
    out = np.zeros_like(y)
    assert CONVOLUTIONS[rank](x, w, bias, out=out, **options) is out
    np.testing.assert_array_equal(out, y)


def test_halves_become_even_and_results_saturate():
    x = np.array([[1, 3, 5, 7, 200, 255]], np.uint8)
    y = conv1d(x, np.array([[[0.5]]], "f"), out_dtype="uint8")
    assert y.tolist() == [[0, 2, 2, 4, 100, 128]]
    assert conv1d(x, np.array([[[-2.0]]], "f"), out_dtype="int8").tolist() == [
        [-2, -6, -10, -14, -128, -128]
    ]


@pytest.mark.parametrize(
    ("x", "w", "options", "error", "words"),
    [
        ("u1", "f", {"out_dtype": "int32"}, DTypeError, "use one of float32, uint8"),
        ("u1", "f", {"out_dtype": "uint8", "out": "f"}, DTypeError, "out is float32"),
        ("u1", "f", {"out_dtype": "uint8", "out": "short"}, ShapeError, "out has shape"),
        ("u1", "f", {"out_dtype": "uint8", "out": [0]}, DTypeError, "must be a numpy array"),
        ("u1", "d", {}, DTypeError, "convert one"),
        ("i4", "f", {}, DTypeError, "not supported"),
        ("f", "u1", {}, DTypeError, "convert one"),
    ],
)
def test_errors(x, w, options, error, words):
    image, kernel = np.ones((1, 1, 5, 5), x), np.ones((1, 1, 3, 3), w)
    if options.get("out") == "f":
        options = {**options, "out": np.zeros((1, 1, 3, 3), "f")}
    elif options.get("out") == "short":
        options = {**options, "out": np.zeros((1, 1, 2, 3), "u1")}
    with pytest.raises(error, match=words):
        conv2d(image, kernel, **options)


def test_plans_take_one_kind_of_dtype():
    with pytest.raises(DTypeError, match="convert one"):
        plan_conv2d((1, 1, 5, 5), (1, 1, 3, 3), "uint8", w_dtype="float32")


@pytest.mark.parametrize(("x", "w"), [("bool", "f4"), ("int32", "f4"), ("uint16", "int64")])
def test_an_error_of_integers_says_which_a_filter_of_float32_takes(x, w):
    image, kernel = np.ones((1, 1, 5, 5), x), np.ones((1, 1, 3, 3), w)
    with pytest.raises(DTypeError) as caught:
        conv2d(image, kernel)
    assert re.search("filter of float32|a w of float32.* such as uint16", str(caught.value))
    y = conv2d(image.astype("uint16"), kernel.astype("float32"))
    np.testing.assert_array_equal(y, np.full((1, 1, 3, 3), 9, "f4"))


def test_errors_of_floats_and_of_gradients_do_not():
    x, w = np.ones((1, 1, 5, 5), "f2"), np.ones((1, 1, 3, 3), "f4")
    with pytest.raises(DTypeError, match=r"w\.astype\('float16'\)$"):
        conv2d(x, w)
    with pytest.raises(DTypeError, match=r"dy\.astype\('float64'\) and w\.astype\('float64'\)$"):
        conv2d_input_grad(x.astype("i4"), w, (1, 1, 7, 7))
