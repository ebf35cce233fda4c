"""
Gaussian filter of a volume
===========================

One line makes scipy's own ``gaussian_filter`` faster:
``implicit_conv.ndimage.patch``. Its results keep all their bits.
"""

import matplotlib.pyplot as plt
import numpy as np
import scipy.ndimage

import implicit_conv.ndimage

# %%
# A volume of 160^3 voxels: bright vessels in noise.

rng = np.random.default_rng(0)
z, y, x = np.mgrid[:160, :160, :160].astype(np.float32)
volume = rng.standard_normal((160, 160, 160), np.float32)
for a, b, c in rng.uniform(0.02, 0.05, (8, 3)):
    up = y - 80 - 50 * np.sin(a * z + 200 * b)
    right = x - 80 - 50 * np.cos(c * z + 300 * a)
    volume += 2 * (up**2 + right**2 < 25)

# %%
# In the block, scipy's linear filters run here; without ``with``, the line
# holds for the whole process, and for all libraries that call scipy, such
# as scikit-image.


def with_implicit_conv():
    with implicit_conv.ndimage.patch():
        return scipy.ndimage.gaussian_filter(volume, 2)


def with_scipy():
    return scipy.ndimage.gaussian_filter(volume, 2)


smooth = with_implicit_conv()
assert np.array_equal(smooth, with_scipy())

# %%

figure, axes = plt.subplots(1, 3, figsize=(9, 3.3), layout="constrained")
images = volume[80], smooth[80], smooth.max(axis=1)
titles = "slice", "slice, filtered", "largest value along y, filtered"
for axis, image, title in zip(axes, images, titles):
    axis.imshow(image, cmap="gray")
    axis.set(title=title, xticks=[], yticks=[])
plt.show()

# %%
# **Time** on one thread (Zen 4, 2026-11): 35.9 ms here; 96.5 ms with scipy
# 1.17.1, 2.7 times as long.
#
# ``patch(precision="standard")`` sums in float32, which takes less time
# still and changes the last digits.
