"""
Filter a picture larger than memory
===================================

``tiles`` reads a file in pieces, filters each with the pixels around it,
and writes the result to another file. The memory that it may take is an
argument.
"""

import atexit
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import scipy.ndimage

from implicit_conv import plan_tiles, tiles

# %%
# A picture of 100 MB stands for one of 100 GB. Nothing below would change,
# and zarr arrays and h5py datasets are read and written as these files are.

folder = tempfile.TemporaryDirectory()
atexit.register(folder.cleanup)
names = Path(folder.name, "picture"), Path(folder.name, "result")
shape = 1, 5000, 5000  # channels, height, width
picture, result = (np.memmap(n, np.float32, "w+", 0, shape) for n in names)
rng, columns = np.random.default_rng(0), np.arange(5000, dtype=np.float32)
for row in range(5000):
    rings = np.cos((row - 2500) ** 2 / 5e4 + (columns - 2500) ** 2 / 5e4)
    picture[0, row] = rings + rng.standard_normal(5000, np.float32)

# %%
# The plan says what will be read and written before anything is.

rows, columns = np.mgrid[-4:5, -4:5]
disc = (rows**2 + columns**2 <= 4.3**2).astype(np.float32)
w = (disc / disc.sum())[None, None]
border = {"padding": "same", "padding_mode": "symmetric"}
options = {"out": result, "memory": "16 MB", **border}
print(plan_tiles(picture, w, **options).explain())


def with_implicit_conv():
    return tiles(picture, w, **options)


def with_scipy():  # needs the memory of both pictures
    return scipy.ndimage.correlate(np.array(picture[0]), w[0, 0])


with_implicit_conv()
np.testing.assert_allclose(result[0], with_scipy(), atol=1e-5)

# %%

figure, axes = plt.subplots(1, 3, figsize=(9, 3.3), layout="constrained")
detail = np.s_[0, 1000:1400, 1000:1400]
images = picture[0, ::10, ::10], picture[detail], result[detail]
titles = "picture, each tenth pixel", "detail", "detail, filtered"
for axis, image, title in zip(axes, images, titles):
    axis.imshow(image, cmap="gray", vmin=-2, vmax=2)
    axis.set(title=title, xticks=[], yticks=[])
plt.show()

# %%
# **Time** on one thread (Zen 4, 2026-11): 77.5 ms here; 981 ms with scipy
# 1.17.1, 12.8 times as long.
#
# The file was just written, so that the system still has it in memory.
# Other threads read and write tiles meanwhile. scipy sums in float64, and
# ``tiles`` in float32.
