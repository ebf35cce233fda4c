"""Loads equal fancy indexing of a padded copy; stores are the inverse of loads."""

import time

import numpy as np
import pytest

from implicit_conv import tma


def expected_rows(map, x, coords, fill, positions):
    """Pixels inside the tensor, `fill` elsewhere, by clipped indices and a mask."""
    channels = coords[-1] + np.arange(map.channels_per_pixel)
    index = np.clip(positions, 0, np.array(x.shape[:-1]) - 1)
    taken = x[tuple(index.T)][:, np.clip(channels, 0, x.shape[-1] - 1)]
    pixel = (index == positions).all(axis=1)
    channel = (channels >= 0) & (channels < x.shape[-1])
    return np.where(pixel[:, None] & channel, taken, np.array(fill, x.dtype))


def check_load(map, case, lab, c):
    x = (np.arange(np.prod(map.shape)) % 127 + 1).reshape(map.shape).astype(map.dtype)
    coords = [*case["coords"][:-1], c]
    got = tma.load(map, x, coords, **lab.operands(case))
    positions = lab.closed_form(map, coords, **lab.operands(case))
    np.testing.assert_array_equal(got, expected_rows(map, x, coords, 0, positions))
    assert got.dtype == x.dtype
    assert got.nbytes == tma.walk(map, coords, **lab.operands(case)).bytes


def smaller(case):
    """The case with at most 12 images and 32 channels, so that arrays are small."""
    n, *spatial, _ = case["shape"]
    return {**case, "shape": [min(n, 12), *spatial, 32], "channels": 16}


@pytest.mark.parametrize("c", [0, 24, -8, 32])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "int32", "float64"])
def test_every_case_and_element_size(case, lab, dtype, c):
    check_load(lab.make_map(smaller(case), dtype), case, lab, c)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int16", "uint16", "float32", "complex64"])
def test_other_types_move_as_bits(lab, dtype):
    case = smaller(lab.cases[0])
    check_load(lab.make_map(case, dtype), case, lab, 24)


def simple(dtype="float32", shape=(2, 3, 5, 8), **more):
    boxes = {"lower_corner": (-1, -1), "upper_corner": (0, 0), "traversal_stride": 1}
    sizes = {"pixels_per_column": 50, "channels_per_pixel": 16}
    return tma.Im2colMap(shape=shape, dtype=dtype, **{**boxes, **sizes, **more})


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_nan_fill(dtype, lab):
    map = simple(dtype, oob_fill="nan")
    x = np.ones(map.shape, dtype)
    got = tma.load(map, x, (1, -1, -1, 0))
    positions = lab.closed_form(map, (1, -1, -1, 0))
    np.testing.assert_array_equal(got, expected_rows(map, x, (1, -1, -1, 0), np.nan, positions))
    assert np.isnan(got[:, 8:]).all(), "channels past C fill too"
    assert not np.isnan(got).all()


def test_array_strides_are_followed():
    map = simple()
    x = np.random.default_rng(0).random(map.shape).astype("float32")
    expected = tma.load(map, x, (0, 0, 0, 0))
    wide = np.zeros((2, 3, 5, 16), "float32")
    wide[..., ::2] = x
    np.testing.assert_array_equal(tma.load(map, wide[..., ::2], (0, 0, 0, 0)), expected)
    flipped = np.ascontiguousarray(x[::-1, :, ::-1])[::-1, :, ::-1]
    np.testing.assert_array_equal(tma.load(map, flipped, (0, 0, 0, 0)), expected)


def test_array_must_be_what_the_map_describes():
    map = simple()
    with pytest.raises(ValueError, match=r"x is float64 .* but the map describes float32"):
        tma.load(map, np.zeros(map.shape), (0, 0, 0, 0))
    strided = simple(strides=(3 * 5 * 64, 5 * 64, 64))
    with pytest.raises(ValueError, match="byte strides"):
        tma.load(strided, np.zeros(map.shape, "float32"), (0, 0, 0, 0))
    room = np.zeros((2, 3, 5, 16), "float32")
    assert tma.load(strided, room[..., :8], (0, 0, 0, 0)).shape == (50, 16)


def test_store_puts_back_what_load_fetched(lab):
    map = simple(shape=(2, 3, 5, 24), lower_corner=(0, 0), pixels_per_column=40)
    x = np.random.default_rng(1).random(map.shape).astype("float32")
    coords = (0, 1, 2, 16)  # runs past the last image and past C
    rows = tma.load(map, x, coords)
    y = np.full_like(x, np.nan)
    tma.store(map, y, coords, rows)
    touched = np.zeros(x.shape, bool)
    for position in lab.closed_form(map, coords):
        if (position >= 0).all() and (position < x.shape[:-1]).all():
            touched[(*position, slice(16, 24))] = True
    assert 0 < touched.sum() < touched.size
    np.testing.assert_array_equal(y, np.where(touched, x, np.nan))


def test_store_is_an_im2col_copy(lab):
    wide = next(c for c in lab.cases if c["mode"] == "w")
    map = lab.make_map(wide)
    with pytest.raises(ValueError, match="only tiled and im2col maps do"):
        tma.store(map, np.zeros(map.shape, "float16"), wide["coords"], np.zeros((13, 8)))


@pytest.mark.exhaustive  # timed: by hand, on an idle machine
def test_speed_of_the_compiled_load():
    """Bytes loaded per second on one core; the bound is far below the 3 GB/s measured."""
    map = simple(shape=(8, 16, 63, 64), pixels_per_column=1024, channels_per_pixel=64)
    x = np.ones(map.shape, "float32")
    tma.load(map, x, (0, 0, 0, 0))
    best = np.inf
    for n in range(40):
        begin = time.perf_counter()
        rows = tma.load(map, x, (n % 6, 0, 0, 0))
        best = min(best, time.perf_counter() - begin)
    assert rows.nbytes / best >= 1e9


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "tfloat32", "float64"])
def test_a_nan_fill_is_0x7ff7_in_every_16_bits(dtype):
    """As published captures of hardware have it."""
    map = simple(dtype, oob_fill="nan", shape=(2, 3, 5, 16))
    rows = tma.load(map, np.zeros(map.shape, map.dtype), (0, -1, -1, 0))
    assert (rows[0].view("u2") == 0x7FF7).all() and not rows[7].view("u2").any()
