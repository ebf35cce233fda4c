"""Whether arrays are summed directly or by an FFT: by time, and by what scipy does."""

from __future__ import annotations

import functools
import math
from typing import Any, Literal, TypeAlias, overload

import numpy as np
from numpy.typing import ArrayLike

from implicit_conv.arrays.arrays import Array
from implicit_conv.signal.operands import REALS, Mode, pair_of, refused, scipy_signal

# Nanoseconds on one core, by bytes of a real number (Xeon with AVX-512, scipy 1.17, 2026-11).
PRODUCT = {4: 0.06, 8: 0.12}  # of a direct sum: 1e6 samples by 15 to 1023 taps, 2000^2 by 15^2
FFT = {4: 1.7, 8: 2.2}  # of fftconvolve, for an element and a doubling of the size
OVERLAP = {4: 0.8, 8: 1.5}  # of oaconvolve, for an element and a doubling of its blocks
DIRECT_CALL, FFT_CALL = 7e3, 5e4  # of a call, besides
BLOCKS = 8  # filter lengths of a block of oaconvolve


class Choice(str):
    """The name of a method, "direct" or "fft"; `reason` says why."""

    reason: str

    def __new__(cls, method: str, reason: str) -> Choice:
        """The name with its reason."""
        choice = super().__new__(cls, method)
        choice.reason = reason
        return choice


Shape: TypeAlias = tuple[int, ...]


def products_of(x: Shape, w: Shape, mode: str) -> int:
    """The products of a direct sum of arrays of these shapes, without those with padding."""
    return math.prod(map(_products, x, w, [mode] * len(x)))


def _products(n: int, m: int, mode: str) -> int:
    """The pairs of an element of the first operand and one of the second that meet in a result."""
    least = min(n, m)
    if mode == "valid":
        return (max(n, m) - least + 1) * least
    if mode == "full":
        return n * m
    low = (m - 1) // 2  # the results that "same" cuts off at the start, of m - 1 in all
    return n * m - _ramp(low, least) - _ramp(m - 1 - low, least)


def _ramp(size: int, most: int) -> int:
    """The sum of min(k, most) for k = 1, ..., size."""
    rising = min(size, most)
    return rising * (rising + 1) // 2 + (size - rising) * most


@functools.lru_cache(4096)
def method_of(x: Shape, w: Shape, char: str, mode: str) -> str:
    """The method of `convolve` and `correlate` for shapes and a dtype: "direct" where that takes
    less time, and wherever scipy sums directly, whose results are accurate relative to each sum.
    """
    is_faster = is_direct_faster(x, w, char, mode, overlapping=False)
    return "direct" if is_faster or _scipy_sums(x, w, char, mode) else "fft"


def _scipy_sums(x: Shape, w: Shape, char: str, mode: str) -> bool:
    """Whether scipy sums directly, which depends on shapes alone unless numbers are integers."""
    arrays = [np.broadcast_to(np.zeros((), char), shape) for shape in (x, w)]
    found: Any = scipy_signal.choose_conv_method(*arrays, mode)
    return bool(found == "direct")


@functools.lru_cache(4096)
def is_direct_faster(x: Shape, w: Shape, char: str, mode: str, overlapping: bool) -> bool:
    """Whether a direct sum takes less time than an FFT, by the tables."""
    direct, fft = _nanoseconds(x, w, char, mode, overlapping)
    return direct <= fft


def _nanoseconds(
    x: Shape, w: Shape, char: str, mode: str, overlapping: bool
) -> tuple[float, float]:
    """The estimated times of a direct sum and an FFT, which is of the full size in each mode."""
    real, is_complex = REALS[char], char in "FD"
    products = (4 if is_complex else 1) * products_of(x, w, mode)
    full = _full(x, w)
    block = min(full, BLOCKS * math.prod(w))
    each = OVERLAP[real] * math.log2(block + 1) if overlapping else FFT[real] * math.log2(full + 1)
    fft = FFT_CALL + full * each * (2 if is_complex else 1)
    return DIRECT_CALL + PRODUCT[real] * products, fft


def _full(x: Shape, w: Shape) -> int:
    """The elements of the full convolution."""
    return math.prod(n + m - 1 for n, m in zip(x, w, strict=True))


def choice_of(x: Array, w: Array, mode: str) -> Choice:
    """The method of `convolve` and `correlate`, with its reason."""
    char = x.dtype.char
    method = method_of(x.shape, w.shape, char, mode)
    direct, fft = _nanoseconds(x.shape, w.shape, char, mode, overlapping=False)
    products = (4 if char in "FD" else 1) * products_of(x.shape, w.shape, mode)
    reason = (
        f"{products} products of {x.dtype} take about {direct / 1e6:.3g} ms, and an FFT of "
        f"{_full(x.shape, w.shape)} elements {fft / 1e6:.3g} ms"
    )
    if method == "direct" and direct > fft:
        reason += "; but scipy sums such arrays directly, which keeps the accuracy of each sum"
    return Choice(method, reason)


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
    pair = pair_of(in1, in2)
    if pair is None or measure or refused(*pair, mode):
        found: Any = scipy_signal.choose_conv_method(in1, in2, mode, measure)
        method, times = found if measure else (found, {})
        choice = Choice(method, "scipy's own choice, for what is left to scipy")
        return (choice, times) if measure else choice
    return choice_of(*pair, mode)
