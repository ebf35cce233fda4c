"""
Spots in a 16-bit TIFF stack
============================

A stack of images from a microscope is read from its file, cleaned slice by
slice in one call of scipy for each filter, and written to another file. It
stays in uint16, and has scipy's bits.
"""

import atexit
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import scipy.ndimage
import tifffile

import implicit_conv.ndimage

# %%
# A stack of 8 slices: spots on an uneven background, and hot pixels.

folder = tempfile.TemporaryDirectory()
atexit.register(folder.cleanup)
source, target = (Path(folder.name, n) for n in ("stack.tif", "clean.tif"))
shape = 8, 512, 512  # z, y, x
rng = np.random.default_rng(0)
spots = np.zeros(shape)
spots[tuple(rng.integers(0, n, 400) for n in shape)] = 40000
spots = scipy.ndimage.gaussian_filter(spots, (0, 2, 2))
uneven = 3000 + 1500 * np.sin(np.mgrid[:512, :512] / 90).sum(0)
hot = 30000 * (rng.random(shape) < 0.001)
values = rng.poisson(spots + uneven) + hot
tifffile.imwrite(source, values.astype(np.uint16))

# %%
# ``tifffile.memmap`` gives the pixels of a file that is not compressed as
# an array, without reading it first. A window of one slice, ``(1, 3, 3)``,
# makes z a batch: no slice sees another one. The median takes hot pixels
# away, and the top-hat a background that is wider than 15 pixels.

stack = tifffile.memmap(source, mode="r")
result = tifffile.memmap(target, shape=shape, dtype=stack.dtype)


def clean(out):
    smooth = scipy.ndimage.median_filter(stack, (1, 3, 3))
    return scipy.ndimage.white_tophat(smooth, (1, 15, 15), output=out)


def with_implicit_conv():
    with implicit_conv.ndimage.patch():
        return clean(result)


def with_scipy():
    return clean(np.empty(shape, np.uint16))


with_implicit_conv()
result.flush()
assert np.array_equal(tifffile.imread(target), with_scipy())

# %%
# Filters of your own take uint16 as it is, too: ``conv2d`` of float32
# filters wants a channel, and z is its batch.

y, x = np.mgrid[-4:5, -4:5]
spot = np.exp(-(y**2 + x**2) / (2 * 2.0**2)).astype(np.float32)
spot /= spot.sum()
mean = implicit_conv.conv2d(
    result[:, None], spot[None, None], padding="same", out_dtype="uint16"
)
assert mean.shape == (8, 1, 512, 512)

# %%

figure, axes = plt.subplots(1, 3, figsize=(9, 3.3), layout="constrained")
images = stack[0], result[0], mean[0, 0]
titles = "slice", "median and top-hat", "mean by a spot"
for axis, image, title in zip(axes, images, titles):
    most = np.quantile(image, 0.998)
    axis.imshow(image[:256, :256], cmap="gray", vmax=most)
    axis.set(title=title, xticks=[], yticks=[])
plt.show()

# %%
# **Time** is not measured yet: ``python -m perf recipes`` needs an idle
# machine.
