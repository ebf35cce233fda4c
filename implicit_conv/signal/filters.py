"""Filters of signals along one axis: lfilter, upfirdn and resample_poly."""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable
from typing import overload

import numpy as np
from numpy.typing import ArrayLike
from scipy.signal import _signaltools

from implicit_conv.arrays.arrays import Array, is_masked_array
from implicit_conv.operators.conv import conv1d
from implicit_conv.signal.choice import DIRECT_CALL, PRODUCT
from implicit_conv.signal.operands import REALS, scipy_signal, spreads

UPFIRDN = 0.5  # nanoseconds of scipy's upfirdn for a product, on the machine of `PRODUCT`
MOST_STEP = 2  # pixels between windows; scipy's sums of one channel are faster above it


@overload
def lfilter(b: ArrayLike, a: ArrayLike, x: ArrayLike, axis: int = -1, zi: None = None) -> Array: ...
@overload
def lfilter(
    b: ArrayLike, a: ArrayLike, x: ArrayLike, axis: int = -1, *, zi: ArrayLike
) -> tuple[Array, Array]: ...
def lfilter(
    b: ArrayLike, a: ArrayLike, x: ArrayLike, axis: int = -1, zi: ArrayLike | None = None
) -> Array | tuple[Array, Array]:
    """Filter as ``scipy.signal.lfilter`` does; a filter with feedback is left to scipy.

    scipy also computes dtypes other than float32, float64, complex64 and complex128, and a `zi`
    that it would repeat.

    Parameters
    ----------
    b, a : array_like, one axis
        Weights of the samples of `x`, and of the results before; both are divided by ``a[0]``. The
        filter has no feedback if `a` is one number.
    x : array_like
        Signals, along `axis`.
    axis : int
        The last one by default.
    zi : array_like of the shape of `x`, with ``max(len(a), len(b)) - 1`` elements along `axis`
        The state that the filter begins with; zero by default.

    Returns
    -------
    y : array of the shape of `x`
    zf : array of the shape of `zi`
        The state at the end, which is returned if `zi` is given.

    Raises
    ------
    ValueError
        scipy's errors: ``a[0]`` is zero, or a shape does not match.

    Examples
    --------
    A mean of two samples, of a signal that comes in pieces:

    >>> from implicit_conv import signal
    >>> y, state = signal.lfilter([0.5, 0.5], 1.0, [2.0, 4.0], zi=[0.0])
    >>> more, state = signal.lfilter([0.5, 0.5], 1.0, [6.0], zi=state)
    >>> y.tolist(), more.tolist()
    ([1.0, 3.0], [5.0])
    """
    taps, divisor, values = np.atleast_1d(b), np.atleast_1d(a), np.asarray(x)
    state = None if zi is None else np.asarray(zi)
    arrays = (taps, divisor, values) if state is None else (taps, divisor, values, state)
    served = all(array.dtype.kind in "fc" for array in arrays) and values.ndim >= 1
    served = served and not any(map(is_masked_array, arrays))  # b and a keep theirs
    served = served and np.result_type(*arrays).char in REALS
    served = (
        served and taps.ndim == 1 and taps.size > 0 and divisor.shape == (1,) and divisor[0] != 0
    )
    served = served and not spreads(taps / divisor[0])
    served = served and values.size > 0 and -values.ndim <= axis < values.ndim
    more = taps.size - 1
    if served and state is not None:
        lengths = list(values.shape)
        lengths[axis] = more
        served = state.shape == tuple(lengths)  # scipy repeats shorter ones
    if not served:
        return scipy_signal.lfilter(b, a, x, axis, zi)
    dtype, lines = np.result_type(*arrays), np.moveaxis(values, axis, -1)
    size = lines.shape[-1]
    rows = lines.reshape(-1, 1, size).astype(dtype, copy=False)
    kernel = (np.flip(taps) / divisor[0]).astype(dtype)[None, None]
    y = conv1d(rows, kernel, padding=((more, 0 if state is None else more),))
    y = y.reshape(*lines.shape[:-1], -1)
    if state is None:
        return np.moveaxis(y, -1, axis)
    y[..., :more] += np.moveaxis(state, axis, -1)
    return np.moveaxis(y[..., :size], -1, axis), np.moveaxis(y[..., size:], -1, axis)


def upfirdn(
    h: ArrayLike,
    x: ArrayLike,
    up: int = 1,
    down: int = 1,
    axis: int = -1,
    mode: str = "constant",
    cval: float | None = 0,
) -> Array:
    """Upsample, filter and downsample as ``scipy.signal.upfirdn`` does.

    Output ``k = r + up * q`` reads every `up`-th tap, so that each residue r is a convolution with
    stride `down` of a part of the filter. All parts are as long as the longest one, as they are in
    scipy's code: a NaN that meets the zeros at their ends shows. scipy computes where its own code
    takes less time by estimate, and dtypes other than float32, float64, complex64 and complex128.

    Parameters
    ----------
    h : array_like, one axis
        The taps of the filter, which acts at the high rate.
    x : array_like
        Signals, along `axis`.
    up, down : int
        Each sample is followed by ``up - 1`` zeros; every `down`-th result is kept.
    axis : int
        The last one by default.
    mode : str
        What is before and after the signal, by scipy's names; other modes than "constant" are left
        to scipy.
    cval : float, optional
        The value of "constant", 0 by default; another one is left to scipy.

    Returns
    -------
    y : array
        Along `axis` it has ``ceil(((x.shape[axis] - 1) * up + len(h)) / down)`` samples.

    Raises
    ------
    ValueError
        scipy's errors: `up` or `down` is below 1, or a shape does not match.

    Examples
    --------
    >>> from implicit_conv import signal
    >>> signal.upfirdn([1.0, 1.0], [1.0, 2.0, 3.0], up=2).tolist()
    [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
    """
    taps, values = np.asarray(h), np.asarray(x)
    served = all(a.dtype.kind in "fc" and a.dtype.char in REALS and a.size for a in (taps, values))
    served = served and mode == "constant" and cval in (0, None) and taps.ndim == 1
    served = served and not spreads(taps)
    served = served and values.ndim >= 1 and -values.ndim <= axis < values.ndim
    if not served or not all(isinstance(n, (int, np.integer)) and n >= 1 for n in (up, down)):
        return scipy_signal.upfirdn(h, x, up, down, axis, mode, cval)
    dtype = np.result_type(taps, values)
    common = math.gcd(up, down)
    period, step = up // common, down // common
    size = values.shape[axis]
    count = -(-((size - 1) * up + taps.size) // down)
    products = values.size // size * count * -(-taps.size // up)
    saved = (UPFIRDN - PRODUCT[REALS[dtype.char]]) * products
    if step > MOST_STEP or saved < period * DIRECT_CALL:
        return scipy_signal.upfirdn(h, x, up, down, axis, mode, cval)
    lines = np.moveaxis(values, axis, -1).astype(dtype, copy=False)
    parts = np.zeros((-(-taps.size // up), up), dtype)
    parts.ravel()[: taps.size] = taps
    y = np.empty((*lines.shape[:-1], count), dtype)
    rows, results = lines.reshape(-1, 1, size), y.reshape(-1, 1, count)
    for residue in range(min(period, count)):
        first, skipped = divmod(residue * down, up)  # the last sample of output `residue`
        target = results[..., residue::period]
        low = len(parts) - 1 - first  # first - len(parts) + 1 is the first sample of its window
        high = (target.shape[-1] - 1) * step + len(parts) - low - size
        kernel = np.flip(parts[:, skipped])[None, None]
        target[...] = conv1d(rows, kernel, stride=step, padding=((low, high),))
    return np.moveaxis(y, -1, axis)


@functools.cache
def _resample_poly() -> Callable[..., Array]:
    """scipy's function with `upfirdn` of this module."""
    original = _signaltools.resample_poly
    original = getattr(original, "__wrapped__", original)
    names = {**original.__globals__, "upfirdn": upfirdn}
    function = types.FunctionType(
        original.__code__, names, original.__name__, original.__defaults__, original.__closure__
    )
    function.__kwdefaults__ = original.__kwdefaults__
    return function


def resample_poly(
    x: ArrayLike,
    up: int,
    down: int,
    axis: int = 0,
    window: str | tuple[str, float] | ArrayLike = ("kaiser", 5.0),
    padtype: str = "constant",
    cval: float | None = None,
) -> Array:
    """Resample as ``scipy.signal.resample_poly`` does: its own code, which calls `upfirdn`.

    Parameters
    ----------
    x : array_like
        Signals, along `axis`.
    up, down : int
        The new rate is the old one times ``up / down``.
    axis : int
        The first one by default.
    window : str, tuple or array_like
        The window that the low-pass filter is designed with, or the taps of a filter.
    padtype : str
        What is before and after the signal, by scipy's names: "constant" by default.
    cval : float, optional
        The value of "constant", 0 by default.

    Returns
    -------
    y : array
        Along `axis` it has ``ceil(x.shape[axis] * up / down)`` samples.

    Raises
    ------
    ValueError
        scipy's errors: `up` or `down` is no integer of at least 1, or `padtype` is unknown.

    Examples
    --------
    A second of sound, from 48 kHz to 16 kHz:

    >>> import numpy as np
    >>> from implicit_conv import signal
    >>> signal.resample_poly(np.ones(48000, np.float32), 1, 3).shape
    (16000,)
    """
    return _resample_poly()(x, up, down, axis, window, padtype, cval)
