"""Filters that order the elements of windows, with the bits of scipy's results: minima, maxima,
medians and other ranks.

scipy computes in float64 and stores the dtype of the image. That is an element of the window, so
nothing is rounded here but the constant beyond the borders: order survives rounding. NaN has no
place in an order, and which of two zeros with different signs an element of a rank is depends on
scipy's loops: images with these are left to scipy, as is all that `compute` returns False for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.engines import rank_filters
from implicit_conv.cpu.engines.image_filters import ImageLaunch
from implicit_conv.cpu.engines.image_rows import Images
from implicit_conv.cpu.machine.arch import available_threads
from implicit_conv.ndimage.borders import MODES, pixels
from implicit_conv.ndimage.chains import chain_for
from implicit_conv.settings import current

KINDS = {"b": (1,), "u": (1, 2, 4), "i": (1, 2, 4), "f": (4, 8)}  # bytes of elements


class Window(NamedTuple):
    """A window by axes, and which of its elements is wanted: rank 0 is the smallest one.

    Modes are codes of scipy's. The constant is 0 where no mode needs it.
    """

    kernel: tuple[int, ...]
    origins: tuple[int, ...]
    modes: tuple[int, ...]
    cval: float
    rank: int


def compute(x: Array, window: Window, out: Array) -> bool:
    """Filter an image; returns False for what is left to scipy, which gets the image as it was."""
    y = np.empty(out.shape, out.dtype) if np.may_share_memory(x, out) else out
    key = window, math.copysign(1.0, window.cval)
    launches, x, y = chain_for(lambda x, y: _launches(x, window, y), x, y, key)
    if not launches or not (x.flags.aligned and out.flags.aligned and out.flags.writeable):
        return False
    for launch in launches[:-1]:
        between = np.empty(x.shape, x.dtype)
        if not launch.run(x, between):
            return False
        x = between
    if not launches[-1].run(x, y):
        return False
    if y is not out:
        np.copyto(out, y)
    return True


def _dtype(x: Array) -> str | None:
    """The dtype of elements in numpy's words, without their order of bytes; None for others."""
    kind, size = x.dtype.kind, x.dtype.itemsize
    if size not in KINDS.get(kind, ()) or not x.dtype.isnative:
        return None
    return f"{'u' if kind == 'b' else kind}{size}"


def _constant(cval: float, dtype: str, extreme: bool) -> Array | None:
    """The constant as an element; None for one that has no order, or that scipy's C stores as
    another number.
    """
    kind = np.dtype(dtype)
    if kind.kind == "f":
        with np.errstate(all="ignore"):
            rounded = np.array(cval).astype(kind)
        zero = rounded == 0 and (cval != 0 or (np.signbit(rounded) and not extreme))
        return None if zero or np.isnan(rounded) else rounded
    bounds = np.iinfo(dtype)
    if not math.isfinite(cval) or not bounds.min <= int(cval) <= bounds.max:
        return None
    return np.array(int(cval), kind)


def _passes(filtered: Sequence[int]) -> list[list[int]]:
    """The axes of each launch of an extremum: two at once, in scipy's order."""
    alone = len(filtered) % 2
    pairs = [list(filtered[i : i + 2]) for i in range(alone, len(filtered), 2)]
    return [list(filtered[:1]), *pairs] if alone else pairs


def _launches(x: Array, window: Window, y: Array) -> list[ImageLaunch]:
    """The launches of a filter of images like these, of which each filters the result of the one
    before; none for a filter that is left to scipy.
    """
    kernel, dtype = window.kernel, _dtype(x)
    filtered = [axis for axis, size in enumerate(kernel) if size > 1]
    if dtype is None or y.dtype != x.dtype or x.shape != y.shape or x.size == 0 or not filtered:
        return []
    extreme = window.rank in (0, math.prod(kernel) - 1)
    constant = _constant(window.cval, dtype, extreme)
    if constant is None or not all(mode in MODES for mode in window.modes):
        return []
    passes = _passes(filtered) if extreme else [filtered]
    threads = current().num_threads or available_threads()
    strides = [x.strides, *[np.empty(x.shape, x.dtype).strides] * (len(passes) - 1), y.strides]
    launches = list[ImageLaunch]()
    for axes, (x_strides, y_strides) in zip(passes, itertools.pairwise(strides), strict=True):
        own = tuple(size if axis in axes else 1 for axis, size in enumerate(kernel))
        sources = tuple(
            _sources(x.shape[axis], window, axis, size) for axis, size in enumerate(own)
        )
        dtypes = dtype, dtype, dtype
        images = Images(x.shape, x_strides, y_strides, *dtypes, own, sources, constant)
        if extreme:
            checked = bool(launches)
            launch = rank_filters.extremes(images, window.rank == 0, checked, threads)
        else:
            launch = rank_filters.ranks(images, window.rank, threads)
        if launch is None:
            return []
        launches.append(launch)
    return launches


def _sources(size: int, window: Window, axis: int, extent: int) -> Array:
    """The pixels that positions along an axis repeat, for windows of so many pixels."""
    if extent == 1:
        return np.arange(size)
    first = -(extent // 2) - window.origins[axis]
    found: Array = pixels(np.arange(first, first + size + extent - 1), size, window.modes[axis])
    return found
