"""implicit_conv.ndimage has the bits of scipy.ndimage's results, for drawn images and filters."""

import contextlib
import platform
from dataclasses import dataclass

import numpy as np
import pytest

scipy = pytest.importorskip("scipy.ndimage", reason="pip install '.[ndimage]'")

import implicit_conv  # noqa: E402
from implicit_conv import ndimage  # noqa: E402
from implicit_conv.cpu.engines import image_filters, image_passes  # noqa: E402
from implicit_conv.ndimage import filters, worth  # noqa: E402
from implicit_conv.ndimage.entries import Entries  # noqa: E402
from implicit_conv.ndimage.originals import COMPILED  # noqa: E402
from implicit_conv.process.cache import IMAGES  # noqa: E402

MODES = ("reflect", "mirror", "nearest", "wrap", "constant", "grid-wrap", "grid-constant")
INPUTS = (*"?bBhHiIlLfd", ">f4", ">i2", ">u4", ">u8")
OUTPUTS = INPUTS[1:]
DRAWS = 120


CUTS = {  # how images are cut: as usual, and into many tiles of a few rows
    "usual": {},
    "small": {"PITCH_BYTES": 64, "BATCH_BYTES": 1, "LEAST_BATCH": 1},
}
PAYS = worth.pays


@pytest.fixture(autouse=True)
def served(monkeypatch):
    """Small images are filtered here too; a list of how many steps were, for each call."""
    computed, run = [], filters.Chain.run

    def counted(chain, *arrays):
        run(chain, *arrays)
        computed.append(chain.steps)

    monkeypatch.setattr(filters.Chain, "run", counted)
    monkeypatch.setattr(worth, "pays", lambda *args: True)
    return computed


@pytest.fixture(params=CUTS)
def cut(request, monkeypatch):
    """Each way to cut images, with two threads."""
    IMAGES.clear()
    for name, value in CUTS[request.param].items():
        monkeypatch.setattr(image_passes, name, value)
    monkeypatch.setattr(image_filters, "PRODUCTS_PER_THREAD", 1)
    with implicit_conv.config(num_threads=2):
        yield
    IMAGES.clear()


def check(name, *args, output=None, **options):
    """Compare a filter with scipy's; each writes to an array of its own if it is given one."""
    results = []
    for module in (scipy, ndimage):
        given = output.copy() if isinstance(output, np.ndarray) else output
        results.append(getattr(module, name)(*args, output=given, **options))
    expected, found = results
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@dataclass
class Draw:
    """Drawn arguments."""

    rng: np.random.Generator

    def pick(self, values):
        return values[self.rng.integers(len(values))]

    def image(self):
        """Contiguous or not, with any dtype and extents, one pixel wide at least."""
        rank = self.pick((1, 2, 2, 3, 4))
        longest = {1: 300, 2: 40, 3: 14, 4: 7}[rank]
        shape = self.rng.integers(1, longest, rank)
        values = self.rng.standard_normal(shape) * 60
        dtype = np.dtype(self.pick(INPUTS))
        values = (values if dtype.kind in "fi" else abs(values)).astype(dtype)
        way = self.pick(("plain", "reversed", "transposed", "strided"))
        if way == "strided":
            wide = np.repeat(values, 2, axis=-1)
            return wide[..., ::2]
        return {"plain": values, "reversed": values[::-1, ...], "transposed": values.T}[way]

    def weights(self, shape):
        values = self.rng.standard_normal(shape)
        if values.ndim == 1:
            values = self.pick((values, values + values[::-1], values - values[::-1]))
        return self.pick((values, np.rint(values) + 1, values))

    def origin(self, size):
        return int(self.rng.integers(-(size // 2), (size - 1) // 2 + 1))

    def border(self):
        mode = self.pick(MODES)
        return {"mode": mode, "cval": self.pick((0.0, 1.5, -3))}

    def output(self, x):
        dtype = self.pick(OUTPUTS)
        whole = np.full([2 * size for size in x.shape], 7, dtype)
        return self.pick((None, np.dtype(dtype), whole[(slice(None, None, 2),) * x.ndim]))


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("name", ["correlate", "convolve"])
def test_correlations_of_all_axes(name, served):
    for seed in range(DRAWS):
        draw = Draw(np.random.default_rng(seed))
        x = draw.image()
        shape = draw.rng.integers(1, 6, x.ndim)
        options = {"origin": [draw.origin(size) for size in shape], **draw.border()}
        if name == "convolve":
            options["origin"] = 0
        check(name, x, draw.weights(shape), output=draw.output(x), **options)
    assert sum(served) > 0.9 * DRAWS


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("name", ["correlate1d", "convolve1d", "uniform_filter1d"])
def test_filters_of_an_axis(name, served):
    for seed in range(DRAWS):
        draw = Draw(np.random.default_rng(seed))
        x = draw.image()
        axis, size = draw.rng.integers(x.ndim), int(draw.rng.integers(1, 16))
        window = size if name == "uniform_filter1d" else draw.weights(size)
        options = {"axis": int(axis), "origin": draw.origin(size), **draw.border()}
        if name == "convolve1d":
            options["origin"] = 0
        check(name, x, window, output=draw.output(x), **options)
    # Results of bool are left to scipy, and so are running sums of floats.
    assert sum(served) > (0.4 if name == "uniform_filter1d" else 0.9) * DRAWS


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
@pytest.mark.parametrize("mode", MODES)
def test_filters_in_their_own_array(dtype, mode):
    """scipy's filters of several axes write each axis over the one before."""
    for seed in range(10):
        draw = Draw(np.random.default_rng(seed))
        x = (draw.rng.random(draw.rng.integers(1, 30, 3)) * 99).astype(dtype)
        for size in (1, 4, 7):
            a, b = x.copy(), x.copy()
            for axis in range(3):
                args = draw.weights(size), axis
                scipy.correlate1d(a, *args, a, mode)
                ndimage.correlate1d(b, *args, b, mode)
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("size", [1, 4, 7])
def test_an_output_that_overlaps_with_the_image(size):
    x = np.random.default_rng(size).random((20, 30))
    weights = np.arange(1.0, size + 1)
    expected = scipy.correlate1d(x[1:].copy(), weights, 0)
    ndimage.correlate1d(x[1:], weights, 0, x[:-1])
    np.testing.assert_array_equal(x[:-1], expected)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("gaussian_filter", (1.7,)),
        ("gaussian_filter", ([0.5, 3], (1, 0))),
        ("gaussian_filter1d", (2, 0, 2)),
        ("gaussian_laplace", (1.5,)),
        ("gaussian_gradient_magnitude", ([2, 1],)),
        ("uniform_filter", ([4, 7],)),
        ("sobel", (0,)),
        ("prewitt", (1,)),
        ("laplace", ()),
        ("generic_laplace", (ndimage.sobel,)),
        ("generic_gradient_magnitude", (ndimage.prewitt,)),
    ],
)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "float32", "float64"])
@pytest.mark.parametrize("mode", [*MODES, ("wrap", "mirror")])
def test_filters_of_several_axes(name, args, dtype, mode, served):
    if isinstance(mode, tuple) and name == "gaussian_filter1d":
        mode = "grid-mirror"
    x = (np.random.default_rng(1).random((33, 70)) * 250).astype(dtype)
    check(name, x, *args, mode=mode)
    assert served or (name == "uniform_filter" and "float" in dtype)


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"),
    reason="C leaves it undefined, and compilers for other CPUs than x86-64 saturate",
)
@pytest.mark.parametrize("dtype", [dtype for dtype in OUTPUTS if dtype not in "fd>f4"])
@pytest.mark.parametrize(
    ("name", "args"),
    [("correlate", (np.ones((3, 3)),)), ("correlate1d", ([1, 2, 1],)), ("uniform_filter", (3,))],
)
def test_numbers_beyond_an_integers_range_and_nan(name, args, dtype):
    """Each in an image of its own: several passes sum what the first one has made of them."""
    for value in (np.nan, np.inf, -np.inf, 3e9, -3e9, 300, -1, -7e4, 2.0**33 + 5, 1e19, -1e19):
        if value < -(2.0**63) and np.dtype(dtype).char == "L":
            continue  # scipy's correlate and correlate1d differ
        x = np.zeros((40, 50))
        x[10:20, 30] = value
        check(name, x, *args, output=np.dtype(dtype))


def test_a_uniform_image_stays_so_where_it_does_in_scipy():
    """The order of a sum decides whether 99.99999 or 100 is truncated."""
    for value in range(0, 256, 5):
        x = np.full((40, 60), value, np.uint8)
        check("gaussian_filter", x, 1 + value / 50)
        check("uniform_filter", x, 7)


@pytest.mark.parametrize(
    ("error", "name", "args", "options"),
    [
        (RuntimeError, "correlate", (np.ones(3),), {}),
        (RuntimeError, "correlate1d", (np.ones((3, 3)),), {}),
        (RuntimeError, "correlate1d", (np.ones(3),), {"mode": "edge"}),
        (ValueError, "correlate1d", (np.ones(3),), {"origin": 2}),
        (ValueError, "gaussian_filter", (1,), {"radius": -1}),
        (RuntimeError, "uniform_filter1d", (0,), {}),
        (RuntimeError, "correlate1d", (np.ones(3),), {"output": np.ones(3)}),
        (ValueError, "gaussian_filter", (1,), {"precision": "half"}),
    ],
)
def test_errors_are_those_of_scipy(error, name, args, options):
    with pytest.raises(error) as found:
        getattr(ndimage, name)(np.ones((9, 9)), *args, **options)
    if "precision" not in options:
        with pytest.raises(error, match=str(found.value).partition("(")[0]):
            getattr(scipy, name)(np.ones((9, 9)), *args, **options)


@pytest.mark.parametrize("dtype", ["float16", "longdouble", "complex64"])
def test_dtypes_that_are_left_to_scipy(dtype):
    x = np.ones((9, 9)).astype(dtype)
    if dtype == "complex64":
        check("gaussian_filter1d", x, 2)
        return
    with pytest.raises(RuntimeError, match="not supported"):
        ndimage.gaussian_filter1d(x, 2)


@pytest.mark.parametrize("precision", ["standard", "fast"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("shape", "size"),
    [((90,), (5,)), ((30, 41), (4, 7)), ((30, 41, 3), (5, 3, 1)), ((9, 8, 9, 7), (3, 1, 2, 1))],
)
def test_faster_precisions_sum_in_float32(shape, size, precision, mode):
    """The bound of docs/how-to/images.md, for images of float32 with colours or without."""
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal(shape).astype("f"), rng.standard_normal(size)
    options = {"mode": mode, "cval": 0, "origin": [-(n // 2) for n in size]}
    y = ndimage.correlate(x, w, precision=precision, **options)
    exact = scipy.correlate(x.astype("d"), w, **options)
    bound = scipy.correlate(abs(x).astype("d"), abs(w), **options)
    assert (abs(y - exact) <= (w.size + 2) * 2.0**-24 * bound).all()
    assert y.dtype == np.float32
    assert (y != scipy.correlate(x, w, **options)).any()


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "uint16"])
def test_faster_precisions_of_small_integers_differ_by_one_at_most(dtype):
    x = (np.random.default_rng(5).random((64, 90)) * 60000).astype(dtype)
    for output in (x.dtype, np.float32) if dtype != "bool" else (np.float32,):
        y = ndimage.gaussian_filter(x, 1.3, output=output, precision="standard")
        expected = scipy.gaussian_filter(x, 1.3, output=output)
        assert y.dtype == output
        assert (abs(y.astype("d") - expected) <= (0.05 if output == np.float32 else 1)).all()


def test_wider_numbers_are_summed_in_float64_with_any_precision():
    x = np.random.default_rng(6).integers(0, 2**31, (64, 90))
    for values, output in ((x, np.float32), (x.astype("d"), "d"), (x.astype("u2"), "i4")):
        y = ndimage.gaussian_filter1d(values, 2, output=output, precision="fast")
        expected = scipy.gaussian_filter1d(values, 2, output=output).astype("d")
        ulp = 2.0**-22 if output == np.float32 else 2.0**-50  # a product may be added unrounded
        assert (abs(y - expected) <= (1 if output == "i4" else ulp * abs(expected))).all()


@pytest.mark.parametrize("name", ["correlate", "correlate1d", "uniform_filter1d"])
def test_other_functions_of_scipys_module_are_its_own(name):
    entries = Entries("strict")
    assert entries.min_or_max_filter is COMPILED.min_or_max_filter
    assert getattr(entries, name) is not getattr(COMPILED, name)


def test_a_plane_one_byte_before_the_first_one():
    """Its offset is -1."""
    x = np.random.default_rng(7).integers(0, 250, (8, 5, 6, 1), np.uint8)
    for axis in (3, 3, 2, 2):  # the second call is a chain
        check("prewitt", x[:, :, ::-1], axis, cval=300.0)


@pytest.mark.parametrize("precision", ["strict", "standard"])
def test_calls_that_come_again_are_chains(precision, served):
    """The first call of a small size may be scipy's own code, on our functions of its C."""
    x = np.random.default_rng(8).random((40, 50)).astype("f")
    results = [ndimage.gaussian_filter(x, 1.5, precision=precision) for _ in range(3)]
    assert served[-2:] == [2, 2]
    assert (results[0] == results[1]).all() and (results[1] == results[2]).all()
    assert abs(results[0] - scipy.gaussian_filter(x, 1.5)).max() < 1e-6


def test_arguments_that_are_alike_are_told_apart():
    """Of one shape: types, signs of zero, orders of axes, contents of weights, and outputs."""
    x = np.random.default_rng(9).random((50, 60)).astype("f")
    calls = [
        ("gaussian_filter", (1,), {}),
        ("gaussian_filter", (1.0,), {"order": 1}),
        ("gaussian_filter", ((1, 2),), {}),
        ("gaussian_filter", ((2, 1),), {}),
        ("gaussian_filter", (1,), {"mode": "constant", "cval": -0.0}),
        ("gaussian_filter", (1,), {"mode": "constant", "cval": 2}),
        ("gaussian_filter", (1,), {"output": "d"}),
        ("gaussian_filter", (1,), {"output": np.uint8}),
        ("correlate1d", ([1, 2, 3],), {}),
        ("correlate1d", ([3, 2, 1],), {}),
        ("correlate1d", (np.array([1, 2, 3]),), {"axis": 0}),
        ("correlate1d", (np.array([1, 2, 3], "b"),), {"axis": 0, "origin": 1}),
    ]
    for _ in range(3):
        for name, args, options in calls:
            check(name, x, *args, **options)


@pytest.mark.parametrize("door", ["ndimage", "patched scipy"])
def test_a_memory_mapped_image_is_an_array(door, served, tmp_path):
    """tifffile.memmap gives these. scipy's result is an array, or the output that it was given."""

    def mapped(name, values):
        image = np.memmap(tmp_path / name, values.dtype, "w+", shape=values.shape)
        image[...] = values
        return image

    values = np.random.default_rng(11).integers(0, 4000, (270, 260)).astype(np.uint16)
    x, out = mapped("x", values), mapped("out", np.zeros_like(values))
    for name, args in (("sobel", (0,)), ("gaussian_filter", (1.5,)), ("uniform_filter", (9,))):
        expected = getattr(scipy, name)(values, *args)
        with ndimage.patch() if door != "ndimage" else contextlib.nullcontext():
            own = getattr(scipy if door != "ndimage" else ndimage, name)
            served.clear()
            y = own(x, *args)
            assert own(values, *args, output=out) is out
            assert own(x, *args, output=out) is out
            assert len(served) == 3, "three chains"
        assert type(y) is type(expected) is np.ndarray
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(out, expected)
    channels = ndimage.sobel(mapped("rgb", np.stack([values] * 2, -1)), 0, channel_axis=-1)
    np.testing.assert_array_equal(channels[..., 1], scipy.sobel(values, 0))
    np.testing.assert_array_equal(np.asarray(x), values)


def test_an_argument_that_is_given_twice_is_scipys_error():
    x = np.ones((9, 9))
    for _ in range(3):
        with pytest.raises(TypeError, match="sigma"):
            ndimage.gaussian_filter(x, 1, sigma=2)


def test_many_short_rows_are_left_to_scipy(served):
    """Tables of where they begin would be as large as the image."""
    x = np.random.default_rng(10).random((200_000, 3)).astype("f")
    for _ in range(2):
        check("correlate1d", x, [1, 2, 3], 1)
    assert not served
    check("correlate1d", x, [1, 2, 3], 0)
    assert served


@pytest.mark.parametrize(
    ("name", "args", "options"),
    [
        ("gaussian_filter", (1.0,), {}),
        ("correlate", (np.ma.masked_less(np.arange(9.0).reshape(3, 3), 5),), {}),
        ("maximum_filter", (5,), {}),
        ("uniform_filter", (5,), {"channel_axis": -1}),
        ("gaussian_filter", (1.0,), {"rounding": "nearest"}),
    ],
)
def test_masks_are_ignored_as_scipy_ignores_them(name, args, options):
    """No mask of an image, of weights or of an output has an effect, and none is changed."""
    x = np.random.default_rng(12).integers(0, 200, (150, 160)).astype(np.uint8)
    expected = getattr(ndimage, name)(x, *args, **options)
    if not options:
        np.testing.assert_array_equal(expected, getattr(scipy, name)(x, *args))
    mask = x > 100
    for _ in range(3):
        out = np.ma.masked_array(np.zeros_like(x), mask)
        y = getattr(ndimage, name)(np.ma.masked_array(x, mask), *args, **options, output=out)
        assert type(y) is np.ndarray
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(out.data, expected)
        np.testing.assert_array_equal(out.mask, mask)
