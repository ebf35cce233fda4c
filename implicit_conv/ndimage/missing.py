"""Sums of images whose NaNs are missing values: what is left of a window, scaled if it shall be."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.engines.image_filters import launch_of
from implicit_conv.cpu.engines.image_passes import Format
from implicit_conv.cpu.machine.arch import available_threads
from implicit_conv.ndimage.borders import OUTSIDE
from implicit_conv.ndimage.filters import store
from implicit_conv.ndimage.passes import Step, Sums, pass_of, sums_of, total
from implicit_conv.settings import current

PROPAGATE, INTERPOLATE, IGNORE = NAN = ("propagate", "interpolate", "ignore")


def without_nans(step: Step, x: Array, out: Array, precision: str, nan: str) -> None:
    """Compute a step whose windows leave out NaNs, and scale what is left if `nan` says so."""
    if x.ndim == 0:  # an image of one pixel
        step = step._replace(taps=step.taps.reshape(1), origins=(0,))
        x, out = x.reshape(1), out.reshape(1)
    sums = sums_of([step], x.dtype, out.dtype, precision)
    around = surrounded(step, x, np.dtype(sums.dtype))
    absent = np.isnan(around)
    around[absent] = 0
    y = np.empty(x.shape, sums.dtype)
    each = pass_of(step, x.shape, sums, surrounded=True)
    form = Format(around.strides, y.strides, sums.dtype, sums.dtype, sums.dtype, sums.fma)
    launch = launch_of([each], form, 0.0, False, current().num_threads or available_threads())
    launch.run(around, y)
    if nan == INTERPOLATE and absent.any():
        np.logical_not(absent, out=around, casting="unsafe")
        left = np.empty_like(y)
        launch.run(around, left)
        with np.errstate(invalid="ignore", divide="ignore"):  # windows of NaNs alone: 0 / 0
            np.divide(y, left, out=y)
        y *= total(step)
    store(y, out)


def surrounded(step: Step, x: Array, dtype: np.dtype[Any]) -> Array:
    """A copy of an image with all that the windows of a step read."""
    sources = pass_of(step, x.shape, Sums("f8", False, "products", False)).sources
    around: Array = x[np.ix_(*(np.maximum(source, 0) for source in sources))].astype(dtype)
    for axis, source in enumerate(sources):
        around[(slice(None),) * axis + (source == OUTSIDE,)] = step.cval
    return around
