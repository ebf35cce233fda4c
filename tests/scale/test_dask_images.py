"""Filters of dask images have scipy's numbers, at chunks of a file and of an array in memory."""

import numpy as np
import pytest

pytest.importorskip("dask.array", reason="dask is not installed: pip install -e '.[dask]'")
scipy_images = pytest.importorskip("scipy.ndimage", reason="scipy is not installed")

import dask.array as da  # noqa: E402

import implicit_conv.dask  # noqa: E402
from implicit_conv.errors import PlanError, ShapeError  # noqa: E402

RANDOM = np.random.default_rng(0)
IMAGE = RANDOM.standard_normal((61, 47)).astype(np.float32)
FILTERS = [
    ("gaussian_filter", (1.5,), {}),
    ("gaussian_filter", ((0, 2.0),), {"order": (0, 1), "truncate": 3.0}),
    ("gaussian_filter1d", (1.0,), {"axis": 0}),
    ("gaussian_laplace", (1.0,), {}),
    ("gaussian_gradient_magnitude", (1.0,), {}),
    ("correlate", (RANDOM.standard_normal((4, 5)),), {"origin": (1, -1)}),
    ("convolve", (RANDOM.standard_normal((4, 3)),), {"cval": 2.0, "origin": (-2, 1)}),
    ("correlate1d", ([1.0, 2.0, 3.0, 4.0],), {"axis": 0, "origin": 1}),
    ("convolve1d", ([1.0, 2.0, 3.0, 4.0],), {"origin": -2}),
    ("laplace", (), {}),
    ("sobel", (), {"axis": 0}),
    ("prewitt", (), {"output": np.float64}),
]
SYNONYMS = ["grid-mirror", "grid-wrap", "grid-constant"]
MODES = ["reflect", "mirror", "nearest", "wrap", "constant", *SYNONYMS]


class Source:
    """A file of small chunks."""

    def __init__(self, array):
        self.array, self.shape, self.dtype, self.ndim = array, array.shape, array.dtype, array.ndim

    def __getitem__(self, index):
        return self.array[index]


def lazy_images(x):
    memory = da.from_array(x, chunks=((20, 20, 21), (15, 15, 17)))
    return memory, da.from_array(Source(x), chunks=(20, 6), name=False)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("name", "args", "options"), FILTERS, ids=str)
def test_filters_have_the_bits_of_scipy(name, args, options, mode):
    whole = getattr(scipy_images, name)(IMAGE, *args, mode=mode, **options)
    for lazy in lazy_images(IMAGE):
        y = getattr(implicit_conv.dask, name)(lazy, *args, mode=mode, **options)
        assert y.dtype == whole.dtype
        assert y.chunks == lazy.chunks
        np.testing.assert_array_equal(y.compute(scheduler="synchronous"), whole)


@pytest.mark.parametrize(("name", "size"), [("uniform_filter", (4, 3)), ("uniform_filter1d", 5)])
def test_running_sums_start_anew_in_each_block(name, size):
    whole = getattr(scipy_images, name)(IMAGE, size)
    for lazy in lazy_images(IMAGE):
        found = getattr(implicit_conv.dask, name)(lazy, size).compute(scheduler="synchronous")
        np.testing.assert_allclose(found, whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_a_single_chunk_may_be_smaller_than_the_reach(mode):
    """Of an array in memory, and of one that a step has made."""
    small = IMAGE[:5, :40]
    whole = scipy_images.gaussian_filter(small, 3.0, mode=mode)
    for lazy in (da.from_array(small), da.from_array(small) + 0):
        y = implicit_conv.dask.gaussian_filter(lazy, 3.0, mode=mode)
        np.testing.assert_array_equal(y.compute(scheduler="synchronous"), whole)


def test_volumes_integers_and_a_mode_for_each_axis():
    volume = RANDOM.integers(0, 255, (13, 14, 15), np.uint8)
    options = {"mode": ("nearest", "wrap", "reflect"), "origin": (0, 1, -1)}
    whole = scipy_images.uniform_filter(volume, 3, **options)
    y = implicit_conv.dask.uniform_filter(da.from_array(volume, chunks=5), 3, **options)
    np.testing.assert_array_equal(y.compute(scheduler="synchronous"), whole)


def test_missing_values_and_precision():
    x = IMAGE.copy()
    x[20:22, 15] = np.nan
    options = {"nan": "interpolate", "precision": "standard"}
    whole = implicit_conv.ndimage.gaussian_filter(x, 1.0, **options)
    assert not np.isnan(whole).any()
    for lazy in lazy_images(x):
        y = implicit_conv.dask.gaussian_filter(lazy, 1.0, **options)
        found = y.compute(scheduler="synchronous")
        np.testing.assert_allclose(found, whole, rtol=0, atol=1e-5)


def test_chunks_may_be_smaller_than_the_reach():
    memory, _ = lazy_images(IMAGE)
    y = implicit_conv.dask.gaussian_filter(memory.rechunk(7) + 0, 5.0)
    whole = implicit_conv.ndimage.gaussian_filter(IMAGE, 5.0)
    np.testing.assert_array_equal(y.compute(scheduler="synchronous"), whole)


FOOTPRINT = np.array([[0, 1, 0, 1], [1, 1, 1, 0], [0, 1, 0, 0]], bool)
RANKS = [
    ("minimum_filter", ((3, 5),), {"origin": (1, -2)}),
    ("maximum_filter", (), {"footprint": FOOTPRINT, "origin": (0, 1)}),
    ("median_filter", ((4, 3),), {}),
    ("percentile_filter", (30, 5), {"output": np.float64}),
    ("rank_filter", (-3,), {"footprint": FOOTPRINT, "origin": (-1, 0)}),
    ("rank_filter", (0, (2, 7)), {}),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("name", "args", "options"), RANKS, ids=str)
def test_filters_that_order_elements_have_the_bits_of_scipy(name, args, options, mode):
    for image in (IMAGE.astype(np.float32), (IMAGE * 40).astype(np.uint8)):
        given = {"mode": mode, "cval": 3, **options}
        whole = getattr(scipy_images, name)(image, *args, **given)
        for lazy in (*lazy_images(image), da.from_array(image, chunks=((1, 2, 57, 1), 7))):
            y = getattr(implicit_conv.dask, name)(lazy, *args, **given)
            assert y.dtype == whole.dtype
            assert y.chunks == lazy.chunks
            np.testing.assert_array_equal(y.compute(scheduler="synchronous"), whole)


@pytest.mark.parametrize("mode", MODES)
def test_ranks_of_signals_and_of_stacks(mode):
    signal, stack = IMAGE.ravel()[:211], IMAGE[:24].reshape(4, 6, 47)
    for lazy in lazy_signals(signal):
        y = implicit_conv.dask.median_filter(lazy, 9, mode=mode, origin=2)
        whole = scipy_images.median_filter(signal, 9, mode=mode, origin=2)
        np.testing.assert_array_equal(y.compute(scheduler="synchronous"), whole)
    planes = da.from_array(stack, chunks=(1, 6, 47))
    for size in ((1, 5, 5), 3):
        y = implicit_conv.dask.median_filter(planes, size, mode=mode)
        whole = scipy_images.median_filter(stack, size, mode=mode)
        np.testing.assert_array_equal(y.compute(scheduler="synchronous"), whole)


def lazy_signals(x):
    return da.from_array(x, chunks=(30,)), da.from_array(Source(x), chunks=(17,), name=False)


@pytest.mark.parametrize(
    ("name", "args"), [("gaussian_filter", (1,)), ("uniform_filter", (3,)), ("laplace", ())]
)
def test_an_image_without_axes_is_one_pixel(name, args):
    pixel = np.array(3.5)
    for lazy in (da.from_array(pixel), da.from_array(Source(pixel), name=False), Source(pixel)):
        y = getattr(implicit_conv.dask, name)(lazy, *args).compute(scheduler="synchronous")
        np.testing.assert_array_equal(y, getattr(scipy_images, name)(pixel, *args))


def test_errors():
    memory, _ = lazy_images(IMAGE)
    with pytest.raises(PlanError, match="one by one"):
        implicit_conv.dask.gaussian_filter(memory, 1.0, channel_axis=0)
    with pytest.raises(PlanError, match="must be a dtype"):
        implicit_conv.dask.gaussian_filter(memory, 1.0, output=IMAGE)
    with pytest.raises(RuntimeError, match="weights"):
        implicit_conv.dask.correlate(memory, [1.0, 2.0])
    with pytest.raises(ShapeError, match="needs elements"):
        implicit_conv.dask.gaussian_filter(np.empty((0, 3), np.float32), 1.0)


def test_what_a_filter_reads_is_found_without_scipys_code_for_ranks(monkeypatch):
    """Newer ones read beyond an image of one pixel, such as the one that filters are asked with."""
    ranks = pytest.importorskip("scipy.ndimage._rank_filter_1d", reason="this scipy has none")
    monkeypatch.setattr(ranks, "rank_filter", None)
    y = implicit_conv.dask.median_filter(da.ones(34, dtype=np.int16, chunks=3), 3, origin=1)
    assert (y.dtype, y.shape) == (np.int16, (34,))
