"""Masked elements are refused wherever x is read in parts: sums take what lies under masks."""

import numpy as np
import pytest

da = pytest.importorskip("dask.array", reason="dask is not installed: pip install -e '.[dask]'")
pytest.importorskip("scipy.ndimage", reason="scipy is not installed: pip install '.[ndimage]'")

import implicit_conv.dask  # noqa: E402
from implicit_conv import tiles  # noqa: E402

UNDER = 1e20  # what a file has on land
X = np.random.default_rng(0).standard_normal((1, 1, 12, 10)).astype(np.float32)
MASK = np.zeros(X.shape, bool)
MASK[0, 0, 7, 3] = True
DATA = np.where(MASK, np.float32(UNDER), X)
MASKED = np.ma.masked_array(DATA, MASK)
FILLED = np.where(MASK, np.float32(0), X)
W = np.ones((2, 1, 3, 3), np.float32)
EXPECTED = implicit_conv.conv2d(FILLED, W)


class Variable:
    """A variable of a file, as netCDF4 has them: its slices are masked arrays."""

    def __init__(self, array, filled=False):
        self.array, self.filled = array, filled
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim

    def __getitem__(self, index):
        part = np.ma.asarray(self.array[index])
        return np.ma.filled(part, 0) if self.filled else part


def masked_chunks(x):
    """Chunks with masks, of which the array itself says nothing."""
    chunks = da.from_array(x.filled(UNDER), chunks=(1, 1, 6, 4))
    return chunks.map_blocks(
        lambda chunk: np.ma.masked_greater(chunk, UNDER / 10), meta=np.empty((0,) * 4, np.float32)
    )


def dask_conv2d(x):
    return implicit_conv.dask.conv2d(x, W).compute(scheduler="synchronous")


def dask_uniform_filter(x):
    y = implicit_conv.dask.uniform_filter(x, (1, 1, 3, 3))
    sums = 9 * y.compute(scheduler="synchronous")[..., 1:-1, 1:-1]
    return np.repeat(sums, 2, axis=1)


def tiled(x):
    return tiles(x, W, memory="5 kB", progress=False)


def dask_masked(x):
    mask = da.from_array(np.ma.getmaskarray(x), chunks=(1, 1, 6, 4))
    return da.ma.masked_array(da.from_array(np.asarray(x), chunks=(1, 1, 6, 4)), mask=mask)


LAZY = {
    "masked array of dask": dask_masked,
    "masked chunks": masked_chunks,
    "from_array of a masked array": lambda x: da.from_array(x, chunks=(1, 1, 6, 4)),
    "from_array of a variable": lambda x: da.from_array(Variable(x), chunks=6, asarray=False),
}


@pytest.mark.parametrize("door", [dask_conv2d, dask_uniform_filter])
@pytest.mark.parametrize("source", LAZY)
def test_dask_refuses_masked_elements_and_takes_filled_ones(source, door):
    x = LAZY[source](MASKED)
    with pytest.raises(TypeError, match=r"so pass dask\.array\.ma\.filled\(x, 0\)"):
        door(x)
    np.testing.assert_allclose(door(da.ma.filled(x, 0)), EXPECTED, atol=1e-5)


@pytest.mark.parametrize("door", [dask_conv2d, dask_uniform_filter, tiled])
def test_files_with_masked_elements_are_refused_and_taken_when_they_are_filled(door):
    with pytest.raises(TypeError, match=r"1 of \d+ elements .* numpy\.ma\.filled"):
        door(Variable(MASKED))
    np.testing.assert_allclose(door(Variable(MASKED, filled=True)), EXPECTED, atol=1e-5)


@pytest.mark.parametrize("door", [dask_conv2d, dask_uniform_filter, tiled])
def test_slices_without_masked_elements_are_numbers(door):
    """netCDF4 gives masked arrays, whether elements are missing or not."""
    x = Variable(np.ma.masked_array(FILLED))
    np.testing.assert_allclose(door(x), EXPECTED, atol=1e-5)


@pytest.mark.parametrize("part", ["x", "w", "bias", "scale"])
def test_masked_arrays_in_memory_are_refused_at_once(part):
    parts = {"x": X, "w": W, "bias": np.ones(2, np.float32), "scale": np.ones(2, np.float32)}
    given = {**parts, part: np.ma.masked_array(parts[part])}
    for call in (implicit_conv.plan_tiles, implicit_conv.dask.conv2d):
        with pytest.raises(TypeError, match=f"{part} is a masked array; sums ignore masks"):
            call(**given)


def test_weights_of_filters_are_not_summed_under_masks():
    with pytest.raises(TypeError, match=r"weights is a masked array.*weights\.filled\(0\)"):
        implicit_conv.dask.correlate(da.from_array(X), np.ma.masked_array(W[:1]))
