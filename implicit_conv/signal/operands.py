"""What the functions are given: arrays that are computed here, and those that are left to scipy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from implicit_conv.arrays.arrays import Array
from implicit_conv.errors import install

try:
    import scipy.signal
except ImportError as error:
    raise ImportError(
        f"implicit_conv.signal needs scipy 1.11 or newer: {install('scipy>=1.11')}"
    ) from error

Mode: TypeAlias = Literal["full", "same", "valid"]
MODES = ("full", "same", "valid")
MOST_AXES = 3
REALS = {"f": 4, "d": 8, "F": 4, "D": 8}  # bytes of a real number, by numpy's characters of dtypes


class Scipy(Protocol):
    """scipy.signal, which has no types: its functions return arrays."""

    def __getattr__(self, name: str, /) -> Callable[..., Array]: ...


scipy_signal: Scipy = scipy.signal


def pair_of(in1: ArrayLike, in2: ArrayLike) -> tuple[Array, Array] | None:
    """Both arrays in their common dtype, or None if they are left to scipy."""
    x, w = np.asarray(in1), np.asarray(in2)
    if x.ndim != w.ndim or not 1 <= x.ndim <= MOST_AXES or not x.size or not w.size:
        return None
    if x.dtype.kind not in "fc" or w.dtype.kind not in "fc":
        return None
    dtype = np.result_type(x, w)  # in the byte order of this machine
    if dtype.char not in REALS:
        return None
    return x.astype(dtype, copy=False), w.astype(dtype, copy=False)


def fits(x: Array, w: Array) -> bool:
    """Whether `w` is no longer than `x` along any axis."""
    return all(n >= m for n, m in zip(x.shape, w.shape, strict=True))


def spreads(taps: Array) -> bool:
    """Whether taps are not finite: padding times such a tap is NaN, where there is no product."""
    if math.isfinite(np.vdot(taps, taps).real):  # half the time; squares may overflow
        return False
    return not np.isfinite(taps).all()


def refused(x: Array, w: Array, mode: str) -> bool:
    """Whether scipy refuses the arguments, with a message of its own."""
    return mode not in MODES or (mode == "valid" and not fits(x, w) and not fits(w, x))
