"""sigmoid, silu, tanh and gelu of float32 vectors against float64, over every sign and exponent."""

import numpy as np
import pytest
from scipy import special

from implicit_conv.cpu.methods.im2col import FINISH
from implicit_conv.kernels.cpu.runtime.code import code
from implicit_conv.kernels.cpu.tile.storage import Format
from implicit_conv.kernels.cpu.tile.variants import UNSCALED, Finish
from implicit_conv.kernels.geometry import GELU, SIGMOID, SILU, TANH

ORACLES = {
    SIGMOID: special.expit,
    SILU: lambda x: x * special.expit(x),
    TANH: np.tanh,
    GELU: lambda x: x * special.erfc(-x * np.sqrt(0.5)) / 2,
}
BOUNDS = {SIGMOID: 2.5, SILU: 3, TANH: 2.5, GELU: 6.5}  # units in the last place
GELU_WITHOUT_FMA = 8
LIMITS = {SIGMOID: (0, 1), SILU: (0, np.inf), TANH: (-1, 1), GELU: (0, np.inf)}  # at -inf and inf
NAMES = {SIGMOID: "sigmoid", SILU: "silu", TANH: "tanh", GELU: "gelu"}
FORMATS = {dtype: Format(*[dtype] * 6) for dtype in ("float32", "float64")}
KINDS = pytest.mark.parametrize("kind", ORACLES, ids=NAMES.get)


def activate(kind, x, lanes=16, fma=True):
    """The activation of every element of `x`; an element after the last must not be written."""
    variant = Finish(kind, False, UNSCALED, FORMATS[x.dtype.name], lanes, fma)
    finish = FINISH(code(".tile.compiled.finish:make_finish", variant).address())
    y = np.full(x.size + 1, 7, x.dtype)
    finish(x.ctypes.data, 0, 0, 0, y.ctypes.data, 0, 1, x.size, 0, 0, 0, 0.0, 0.0)
    assert y[-1] == 7
    return y[:-1]


def every_exponent(mantissas):
    """`mantissas` random floats of each sign and exponent, with subnormals, and the extremes."""
    exponents = np.arange(255, dtype=np.uint32)[:, None] << 23
    rng = np.random.default_rng(0)
    inner = rng.integers(0, 1 << 23, (255, mantissas - 2), dtype=np.uint32)
    ends = np.broadcast_to(np.array([0, (1 << 23) - 1], np.uint32), (255, 2))
    sizes = (exponents | np.hstack([ends, inner])).reshape(-1)
    return np.concatenate([sizes, sizes | np.uint32(1 << 31)]).view(np.float32)


def units(y, expected):
    """Errors in units in the last place of `expected`, rounded to the dtype of `y`."""
    with np.errstate(under="ignore", over="ignore"):  # of the spacing of extreme floats
        unit = np.spacing(np.abs(expected).astype(y.dtype)).astype(np.float64)
    return np.abs(y.astype(np.float64) - expected) / unit


@KINDS
@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("fma", [True, False])
def test_error_in_units_in_the_last_place(kind, lanes, fma):
    """The bounds hold for subnormal results and tails too, which only a relative error shows."""
    near = np.random.default_rng(1).uniform(-130, 130, 200_000).astype(np.float32)
    x = np.concatenate([every_exponent(300), near, near / 16])
    with np.errstate(under="ignore"):
        expected = ORACLES[kind](x.astype(np.float64))
    bound = GELU_WITHOUT_FMA if kind == GELU and not fma else BOUNDS[kind]
    assert units(activate(kind, x, lanes, fma), expected).max() <= bound


@KINDS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_limits_and_nan(kind, dtype):
    """The limits hold for any count of elements, in whole vectors and after them."""
    extremes = np.array([-np.inf, np.inf, -1e30, 1e30, np.nan, -np.nan], dtype)
    low, high = LIMITS[kind]
    expected = np.array([low, high, low, min(high, extremes[3]), np.nan, np.nan], dtype)
    for count in (1, 5, 16, 37):
        y = activate(kind, np.repeat(extremes, count))
        np.testing.assert_array_equal(y, np.repeat(expected, count))


@KINDS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_zeros_keep_their_sign(kind, dtype):
    y = activate(kind, np.array([0.0, -0.0], dtype))
    np.testing.assert_array_equal(y, [0.5, 0.5] if kind == SIGMOID else [0, 0])
    if kind != SIGMOID:
        np.testing.assert_array_equal(np.signbit(y), [False, True])


@KINDS
def test_float64_is_that_of_libm(kind):
    x = np.random.default_rng(0).uniform(-30, 30, 10_001)
    bound = 8 + x * x if kind == GELU else 4  # erfc multiplies the rounding of its argument
    assert (units(activate(kind, x), ORACLES[kind](x)) <= bound).all()
