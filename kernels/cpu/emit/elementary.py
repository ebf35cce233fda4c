"""Emit sigmoid, silu, tanh and gelu of float32 vectors, each with one exponential and one division.

    e^z = 2^n (1 + q(r)),   n = round(z / ln 2),   r = z - n ln 2
    sigmoid(x) = 1 / (1 + e^-x);   silu(x) = x / (1 + e^-x)
    tanh(x) = -sign(x) m / (m + 2),   m = e^(-2 |x|) - 1
    gelu(x) = max(x, 0) - |x| e^(-x^2 / 2) M(|x|),   M(a) = e^(a^2 / 2) erfc(a / sqrt 2) / 2

1 + e^-x is computed as a product with a small power of two, by which the quotient is multiplied
last, and other exponents are never above zero: nothing overflows, and a subnormal result is rounded
once, there. r is computed as by Cody and Waite, with ln 2 in two parts. q(r) = r + r^2 EXPM1(r) and
M = MILLS_TOP / MILLS_BOTTOM were fitted for this project, to minimise the largest relative error on
|r| <= ln 2 / 2 and 0 <= a <= 14.6, by weighted least squares against 40 digits at 2000 and 3000
points; weights were multiplied by the errors until the errors were level. q(r) = r + r^2 EXP(r) has
the same for 1 + q, for which a coefficient less is enough. With coefficients rounded to float32
(for M after a search for a common factor that makes this harmless) the errors of q, 1 + q and M are
0.04, 0.06 and 0.15 units of 2^-24. The errors stated below are the largest over every float32 of
either sign from 2^-8 to 130.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from implicit_conv.kernels.cpu.emit.vector import Emitter, Value

LN2 = 355 / 512, -2.1219444e-4  # two parts of ln 2; n times the first is exact without an FMA too
SHIFT = 1.5 * 2**23  # added to a float32, it leaves an integer in the last bits of the sum
EXPM1 = 0.5, 0.16666666, 0.04166636, 0.00833339, 0.0013940668, 0.00019845882  # of r^0, r^1, ...
EXP = 0.49999994, 0.16666521, 0.04166839, 0.008368717, 0.0013814598
MILLS_TOP = 0.64660203, 0.5670672, 0.23715508, 0.052612748, 0.0053330003  # of a^0, a^1, ...
MILLS_BOTTOM = 1.2932041, 2.1659625, 1.55589, 0.60763526, 0.13188885, 0.013367697  # of a^0, ...
SIGN = 0x80000000  # the sign bit of a float32
FAR = 64  # 2^(n + FAR) is normal for every n; the product with 2^-FAR rounds subnormals once
SMALLEST = -110.0  # x e^x is below half the smallest float32 from here on
SMALL = 2.0**-32  # its product with e^110 is a float32
ONE = 30.0  # 1 + e^-30 is 1
TANH_ONE = -40.0  # tanh(20) is 1
GELU_END = 14.5  # a e^(-a^2 / 2) M(a) is below half the smallest float32 from here on


def sigmoid(e: Emitter, x: Value) -> Value:
    """1 / (1 + e^-x), with an error of at most 2.4 units in the last place."""
    return _share(e, e.constant(1), e.at_least(x, e.constant(SMALLEST)))


def silu(e: Emitter, x: Value) -> Value:
    """x / (1 + e^-x), with an error of at most 3 units in the last place."""
    z = e.at_least(x, e.constant(SMALLEST))
    large = e.builder.fcmp_ordered(">", x, e.constant(ONE))  # of which the quotient may overflow
    return e.builder.select(large, x, _share(e, z, z))


def tanh(e: Emitter, x: Value) -> Value:
    """tanh(x), with an error of at most 2.5 units in the last place."""
    builder = e.builder
    z = builder.fmul(_minus_size(e, x), e.constant(2))
    q, n = _expm1(e, e.at_least(z, e.constant(TANH_ONE)))
    power = _power_of_two(e, n)
    m = e.multiply_add(q, power, builder.fsub(power, e.constant(1)))
    size = builder.fdiv(builder.fneg(m), builder.fadd(m, e.constant(2)))
    sign = builder.and_(_bits(e, x), e.word(SIGN))
    size = builder.and_(_bits(e, size), e.word(SIGN - 1))
    return builder.bitcast(builder.or_(size, sign), e.vector)


def gelu(e: Emitter, x: Value) -> Value:
    """x erfc(-x / sqrt 2) / 2, with an error of at most 6.4 units in the last place, or 8 without
    an FMA; the largest errors are in the tail.

    a^2 is computed in two parts, since e^(-a^2 / 2) multiplies its absolute error: the square of
    the leading 12 bits of a, which is exact, and the rest.
    """
    builder = e.builder
    size = builder.fneg(_minus_size(e, x))
    a = e.at_most(size, e.constant(GELU_END))
    head = builder.bitcast(builder.and_(_bits(e, a), e.word(0xFFFFF000)), e.vector)
    square = builder.fmul(head, head)
    rest = builder.fmul(builder.fadd(a, head), builder.fsub(a, head))
    half = e.constant(-0.5)
    q, n = _expm1(e, builder.fmul(square, half), builder.fmul(rest, half))
    top = builder.fmul(e.multiply_add(a, q, a), _polynomial(e, MILLS_TOP, a))
    part = builder.fdiv(top, _polynomial(e, MILLS_BOTTOM, a))
    part = builder.fmul(part, _power_of_two(e, n, FAR))
    negative = builder.fcmp_ordered("<", x, e.constant(0))
    above = builder.select(negative, e.constant(-0.0), x)
    return e.multiply_add(part, e.constant(-(2.0**-FAR)), above)


def _share(e: Emitter, part: Value, x: Value) -> Value:
    """part / (1 + e^-x) = part / (1 + 2^n (1 + q)), for x from SMALLEST on."""
    builder, small = e.builder, e.constant(SMALL)
    q, n = _expm1(e, builder.fneg(e.at_most(x, e.constant(ONE))), coefficients=EXP)
    power = _power_of_two(e, n, round(math.log2(SMALL)))
    whole = builder.fadd(e.multiply_add(q, power, power), small)
    return builder.fmul(builder.fdiv(part, whole), small)


def _expm1(
    e: Emitter,
    z: Value,
    tail: Value | None = None,
    coefficients: Sequence[float] = EXPM1,
) -> tuple[Value, Value]:
    """(q, n) of e^(z + tail) = 2^n (1 + q), for |z| < 200; `tail` is much smaller than z."""
    builder = e.builder
    shift = e.constant(SHIFT)
    whole = z if tail is None else builder.fadd(z, tail)
    shifted = e.multiply_add(whole, e.constant(1 / math.log(2)), shift)
    n = builder.fsub(shifted, shift)
    r = e.multiply_add(n, e.constant(-LN2[0]), z)
    if tail is not None:
        r = builder.fadd(r, tail)
    r = e.multiply_add(n, e.constant(-LN2[1]), r)
    q = e.multiply_add(builder.fmul(r, r), _polynomial(e, coefficients, r), r)
    return q, builder.sub(_bits(e, shifted), _bits(e, shift))


def _polynomial(e: Emitter, coefficients: Sequence[float], x: Value) -> Value:
    """The polynomial with these coefficients of x^0, x^1, ..., by Horner's rule."""
    *rest, value = (e.constant(coefficient) for coefficient in coefficients)
    for coefficient in reversed(rest):
        value = e.multiply_add(value, x, coefficient)
    return value


def _power_of_two(e: Emitter, n: Value, more: int = 0) -> Value:
    """2^(n + more) as a float32, for -127 < n + more < 128."""
    exponent = e.builder.add(n, e.word(127 + more))
    return e.builder.bitcast(e.builder.shl(exponent, e.word(23)), e.vector)


def _minus_size(e: Emitter, x: Value) -> Value:
    """-|x|."""
    return e.builder.bitcast(e.builder.or_(_bits(e, x), e.word(SIGN)), e.vector)


def _bits(e: Emitter, x: Value) -> Value:
    """The bits of floats as 32-bit integers."""
    return e.builder.bitcast(x, e.words)
