"""Whether a direct sum or an FFT takes less time."""

from __future__ import annotations

import math
from typing import Any, Literal, overload

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


def choice_of(x: Array, w: Array, overlapping: bool = False) -> Choice:
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
    return choice_of(*pair)
