"""What filters do beyond scipy's: missing values as astropy treats them, channels, rounding."""

import numpy as np
import pytest

scipy = pytest.importorskip("scipy.ndimage", reason="pip install '.[ndimage]'")

from implicit_conv import ndimage  # noqa: E402
from implicit_conv.ndimage import calls  # noqa: E402
from implicit_conv.process.cache import IMAGES  # noqa: E402

BOUNDARIES = {"fill": "constant", "extend": "nearest", "wrap": "wrap"}  # astropy's, scipy's
OF_ALL_MISSING = pytest.mark.filterwarnings("ignore:nan_treatment='interpolate', however")
SHAPES = [((40,), (5,)), ((23, 31), (5, 3)), ((90, 80), (15, 15)), ((9, 10, 11), (3, 3, 5))]


def image(shape, share, dtype="d"):
    """An image with this share of NaNs, and a window of nothing else."""
    rng = np.random.default_rng(len(shape))
    x = rng.standard_normal(shape).astype(dtype) + 3
    x[rng.random(shape) < share] = np.nan
    x[tuple(slice(1, n // 3) for n in shape)] = np.nan
    return x


def reference(x, w, mode, cval, nan):
    """By the definition, in float64; correlation."""
    present = ~np.isnan(x)
    sums = scipy.correlate(np.where(present, x, 0).astype("d"), w, mode=mode, cval=cval)
    if nan == "ignore":
        return sums
    left = scipy.correlate(present.astype("d"), w, mode=mode, cval=1)
    any_left = scipy.maximum_filter(present, w.shape, mode=mode, cval=True)
    with np.errstate(all="ignore"):
        return np.where(any_left, sums / np.where(any_left, left, 1) * w.sum(), np.nan)


@pytest.mark.parametrize("nan", ["interpolate", "ignore"])
@pytest.mark.parametrize("mode", ["reflect", "mirror", "nearest", "wrap", "constant"])
@pytest.mark.parametrize(("shape", "size"), SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nans_are_left_out(shape, size, mode, nan, dtype):
    x = image(shape, 0.1, dtype)
    w = np.random.default_rng(1).random(size) + 0.1
    kept = x.copy()
    for precision in ("strict", "standard"):
        y = ndimage.correlate(x, w, mode=mode, cval=2.0, nan=nan, precision=precision)
        tolerance = 1e-12 if dtype == "float64" else 1e-4 if precision == "standard" else 1e-6
        np.testing.assert_allclose(y, reference(x, w, mode, 2.0, nan), tolerance)
        assert y.dtype == dtype
    np.testing.assert_array_equal(x, kept)


@pytest.mark.parametrize("nan", ["interpolate", "ignore"])
@pytest.mark.parametrize(
    "weights",
    [[1, 2, 3, 2, 1], [3, 1, 4, 1], [-1, -2, 5, 2, 1], [2.0]],
    ids=["symmetric", "plain", "antisymmetric", "one tap"],
)
def test_nans_along_an_axis(weights, nan):
    x, w = image((40, 70), 0.2), np.array(weights, float)
    for axis in (0, 1):
        y = ndimage.correlate1d(x, w, axis, nan=nan)
        expected = reference(x, np.expand_dims(w, 1 - axis), "reflect", 0, nan)
        known = np.isfinite(expected) & (abs(expected) < 1e6)  # what is left may cancel
        np.testing.assert_allclose(y[known], expected[known], 1e-7)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize(("shape", "size"), SHAPES)
@pytest.mark.parametrize("preserve", [False, True])
@pytest.mark.parametrize("treatment", ["interpolate", "fill"])
@pytest.mark.parametrize("normalize", [False, True])
@OF_ALL_MISSING
def test_results_are_those_of_astropy(shape, size, boundary, preserve, treatment, normalize):
    astropy = pytest.importorskip("astropy.convolution", reason="pip install astropy")
    x = image(shape, 0.1)
    w = np.random.default_rng(2).random(size) + 0.1
    expected = astropy.convolve(
        x,
        w,
        boundary=boundary,
        fill_value=0.0,
        nan_treatment=treatment,
        normalize_kernel=normalize,
        preserve_nan=preserve,
    )
    y = ndimage.convolve(
        x,
        w / w.sum() if normalize else w,
        mode=BOUNDARIES[boundary],
        nan={"interpolate": "interpolate", "fill": "ignore"}[treatment],
        preserve_nan=preserve,
    )
    np.testing.assert_allclose(y, expected, 1e-12)


@OF_ALL_MISSING
def test_the_gaussian_of_astropy():
    astropy = pytest.importorskip("astropy.convolution", reason="pip install astropy")
    x = image((50, 60), 0.1)
    kernel = astropy.Gaussian2DKernel(2, x_size=17, y_size=17)
    expected = astropy.convolve(x, kernel, boundary="extend")
    y = ndimage.gaussian_filter(x, 2, mode="nearest", nan="interpolate")
    np.testing.assert_allclose(y, expected, 1e-10)


@pytest.mark.parametrize("mode", ["reflect", "constant"])
@pytest.mark.parametrize("nan", ["interpolate", "ignore"])
def test_gaussian_filters_treat_the_image_as_one_window(mode, nan):
    """Normalised after all passes: not after each."""
    x = image((50, 60), 0.1)
    spike = np.zeros((17, 17))
    spike[8, 8] = 1
    w = scipy.gaussian_filter(spike, 2)
    y = ndimage.gaussian_filter(x, 2, mode=mode, cval=1.5, nan=nan)
    np.testing.assert_allclose(y, reference(x, w, mode, 1.5, nan), 1e-10)
    output = x.copy()
    ndimage.gaussian_filter(output, 2, mode=mode, cval=1.5, nan=nan, output=output)
    np.testing.assert_array_equal(output, y)


def test_missing_pixels_beyond_the_border():
    x = np.random.default_rng(3).random((40, 50))
    w = np.random.default_rng(4).random((5, 5))
    y = ndimage.correlate(x, w, mode="constant", cval=np.nan, nan="interpolate")
    sums, left = (scipy.correlate(a, w, mode="constant") for a in (x, np.ones_like(x)))
    np.testing.assert_allclose(y, sums / left * w.sum(), 1e-12)
    flat = ndimage.gaussian_filter(
        np.ones((40, 50)), 3, mode="constant", cval=np.nan, nan="interpolate"
    )
    np.testing.assert_allclose(flat, 1, 1e-12)


@pytest.mark.parametrize(
    ("name", "args", "options", "message"),
    [
        ("sobel", (), {}, "order=0"),
        ("gaussian_filter", (2, 1), {}, "order=0"),
        ("uniform_filter", (3,), {}, "correlate"),
        ("correlate", (np.array([[1.0, 0, -1]]),), {}, "is 0"),
        ("correlate", (np.ones((3, 3)),), {"output": np.int32}, "result is int32"),
        ("correlate", (np.ones((3, 3)),), {"channel_axis": 2}, "2 axes"),
        ("correlate", (np.ones((3, 3)),), {"rounding": "up"}, "nearest"),
        ("correlate", (np.ones((3, 3)),), {"nan": "skip"}, "interpolate"),
    ],
)
def test_what_is_not_served_says_so(name, args, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        getattr(ndimage, name)(np.ones((9, 9)), *args, **{"nan": "interpolate", **options})


@pytest.fixture(params=["at once", "never"])
def chains(request, monkeypatch):
    """Whether calls are chains from the first one on."""
    IMAGES.clear()
    monkeypatch.setattr(calls, "LARGE", 0)
    if request.param == "never":
        monkeypatch.setattr(calls, "_kept", lambda *arguments: False)


@pytest.mark.usefixtures("chains")
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "float64"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("correlate", (np.arange(6.0).reshape(2, 3),)),
        ("gaussian_filter", ([1.2, 0.7],)),
        ("sobel", (0,)),
        ("uniform_filter", (4,)),
        ("laplace", ()),
        ("generic_laplace", (scipy.sobel,)),
    ],
)
def test_channels_are_filtered_one_by_one(name, args, axis, dtype):
    x = np.moveaxis((np.random.default_rng(7).random((3, 50, 60)) * 9).astype(dtype), 0, axis)
    expected = [getattr(scipy, name)(plane, *args) for plane in np.moveaxis(x, axis, 0)]
    y = getattr(ndimage, name)(x, *args, channel_axis=axis)
    np.testing.assert_array_equal(y, np.stack(expected, axis))
    given = np.full_like(x, 1)
    assert getattr(ndimage, name)(x, *args, output=given, channel_axis=axis) is given
    np.testing.assert_array_equal(given, y)


@pytest.mark.usefixtures("chains")
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "int32"])
@pytest.mark.parametrize("precision", ["strict", "standard"])
def test_rounding_to_nearest_saturates(dtype, precision):
    limits = np.iinfo(dtype)
    x = np.random.default_rng(8).integers(limits.min, limits.max, (60, 70), dtype, endpoint=True)
    w = np.array([[-0.5, 0.25, 0.5], [1, 1.5, -0.25], [0, 0.5, -1]])
    exact = scipy.correlate(x.astype("d"), w)
    expected = np.clip(np.rint(exact), limits.min, limits.max)
    y = ndimage.correlate(x, w, rounding="nearest", precision=precision)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, expected)
    assert (y == limits.max).any()


@pytest.mark.usefixtures("chains")
def test_rounding_happens_once():
    x = np.random.default_rng(9).integers(0, 256, (60, 70), np.uint8)
    exact = scipy.gaussian_filter(x.astype("d"), 2)
    for options in ({}, {"output": np.zeros_like(x)}, {"output": np.uint8}):
        y = ndimage.gaussian_filter(x, 2, rounding="nearest", **options)
        np.testing.assert_array_equal(y, np.rint(exact))
    colours = np.stack([x, x, x], -1)
    y = ndimage.gaussian_filter(colours, 2, rounding="nearest", channel_axis=-1)
    np.testing.assert_array_equal(y[..., 1], np.rint(exact))
    np.testing.assert_array_equal(
        ndimage.gaussian_filter(x, 2, output="f4", rounding="nearest"),
        scipy.gaussian_filter(x, 2, output="f4"),
    )


@pytest.mark.parametrize("name", ["correlate", "convolve", "gaussian_filter"])
@pytest.mark.parametrize(("nan", "absent"), [("interpolate", np.nan), ("ignore", 0.0)])
def test_missing_values_of_an_image_without_axes(name, nan, absent):
    weights = 1.0 if name == "gaussian_filter" else np.float64(2)
    function = getattr(ndimage, name)
    whole = function(np.float64(3), weights)
    assert function(np.float64(3), weights, nan=nan) == whole
    np.testing.assert_equal(float(function(np.float64(np.nan), weights, nan=nan)), absent)
    kept = function(np.float64(np.nan), weights, nan=nan, preserve_nan=True)
    assert np.isnan(kept)
