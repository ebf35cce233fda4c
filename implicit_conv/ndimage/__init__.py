"""scipy.ndimage's filters with scipy's arguments and results, in less time: those that sum, and
those that order the elements of windows.

The functions are scipy's own Python code on top of other C functions, so that arguments, dtypes,
modes and errors are scipy's. Those that sum have more parameters, by keyword:

precision : "strict" (default), "standard" or "fast"
    "strict" sums in float64, in scipy's order, and has scipy's results. The others sum in float32
    where neither the image nor the result holds more.
channel_axis : int or None
    The axis of colours, which are filtered one by one. Other arguments do not count this axis.
rounding : "scipy" (default) or "nearest"
    How results become integers. scipy truncates after each axis, and small integers wrap;
    "nearest" computes all axes in floats, rounds once, half to even, and saturates.
nan : "propagate" (default), "interpolate" or "ignore"
    What a NaN in the image means. "interpolate" leaves it out and scales the sum by the sum of all
    weights over the sum of the weights that are left; where none is left the result is NaN.
    "ignore" leaves it out. Both take convolve, correlate, and Gaussian filters without derivatives.
preserve_nan : bool
    Whether a NaN of the image stays NaN in the result.

Other public names of scipy.ndimage, such as `generic_filter`, `zoom` and `label`, are scipy's own
functions, so that ``import implicit_conv.ndimage as ndi`` takes the place of scipy's module.
`served` lists what is computed here. Type checkers know the filters alone.

`patch` makes scipy's own functions as fast, and those of scikit-image that call them.
The page "Filters of images and fields" says what is computed here, and what is left to scipy.
A door: this imports arrays, and the CPU's filters of images; `implicit_conv.scale` imports it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import TYPE_CHECKING, Any

from implicit_conv.arrays.neighbours import own_name
from implicit_conv.ndimage import conventions
from implicit_conv.ndimage.conventions import Conventions
from implicit_conv.ndimage.entries import STRICT
from implicit_conv.ndimage.scipys import (
    OWN,
    Patch,
    scipy_filters_on,
    scipy_morphology,
    unpatch,
)
from implicit_conv.problem.options import Precision

SUMS = (
    "convolve",
    "convolve1d",
    "correlate",
    "correlate1d",
    "gaussian_filter",
    "gaussian_filter1d",
    "gaussian_gradient_magnitude",
    "gaussian_laplace",
    "generic_gradient_magnitude",
    "generic_laplace",
    "laplace",
    "prewitt",
    "sobel",
    "uniform_filter",
    "uniform_filter1d",
)
RANKS = (
    "maximum_filter",
    "maximum_filter1d",
    "median_filter",
    "minimum_filter",
    "minimum_filter1d",
    "percentile_filter",
    "rank_filter",
)
MORPHOLOGY = (
    "black_tophat",
    "grey_closing",
    "grey_dilation",
    "grey_erosion",
    "grey_opening",
    "morphological_gradient",
    "morphological_laplace",
    "white_tophat",
)
FILTERS = (*SUMS, *RANKS, *MORPHOLOGY)
CONVENTIONS = ("channel_axis", "rounding", "nan", "preserve_nan")
OPTIONS = {field.name: field.default for field in dataclasses.fields(Conventions)}
__all__ = [*FILTERS, "patch", "served", "unpatch"]  # noqa: PLE0604

import scipy.ndimage  # noqa: E402  # after `entries`, whose error says how to install it

# `import *` and `dir` give all that scipy's module gives.
__all__ += [name for name in scipy.ndimage.__all__ if name not in FILTERS]


def served() -> tuple[str, ...]:
    """The names of scipy.ndimage whose functions are computed here; all others are scipy's own.

    A served function may still leave a call to scipy's code, such as one of few elements.

    Returns
    -------
    names : tuple of str
        In alphabetical order.

    Examples
    --------
    >>> import implicit_conv.ndimage
    >>> implicit_conv.ndimage.served()[:3]
    ('convolve', 'convolve1d', 'correlate')
    >>> "label" in implicit_conv.ndimage.served()
    False
    """
    return tuple(sorted(FILTERS))


def patch(precision: Precision = STRICT) -> Patch:
    """Let scipy.ndimage's filters be computed here, for all that call them.

    Parameters
    ----------
    precision : "strict" (default), "standard" or "fast"
        See the module.

    Returns
    -------
    patch : context manager
        The end of a ``with`` block restores what was before; `unpatch` restores scipy's own code.

    Raises
    ------
    PlanError
        The precision is unknown (a ValueError).

    Examples
    --------
    >>> import numpy as np
    >>> import scipy.ndimage
    >>> import implicit_conv.ndimage
    >>> image = np.ones((200, 200), np.float32)
    >>> with implicit_conv.ndimage.patch():
    ...     blurred = scipy.ndimage.gaussian_filter(image, 3)
    >>> bool((blurred == scipy.ndimage.gaussian_filter(image, 3)).all())
    True
    """
    return Patch(precision)


def _filter(name: str) -> Any:
    """scipy's filter of this name, with `Conventions`."""
    original = OWN.get(name) or getattr(scipy.ndimage, name)
    signature = inspect.signature(original)

    def function(precision: Precision, nan: str, **arguments: Any) -> Any:
        bound = signature.bind(**arguments)
        return getattr(scipy_filters_on(precision, nan), name)(*bound.args, **bound.kwargs)

    @functools.wraps(original)
    def filtered(*args: Any, **kwargs: Any) -> Any:
        if kwargs.keys().isdisjoint(CONVENTIONS):
            precision = kwargs.pop("precision", STRICT)
            return getattr(scipy_filters_on(precision), name)(*args, **kwargs)
        options = Conventions(**{key: kwargs.pop(key) for key in OPTIONS if key in kwargs})
        bound = signature.bind(*args, **kwargs)
        extra = bound.arguments.pop("extra_keywords", {})
        return conventions.apply(name, function, options, {**bound.arguments, **extra})

    parameters = list(signature.parameters.values())
    place = len(parameters) - (parameters[-1].kind is inspect.Parameter.VAR_KEYWORD)
    parameters[place:place] = [
        inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default)
        for key, default in OPTIONS.items()
    ]
    filtered.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    filtered.__module__ = __name__
    return filtered


def _ordering(name: str) -> Any:
    """scipy's filter of this name, which orders elements."""
    module = scipy_morphology() if name in MORPHOLOGY else scipy_filters_on(STRICT)
    function = getattr(module, name)
    function.__module__ = __name__  # as which it is pickled
    return function


if TYPE_CHECKING:
    from implicit_conv.ndimage.signatures import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        if name not in FILTERS:
            if name.startswith("_"):  # what Python itself looks for needs no scipy
                raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
            return own_name(__name__, scipy.ndimage, name)
        globals()[name] = _filter(name) if name in SUMS else _ordering(name)
        return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)
