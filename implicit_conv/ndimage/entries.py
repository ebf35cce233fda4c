"""scipy's module of C functions with three of them replaced, and scipy's filters on top of it.

All of scipy's correlations end in these three functions. What is not served goes to scipy's C, as
all other functions do. What scipy's C computes in less time goes there before anything else is
looked at, since its calls may take as little as 4 us.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import operator
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.errors import PlanError, install
from implicit_conv.ndimage import filters, single, worth
from implicit_conv.ndimage.boxes import SYNONYMS
from implicit_conv.ndimage.conventions import PROPAGATE
from implicit_conv.problem.options import PRECISIONS, Precision

try:
    from scipy.ndimage import _filters as scipy_filters
except ImportError as error:
    raise ImportError(
        f"implicit_conv.ndimage needs scipy 1.11 or newer: {install('scipy>=1.11')}"
    ) from error

STRICT: Precision = "strict"
COMPILED = scipy_filters._nd_image


class Entries:
    """What scipy's filters call.

    Parameters
    ----------
    precision : "strict", "standard" or "fast"
        "strict" has scipy's results; the others sum in float32 where neither the image nor the
        result holds more.
    nan : "propagate", "interpolate" or "ignore"
        What a NaN in a sum means.

    Raises
    ------
    PlanError
        The precision is unknown (a ValueError).
    """

    def __init__(self, precision: Precision, nan: str = PROPAGATE) -> None:
        if precision not in PRECISIONS:
            raise PlanError(f"precision is {precision!r}; it must be one of {PRECISIONS}")
        self._precision, self._nan = precision, nan
        self._propagates = nan == PROPAGATE
        # Elements of an image that `single` may serve, at least.
        self._fewest = math.inf if precision == STRICT else single.FEWEST_ELEMENTS

    def __getattr__(self, name: str) -> Any:
        return getattr(COMPILED, name)

    def correlate(
        self,
        x: Array,
        weights: Array,
        out: Array,
        mode: int,
        cval: float,
        origins: Sequence[int],
    ) -> None:
        """Correlate along all axes."""
        short = self._propagates and x.size < self._fewest
        if short and not worth.window(x, weights.size):
            return COMPILED.correlate(x, weights, out, mode, cval, origins)  # type: ignore[no-any-return]
        places, constant = [operator.index(origin) for origin in origins], float(cval)
        mode = SYNONYMS.get(mode, mode)
        if filters.served(x, out, mode) and weights.ndim == x.ndim and weights.size:
            dtype, args = self._sums(x, out), (x, weights, out, mode, constant, places)
            plain = dtype is np.float32 and self._nan == PROPAGATE
            if plain and single.served(x, weights, out, mode, constant):
                return single.correlate(*args, self._precision)
            if filters.correlate(*args, dtype, self._nan):
                return None
        return COMPILED.correlate(x, weights, out, mode, cval, origins)  # type: ignore[no-any-return]

    def correlate1d(
        self,
        x: Array,
        weights: Array,
        axis: int,
        out: Array,
        mode: int,
        cval: float,
        origin: int,
    ) -> None:
        """Correlate along an axis."""
        if self._propagates and not worth.line(x, out, axis, weights.size):
            COMPILED.correlate1d(x, weights, axis, out, mode, cval, origin)
            return
        mode = SYNONYMS.get(mode, mode)
        if filters.served(x, out, mode):
            args = x, weights, axis, out, mode, float(cval), operator.index(origin)
            filters.correlate1d(*args, self._sums(x, out), self._nan)
            return
        COMPILED.correlate1d(x, weights, axis, out, mode, cval, origin)

    def uniform_filter1d(
        self, x: Array, size: int, axis: int, out: Array, mode: int, cval: float, origin: int
    ) -> None:
        """Means along an axis."""
        if not worth.mean(x, axis):
            COMPILED.uniform_filter1d(x, size, axis, out, mode, cval, origin)
            return
        length, place, constant = operator.index(size), operator.index(origin), float(cval)
        mode = SYNONYMS.get(mode, mode)
        if not filters.served(x, out, mode) or not filters.uniform_filter1d(
            x, length, axis, out, mode, constant, place
        ):
            COMPILED.uniform_filter1d(x, size, axis, out, mode, cval, origin)

    def _sums(self, x: Array, out: Array) -> type:
        return np.float32 if self._precision != STRICT and filters.narrow(x, out) else np.float64


@functools.cache
def scipy_filters_on(precision: Precision, nan: str = PROPAGATE) -> ModuleType:
    """A copy of scipy's module of filters that calls these `Entries`."""
    return scipy_filters_with(Entries(precision, nan))


def scipy_filters_with(compiled: object) -> ModuleType:
    """A copy of scipy's module of filters that calls `compiled` in place of its C functions."""
    spec = importlib.util.find_spec(scipy_filters.__name__)
    if spec is None or spec.loader is None:
        raise ImportError(f"the source of {scipy_filters.__name__} cannot be found")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.__dict__["_nd_image"] = compiled
    return module


class Patch:
    """scipy.ndimage with these entries, until `undo` or the end of a `with` block."""

    def __init__(self, precision: Precision) -> None:
        entries = Entries(precision)
        self._before = scipy_filters._nd_image
        scipy_filters._nd_image = entries

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *_: object) -> None:
        scipy_filters._nd_image = self._before

    def __repr__(self) -> str:
        return "<scipy.ndimage's filters, computed by implicit_conv>"


def unpatch() -> None:
    """Let scipy.ndimage compute its filters by its own C code again.

    This undoes all calls of `patch`; where none is in force nothing changes.

    Examples
    --------
    >>> import implicit_conv.ndimage
    >>> patched = implicit_conv.ndimage.patch()
    >>> implicit_conv.ndimage.unpatch()
    """
    scipy_filters._nd_image = COMPILED
