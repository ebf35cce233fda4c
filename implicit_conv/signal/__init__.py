"""Convolutions of scipy.signal with scipy's arguments, faster where filters are short.

Arrays of float32, float64, complex64 and complex128 are convolved directly, by
`implicit_conv.conv1d` and its kin of precision "standard", where this takes less time than scipy's
FFT, as `choose_conv_method` estimates. All else goes to scipy's own function, which also raises
the errors. The page "Filters of images and fields" lists what is left to it. All other public
names of scipy.signal, such as `firwin` and `butter`, are scipy's own functions; type checkers do
not know these. A door: this imports operators and arrays.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, overload

import numpy as np
from numpy.typing import ArrayLike

from implicit_conv.arrays.arrays import Array
from implicit_conv.arrays.neighbours import own_name
from implicit_conv.errors import install
from implicit_conv.operators.conv import conv1d, conv2d, conv3d
from implicit_conv.problem.options import PaddingMode
from implicit_conv.problem.parse import Ints

try:
    import scipy.signal
    from scipy.signal import _signaltools
except ImportError as error:
    raise ImportError(
        f"implicit_conv.signal needs scipy 1.11 or newer: {install('scipy>=1.11')}"
    ) from error

__all__ = [
    "choose_conv_method",
    "convolve",
    "convolve2d",
    "correlate",
    "correlate2d",
    "fftconvolve",
    "lfilter",
    "oaconvolve",
    "resample_poly",
    "upfirdn",
]

Mode: TypeAlias = Literal["full", "same", "valid"]
Method: TypeAlias = Literal["auto", "direct", "fft"]
Boundary: TypeAlias = Literal["fill", "wrap", "symm"]


class Scipy(Protocol):
    """scipy.signal, which has no types: its functions return arrays."""

    def __getattr__(self, name: str, /) -> Callable[..., Array]: ...


scipy_signal: Scipy = scipy.signal

if not TYPE_CHECKING:  # type checkers would believe that it has any name

    def __getattr__(name: str) -> Any:
        return own_name(__name__, scipy.signal, name)


CONVOLUTIONS = (conv1d, conv2d, conv3d)  # by rank
MODES = ("full", "same", "valid")
PADDING_MODES: dict[str, PaddingMode] = {"fill": "zeros", "wrap": "circular", "symm": "symmetric"}
REALS = {"f": 4, "d": 8, "F": 4, "D": 8}  # bytes of a real number, by numpy's characters of dtypes
# Nanoseconds on one core, by bytes of a real number (Xeon with AVX-512, scipy 1.17, 2026-11).
PRODUCT = {4: 0.06, 8: 0.12}  # of a direct sum: 1e6 samples by 15 to 1023 taps, 2000^2 by 15^2
FFT = {4: 1.7, 8: 2.2}  # of fftconvolve, for an element and a doubling of the size
OVERLAP = {4: 0.8, 8: 1.5}  # of oaconvolve, for an element and a doubling of its blocks
UPFIRDN = 0.5  # of scipy's upfirdn, for a product
DIRECT_CALL, FFT_CALL = 7e3, 5e4
MOST_STEP = 2  # pixels between windows; scipy's sums of one channel are faster above it
BLOCKS = 8  # filter lengths of a block of oaconvolve


class Choice(str):
    """The name of a method, "direct" or "fft"; `reason` says why."""

    reason: str

    def __new__(cls, method: str, reason: str) -> Choice:
        choice = super().__new__(cls, method)
        choice.reason = reason
        return choice


def _pair(in1: ArrayLike, in2: ArrayLike) -> tuple[Array, Array] | None:
    """Both arrays in their common dtype, or None if they are left to scipy."""
    x, w = np.asarray(in1), np.asarray(in2)
    if x.ndim != w.ndim or not 1 <= x.ndim <= len(CONVOLUTIONS) or not x.size or not w.size:
        return None
    if x.dtype.kind not in "fc" or w.dtype.kind not in "fc":
        return None
    dtype = np.result_type(x, w)
    if dtype.char not in REALS:
        return None
    return x.astype(dtype, copy=False), w.astype(dtype, copy=False)


def _fits(x: Array, w: Array) -> bool:
    return all(n >= m for n, m in zip(x.shape, w.shape, strict=True))


def _choice(x: Array, w: Array, overlapping: bool = False) -> Choice:
    """The method that takes less time, by the tables."""
    real = REALS[x.dtype.char]
    products = (4 if x.dtype.kind == "c" else 1) * math.prod(x.shape) * math.prod(w.shape)
    full = math.prod(n + m - 1 for n, m in zip(x.shape, w.shape, strict=True))
    direct = DIRECT_CALL + PRODUCT[real] * products
    block = min(full, BLOCKS * math.prod(w.shape))
    each = OVERLAP[real] * math.log2(block + 1) if overlapping else FFT[real] * math.log2(full + 1)
    fft = FFT_CALL + full * each * (2 if x.dtype.kind == "c" else 1)
    reason = (
        f"{products} products of {x.dtype} take about {direct / 1e6:.3g} ms, and an FFT of {full} "
        f"elements {fft / 1e6:.3g} ms"
    )
    return Choice("direct" if direct <= fft else "fft", reason)


def _direct(x: Array, w: Array, mode: str, padding_mode: PaddingMode = "zeros") -> Array | None:
    """The convolution of `x` by `w`; "same" has the shape of `x`. None if taps are not finite and
    meet padding: scipy's code knows where they show.
    """
    if mode == "valid" and not _fits(x, w):
        x, w = w, x
    shape = x.shape
    starts, second = [(m - 1) // 2 for m in w.shape], w
    if mode != "valid" and math.prod(w.shape) > math.prod(x.shape) and padding_mode == "zeros":
        x, w = w, x  # the smaller one is the filter; the result is cut from the full one
    if mode != "valid" and padding_mode == "zeros":
        # scipy pads the first operand of "same" for the taps of the second one, even a longer one.
        if _spreads(w) or (mode == "same" and second is not w and _spreads(second)):
            return None
    padding = []
    for n, m, size, start in zip(x.shape, w.shape, shape, starts, strict=True):
        if mode == "same":
            low = m - 1 - start
            padding.append((low, size + m - 1 - n - low))
        else:
            padding.append((0, 0) if mode == "valid" else (m - 1, m - 1))
    convolution = CONVOLUTIONS[x.ndim - 1]
    flipped = np.flip(w)[None, None]
    y = convolution(x[None, None], flipped, padding=tuple(padding), padding_mode=padding_mode)
    return y[0, 0]  # type: ignore[no-any-return]


def _spreads(taps: Array) -> bool:
    """Whether taps are not finite: padding times such a tap is NaN, where there is no product."""
    return not np.isfinite(taps).all()


def _refused(x: Array, w: Array, mode: str) -> bool:
    """Whether scipy refuses the arguments, with a message of its own."""
    return mode not in MODES or (mode == "valid" and not _fits(x, w) and not _fits(w, x))


@overload
def choose_conv_method(
    in1: ArrayLike, in2: ArrayLike, mode: Mode = "full", measure: Literal[False] = False
) -> Choice: ...
@overload
def choose_conv_method(
    in1: ArrayLike, in2: ArrayLike, mode: Mode = "full", *, measure: Literal[True]
) -> tuple[Choice, dict[str, float]]: ...
def choose_conv_method(
    in1: ArrayLike, in2: ArrayLike, mode: Mode = "full", measure: bool = False
) -> Choice | tuple[Choice, dict[str, float]]:
    """Choose between a direct sum and scipy's FFT, as `convolve` and `correlate` do.

    Parameters
    ----------
    in1, in2, mode, measure
        As in ``scipy.signal.choose_conv_method``; with `measure` scipy measures its own methods.

    Returns
    -------
    method : Choice
        "direct" or "fft"; its attribute `reason` says why.
    times : dict
        With `measure`: scipy's.

    Examples
    --------
    >>> import numpy as np
    >>> from implicit_conv import signal
    >>> method = signal.choose_conv_method(np.ones(100000), np.ones(63))
    >>> print(method, "since", method.reason.partition(",")[0])
    direct since 6300000 products of float64 take about 0.763 ms
    """
    pair = _pair(in1, in2)
    if pair is None or measure or _refused(*pair, mode):
        found: Any = scipy_signal.choose_conv_method(in1, in2, mode, measure)
        method, times = found if measure else (found, {})
        choice = Choice(method, "scipy's own choice, for what is left to scipy")
        return (choice, times) if measure else choice
    return _choice(*pair)


def convolve(in1: ArrayLike, in2: ArrayLike, mode: Mode = "full", method: Method = "auto") -> Array:
    """Convolve as ``scipy.signal.convolve`` does."""
    return _by_method(scipy_signal.convolve, in1, in2, mode, method)


def correlate(
    in1: ArrayLike, in2: ArrayLike, mode: Mode = "full", method: Method = "auto"
) -> Array:
    """Correlate as ``scipy.signal.correlate`` does."""
    return _by_method(scipy_signal.correlate, in1, in2, mode, method)


def _by_method(function: Callable[..., Array], in1: Any, in2: Any, mode: str, method: str) -> Array:
    pair = _pair(in1, in2)
    if pair is None or _refused(*pair, mode) or method not in ("auto", "direct"):
        return function(in1, in2, mode, method)
    if method == "auto" and _choice(*pair) == "fft":
        return function(in1, in2, mode, "fft")
    x, w = pair
    y = _direct(x, np.conj(np.flip(w)) if function is scipy_signal.correlate else w, mode)
    return function(in1, in2, mode, method) if y is None else y


def fftconvolve(
    in1: ArrayLike, in2: ArrayLike, mode: Mode = "full", axes: Ints | None = None
) -> Array:
    """Convolve as ``scipy.signal.fftconvolve`` does: directly where this takes less time."""
    return _unless_direct(scipy_signal.fftconvolve, False, in1, in2, mode, axes)


def oaconvolve(
    in1: ArrayLike, in2: ArrayLike, mode: Mode = "full", axes: Ints | None = None
) -> Array:
    """Convolve as ``scipy.signal.oaconvolve`` does: directly where this takes less time."""
    return _unless_direct(scipy_signal.oaconvolve, True, in1, in2, mode, axes)


def _unless_direct(
    function: Callable[..., Array], overlapping: bool, in1: Any, in2: Any, mode: str, axes: Any
) -> Array:
    pair = _pair(in1, in2) if axes is None else None
    if pair is None or _refused(*pair, mode) or _choice(*pair, overlapping) == "fft":
        return function(in1, in2, mode, axes)
    y = _direct(*pair, mode)
    return function(in1, in2, mode, axes) if y is None else y


def convolve2d(
    in1: ArrayLike,
    in2: ArrayLike,
    mode: Mode = "full",
    boundary: Boundary = "fill",
    fillvalue: complex = 0,
) -> Array:
    """Convolve as ``scipy.signal.convolve2d`` does; always a direct sum."""
    return _two_axes(scipy_signal.convolve2d, in1, in2, mode, boundary, fillvalue)


def correlate2d(
    in1: ArrayLike,
    in2: ArrayLike,
    mode: Mode = "full",
    boundary: Boundary = "fill",
    fillvalue: complex = 0,
) -> Array:
    """Correlate as ``scipy.signal.correlate2d`` does; always a direct sum."""
    return _two_axes(scipy_signal.correlate2d, in1, in2, mode, boundary, fillvalue)


def _two_axes(
    function: Callable[..., Array], in1: Any, in2: Any, mode: str, boundary: str, fillvalue: Any
) -> Array:
    """Filters that are larger than the image in an axis are left to scipy."""
    pair = _pair(in1, in2)
    zeros = boundary != "fill" or np.all(np.asarray(fillvalue) == 0)
    known = boundary in PADDING_MODES and zeros
    if not known or pair is None or pair[0].ndim != 2 or mode not in MODES or not _fits(*pair):
        return function(in1, in2, mode, boundary, fillvalue)
    x, w = pair
    if function is scipy_signal.correlate2d:
        w = np.conj(np.flip(w))
    if function is scipy_signal.correlate2d and mode == "same":  # scipy's centre of an even filter
        y = _centred(x, w, PADDING_MODES[boundary])
    else:
        y = _direct(x, w, mode, PADDING_MODES[boundary])
    return function(in1, in2, mode, boundary, fillvalue) if y is None else y


def _centred(x: Array, w: Array, padding_mode: PaddingMode) -> Array | None:
    """The part of a correlation whose window has its centre, at (size - 1) // 2, on each pixel."""
    if padding_mode == "zeros" and _spreads(w):
        return None
    padding = tuple(((m - 1) // 2, m // 2) for m in w.shape)
    flipped = np.flip(w)[None, None]
    return conv2d(x[None, None], flipped, padding=padding, padding_mode=padding_mode)[0, 0]  # type: ignore[no-any-return]


@overload
def lfilter(b: ArrayLike, a: ArrayLike, x: ArrayLike, axis: int = -1, zi: None = None) -> Array: ...
@overload
def lfilter(
    b: ArrayLike, a: ArrayLike, x: ArrayLike, axis: int = -1, *, zi: ArrayLike
) -> tuple[Array, Array]: ...
def lfilter(
    b: ArrayLike, a: ArrayLike, x: ArrayLike, axis: int = -1, zi: ArrayLike | None = None
) -> Array | tuple[Array, Array]:
    """Filter as ``scipy.signal.lfilter`` does; a filter with feedback is left to scipy."""
    taps, divisor, values = np.atleast_1d(b), np.atleast_1d(a), np.asarray(x)
    state = None if zi is None else np.asarray(zi)
    arrays = (taps, divisor, values) if state is None else (taps, divisor, values, state)
    served = all(array.dtype.kind in "fc" for array in arrays) and values.ndim >= 1
    served = served and np.result_type(*arrays).char in REALS
    served = served and taps.ndim == 1 and divisor.shape == (1,) and divisor[0] != 0
    served = served and not _spreads(taps / divisor[0])
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
    scipy's code: a NaN that meets the zeros at their ends shows.
    """
    taps, values = np.asarray(h), np.asarray(x)
    served = all(a.dtype.kind in "fc" and a.dtype.char in REALS and a.size for a in (taps, values))
    served = served and mode == "constant" and cval in (0, None) and taps.ndim == 1
    served = served and not _spreads(taps)
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
    """Resample as ``scipy.signal.resample_poly`` does."""
    return _resample_poly()(x, up, down, axis, window, padtype, cval)
