"""Convolutions and correlations of two arrays: direct sums, where these take less time."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from implicit_conv.arrays.arrays import Array
from implicit_conv.operators.conv import conv1d, conv2d, conv3d
from implicit_conv.problem.options import PaddingMode
from implicit_conv.problem.parse import Ints
from implicit_conv.signal.choice import Shape, is_direct_faster, method_of
from implicit_conv.signal.operands import (
    MODES,
    Mode,
    fits,
    pair_of,
    refused,
    scipy_signal,
    spreads,
)

Method: TypeAlias = Literal["auto", "direct", "fft"]
Boundary: TypeAlias = Literal["fill", "wrap", "symm"]
CONVOLUTIONS = (conv1d, conv2d, conv3d)  # by rank
PADDING_MODES: dict[str, PaddingMode] = {"fill": "zeros", "wrap": "circular", "symm": "symmetric"}


class Sum(NamedTuple):
    """How arrays of two shapes are convolved directly.

    Attributes
    ----------
    conjugates : bool
        Whether the second operand is conjugated.
    swaps : bool
        Whether the first operand is the filter.
    image, taps : indices
        What makes arrays of the image and the filter as convolutions of layers take them.
    padding : of each axis
    checks_taps, checks_image : bool
        Whether elements that are not finite would show where scipy has no product of them.
    """

    conjugates: bool
    swaps: bool
    image: Any
    taps: Any
    padding: tuple[tuple[int, int], ...]
    checks_taps: bool
    checks_image: bool


@functools.lru_cache(4096)
def _sum(x: Shape, w: Shape, mode: str, pads_zeros: bool, correlates: bool) -> Sum:
    """The sum for operands of these shapes; `correlates` does not flip the second one."""
    if mode == "valid":
        swaps = any(n < m for n, m in zip(x, w, strict=True))
    else:  # the smaller one is the filter; the result is cut from the full one
        swaps = math.prod(w) > math.prod(x) and pads_zeros
    padding = []
    for first, second in zip(x, w, strict=True):
        n, m = (second, first) if swaps else (first, second)
        if mode == "same":  # as long as the first operand
            low = m - 1 - (second - 1) // 2
            padding.append((low, first + m - 1 - n - low))
        else:
            padding.append((0, 0) if mode == "valid" else (m - 1, m - 1))
    plain, flipped = ((None, None, *[slice(None, None, step)] * len(x)) for step in (1, -1))
    return Sum(
        correlates,
        swaps,
        image=flipped if correlates and swaps else plain,
        taps=plain if correlates and not swaps else flipped,
        padding=tuple(padding),
        checks_taps=mode != "valid" and pads_zeros,
        # scipy pads the first operand of "same" for the taps of the second one, even a longer one.
        checks_image=mode == "same" and pads_zeros and swaps,
    )


def _direct(
    x: Array, w: Array, mode: str, padding_mode: PaddingMode = "zeros", *, correlates: bool = False
) -> Array | None:
    """The convolution of `x` by `w`, or the correlation; "same" has the shape of `x`. None if taps
    are not finite and meet padding: scipy's code knows where they show.
    """
    found = _sum(x.shape, w.shape, mode, padding_mode == "zeros", correlates)
    return _summed(found, x, w, padding_mode)


def _summed(found: Sum, x: Array, w: Array, padding_mode: PaddingMode = "zeros") -> Array | None:
    """The result of a sum of operands; None as in `_direct`."""
    if found.conjugates and w.dtype.kind == "c":
        w = np.conj(w)
    image, taps = (w, x) if found.swaps else (x, w)
    if (found.checks_taps and spreads(taps)) or (found.checks_image and spreads(image)):
        return None
    image, taps = image[found.image], taps[found.taps]
    y = CONVOLUTIONS[x.ndim - 1](image, taps, padding=found.padding, padding_mode=padding_mode)
    return y[0, 0]  # type: ignore[no-any-return]


@functools.lru_cache(4096)
def _known(
    x: Shape, w: Shape, dtype: Any, mode: str, method: str, correlates: bool
) -> Sum | str | None:
    """The direct sum for operands of these shapes and a dtype; "fft" where scipy's FFT takes less
    time, and None where scipy takes all arguments.
    """
    pair = pair_of(*(np.broadcast_to(np.zeros((), dtype), shape) for shape in (x, w)))
    if pair is None or refused(*pair, mode) or method not in ("auto", "direct"):
        return None
    if method == "auto" and method_of(x, w, dtype.char, mode) == "fft":
        return "fft"
    return _sum(x, w, mode, True, correlates)


def convolve(in1: ArrayLike, in2: ArrayLike, mode: Mode = "full", method: Method = "auto") -> Array:
    """Convolve as ``scipy.signal.convolve`` does.

    scipy computes arrays of more than three axes, and dtypes other than float32, float64, complex64
    and complex128.

    Parameters
    ----------
    in1, in2 : array_like, of equally many axes
        The signal and the filter.
    mode : "full" (default), "same" or "valid"
        All sums in which the arrays overlap; the middle ones, of the shape of `in1`; or those that
        need no padding.
    method : "auto" (default), "direct" or "fft"
        "auto" is the answer of `choose_conv_method`; scipy computes FFTs.

    Returns
    -------
    y : array
        The sums, in the common dtype of `in1` and `in2`.

    Raises
    ------
    ValueError
        scipy's errors: the mode is unknown, the arrays have unlike numbers of axes, or in "valid"
        neither is as long as the other along every axis.

    Examples
    --------
    >>> from implicit_conv import signal
    >>> signal.convolve([1.0, 2.0, 3.0], [1.0, 1.0]).tolist()
    [1.0, 3.0, 5.0, 3.0]
    """
    return _by_method(scipy_signal.convolve, in1, in2, mode, method)


def correlate(
    in1: ArrayLike, in2: ArrayLike, mode: Mode = "full", method: Method = "auto"
) -> Array:
    """Correlate as ``scipy.signal.correlate`` does: by `in2` conjugated, and not flipped.

    What scipy computes is the same as in `convolve`.

    Parameters
    ----------
    in1, in2 : array_like, of equally many axes
        The signal and the filter.
    mode : "full" (default), "same" or "valid"
        All sums in which the arrays overlap; the middle ones, of the shape of `in1`; or those that
        need no padding.
    method : "auto" (default), "direct" or "fft"
        "auto" is the answer of `choose_conv_method`; scipy computes FFTs.

    Returns
    -------
    y : array
        The sums, in the common dtype of `in1` and `in2`.

    Raises
    ------
    ValueError
        scipy's errors: the mode is unknown, the arrays have unlike numbers of axes, or in "valid"
        neither is as long as the other along every axis.

    Examples
    --------
    Where a pattern occurs:

    >>> from implicit_conv import signal
    >>> found = signal.correlate([0.0, 1.0, 2.0, 0.0], [1.0, 2.0], "valid")
    >>> found.tolist(), int(found.argmax())
    ([2.0, 5.0, 2.0], 1)
    """
    return _by_method(scipy_signal.correlate, in1, in2, mode, method)


def _by_method(function: Callable[..., Array], in1: Any, in2: Any, mode: str, method: str) -> Array:
    x, w = in1, in2
    if not (type(x) is type(w) is np.ndarray and x.dtype is w.dtype and x.dtype.isnative):
        pair = pair_of(in1, in2)
        if pair is None:
            return function(in1, in2, mode, method)
        x, w = pair
    if not (isinstance(mode, str) and isinstance(method, str)):
        return function(in1, in2, mode, method)
    correlates = function is scipy_signal.correlate
    found = _known(x.shape, w.shape, x.dtype, mode, method, correlates)
    if not isinstance(found, Sum):
        return function(in1, in2, mode, found or method)
    y = _summed(found, x, w)
    return function(in1, in2, mode, method) if y is None else y


def fftconvolve(
    in1: ArrayLike, in2: ArrayLike, mode: Mode = "full", axes: Ints | None = None
) -> Array:
    """Convolve as ``scipy.signal.fftconvolve`` does: directly where this takes less time.

    Parameters
    ----------
    in1, in2 : array_like, of equally many axes
        The signal and the filter.
    mode : "full" (default), "same" or "valid"
        All sums in which the arrays overlap; the middle ones, of the shape of `in1`; or those that
        need no padding.
    axes : int or sequence of int, optional
        The axes to convolve along; by default all. Where they are given, scipy computes.

    Returns
    -------
    y : array
        The sums, in the common dtype of `in1` and `in2`.

    Raises
    ------
    ValueError
        scipy's errors: the mode is unknown, the arrays have unlike numbers of axes, or in "valid"
        neither is as long as the other along every axis.

    Examples
    --------
    >>> import numpy as np
    >>> from implicit_conv import signal
    >>> signal.fftconvolve(np.ones(6), np.ones(3), "valid").tolist()
    [3.0, 3.0, 3.0, 3.0]
    """
    return _unless_direct(scipy_signal.fftconvolve, False, in1, in2, mode, axes)


def oaconvolve(
    in1: ArrayLike, in2: ArrayLike, mode: Mode = "full", axes: Ints | None = None
) -> Array:
    """Convolve as ``scipy.signal.oaconvolve`` does: directly where this takes less time.

    Else scipy adds the overlapping parts of many short FFTs, which suits a filter that is much
    shorter than the signal.

    Parameters
    ----------
    in1, in2 : array_like, of equally many axes
        The signal and the filter.
    mode : "full" (default), "same" or "valid"
        All sums in which the arrays overlap; the middle ones, of the shape of `in1`; or those that
        need no padding.
    axes : int or sequence of int, optional
        The axes to convolve along; by default all. Where they are given, scipy computes.

    Returns
    -------
    y : array
        The sums, in the common dtype of `in1` and `in2`.

    Raises
    ------
    ValueError
        scipy's errors: the mode is unknown, the arrays have unlike numbers of axes, or in "valid"
        neither is as long as the other along every axis.

    Examples
    --------
    >>> import numpy as np
    >>> from implicit_conv import signal
    >>> signal.oaconvolve(np.ones(100000), np.ones(9), "same").shape
    (100000,)
    """
    return _unless_direct(scipy_signal.oaconvolve, True, in1, in2, mode, axes)


def _unless_direct(
    function: Callable[..., Array], overlapping: bool, in1: Any, in2: Any, mode: str, axes: Any
) -> Array:
    pair = pair_of(in1, in2) if axes is None else None
    if pair is None or refused(*pair, mode):
        return function(in1, in2, mode, axes)
    x, w = pair
    if not is_direct_faster(x.shape, w.shape, x.dtype.char, mode, overlapping):
        return function(in1, in2, mode, axes)
    y = _direct(x, w, mode)
    return function(in1, in2, mode, axes) if y is None else y


def convolve2d(
    in1: ArrayLike,
    in2: ArrayLike,
    mode: Mode = "full",
    boundary: Boundary = "fill",
    fillvalue: complex = 0,
) -> Array:
    """Convolve as ``scipy.signal.convolve2d`` does; always a direct sum.

    scipy computes integers, and filters that are larger than the image along an axis.

    Parameters
    ----------
    in1, in2 : array_like, of two axes
        The image and the filter.
    mode : "full" (default), "same" or "valid"
        All sums in which the arrays overlap; the middle ones, of the shape of `in1`; or those that
        need no padding.
    boundary : "fill" (default), "wrap" or "symm"
        Pixels outside `in1`: `fillvalue`, those of the opposite border, or a reflection that
        repeats the border.
    fillvalue : number
        0 by default; with another one scipy computes.

    Returns
    -------
    y : array
        The sums, in the common dtype of `in1` and `in2`.

    Raises
    ------
    ValueError
        scipy's errors: the mode is unknown, the arrays have unlike numbers of axes, or in "valid"
        neither is as long as the other along every axis.

    Examples
    --------
    >>> import numpy as np
    >>> from implicit_conv import signal
    >>> signal.convolve2d(np.eye(3), np.ones((2, 2)), "valid").tolist()
    [[2.0, 1.0], [1.0, 2.0]]
    """
    return _two_axes(scipy_signal.convolve2d, in1, in2, mode, boundary, fillvalue)


def correlate2d(
    in1: ArrayLike,
    in2: ArrayLike,
    mode: Mode = "full",
    boundary: Boundary = "fill",
    fillvalue: complex = 0,
) -> Array:
    """Correlate as ``scipy.signal.correlate2d`` does; always a direct sum.

    What scipy computes is the same as in `convolve2d`.

    Parameters
    ----------
    in1, in2 : array_like, of two axes
        The image and the filter, which is conjugated and not flipped.
    mode : "full" (default), "same" or "valid"
        All sums in which the arrays overlap; the middle ones, of the shape of `in1`; or those that
        need no padding.
    boundary : "fill" (default), "wrap" or "symm"
        Pixels outside `in1`: `fillvalue`, those of the opposite border, or a reflection that
        repeats the border.
    fillvalue : number
        0 by default; with another one scipy computes.

    Returns
    -------
    y : array
        The sums, in the common dtype of `in1` and `in2`.

    Raises
    ------
    ValueError
        scipy's errors: the mode is unknown, the arrays have unlike numbers of axes, or in "valid"
        neither is as long as the other along every axis.

    Examples
    --------
    >>> import numpy as np
    >>> from implicit_conv import signal
    >>> sobel = np.array([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])
    >>> ramp = np.tile(np.arange(4.0), (3, 1))
    >>> signal.correlate2d(ramp, sobel, "same", boundary="symm")[1].tolist()
    [4.0, 8.0, 8.0, 4.0]
    """
    return _two_axes(scipy_signal.correlate2d, in1, in2, mode, boundary, fillvalue)


def _two_axes(
    function: Callable[..., Array], in1: Any, in2: Any, mode: str, boundary: str, fillvalue: Any
) -> Array:
    """Filters that are larger than the image in an axis are left to scipy."""
    pair = pair_of(in1, in2)
    zeros = boundary != "fill" or np.all(np.asarray(fillvalue) == 0)
    known = boundary in PADDING_MODES and zeros
    if not known or pair is None or pair[0].ndim != 2 or mode not in MODES or not fits(*pair):
        return function(in1, in2, mode, boundary, fillvalue)
    x, w = pair
    correlates = function is scipy_signal.correlate2d
    if correlates and mode == "same":  # scipy's centre of an even filter
        y = _centred(x, np.conj(np.flip(w)), PADDING_MODES[boundary])
    else:
        y = _direct(x, w, mode, PADDING_MODES[boundary], correlates=correlates)
    return function(in1, in2, mode, boundary, fillvalue) if y is None else y


def _centred(x: Array, w: Array, padding_mode: PaddingMode) -> Array | None:
    """The part of a correlation whose window has its centre, at (size - 1) // 2, on each pixel."""
    if padding_mode == "zeros" and spreads(w):
        return None
    padding = tuple(((m - 1) // 2, m // 2) for m in w.shape)
    flipped = np.flip(w)[None, None]
    return conv2d(x[None, None], flipped, padding=padding, padding_mode=padding_mode)[0, 0]  # type: ignore[no-any-return]
