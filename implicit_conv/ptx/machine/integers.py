"""Integer arithmetic and bits of 32 lanes that numpy lacks (PTX ISA 9.7.1 and 9.7.8)."""

from __future__ import annotations

import numpy as np

from implicit_conv.ptx.errors import PtxError
from implicit_conv.ptx.kinds import LANE, LANES, Lanes


def divide(a: Lanes, b: Lanes, mask: Lanes) -> Lanes:
    """``div``: the quotient, rounded towards zero (9.7.1, div)."""
    safe = _divisor(b, mask)
    quotient = a // safe
    if a.dtype.kind == "i":  # numpy rounds down
        quotient += ((a % safe) != 0) & ((a < 0) != (safe < 0))
    return quotient


def remainder(a: Lanes, b: Lanes, mask: Lanes) -> Lanes:
    """``rem``: the remainder, with the sign of the dividend (9.7.1, rem)."""
    rest: Lanes = np.fmod(a, _divisor(b, mask))
    return rest


def _divisor(b: Lanes, mask: Lanes) -> Lanes:
    zero = b == 0
    if (zero & mask).any():
        raise PtxError("an integer is divided by zero")
    return np.where(zero, b.dtype.type(1), b)


def multiply_high(a: Lanes, b: Lanes) -> Lanes:
    """``mul.hi``: the upper half of the product (9.7.1, mul)."""
    bits = a.dtype.itemsize * 8
    if bits < 64:
        wide = f"{a.dtype.kind}{bits // 4}"
        high: Lanes = (a.astype(wide) * b.astype(wide) >> bits).astype(a.dtype)
        return high
    values = [int(x) * int(y) >> bits for x, y in zip(a, b, strict=True)]
    return np.array([value & ((1 << bits) - 1) for value in values], np.uint64).view(a.dtype)


def insert_bits(a: Lanes, b: Lanes, position: Lanes, length: Lanes) -> Lanes:
    """``bfi``: the low `length` bits of a, put into b at `position` (9.7.1, bfi)."""
    bits = a.dtype.itemsize * 8
    out = []
    for x, y, p, n in zip(a.tolist(), b.tolist(), position.tolist(), length.tolist(), strict=True):
        field = (((1 << (n & 255)) - 1) << (p & 255)) & ((1 << bits) - 1)
        out.append(y & ~field | x << (p & 255) & field)
    return np.array(out, a.dtype)


def extract_bits(a: Lanes, position: Lanes, length: Lanes) -> Lanes:
    """``bfe``: `length` bits of a from `position` on, extended by its sign (9.7.1, bfe)."""
    bits = a.dtype.itemsize * 8
    unsigned = f"u{bits // 8}"
    out = []
    columns = a.view(unsigned).tolist(), position.tolist(), length.tolist()
    for x, p, n in zip(*columns, strict=True):
        start, count = p & 255, n & 255
        value = x >> start & ((1 << count) - 1)
        if a.dtype.kind == "i" and count:
            sign = x >> min(start + count - 1, bits - 1) & 1
            inside = min(count, max(bits - start, 0))
            value = value & ((1 << inside) - 1) | -sign << inside
        out.append(value & ((1 << bits) - 1))
    return np.array(out, unsigned).view(a.dtype)


def logic3(a: Lanes, b: Lanes, c: Lanes, table: Lanes) -> Lanes:
    """``lop3``: bits by a truth table of three inputs (9.7.8, lop3)."""
    result, bits = np.zeros_like(a), int(table[0])
    for row in range(8):
        if bits >> row & 1:
            result |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return result


def permute_bytes(a: Lanes, b: Lanes, selector: Lanes) -> Lanes:
    """``prmt``: four bytes chosen from two words; bit 3 of a choice repeats the sign (9.7.9)."""
    words = np.ascontiguousarray(a), np.ascontiguousarray(b)
    source = np.concatenate([word.view(np.uint8).reshape(-1, 4) for word in words], axis=1)
    out = np.zeros((LANES, 4), np.uint8)
    for byte in range(4):
        choice = selector >> np.uint32(4 * byte) & np.uint32(15)
        value = source[LANE, choice & 7]
        out[:, byte] = np.where(choice & 8, np.where(value & 128, 255, 0), value)
    return out.reshape(-1).view(np.uint32)


def funnel(low: Lanes, high: Lanes, count: Lanes, left: bool, wrap: bool) -> Lanes:
    """``shf``: a shift of two words, of which one word is kept (9.7.8, shf)."""
    whole = high.astype(np.uint64) << np.uint64(32) | low
    by = (count & np.uint32(31) if wrap else np.minimum(count, 32)).astype(np.uint64)
    kept = whole << by >> np.uint64(32) if left else whole >> by
    return kept.astype(np.uint32)


def count_ones(a: Lanes) -> Lanes:
    """``popc`` (9.7.1)."""
    return np.array([int(x).bit_count() for x in a], np.uint32)


def count_zeros(a: Lanes) -> Lanes:
    """``clz``: zeros before the highest one (9.7.1)."""
    bits = a.dtype.itemsize * 8
    return np.array([bits - int(x).bit_length() for x in a], np.uint32)


def reverse_bits(a: Lanes) -> Lanes:
    """``brev`` (9.7.1)."""
    bits = a.dtype.itemsize * 8
    return np.array([int(f"{int(x):0{bits}b}"[::-1], 2) for x in a], a.dtype)


def highest_bit(a: Lanes) -> Lanes:
    """``bfind``: the place of the highest bit that differs from the sign, or all ones (9.7.1)."""
    values = np.where(a < 0, ~a, a) if a.dtype.kind == "i" else a
    return np.array([(int(x).bit_length() - 1) & 0xFFFFFFFF for x in values], np.uint32)
