"""Convolutions of scipy.signal with scipy's arguments, faster where filters are short.

Arrays of float32, float64, complex64 and complex128 are convolved directly, by
`implicit_conv.conv1d` and its kin of precision "standard", where this takes less time than scipy's
FFT, as `choose_conv_method` estimates, and by `convolve` and `correlate` wherever scipy sums
directly. All else goes to scipy's own function, which also raises
the errors. The page "Filters of images and fields" lists what is left to it. All other public
names of scipy.signal, such as `firwin` and `butter`, are scipy's own functions; type checkers do
not know these. `served` lists what is computed here. A door: this imports operators and arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from implicit_conv.arrays.neighbours import own_name
from implicit_conv.signal.choice import Choice as Choice
from implicit_conv.signal.choice import choose_conv_method
from implicit_conv.signal.convolutions import (
    convolve,
    convolve2d,
    correlate,
    correlate2d,
    fftconvolve,
    oaconvolve,
)
from implicit_conv.signal.filters import lfilter, resample_poly, upfirdn
from implicit_conv.signal.operands import scipy_signal

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
_SERVED = tuple(__all__)
# `import *` and `dir` give all that scipy's module gives.
__all__ += ["served", *(name for name in vars(scipy_signal)["__all__"] if name not in _SERVED)]  # noqa: PLE0604


def served() -> tuple[str, ...]:
    """The names of scipy.signal whose functions are computed here; all others are scipy's own.

    Returns
    -------
    names : tuple of str
        In alphabetical order.

    Examples
    --------
    >>> import implicit_conv.signal
    >>> implicit_conv.signal.served()[:3]
    ('choose_conv_method', 'convolve', 'convolve2d')
    >>> "butter" in implicit_conv.signal.served()
    False
    """
    return tuple(sorted(_SERVED))


if not TYPE_CHECKING:  # type checkers would believe that it has any name

    def __getattr__(name: str) -> Any:
        return own_name(__name__, scipy_signal, name)


def __dir__() -> list[str]:
    return sorted(__all__)
