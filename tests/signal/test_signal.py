"""implicit_conv.signal has scipy.signal's results, up to rounding."""

import functools

import numpy as np
import pytest

scipy = pytest.importorskip("scipy.signal", reason="pip install '.[ndimage]'")

from implicit_conv import signal  # noqa: E402
from implicit_conv.signal import convolutions, filters  # noqa: E402
from implicit_conv.signal.choice import products_of  # noqa: E402
from implicit_conv.signal.operands import fits  # noqa: E402

SLOW = [pytest.param(dtype, marks=pytest.mark.slow) for dtype in ("float64", "complex64")]
DTYPES = ("float32", *SLOW, "complex128")
MODES = ("full", "same", "valid")


@pytest.fixture
def computed(monkeypatch):
    """The calls that are computed here."""
    calls = []

    def counted(function):
        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            calls.append(args)
            return function(*args, **kwargs)

        return wrapped

    first, second, third = convolutions.CONVOLUTIONS
    monkeypatch.setattr(filters, "conv1d", counted(filters.conv1d))
    monkeypatch.setattr(convolutions, "conv2d", counted(convolutions.conv2d))
    monkeypatch.setattr(convolutions, "CONVOLUTIONS", (counted(first), counted(second), third))
    monkeypatch.setattr(filters, "UPFIRDN", 1e6)
    monkeypatch.setattr(filters, "MOST_STEP", 99)
    return calls


def values(rng, shape, dtype):
    x = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def agree(found, expected, terms):
    """Sums of `terms` products of standard normal numbers."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    eps = np.finfo(expected.dtype).eps
    np.testing.assert_allclose(found, expected, 0, 16 * eps * max(4, terms))


@pytest.mark.parametrize("name", ["convolve", "correlate"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_convolutions_of_each_rank(name, mode, dtype, computed):
    for seed in range(12):
        rng = np.random.default_rng(seed)
        rank = 1 + seed % 3
        sizes = [np.sort(rng.integers(1, (40, 14, 7)[rank - 1], 2)) for _ in range(rank)]
        shapes = [tuple(int(pair[i]) for pair in sizes) for i in (1, 0)]
        if seed % 4 == 3:
            shapes.reverse()
        if seed % 5 == 4 and mode != "valid" and rank > 1:
            shapes[0], shapes[1] = (shapes[0][0], *shapes[1][1:]), (shapes[1][0], *shapes[0][1:])
        x, w = (values(rng, shape, dtype) for shape in shapes)
        expected = getattr(scipy, name)(x, w, mode, "direct")
        found = getattr(signal, name)(x, w, mode, ("direct", "auto")[seed % 2])
        agree(found, expected, min(x.size, w.size))
        if name == "convolve":
            agree(signal.fftconvolve(x, w, mode), expected, min(x.size, w.size))
            agree(signal.oaconvolve(x, w, mode), expected, min(x.size, w.size))
    assert len(computed) >= 8


@pytest.mark.parametrize("name", ["convolve2d", "correlate2d"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("boundary", ["fill", "wrap", "symm"])
@pytest.mark.parametrize("dtype", ["float32", *SLOW])
def test_convolutions_of_two_axes(name, mode, boundary, dtype, computed):
    for seed in range(10):
        rng = np.random.default_rng(seed)
        x = values(rng, rng.integers(1, 20, 2), dtype)
        w = values(rng, rng.integers(1, 8, 2), dtype)
        if mode == "valid" and not (fits(x, w) or fits(w, x)):
            continue
        expected = getattr(scipy, name)(x, w, mode, boundary)
        agree(getattr(signal, name)(x, w, mode, boundary), expected, w.size)
    assert len(computed) >= 4
    assert (
        getattr(signal, name)(x, w, "full", "fill", 3)
        == getattr(scipy, name)(x, w, "full", "fill", 3)
    ).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_filters_without_feedback(dtype, axis, computed):
    rng = np.random.default_rng(1)
    x = values(rng, (30, 4, 25), dtype)
    for taps in (1, 2, 9, 40):
        b = values(rng, taps, dtype)
        a = np.array([2], dtype)
        agree(signal.lfilter(b, a, x, axis), scipy.lfilter(b, a, x, axis), taps)
        shape = list(x.shape)
        shape[axis] = taps - 1
        zi = values(rng, shape, dtype)
        y, end = signal.lfilter(b, a, x, axis, zi)
        expected, last = scipy.lfilter(b, a, x, axis, zi)
        agree(y, expected, taps)
        agree(end, last, taps)
    assert len(computed) == 8
    feedback = [1.0, -0.5], [1.0, 0.25]
    np.testing.assert_array_equal(signal.lfilter(*feedback, x), scipy.lfilter(*feedback, x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("up", "down"), [(1, 1), (1, 3), (4, 1), (3, 2), (2, 7), (4, 6), (6, 6)])
def test_upsampling_and_downsampling(up, down, dtype, computed):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x = values(rng, (3, int(rng.integers(1, 40)), 2), dtype)
        h = values(rng, int(rng.integers(1, 30)), "float32" if dtype[-2:] in "3264" else dtype)
        expected = scipy.upfirdn(h, x, up, down, axis=1)
        agree(signal.upfirdn(h, x, up, down, axis=1), expected, h.size)
        agree(signal.upfirdn(h, x[0, :, 0], up, down), scipy.upfirdn(h, x[0, :, 0], up, down), 30)
    assert len(computed) >= 10
    np.testing.assert_array_equal(
        signal.upfirdn(h, x, up, down, 1, "symmetric"),
        scipy.upfirdn(h, x, up, down, 1, "symmetric"),
    )


@pytest.mark.parametrize("dtype", ["float32", *SLOW])
@pytest.mark.parametrize(("up", "down"), [(3, 2), (2, 5), (10, 9)])
@pytest.mark.parametrize("options", [{}, {"window": "hamming"}, {"padtype": "mean"}])
def test_resampling(up, down, dtype, options, computed):
    x = values(np.random.default_rng(2), (200, 3), dtype)
    expected = scipy.resample_poly(x, up, down, **options)
    agree(signal.resample_poly(x, up, down, **options), expected, 60)
    assert computed


SPREADING = [  # (function, shapes, the argument that is not finite, the other arguments)
    ("convolve", {"in1": 3, "in2": 6}, "in1", {"method": "direct"}),
    ("convolve", {"in1": 3, "in2": 6}, "in1", {}),
    ("convolve", {"in1": 6, "in2": 3}, "in2", {"mode": "same", "method": "direct"}),
    ("convolve", {"in1": 3, "in2": 6}, "in2", {"mode": "same", "method": "direct"}),
    ("convolve", {"in1": 3, "in2": 6}, "in1", {"mode": "valid", "method": "direct"}),
    ("convolve", {"in1": 60, "in2": 3}, "in1", {"method": "direct"}),
    ("convolve", {"in1": (4, 3), "in2": (5, 6)}, "in1", {"method": "direct"}),
    ("correlate", {"in1": 3, "in2": 6}, "in1", {"method": "direct"}),
    ("correlate", {"in1": 6, "in2": 3}, "in2", {"method": "direct"}),
    ("convolve2d", {"in1": (9, 8), "in2": (3, 2)}, "in2", {}),
    ("convolve2d", {"in1": (9, 8), "in2": (3, 2)}, "in2", {"boundary": "wrap"}),
    ("correlate2d", {"in1": (9, 8), "in2": (3, 2)}, "in2", {"mode": "same"}),
    ("lfilter", {"b": 25, "x": 40}, "b", {"a": [1.0]}),
    ("lfilter", {"b": 25, "x": (40, 3)}, "x", {"a": [1.0], "axis": 0}),
    ("upfirdn", {"h": 31, "x": 170}, "h", {"up": 5, "down": 4}),
    ("upfirdn", {"h": 31, "x": 170}, "x", {"up": 5, "down": 4}),
]


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(("name", "shapes", "place", "options"), SPREADING)
def test_what_is_not_finite_shows_where_it_does_in_scipy(
    name, shapes, place, options, value, computed
):
    """Padding is no sample, whichever operand is the filter."""
    rng = np.random.default_rng(0)
    arrays = {key: rng.standard_normal(shape) for key, shape in shapes.items()}
    for at in range(arrays[place].size):
        given = {key: array.copy() for key, array in arrays.items()}
        given[place].flat[at] = value
        found = getattr(signal, name)(**given, **options)
        exact = {"method": "direct"} if name in ("convolve", "correlate") else {}
        with np.errstate(invalid="ignore"):
            expected = getattr(scipy, name)(**given, **{**options, **exact})
        np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))
        np.testing.assert_allclose(found, expected, 1e-9, 1e-9)


@pytest.mark.parametrize("name", ["fftconvolve", "oaconvolve"])
def test_what_is_not_finite_shows_no_wider_than_in_ffts(name, computed):
    for sizes, place in (((3, 6), 0), ((6, 3), 1)):
        operands = [np.ones(size) for size in sizes]
        operands[place][1] = np.nan
        found, expected = getattr(signal, name)(*operands), getattr(scipy, name)(*operands)
        assert (np.isnan(found) <= np.isnan(expected)).all()


@pytest.mark.parametrize("name", ["convolve", "correlate"])
def test_scipy_chooses_the_method_of_what_is_left_to_it(name):
    """Its FFT does not read the planes that "same" cuts off, and its direct sum pads them."""
    x, w = np.ones((1, 5, 8)), np.ones((5, 9, 7))
    w[0, 0, 0] = np.inf
    assert signal.choose_conv_method(x, w, "same") == "direct"
    with np.errstate(invalid="ignore"):
        found, expected = (getattr(of, name)(x, w, "same") for of in (signal, scipy))
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(found, expected)


def test_the_choice_says_why():
    short = signal.choose_conv_method(np.ones(100000), np.ones(63))
    long = signal.choose_conv_method(np.ones(100000), np.ones(50000))
    assert (short, long) == ("direct", "fft")
    assert "6300000 products of float64" in short.reason
    assert "FFT of 149999 elements" in long.reason
    assert signal.choose_conv_method(np.ones(9, int), np.ones(3, int)) == "direct"
    method, times = signal.choose_conv_method(np.ones(9), np.ones(3), measure=True)
    assert method in times


def test_large_taps_are_convolved_without_a_warning(computed):
    """Their squares overflow, and so do those of small ones."""
    for tap in (1e200, 1e-200):
        with np.errstate(all="raise"):
            assert (signal.convolve(np.ones(9), np.full(3, tap), "valid") == 3 * tap).all()
            assert signal.convolve(np.ones(9), np.full(3, tap))[2] == 3 * tap
    assert len(computed) == 4


@pytest.mark.parametrize("dtype", [">f8", ">f4", ">c16"])
def test_arrays_of_the_other_byte_order(dtype, computed):
    x, w = (values(np.random.default_rng(0), size, dtype) for size in (30, 5))
    for _ in range(2):
        agree(signal.convolve(x, w), scipy.convolve(x, w, method="direct"), 5)
    assert len(computed) == 2


def test_products_are_those_of_the_mode():
    """Convolutions of ones count them."""
    for n in range(1, 9):
        for m in range(1, 9):
            for mode in MODES:
                counted = scipy.convolve(np.ones(n), np.ones(m), mode, "direct").sum()
                assert products_of((n,), (m,), mode) == counted, (n, m, mode)
    x, w = np.ones((5, 4, 6)), np.ones((3, 2, 6))
    for mode in MODES:
        counted = scipy.convolve(x, w, mode, "direct").sum()
        assert products_of(x.shape, w.shape, mode) == counted


def test_few_results_are_summed_however_long_the_filter():
    """An FFT would compute all results of "full", and cut off all but a few."""
    for size in ((4096,), (100_000,), (300, 300), (20, 20, 20)):
        x = np.broadcast_to(np.float32(1), size)
        assert signal.choose_conv_method(x, x, "valid") == "direct"
        assert signal.choose_conv_method(x, x[..., 2:], "valid") == "direct"
        assert signal.choose_conv_method(x, x) == scipy.choose_conv_method(x, x)


@pytest.mark.parametrize("mode", MODES)
def test_direct_wherever_scipy_sums(mode):
    """On a grid of sizes, whichever operand is longer."""
    sizes = [*(2**n for n in range(0, 18, 2)), 400, 1000, 1500, 2200, 3000, 5000]
    shapes = [((n,), (m,)) for n in sizes for m in sizes]
    shapes += [((n, 40), (m, 40)) for n in (5, 60, 700) for m in (1, 5, 30, 60, 700)]
    shapes += [((n, 9, 40), (m, 9, 7)) for n in (3, 50) for m in (1, 9, 50)]
    seen = set()
    for dtype in ("float32", "complex128"):
        for shape in shapes:
            x, w = (np.broadcast_to(np.zeros((), dtype), size) for size in shape)
            ours, own = (of.choose_conv_method(x, w, mode) for of in (signal, scipy))
            seen.add((str(ours), own))
            assert ours == "direct" or own == "fft", shape
    assert ("direct", "direct") in seen and ("direct", "fft") in seen


def test_accuracy_and_what_is_not_finite_as_in_scipy(computed):
    """Sizes that scipy sums, though an FFT would take less time by the tables."""
    x, taps = np.random.default_rng(0).standard_normal(10_000), np.hanning(511)
    x[3_000] = np.nan
    for name in ("convolve", "correlate"):
        found, expected = (getattr(of, name)(x, taps, "same") for of in (signal, scipy))
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    p = np.exp(-0.5 * ((np.arange(1_000) - 300.0) / 9.0) ** 2)
    np.testing.assert_allclose(signal.convolve(p, p), np.convolve(p, p), 1e-12, 1e-300)
    assert len(computed) == 3
    reason = signal.choose_conv_method(x, taps).reason
    assert "scipy sums such arrays directly" in reason


def test_what_scipy_upsamples_faster_is_left_to_it(computed, monkeypatch):
    monkeypatch.setattr(filters, "UPFIRDN", 0.5)
    monkeypatch.setattr(filters, "MOST_STEP", 2)
    x, h = np.ones(3000), np.ones(63)
    for up, down in [(160, 147), (1, 4)]:
        np.testing.assert_array_equal(signal.upfirdn(h, x, up, down), scipy.upfirdn(h, x, up, down))
    assert not computed
    signal.upfirdn(h, np.ones(50000), 3, 2)
    assert computed


def test_long_filters_are_left_to_the_fft(computed):
    x, w = np.ones(30000), np.ones(20000)
    for name in ("convolve", "fftconvolve", "oaconvolve"):
        np.testing.assert_array_equal(getattr(signal, name)(x, w), getattr(scipy, name)(x, w))
    assert not computed


@pytest.mark.parametrize("name", ["convolve", "correlate", "fftconvolve", "oaconvolve"])
def test_integers_are_left_to_scipy(name, computed):
    x, w = np.arange(50, dtype=np.int8), np.arange(9, dtype=np.int8)
    found, expected = getattr(signal, name)(x, w), getattr(scipy, name)(x, w)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    assert not computed


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("convolve", (np.ones(3), np.ones((3, 3)))),
        ("convolve", (np.ones(3), np.ones(3), "some")),
        ("convolve", (np.ones(3), np.ones(3), "full", "quick")),
        ("correlate", (np.ones((3, 5)), np.ones((5, 3)), "valid")),
        ("convolve2d", (np.ones(3), np.ones(3))),
        ("convolve2d", (np.ones((3, 3)), np.ones((3, 3)), "full", "edge")),
        ("lfilter", ([1.0, 2], [1.0], np.ones(3), -1, np.ones(5))),
        ("lfilter", ([], [1.0], np.ones(3))),
        ("lfilter", ([], [1.0], np.ones(3), -1, np.ones(0))),
        ("upfirdn", (np.ones(3), np.ones(3), 0)),
        ("resample_poly", (np.ones(3), 0, 1)),
    ],
)
def test_errors_are_those_of_scipy(name, args):
    with pytest.raises((ValueError, TypeError)) as expected:
        getattr(scipy, name)(*args)
    with pytest.raises(expected.type) as found:
        getattr(signal, name)(*args)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("masked", range(4))
def test_masked_arrays_are_filtered_as_scipy_filters_them(masked):
    """lfilter is scipy's own, which divides masked taps."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(size) for size in (4, 1, 200, 3)]
    arrays[masked] = np.ma.masked_array(arrays[masked], arrays[masked] < 0)
    b, a, x, zi = arrays
    found, expected = (door.lfilter(b, a, x, zi=zi) for door in (signal, scipy))
    for own, theirs in zip(found, expected, strict=True):
        assert type(own) is type(theirs)
        np.testing.assert_allclose(np.asarray(own), np.asarray(theirs), 0, 1e-12)
    for name in ("convolve", "correlate"):
        own, theirs = (getattr(door, name)(x, b) for door in (signal, scipy))
        assert type(own) is type(theirs)
        np.testing.assert_allclose(own, theirs, 0, 1e-12)
