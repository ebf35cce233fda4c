"""
Filter a dask array
===================

``implicit_conv.dask`` has scipy's filters for dask arrays. Each task reads
its chunk from the file with the pixels around it, so that no copies of
borders pass between tasks.
"""

import atexit
import tempfile

import dask
import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
import scipy.ndimage
import zarr

from implicit_conv.dask import gaussian_filter

# %%
# A zarr array of 2000 x 3000 pixels, in chunks of 500 x 500:

folder = tempfile.TemporaryDirectory()
atexit.register(folder.cleanup)
shape, chunks = (2000, 3000), (500, 500)
own = {"shape": shape, "chunks": chunks, "dtype": "float32"}
stored = zarr.create_array(folder.name, **own)
y, x = np.mgrid[:2000, :3000].astype(np.float32)
stars = np.random.default_rng(0).random(shape, np.float32) > 0.9995
stored[:] = 40 * stars * (1.2 + np.sin(x / 300) * np.cos(y / 200))

# %%
# Without this package, ``dask.array.map_overlap`` has to be told how far
# the filter reaches: 4 sigma.

array = da.from_zarr(stored)
lazy = gaussian_filter(array, 5)
options = {"depth": 20, "boundary": "reflect", "dtype": "float32"}
scipys = scipy.ndimage.gaussian_filter
overlapping = array.map_overlap(scipys, sigma=5, **options)


def with_implicit_conv():
    return lazy.compute()


def with_dask():
    return overlapping.compute()


smooth = with_implicit_conv()
assert lazy.chunks == array.chunks
assert np.array_equal(smooth, with_dask())
assert np.array_equal(smooth, scipys(stored[:], 5))

# %%
# Each chunk of the result is one task, which reads the file.

for result in (lazy, overlapping):
    (optimized,) = dask.optimize(result)
    print(len(optimized.dask), "tasks")

figure, axis = plt.subplots(figsize=(8, 5), layout="constrained")
axis.imshow(np.sqrt(smooth), cmap="magma", vmax=np.sqrt(smooth.max()) * 0.7)
axis.set(title="stars, filtered; lines are borders of chunks")
axis.set_axis_off()
axis.vlines(range(500, 3000, 500), 0, 2000, color="white", lw=0.4)
axis.hlines(range(500, 2000, 500), 0, 3000, color="white", lw=0.4)
plt.show()

# %%
# **Time** on one thread (Zen 4, 2026-11): 129 ms here; 199 ms with dask
# 2026.8.0, 1.5 times as long.
#
# One thread is dask's synchronous scheduler. Others run tasks on all cores,
# each task on one thread.
