"""A filter of scipy.ndimage on an array that is computed block by block.

How far a filter reaches, and its mode, are those of the calls that scipy's own Python code makes
for the caller's arguments: it is run once, for one pixel, on functions that note them down.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from implicit_conv import ndimage
from implicit_conv.arrays.arrays import Array, check_unmasked
from implicit_conv.blocks import Axis, Block
from implicit_conv.errors import PlanError, ShapeError
from implicit_conv.ndimage import originals
from implicit_conv.ndimage.borders import PADDING_MODES, SYNONYMS
from implicit_conv.scale.operation import Operation

LETTERS = "01234567"  # of axes


class ImageFilter(Operation):
    """A filter, with all its arguments, on an array of a given shape: `filters` are the weights of
    correlate and convolve, else None, and `options` the other arguments.
    """

    def compute(self, x: Array, blocks: Sequence[Block], out: Array | None = None) -> Array:
        """The block of y that needs `blocks`, of which `x` is made."""
        weights = {} if self.filters[0] is None else {"weights": self.filters[0]}
        y: Array = getattr(ndimage, self.name)(x, **weights, **self.options)
        kept = (axis.kept(block) for axis, block in zip(self.axes.values(), blocks, strict=True))
        return np.asarray(y[tuple(kept)])


def image_filter(name: str, x: Any, *args: Any, **kwargs: Any) -> ImageFilter:
    """The filter that the function `name` of `implicit_conv.ndimage` is for an array like `x`.

    Raises
    ------
    PlanError
        Blocks do not have this argument.
    ShapeError
        x has no elements, or more axes than LETTERS.
    """
    given = _arguments(name, x, *args, **kwargs)
    for part, value in {"input": x, **given}.items():
        check_unmasked(part, value)
    if given.get("channel_axis") is not None:
        raise PlanError("channel_axis cannot be given for blocks; filter the channels one by one")
    if isinstance(given.get("output"), np.ndarray):
        raise PlanError("output must be a dtype for blocks; store the result afterwards")
    shape = tuple(int(n) for n in x.shape)
    if 0 in shape or len(shape) > len(LETTERS):
        raise ShapeError(f"x has shape {shape}; it needs elements, and at most {len(LETTERS)} axes")
    pixel = np.zeros((1,) * len(shape), x.dtype)
    scipys = {key: value for key, value in given.items() if key not in ndimage.OPTIONS}
    y, reaches = _noted(name, pixel, scipys)
    if name in ndimage.SUMS:  # it checks more options
        y = getattr(ndimage, name)(pixel, **given)
    axes = {
        letter: Axis(size, low + high + 1, 1, 1, low, high, size, mode)
        for letter, size, (low, high, mode) in zip(LETTERS, shape, reaches, strict=False)
    }
    weights = given.pop("weights", None)
    return ImageFilter(
        name=name,
        letters=LETTERS[: len(shape)],
        axes=axes,
        x_shape=shape,
        y_shape=shape,
        x_dtype=pixel.dtype.str,
        y_dtype=y.dtype.str,
        filters=(None if weights is None else np.asarray(weights), None, None),
        options=given,
        token=None if weights is None else np.asarray(weights).tolist(),
    )


def _arguments(name: str, x: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The arguments of the filter `name` by their names, without its input."""
    own = inspect.signature(getattr(ndimage, name))
    given = dict(own.bind(x, *args, **kwargs).arguments)
    del given["input"]
    for parameter in own.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            given |= given.pop(parameter.name, {})
    return given


class Notes(threading.local):
    """scipy's C functions, of which each call notes how far it reaches along which axis; each
    thread has notes of its own.
    """

    def __init__(self) -> None:
        self.reaches: list[tuple[int, int, int, int]] = []  # (axis, low, high, code of the mode)

    def __getattr__(self, name: str) -> Any:
        return getattr(originals.COMPILED, name)

    def _note(self, axis: int, taps: int, mode: int, origin: int) -> None:
        low = taps // 2 + origin
        self.reaches.append((axis, low, taps - 1 - low, mode))

    def correlate(
        self, x: Array, weights: Array, out: Array, mode: int, _: float, origins: Sequence[int]
    ) -> None:
        """Note a correlation along all axes."""
        for axis, (taps, origin) in enumerate(zip(weights.shape, origins, strict=True)):
            self._note(axis, taps, mode, int(origin))

    def correlate1d(
        self, x: Array, weights: Array, axis: int, out: Array, mode: int, _: float, origin: int
    ) -> None:
        """Note a correlation along one axis."""
        self._note(axis, len(weights), mode, int(origin))

    def uniform_filter1d(
        self, x: Array, size: int, axis: int, out: Array, mode: int, _: float, origin: int
    ) -> None:
        """Note a mean along one axis."""
        self._note(axis, int(size), mode, int(origin))

    def min_or_max_filter1d(
        self, x: Array, size: int, axis: int, out: Array, mode: int, _: float, origin: int, __: int
    ) -> None:
        """Note extrema along one axis."""
        self._note(axis, int(size), mode, int(origin))

    def min_or_max_filter(
        self, x: Array, footprint: Array, _: Any, out: Array, mode: int, *rest: Any
    ) -> None:
        """Note extrema of a footprint."""
        self.correlate(x, footprint, out, mode, *rest[:2])

    def rank_filter(
        self, x: Array, rank: int, footprint: Any, out: Array, mode: int, cval: float, origins: Any
    ) -> None:
        """Note elements of a rank. scipy's code for one axis has the extent as `footprint`."""
        if np.ndim(footprint):
            self.correlate(x, footprint, out, mode, cval, origins)
        else:
            self._note(0, int(footprint), mode, int(origins))


@functools.cache
def _noting() -> tuple[ModuleType, Notes]:
    """A copy of scipy's module of filters that calls `Notes`, and these."""
    notes = Notes()
    module = originals.scipy_filters_with(notes)
    module.__dict__["_rank_filter_1d"] = notes  # what newer ones call for images of one axis
    return module, notes


def _noted(
    name: str, pixel: Array, given: dict[str, Any]
) -> tuple[Array, list[tuple[int, int, str]]]:
    """An array like the result, of any values, and how many pixels before and after it each pixel
    reads along each axis, and the padding mode. scipy's code for ranks reads beyond a single pixel.

    A filter computes one pass along an axis at most of what it has computed before, so that the
    widest pass is its reach.
    """
    module, notes = _noting()
    notes.reaches = []
    y = getattr(module, name)(pixel, **given)
    found = [(0, 0, "zeros")] * pixel.ndim
    for axis, low, high, mode in notes.reaches:
        found[axis] = (
            max(found[axis][0], low),
            max(found[axis][1], high),
            PADDING_MODES[SYNONYMS.get(mode, mode)],
        )
    return y, found
