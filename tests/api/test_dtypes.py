"""Dtypes that no function computes are refused by name, in every position."""

import re

import ml_dtypes
import numpy as np
import pytest

import implicit_conv as ic

X = np.ones((1, 2, 5, 5), np.float32)
W = np.ones((3, 2, 3, 3), np.float32)
Y_SHAPE = (1, 3, 3, 3)

NO_NUMBERS = {
    "float32 with fields": np.dtype((np.float32, {"low": (np.uint16, 0), "high": (np.uint16, 2)})),
    "float16 with fields": np.dtype((np.float16, {"all": (np.float16, 0)})),
    "bfloat16 with fields": np.dtype((ml_dtypes.bfloat16, {"all": (np.uint16, 0)})),
    "structure": np.dtype([("re", "f4"), ("im", "f4")]),
    "record": np.dtype((np.record, [("re", "f4")])),
    "raw bytes": np.dtype("V2"),  # what numpy.load makes of bfloat16
    "no bytes": np.dtype("V0"),
    "object": np.dtype(object),
    "text": np.dtype("U3"),
    "bytes": np.dtype("S3"),
    "datetime": np.dtype("M8[s]"),
    "timedelta": np.dtype("m8[s]"),
}
if hasattr(np.dtypes, "StringDType"):
    NO_NUMBERS["strings"] = np.dtypes.StringDType()
NUMBERS = {name: np.dtype(name) for name in ("longdouble", "clongdouble", "bool", "uint64")}
NUMBERS |= {name: np.dtype(getattr(ml_dtypes, name)) for name in ("float8_e4m3fn", "int4")}


def arrays_of(dtype):
    """Arguments of `conv2d`, by the name of the one that has this dtype."""
    yield "x", {"x": np.zeros(X.shape, dtype)}
    yield "w", {"w": np.zeros(W.shape, dtype)}
    yield "bias", {"bias": np.zeros(3, dtype)}
    yield "residual", {"residual": np.zeros(Y_SHAPE, dtype)}
    yield "out", {"out": np.zeros(Y_SHAPE, dtype)}


@pytest.mark.parametrize("dtype", NO_NUMBERS.values(), ids=NO_NUMBERS.keys())
def test_elements_that_are_no_numbers_are_refused_by_name(dtype):
    plan = ic.plan_conv2d(X.shape, W.shape)
    for name, changes in arrays_of(dtype):
        for call in (ic.conv2d, plan):
            with pytest.raises(ic.DTypeError, match=f"^{name} must be an array of numbers"):
                call(**{"x": X, "w": W} | changes)
    with pytest.raises(ic.DTypeError, match=r"^x must be an array of numbers"):
        ic.conv2d(np.zeros(X.shape, dtype), np.zeros(W.shape, dtype))
    with pytest.raises(ic.DTypeError, match=r"^w must be an array of numbers"):
        plan.pack(np.zeros(W.shape, dtype))
    with pytest.raises(ic.DTypeError, match=r"^x must be an array of numbers"):
        ic.im2col(np.zeros(X.shape, dtype), 3)
    with pytest.raises(ic.DTypeError, match=r"^cols must be an array of numbers"):
        ic.col2im(np.zeros((9, 18), dtype), X.shape, 3)


@pytest.mark.parametrize("name", ["float32 with fields", "float16 with fields", "structure"])
def test_plans_refuse_fields(name):
    with pytest.raises(ic.DTypeError, match=r"^dtype .* with fields is not supported"):
        ic.plan_conv2d(X.shape, W.shape, NO_NUMBERS[name])
    with pytest.raises(ic.DTypeError, match=r"^out_dtype .* with fields is not supported"):
        ic.plan_conv2d(X.shape, W.shape, out_dtype=NO_NUMBERS[name])
    with pytest.raises(ic.DTypeError, match=r"^dtype .* with fields is not supported"):
        ic.plan_conv2d(X.shape, W.shape, NO_NUMBERS[name], device="sm_90")


def test_a_view_without_fields_is_taken():
    fields = X.astype(X.dtype).view(NO_NUMBERS["float32 with fields"])
    with pytest.raises(ic.DTypeError) as caught:
        ic.conv2d(fields, W)
    view = eval(re.search(r"such as (x\.view\(.*?\))", str(caught.value)).group(1), {"x": fields})
    np.testing.assert_array_equal(ic.conv2d(view, W), ic.conv2d(X, W))


@pytest.mark.parametrize("dtype", NUMBERS.values(), ids=NUMBERS.keys())
def test_other_numbers_are_refused_by_convolutions_and_taken_by_im2col(dtype):
    x, w = X.astype(dtype), W.astype(dtype)
    with pytest.raises(ic.DTypeError, match=f"dtype {dtype.name} is not supported; .*convert"):
        ic.conv2d(x, w)
    with pytest.raises(ic.DTypeError, match=f"dtype {dtype.name} is not supported; .*convert"):
        ic.plan_conv2d(X.shape, W.shape, dtype)
    with pytest.raises(ic.DTypeError, match=f"out_dtype {dtype.name} is not supported"):
        ic.plan_conv2d(X.shape, W.shape, out_dtype=dtype)
    columns = ic.im2col(x, 3)
    assert columns.dtype == dtype and (columns == dtype.type(1)).all()
    assert ic.col2im(columns, X.shape, 3).dtype == dtype


def test_numpy_makes_an_axis_of_a_subarray():
    x = np.zeros(X.shape, np.dtype((np.float32, 2)))
    with pytest.raises(ic.ShapeError, match="x has 5 axes"):
        ic.conv2d(x, W)
    with pytest.raises(ic.DTypeError, match="dtype void64 is not supported"):
        ic.plan_conv2d(X.shape, W.shape, np.dtype((np.float32, 2)))
