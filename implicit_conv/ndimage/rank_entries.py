"""What scipy's Python code calls for filters that order elements, in place of its own functions.

Two are those of its C code, for one axis and for ranks. The third one is a Python function behind
all extrema of several axes: scipy goes axis by axis through an image, which is joined here. What is
not surely right and faster, and what is an error, goes to scipy's own function.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from implicit_conv.arrays.arrays import Array, is_masked_array
from implicit_conv.ndimage import rank_worth, ranks
from implicit_conv.ndimage.borders import CONSTANT, MIRROR, NEAREST, REFLECT, SYNONYMS, WRAP
from implicit_conv.ndimage.originals import COMPILED
from implicit_conv.ndimage.ranks import Window

CODES = {  # of modes; filters know no difference between some
    "nearest": NEAREST,
    "wrap": WRAP,
    "grid-wrap": WRAP,
    "reflect": REFLECT,
    "grid-mirror": REFLECT,
    "mirror": MIRROR,
    "constant": CONSTANT,
    "grid-constant": CONSTANT,
}
NUMBERS = (int, float, np.integer, np.floating)


class RankEntries:
    """Functions of scipy's C code."""

    def min_or_max_filter1d(
        self,
        x: Array,
        size: int,
        axis: int,
        out: Array,
        mode: int,
        cval: float,
        origin: int,
        minimum: int,
    ) -> None:
        """Smallest or largest elements along an axis."""
        if rank_worth.along(x, axis) and isinstance(cval, NUMBERS) and _apart(x, out):
            before, behind = (1,) * axis, (1,) * (x.ndim - axis - 1)
            kernel = *before, operator.index(size), *behind
            origins = *before, operator.index(origin), *behind
            codes = (SYNONYMS.get(mode, mode),) * x.ndim
            constant = float(cval) if codes[axis] == CONSTANT else 0.0
            window = Window(kernel, origins, codes, constant, 0 if minimum else size - 1)
            if ranks.compute(x, window, out):
                return
        COMPILED.min_or_max_filter1d(x, size, axis, out, mode, cval, origin, minimum)

    def rank_filter(
        self,
        x: Array,
        rank: int,
        footprint: Array,
        out: Array,
        mode: int,
        cval: float,
        origins: Sequence[int],
    ) -> None:
        """Elements of a rank."""
        box = footprint.ndim == x.ndim and rank_worth.ranked(x, footprint.shape) and footprint.all()
        if box and isinstance(cval, NUMBERS):
            places = tuple(operator.index(origin) for origin in origins)
            codes = (SYNONYMS.get(mode, mode),) * x.ndim
            constant = float(cval) if CONSTANT in codes else 0.0
            window = Window(footprint.shape, places, codes, constant, operator.index(rank))
            if ranks.compute(x, window, out):
                return
        COMPILED.rank_filter(x, rank, footprint, out, mode, cval, origins)


def _apart(x: Array, out: Array) -> bool:
    """Whether arrays share no memory, or all of it in the same order, as filters in place do."""
    if not np.may_share_memory(x, out):
        return True
    return x.ctypes.data == out.ctypes.data and (x.strides, x.shape) == (out.strides, out.shape)


def joined(own: Callable[..., Any]) -> Callable[..., Any]:
    """scipy's function for smallest and largest elements of several axes, with one pass through an
    image where there can be one.
    """

    @functools.wraps(own)
    def filtered(
        input: Any,
        size: Any,
        footprint: Any,
        structure: Any,
        output: Any,
        mode: Any,
        cval: Any,
        origin: Any,
        minimum: int,
        axes: Any = None,
    ) -> Any:
        plain = structure is None and isinstance(input, np.ndarray) and isinstance(cval, NUMBERS)
        if plain and rank_worth.box(input):
            x = np.asarray(input)
            window = _window(x.ndim, size, footprint, mode, float(cval), origin, minimum, axes)
            if window is not None and rank_worth.wide(x, window.kernel):
                out = _output(x, output)
                if out is not None and ranks.compute(x, window, out):
                    return out
        return own(input, size, footprint, structure, output, mode, cval, origin, minimum, axes)

    return filtered


def _window(
    rank: int,
    size: Any,
    footprint: Any,
    mode: Any,
    cval: float,
    origin: Any,
    minimum: int,
    axes: Any,
) -> Window | None:
    """The window for an image of this rank; None if it is no box, or if scipy finds an error."""
    chosen = tuple(range(rank)) if axes is None else _integers(axes, 1)
    if footprint is not None:
        places = np.asarray(footprint, bool)
        if size is not None or not places.size or not places.all():
            return None
        size = places.shape
    count = 0 if chosen is None else len(chosen)
    sizes, origins = _integers(size, count), _integers(origin, count)
    modes = (mode,) * count if isinstance(mode, str) else tuple(mode)
    if chosen is None or sizes is None or origins is None:
        return None
    if not len(sizes) == len(origins) == len(modes) == count:
        return None
    if not all(-rank <= axis < rank for axis in chosen):
        return None
    kernel, places_of, codes = [1] * rank, [0] * rank, [REFLECT] * rank
    for axis, extent, place, name in zip(chosen, sizes, origins, modes, strict=True):
        if extent > 1:
            if name not in CODES or not 0 <= extent // 2 + place < extent or kernel[axis] > 1:
                return None
            kernel[axis], places_of[axis], codes[axis] = extent, place, CODES[name]
    last = 0 if minimum else math.prod(kernel) - 1
    constant = cval if CONSTANT in codes else 0.0
    return Window(tuple(kernel), tuple(places_of), tuple(codes), constant, last)


def _integers(values: Any, count: int) -> tuple[int, ...] | None:
    """Integers as a tuple, of one that is repeated or of a sequence; None for anything else."""
    try:
        return (operator.index(values),) * count
    except TypeError:
        try:
            return tuple(map(operator.index, values))
        except TypeError:
            return None


def _output(x: Array, output: Any) -> Array | None:
    """The array for the result; None for one that scipy checks, or converts to."""
    if output is None:
        return np.empty(x.shape, x.dtype)
    if isinstance(output, np.ndarray):
        return np.asarray(output) if is_masked_array(output) else output
    same = isinstance(output, (type, np.dtype)) and np.dtype(output) == x.dtype
    return np.empty(x.shape, x.dtype) if same else None
