"""Floating-point arithmetic of 32 lanes, rounded once (PTX ISA 9.7.3 and 9.7.4).

float32 sums and products are computed in float64. Where that is not exact, the float64 is rounded
to odd: its last bit says that something was lost, so the rounding to float32 that follows is right
(Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008). Functions that PTX calls
approximate are computed as numpy computes them; hardware may differ in the last bits.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from implicit_conv.ptx.kinds import Lanes

TOWARDS = {"rm": -np.inf, "rp": np.inf}


def sum_to_odd(a: Lanes, b: Lanes) -> Lanes:
    """a + b of float64, rounded to odd."""
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)
    bits = total.view(np.int64)
    lost = (error != 0) & np.isfinite(total) & ((bits & 1) == 0)
    if not lost.any():
        return total
    away = (error > 0) == (total > 0)
    return np.where(lost, bits + np.where(away, 1, -1), bits).view(np.float64)


def to_float32(value: Lanes, mode: str) -> Lanes:
    """float64 -> float32, rounded to nearest even (rn), to zero (rz), down (rm) or up (rp)."""
    near = value.astype(np.float32)
    if mode == "rn":
        return near
    wide = near.astype(np.float64)
    if mode == "rz":
        beyond, towards = np.abs(wide) > np.abs(value), 0.0
    else:
        towards = TOWARDS[mode]
        beyond = wide > value if mode == "rm" else wide < value
    return np.where(beyond, np.nextafter(near, np.float32(towards)), near).astype(np.float32)


def add(a: Lanes, b: Lanes, mode: str) -> Lanes:
    """``add.f32`` with a rounding mode (9.7.3, add)."""
    return to_float32(sum_to_odd(a.astype(np.float64), b.astype(np.float64)), mode)


def subtract(a: Lanes, b: Lanes, mode: str) -> Lanes:
    """``sub.f32`` with a rounding mode (9.7.3, sub)."""
    return add(a, -b, mode)


def multiply(a: Lanes, b: Lanes, mode: str) -> Lanes:
    """``mul.f32`` with a rounding mode (9.7.3, mul); a float64 holds the product."""
    return to_float32(a.astype(np.float64) * b, mode)


def fma(a: Lanes, b: Lanes, c: Lanes, mode: str = "rn") -> Lanes:
    """``fma``: product and sum, rounded once together (9.7.3, fma)."""
    if a.dtype == np.float64:
        return _fma64(a, b, c)
    total = sum_to_odd(a.astype(np.float64) * b, c.astype(np.float64))
    return total.astype(np.float16) if a.dtype == np.float16 else to_float32(total, mode)


def _fma64(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """The sum of fractions, which Python rounds once; what is not finite needs no rounding."""
    out = a * b + c
    for lane, (x, y, z) in enumerate(zip(a.tolist(), b.tolist(), c.tolist(), strict=True)):
        if np.isfinite(out[lane]) and out[lane] != 0:
            exact = Fraction(x) * Fraction(y) + Fraction(z)
            out[lane] = exact.numerator / exact.denominator
    return out


def flush(x: Lanes) -> Lanes:
    """``.ftz``: subnormal float32 become zeros of their sign (9.7.3)."""
    return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x)


def saturate(x: Lanes) -> Lanes:
    """``.sat``: clamped to [0, 1]; a NaN becomes 0 (9.7.3)."""
    return np.where(np.isnan(x), x.dtype.type(0), np.clip(x, 0, 1)).astype(x.dtype)


def minimum(a: Lanes, b: Lanes) -> Lanes:
    """``min``: a NaN loses, and -0 is less than +0 (9.7.3)."""
    return np.where((a == 0) & (b == 0), -(-a - b), np.fmin(a, b))


def maximum(a: Lanes, b: Lanes) -> Lanes:
    """``max``: a NaN loses, and +0 is greater than -0 (9.7.3)."""
    return np.where((a == 0) & (b == 0), a + b, np.fmax(a, b))


def nan_of(result: Lanes, a: Lanes, b: Lanes) -> Lanes:
    """``.NaN`` of min and max: a NaN wins (9.7.3)."""
    return np.where(np.isnan(a) | np.isnan(b), a.dtype.type(np.nan), result)


def reciprocal(x: Lanes) -> Lanes:
    """``rcp`` (9.7.3)."""
    return (1 / x).astype(x.dtype)


def reciprocal_root(x: Lanes) -> Lanes:
    """``rsqrt.approx`` (9.7.3)."""
    return (1 / np.sqrt(x.astype(np.float64))).astype(x.dtype)


UNORDERED: dict[str, np.ufunc] = {
    "equ": np.equal,
    "neu": np.not_equal,
    "ltu": np.less,
    "leu": np.less_equal,
    "gtu": np.greater,
    "geu": np.greater_equal,
}


def compare(how: str, a: Lanes, b: Lanes) -> Lanes:
    """A comparison of floats that numpy's operators do not say (9.7.6, setp)."""
    unordered = np.isnan(a) | np.isnan(b)
    if how in ("num", "nan"):
        return ~unordered if how == "num" else unordered
    if how == "ne":
        return np.asarray((a != b) & ~unordered)
    return np.asarray(UNORDERED[how](a, b) | unordered)


def halves(function: Any, form: str, *operands: Lanes) -> Lanes:
    """`function` over float64 values of f16x2, bf16x2 or bf16 operands, rounded to the same form.

    A float64 holds every product of two halves, and `sum_to_odd` every sum.
    """
    half = form.removesuffix("x2")
    parts = [values16(np.ascontiguousarray(x).view(np.uint16), half) for x in operands]
    out = bits16(function(*parts), half)
    return out.view(operands[0].dtype)


def values16(bits: Lanes, form: str) -> Lanes:
    """float64 values of 16-bit elements, given as uint16."""
    if form == "f16":
        return bits.view(np.float16).astype(np.float64)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def bits16(values: Lanes, form: str) -> Lanes:
    """The uint16 bits of values as f16 or bf16, rounded to nearest even."""
    if form == "f16":
        return values.astype(np.float16).view(np.uint16)
    if values.dtype == np.float64:  # to odd first, so that two roundings are one
        single = to_float32(values, "rz")
        inexact = single.astype(np.float64) != values
        values = (single.view(np.uint32) | inexact.astype(np.uint32)).view(np.float32)
    bits = values.view(np.uint32)
    carry = np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    rounded = (bits + carry) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint32(0x7FFF), rounded).astype(np.uint16)


HALF_OPERATIONS = {
    "add": sum_to_odd,
    "sub": lambda a, b: sum_to_odd(a, -b),
    "mul": lambda a, b: a * b,
    "fma": lambda a, b, c: sum_to_odd(a * b, c),
    "neg": lambda a: -a,
    "abs": np.abs,
    "min": minimum,
    "max": maximum,
    "tanh": np.tanh,
    "ex2": np.exp2,
}
