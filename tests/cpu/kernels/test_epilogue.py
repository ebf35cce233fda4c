"""Stores of every operator: residual, activation, and arrays with any strides."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from implicit_conv import clear_plan_cache, conv2d, plan_conv2d
from implicit_conv.arrays.arrays import numpy_dtype
from implicit_conv.cpu.methods.planar_gemm import PlanarGemm
from implicit_conv.kernels.cpu.tile.variants import CROWDED
from implicit_conv.testing import Case, from_nchw, to_nchw

SAME = ((1, 1), (1, 1))
WIDE = Case(N=2, C=20, K=27, size=(9, 21), padding=SAME)
PATHS = {
    "direct": (WIDE, {"algorithm": "implicit_gemm"}),
    "few filters": (replace(WIDE, K=3), {"algorithm": "implicit_gemm"}),
    "planar GEMM": (replace(WIDE, C=2), {"algorithm": "implicit_gemm"}),
    "grouped": (replace(WIDE, C=3, K=5, groups=3), {"algorithm": "implicit_gemm"}),
    "small groups": (replace(WIDE, C=4, K=4, groups=9), {"algorithm": "implicit_gemm"}),
    "pointwise": (replace(WIDE, kernel=(1, 1), padding=((0, 0), (0, 0))), {}),
    "F2": (WIDE, {"algorithm": "winograd_f2", "precision": "fast"}),
    "F4": (WIDE, {"algorithm": "winograd_f4", "precision": "fast"}),
    "F6": (WIDE, {"algorithm": "winograd_f6", "precision": "fast"}),
    "depthwise": (Case(N=2, groups=37, size=(9, 21), padding=SAME), {}),
    "gemm_im2col": (WIDE, {"algorithm": "gemm_im2col"}),
    "float64": (replace(WIDE, dtype="float64"), {}),
    "bfloat16": (replace(WIDE, dtype="bfloat16"), {}),
}
ERROR = {"F4": 2e-3, "F6": 1e-2}  # absolute error, for sums up to 300
ORDERS = ("nkpq", "npqk", "pqnk", "lone")  # in memory; "lone": every other element of an array
OUT_ORDERS = (*ORDERS, "crowded")  # filters share a set of L1


def in_memory(array, order):
    """A view with the elements of `array` (N, K, P, Q), in another order in memory."""
    if order == "crowded":
        wide = np.empty((*array.shape[:2], CROWDED // array.itemsize), array.dtype)
        view = wide[..., : math.prod(array.shape[2:])].reshape(array.shape)
    elif order == "lone":
        wide = np.empty((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        view = wide[..., ::2]
    else:
        axes = ["nkpq".index(axis) for axis in order]
        view = np.empty([array.shape[axis] for axis in axes], array.dtype)
        view = view.transpose(np.argsort(axes))
    view[...] = array
    return view


@pytest.fixture(params=[False, True], ids=["as weighed", "planar GEMM"])
def planar_gemm(request, force_method):
    """Lanes are pixels where the cost model chooses them, or wherever they are possible."""
    if request.param:
        force_method(PlanarGemm)
    clear_plan_cache()
    yield
    clear_plan_cache()


@pytest.mark.usefixtures("planar_gemm")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_arrays_may_have_any_strides(path, layout):
    """Integers are exact, except in F4 and F6, for every order in memory of y and residual."""
    case, choice = PATHS[path]
    case = replace(case, layout=layout)
    x, w = case.inputs(0, integers=True)
    sums = case.reference(x, w)
    arrays = case.arrange(x, w)
    for added in ((), ("bias", "leaky_relu"), ("residual",), ("bias", "residual", "leaky_relu")):
        activation, operands, expected = case.epilogue(sums, added)
        plan = plan_conv2d(
            *(a.shape for a in arrays),
            dtype=case.dtype,
            activation=activation,
            **choice,
            **case.options,
        )
        expected = case.rounded(expected)
        residual = operands.pop("residual", None)
        for order, residual_order in product(
            OUT_ORDERS, ORDERS if residual is not None else [None]
        ):
            if residual is not None:
                view = in_memory(to_nchw(residual, layout), residual_order)
                operands["residual"] = from_nchw(view, layout)
            nothing = np.full(expected.shape, np.nan, numpy_dtype(case.dtype))
            out = from_nchw(in_memory(nothing, order), layout)
            plan(*arrays, **operands, out=out)
            got = to_nchw(out, layout).astype(np.float64)
            error = np.abs(got - expected).max()
            assert error <= ERROR.get(path, 0), (added, order, residual_order)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("activation", "limits"),
    [
        ("silu", (0, np.inf)),
        ("gelu", (0, np.inf)),
        ("hardswish", (0, np.inf)),
        ("sigmoid", (0, 1)),
        ("tanh", (-1, 1)),
        ("relu6", (0, 6)),
        (("leaky_relu", 0.5), (-np.inf, np.inf)),
    ],
)
def test_activations_of_infinity_are_their_limits(activation, limits, layout):
    x = np.array([-np.inf, np.inf, np.nan, -np.inf], np.float32).reshape(1, 1, 1, 4)
    x, w = x.reshape(1, 1, 4, 1) if layout == "NHWC" else x, np.ones((1, 1, 1, 1), np.float32)
    y = conv2d(x, w, activation=activation, layout=layout).ravel()
    np.testing.assert_array_equal(y, [*limits, np.nan, limits[0]])
