"""scipy.ndimage's linear filters with scipy's arguments and results, several times as fast.

The functions are scipy's own Python code on top of other C functions, so that arguments, dtypes,
modes and errors are scipy's. They have one parameter more:

precision : "strict" (default), "standard" or "fast"
    "strict" sums in float64, in scipy's order, and has scipy's results. The others compute filters
    of float32 images with float32 results by `implicit_conv.conv2d` and its kin of this precision,
    which sum in float32.

`patch` makes scipy's own functions as fast, and those of scikit-image that call them.
docs/images.md says what is computed here, and what is left to scipy.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import scipy.ndimage

from implicit_conv.ndimage.entries import STRICT, Patch, scipy_filters_on, unpatch

FILTERS = (
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
__all__ = [*FILTERS, "patch", "unpatch"]  # noqa: PLE0604


def patch(precision: str = STRICT) -> Patch:
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
    >>> (blurred == scipy.ndimage.gaussian_filter(image, 3)).all()
    np.True_
    """
    return Patch(precision)


def _filter(name: str) -> Any:
    """scipy's filter of this name, with a precision."""
    original = getattr(scipy.ndimage, name)

    @functools.wraps(original)
    def filtered(*args: Any, precision: str = STRICT, **kwargs: Any) -> Any:
        return getattr(scipy_filters_on(precision), name)(*args, **kwargs)

    signature = inspect.signature(original)
    parameters = list(signature.parameters.values())
    place = len(parameters) - (parameters[-1].kind is inspect.Parameter.VAR_KEYWORD)
    option = inspect.Parameter("precision", inspect.Parameter.KEYWORD_ONLY, default=STRICT)
    parameters.insert(place, option)
    filtered.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    filtered.__module__ = __name__
    return filtered


def __getattr__(name: str) -> Any:
    if name not in FILTERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = _filter(name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)
