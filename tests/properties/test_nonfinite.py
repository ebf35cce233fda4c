"""Where a NaN or an infinity of x or w shows: in the outputs that hold it, F4 and F6 aside."""

from dataclasses import replace

import numpy as np
import pytest

from implicit_conv import conv2d
from implicit_conv.cpu.methods.winograd import SMALL_FILTERS
from implicit_conv.testing import Case, to_nchw

DENSE = Case(N=2, C=3, K=33, size=(12, 30), padding=((1, 1), (1, 1)))
CASES = {
    "implicit_gemm": DENSE,
    "pointwise": replace(DENSE, kernel=(1, 1), padding=((0, 0), (0, 0))),
    "depthwise": replace(DENSE, C=1, K=1, groups=20),
    "winograd_f2": DENSE,
    "winograd_f2_stride2": replace(DENSE, stride=(2, 2)),
    "winograd_f4": DENSE,
    "winograd_f6": DENSE,
}
PRECISION = {"winograd_f4": "fast", "winograd_f6": "fast"}
AT = (1, 1, 5, 7)  # n, c, h, w of the pixel that is not finite


def compute(algorithm, x, w, layout):
    case = replace(CASES[algorithm], layout=layout)
    y = conv2d(
        *case.arrange(x, w),
        **case.options,
        algorithm=algorithm,
        precision=PRECISION.get(algorithm, "standard"),
    )
    return to_nchw(y, layout)


def without_zeros(case):
    x, w = case.inputs(0, integers=True)
    return x, np.where(w == 0, np.float32(1), w)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("algorithm", ["implicit_gemm", "pointwise", "depthwise"])
def test_direct_sums_are_those_of_the_definition(algorithm, value, layout):
    """A NaN is a NaN, an infinity an infinity of the right sign; all other outputs are exact."""
    x, w = without_zeros(CASES[algorithm])
    x[AT] = value
    with np.errstate(invalid="ignore"):
        expected = CASES[algorithm].reference(x, w)
    assert not np.isfinite(expected).all()
    np.testing.assert_array_equal(compute(algorithm, x, w, layout), expected)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("algorithm", "m"),
    [("winograd_f2", 1), ("winograd_f2_stride2", 1), ("winograd_f4", 4), ("winograd_f6", 6)],
)
def test_winograd_stays_in_the_receptive_field_or_in_its_tiles(algorithm, m, value, layout):
    """F2 transforms no pixel into an output that does not read it; F4 and F6 do, within a tile of
    4 x 4 or 6 x 6.

    An infinity may come out as a NaN: it meets itself with the other sign.
    """
    x, w = without_zeros(CASES[algorithm])
    finite = compute(algorithm, x, w, layout)
    x[AT] = value
    y = compute(algorithm, x, w, layout)
    n, _, h, column = AT
    stride, _ = CASES[algorithm].stride

    def readers(m):
        """Outputs in tiles of m x m that read the pixel; a tile reads m + 2 rows and columns."""
        found = np.zeros(y.shape, bool)
        p, q = (np.arange(size) // m * m * stride - 1 for size in y.shape[2:])
        rows, columns = (p <= h) & (h < p + m + 2), (q <= column) & (column < q + m + 2)
        found[n] = rows[:, None] & columns
        return found

    touched = ~np.isfinite(y)
    assert touched[readers(1)].all()
    allowed = readers(m)
    assert not touched[~allowed].any()
    np.testing.assert_array_equal(y[~allowed], finite[~allowed])


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("kernel", SMALL_FILTERS)
def test_f2_of_small_filters_stays_in_the_receptive_field(kernel, value):
    case = replace(DENSE, kernel=kernel)
    x, w = without_zeros(case)
    finite = conv2d(x, w, **case.options, algorithm="winograd_f2")
    x[AT] = value
    with np.errstate(invalid="ignore"):
        touched = ~np.isfinite(case.reference(x, w))
    y = conv2d(x, w, **case.options, algorithm="winograd_f2")
    np.testing.assert_array_equal(~np.isfinite(y), touched)
    np.testing.assert_array_equal(y[~touched], finite[~touched])


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("algorithm", CASES)
def test_a_filter_shows_in_its_own_outputs_alone(algorithm, value):
    x, w = without_zeros(CASES[algorithm])
    finite = compute(algorithm, x, w, "NCHW")
    w[4, 0, 0, 0] = value
    y = compute(algorithm, x, w, "NCHW")
    others = np.arange(y.shape[1]) != 4
    assert not np.isfinite(y[:, 4, 1:, 1:]).any()
    np.testing.assert_array_equal(y[:, others], finite[:, others])


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    "algorithm", ["implicit_gemm", "winograd_f2", "winograd_f4", "winograd_f6"]
)
def test_cropped_pixels_show_in_no_output(algorithm, layout):
    """A negative padding crops; a tile that runs over the end of the output reads zeros there."""
    case = replace(CASES[algorithm], padding=((-1, -1), (-1, -2)), layout=layout)
    x, w = without_zeros(case)
    cropped = np.full_like(x, np.inf)
    cropped[:, :, 1:-1, 1:-2] = x[:, :, 1:-1, 1:-2]
    options = {"algorithm": algorithm, "precision": PRECISION.get(algorithm, "standard")}
    y, expected = (conv2d(*case.arrange(a, w), **case.options, **options) for a in (cropped, x))
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("low", [0, 1])
@pytest.mark.parametrize("high", [0, -1])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("algorithm", ["implicit_gemm", "winograd_f2_stride2"])
def test_pixels_after_the_last_window_show_in_no_output(algorithm, layout, low, high):
    """Tiles of Winograd have two outputs along an axis: one of the last tile has no window here."""
    size = tuple(2 * out + 2 - low - high for out in (3, 7))
    case = replace(CASES[algorithm], size=size, stride=(2, 2), layout=layout)
    case = replace(case, padding=((low, high), (low, high)))
    assert case.output == (3, 7)
    x, w = without_zeros(case)
    spoiled = np.full_like(x, np.inf)
    spoiled[:, :, : 7 - low, : 15 - low] = x[:, :, : 7 - low, : 15 - low]
    y, expected = (
        conv2d(*case.arrange(a, w), **case.options, algorithm=algorithm) for a in (spoiled, x)
    )
    np.testing.assert_array_equal(y, expected)
