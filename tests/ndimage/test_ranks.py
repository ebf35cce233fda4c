"""Filters of implicit_conv.ndimage that order elements have the bits of scipy.ndimage's results."""

import itertools
import os
import pickle
from unittest import mock

import numpy as np
import pytest

scipy = pytest.importorskip("scipy.ndimage", reason="pip install '.[ndimage]'")

import implicit_conv  # noqa: E402
from implicit_conv import ndimage  # noqa: E402
from implicit_conv.cpu.engines import rank_filters, rank_tiles  # noqa: E402
from implicit_conv.kernels.cpu.images import operator as image_operator  # noqa: E402
from implicit_conv.kernels.cpu.rank import networks  # noqa: E402
from implicit_conv.kernels.cpu.runtime import pool  # noqa: E402
from implicit_conv.ndimage import rank_worth, ranks  # noqa: E402
from implicit_conv.testing.guard import guarded  # noqa: E402

DTYPES = ("?", "u1", "i1", "u2", "i2", "u4", "i4", "f4", "f8")
MODES = ("reflect", "mirror", "nearest", "wrap", "constant", "grid-wrap", "grid-constant")
EXTREMES = ("minimum_filter", "maximum_filter")
COMPOSED = ("grey_erosion", "grey_dilation", "grey_opening", "grey_closing", "white_tophat")


@pytest.fixture(autouse=True)
def served(monkeypatch):
    """Small images are filtered here too; a list of whether each call was."""
    computed = []
    compute = ranks.compute

    def counted(*args):
        computed.append(compute(*args))
        return computed[-1]

    monkeypatch.setattr(ranks, "compute", counted)
    for name in ("box", "wide", "along", "ranked"):
        monkeypatch.setattr(rank_worth, name, lambda *args: True)
    return computed


def image(rng, shape, dtype):
    """All numbers of small integers; many equal ones; zeros of both signs of float32."""
    if np.dtype(dtype).kind == "f":
        few = rng.integers(-9, 9, shape) / 4
        return np.where(rng.random(shape) < 0.5, few, rng.standard_normal(shape)).astype(dtype)
    if dtype == "?":
        return rng.random(shape) < 0.5
    bounds = np.iinfo(dtype)
    return rng.integers(bounds.min, bounds.max, shape, dtype, endpoint=True)


def same(found, expected):
    """Whether arrays have the same dtype, shape and bits."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()


def check(name, *args, output=None, **options):
    """Compare a filter with scipy's; each writes to an array of its own if it is given one."""
    results = []
    for module in (scipy, ndimage):
        given = output.copy() if isinstance(output, np.ndarray) else output
        results.append(getattr(module, name)(*args, output=given, **options))
    same(results[1], results[0])


def origin(rng, size):
    """A place in a window."""
    return int(rng.integers(-(size // 2), (size - 1) // 2 + 1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_extremes(dtype, served):
    rng = np.random.default_rng(1)
    for name, shape in itertools.product(
        EXTREMES, [(1,), (3000,), (3, 5), (41, 130), (70, 33, 3), (4, 5, 33), (2, 3, 4, 5)]
    ):
        for _ in range(4):
            size = [int(rng.choice([1, 2, 3, 5, 8, 17])) for _ in shape]
            places = [origin(rng, each) for each in size]
            modes = [str(rng.choice(MODES)) for _ in shape]
            x = image(rng, shape, dtype)
            check(name, x, size, mode=modes, origin=places, cval=1.0)
    assert served.count(False) < len(served) // 3  # windows of one element


@pytest.mark.parametrize("dtype", DTYPES)
def test_ranks(dtype, served):
    rng = np.random.default_rng(2)
    sizes = {
        (41, 130): [(3, 3), (5, 5), (2, 7), (1, 4), (6, 1)],
        (7, 9, 35): [(3, 3, 3), (2, 1, 3)],
    }
    for shape, windows in (*sizes.items(), ((2, 3), [(5, 5)]), ((90, 11, 3), [(3, 3, 1)])):
        for size in windows:
            places = [origin(rng, each) for each in size]
            x, mode = image(rng, shape, dtype), str(rng.choice(MODES))
            if x.dtype.kind == "f":
                x += x == 0  # no zeros, whose sign would be scipy's
            options = {"size": size, "mode": mode, "origin": places, "cval": 1.0}
            check("median_filter", x, **options)
            check("percentile_filter", x, 30, **options)
            check("rank_filter", x, int(rng.integers(1, np.prod(size) - 1)), **options)
    assert all(served)


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_windows_are_counted(dtype, served, monkeypatch):
    monkeypatch.setattr(rank_filters, "MOST_EXCHANGED", dict.fromkeys((1, 2, 4, 8), 20))
    monkeypatch.setattr(rank_filters, "MOST_COUNTED", dict.fromkeys((1, 2, 4, 8), 255))
    rng = np.random.default_rng(3)
    x = image(rng, (40, 90), dtype)
    if x.dtype.kind == "f":
        x += x == 0
    for size in (8, (3, 21), (15, 15)):
        check("median_filter", x, size)
        check("rank_filter", x, 7, size, mode="nearest")
    assert all(served)


def test_images_of_several_tiles(monkeypatch, served):
    monkeypatch.setattr(rank_tiles, "TILE_BYTES", 100)
    monkeypatch.setattr(rank_tiles, "SCRATCH_BYTES", 1000)
    monkeypatch.setattr(rank_filters, "WORK_PER_THREAD", 1)
    rng = np.random.default_rng(4)
    implicit_conv.clear_plan_cache()
    for dtype, threads, mode in itertools.product(("u1", "f4"), (1, 2), ("mirror", "constant")):
        x = 1 + abs(image(rng, (83, 517), dtype).clip(-100, 100))
        with implicit_conv.config(num_threads=threads):
            check("maximum_filter", x, (5, 7), mode=mode)
            check("median_filter", x, (3, 5), mode=mode)
            check("median_filter", x, 9, mode=mode)
            check("maximum_filter1d", x, 6, axis=0, mode=mode)
    assert all(served)
    implicit_conv.clear_plan_cache()


@pytest.mark.parametrize("name", COMPOSED)
def test_morphology(name, served):
    rng = np.random.default_rng(5)
    for dtype in ("u1", "i2", "f4"):
        x = image(rng, (50, 67), dtype)
        check(name, x, size=(3, 5))
        check(name, x, footprint=np.ones((2, 4), bool))
        check(name, x, size=3, mode="constant", cval=2.0, origin=1)
        assert all(served)
        check(name, x, footprint=scipy.generate_binary_structure(2, 1))
        check(name, x, structure=np.ones((3, 3)))


def test_order_of_zeros():
    """Of equal elements extrema have the one that scipy's loops have: zeros have signs."""
    x = np.random.default_rng(6).choice(np.float32([0.0, -0.0, 1.0, -1.0]), (60, 70))
    for name, size in itertools.product(EXTREMES, (2, 3, (7, 1), (1, 9), (6, 8))):
        check(name, x, size)
        for cval in (0.0, -0.0, 1e-60, -1e-60):
            check(name, x, size, mode="constant", cval=cval)
            check(name, abs(x), size, mode="constant", cval=cval)
    for name in EXTREMES:
        check(name, x.reshape(6, 10, 70), 2)
        check(name, x.reshape(6, 10, 7, 10), (2, 1, 3, 2))
    check("median_filter", x, 3)
    for cval in (0.0, -0.0, -1e-60):
        check("median_filter", abs(x), 3, mode="constant", cval=cval)


def test_nan_is_left_to_scipy(served):
    x = np.random.default_rng(7).standard_normal((40, 50)).astype("f4")
    for name in (*EXTREMES, "median_filter"):
        check(name, x, 3, mode="constant", cval=np.nan)
        assert not any(served)
        served.clear()
        y = x.copy()
        y[7, 9] = np.nan
        check(name, y, 3)
        assert not served.pop(0)
        served.clear()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_nan_is_found_everywhere(dtype, served):
    for columns in (3, 17, 70, 200):
        for place in range(0, columns, 1 + columns // 20):
            x = np.ones((3, columns), dtype)
            x[1, place] = -np.nan
            check("maximum_filter", x, 2)
            assert not served.pop(0)
            served.clear()


def test_constants_that_the_dtype_lacks():
    rng = np.random.default_rng(8)
    for dtype, cval in itertools.product(DTYPES, (0.7, -0.7, -1, 255.9, 256, 1e10, np.inf, 1e-60)):
        x = image(rng, (9, 40), dtype)
        for name in EXTREMES:
            check(name, x, (3, 5), mode="constant", cval=cval)
        if x.dtype.kind != "f":
            check("median_filter", x, (3, 5), mode="constant", cval=cval)


def test_outputs():
    rng = np.random.default_rng(9)
    x = image(rng, (40, 90), "u1")
    wide = np.zeros((80, 180), "u1")
    for name in (*EXTREMES, "median_filter", "grey_opening"):
        for output in (wide[::2, ::2], wide[:40, :90], wide[:40, 90:][::-1], "u1", np.uint8, "f4"):
            check(name, x, 3, output=output)
        for view in (x[::2, ::3], x.T, x[::-1, ::-1], np.broadcast_to(x[:1], x.shape)):
            check(name, view, 3)
    for name, axis in itertools.product(("minimum_filter1d", "maximum_filter1d"), (0, 1)):
        check(name, x, 5, axis=axis, output=wide[::2, ::2])


@pytest.mark.parametrize("name", [*EXTREMES, "median_filter"])
def test_outputs_that_overlap_the_image(name):
    start = image(np.random.default_rng(10), (41, 90), "i2")
    for place in (slice(0, 40), slice(1, 41)):
        memory = [start.copy(), start.copy()]
        for module, array in zip((scipy, ndimage), memory, strict=True):
            getattr(module, name)(array[:40], 3, output=array[place])
        same(memory[1], memory[0])


def test_filters_in_place_along_an_axis():
    start = image(np.random.default_rng(11), (40, 90), "u2")
    for axis in (0, 1):
        memory = [start.copy(), start.copy()]
        for module, array in zip((scipy, ndimage), memory, strict=True):
            module.maximum_filter1d(array, 4, axis, output=array)
        same(memory[1], memory[0])


def test_axes():
    x = image(np.random.default_rng(12), (5, 30, 40), "u1")
    for name in (*EXTREMES, "median_filter"):
        for axes in (1, (0, 2), (-1, 1), (2, 0)):
            check(name, x, 3, axes=axes)


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": None},
        {"size": (3, 3, 3)},
        {"size": 3, "mode": "other"},
        {"size": 3, "origin": 2},
        {"size": 3, "axes": (0, 0)},
        {"size": 3, "axes": 2},
        {"size": 3, "output": np.zeros(3)},
        {"size": 3, "cval": "none"},
        {"footprint": np.zeros((3, 3), bool)},
        {"footprint": np.ones(3, bool)},
    ],
)
def test_errors_are_scipys(wrong):
    x = np.zeros((5, 6), np.uint8)
    with pytest.raises(Exception) as expected:
        scipy.minimum_filter(x, **wrong)
    with pytest.raises(type(expected.value)) as found:
        ndimage.minimum_filter(x, **wrong)
    assert str(found.value) == str(expected.value)


def test_filters_are_pickled_by_name():
    for name in (*ndimage.RANKS, *ndimage.MORPHOLOGY):
        function = getattr(ndimage, name)
        assert pickle.loads(pickle.dumps(function)) is function


def test_patch_serves_scipys_names(served):
    x = image(np.random.default_rng(13), (40, 50), "u1")
    expected = [scipy.grey_closing(x, 3), scipy.median_filter(x, 3), scipy.minimum_filter1d(x, 3)]
    with ndimage.patch():
        found = [scipy.grey_closing(x, 3), scipy.median_filter(x, 3), scipy.minimum_filter1d(x, 3)]
    assert served == [True] * 4
    for one, other in zip(found, expected, strict=True):
        same(one, other)
    scipy.minimum_filter(x, 3)
    assert len(served) == 4


def test_rows_with_gaps_are_looked_at_once(served, monkeypatch):
    """The launches of copies are kept, and so is that there are none of the arrays themselves."""
    looks, own = [], ranks._launches
    monkeypatch.setattr(ranks, "_launches", lambda *args: looks.append(args) or own(*args))
    implicit_conv.clear_plan_cache()
    wide = image(np.random.default_rng(16), (40, 130), "u1")
    for first in (0, 1):
        x, y = wide[:, first::2], np.empty_like(wide)[:, first::2]
        ndimage.median_filter(x, 3, output=y)
        same(y, scipy.median_filter(x, 3))
    assert len(looks) == 2
    assert all(served)


@pytest.mark.skipif(os.name != "posix", reason="pages are made inaccessible by mprotect")
@pytest.mark.parametrize("side", ["end", "start"])
def test_guard_pages(side, served):
    rng = np.random.default_rng(14)
    for dtype, shape in itertools.product(("u1", "f4"), [(20, 100), (9, 3), (5, 64), (4, 6, 70)]):
        with guarded(side), mock.patch.object(image_operator, "POOL", pool.POOL):
            x = np.empty(shape, dtype)
            x[...] = 1 + abs(image(rng, shape, dtype).clip(0, 100))
            found = [
                ndimage.minimum_filter(x, 3),
                ndimage.median_filter(x, 3),
                ndimage.median_filter(x, 9 if x.ndim == 2 else 4),
                ndimage.maximum_filter1d(x, 7, axis=0, mode="constant"),
            ]
        same(found[0], scipy.minimum_filter(x, 3))
        same(found[1], scipy.median_filter(x, 3))
        same(found[2], scipy.median_filter(x, 9 if x.ndim == 2 else 4))
        same(found[3], scipy.maximum_filter1d(x, 7, axis=0, mode="constant"))
    assert all(served)


def test_networks_select():
    rng = np.random.default_rng(15)
    for height, columns in itertools.product(range(1, 8), repeat=2):
        exchanges, wires = networks.sorted_wires(height)
        for rank in range(height * columns):
            steps, result = networks.selection(columns, height, rank)
            x = rng.integers(0, 2, (height, columns, 50))  # what sorts zeros and ones sorts all
            expected = np.sort(x.reshape(-1, 50), axis=0)[rank]
            for low, high in exchanges:
                x[low], x[high] = np.minimum(x[low], x[high]), np.maximum(x[low], x[high])
            flat = x[wires].reshape(-1, 50)
            for low, high in steps:
                pair = np.sort(flat[[low, high]], axis=0)
                flat[low], flat[high] = pair
            np.testing.assert_array_equal(flat[result], expected)
