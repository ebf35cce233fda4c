"""Bias, residual, activation and rounding of the epilogue, in both output layouts."""

import math

import numpy as np
import pytest

from implicit_conv.activation import parse_activation
from implicit_conv.gpu.families import FAMILIES
from implicit_conv.testing import Case, error_units, from_nchw, to_nchw
from implicit_conv.verify.simulate import simulate
from implicit_conv.verify.testing import loaded, plan_small, stored

EXACT = (None, "relu", "relu6", ("clamp", -3.0, 5.0), ("leaky_relu", 0.5))
SMOOTH = ("silu", "gelu", "sigmoid", "tanh", "hardswish")
CASE = Case(N=2, C=24, K=40, size=(5, 6), padding=((1, 1), (1, 1)))
# name, variant of the family: every producer's epilogue is the same, so two stores and two layouts
STORES = (
    ("fma", 0, "NHWC"),
    ("tma-mma", 0, "NHWC"),
    ("cp_async-mma", 0, "NHWC"),
    ("elements-mma", 0, "NCHW"),
)


def apply(name, x):
    """The activation by its definition, in float64."""
    if isinstance(name, tuple):
        if name[0] == "leaky_relu":
            return np.where(x < 0, name[1] * x, x)
        return np.clip(x, *name[1:])
    sigmoid = 1 / (1 + np.exp(-x))
    return {
        None: x,
        "relu": np.maximum(x, 0),
        "relu6": np.clip(x, 0, 6),
        "sigmoid": sigmoid,
        "silu": x * sigmoid,
        "tanh": np.tanh(x),
        "hardswish": x * np.clip(x + 3, 0, 6) / 6,
        "gelu": 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    }[name]


def run(family, number, layout, activation, integers):
    v = FAMILIES[family].variants[number]
    layouts = {"layout": layout, "weight_layout": "KRSC" if layout == "NHWC" else "KCRS"}
    case = Case(**{**CASE.__dict__, **layouts})
    plan = plan_small(case, FAMILIES[family], v, activation=parse_activation(activation))
    rng = np.random.default_rng(0)
    x, w = case.inputs(1, integers=integers)
    bias, residual = rng.integers(-4, 5, case.K), rng.integers(-4, 5, (2, case.K, 5, 6))
    if not integers:
        x, w = (loaded(stored(array, v.dtype), v.dtype) / 4 for array in (x, w))
    y = simulate(
        plan,
        *(stored(a, v.dtype) for a in case.arrange(x, w)),
        stored(bias, v.dtype),
        stored(np.ascontiguousarray(from_nchw(residual, layout)), v.dtype),
    )
    total = case.reference(x, w) + bias[:, None, None] + residual
    return to_nchw(loaded(y, v.dtype), layout), apply(activation, total), v.dtype


@pytest.mark.parametrize("activation", EXACT, ids=str)
@pytest.mark.parametrize(("family", "number", "layout"), STORES)
def test_exact_on_integers(family, number, layout, activation):
    y, expected, dtype = run(family, number, layout, activation, integers=True)
    np.testing.assert_array_equal(y, loaded(stored(expected, dtype), dtype))


@pytest.mark.parametrize("activation", SMOOTH)
def test_smooth_activations(activation):
    y, expected, _ = run("fma", 0, "NHWC", activation, integers=False)
    np.testing.assert_allclose(y, expected, rtol=2e-5, atol=2e-6)


def test_float32_meets_its_bound():
    """Products are not rounded to fewer bits than float32 has."""
    v = FAMILIES["fma"].variants[0]
    case = Case(**{**CASE.__dict__, "layout": "NHWC", "weight_layout": "KRSC"})
    x, w = case.inputs(2)
    y = simulate(plan_small(case, FAMILIES["fma"], v), *case.arrange(x, w))
    units = error_units(
        to_nchw(y, "NHWC"), case.reference(x, w), case.reference(x, w, magnitude=True), "float32"
    )
    assert units < 16


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_nan_and_infinity_reach_their_receptive_field_only(dtype):
    number = {"bfloat16": 0, "float16": 1}[dtype]
    v = FAMILIES["tma-w-mma"].variants[number]
    case = Case(**{**CASE.__dict__, "layout": "NHWC", "weight_layout": "KRSC"})
    x, w = case.inputs(3, integers=True)
    w[w == 0] = 1
    x[0, 0, 2, 3] = np.nan
    plan = plan_small(case, FAMILIES["tma-w-mma"], v)
    y = loaded(simulate(plan, *(stored(a, dtype) for a in case.arrange(x, w))), dtype)
    expected = np.zeros((2, 5, 6), bool)
    expected[0, 1:4, 2:5] = True
    np.testing.assert_array_equal(np.isnan(y), np.repeat(expected[..., None], case.K, axis=-1))
