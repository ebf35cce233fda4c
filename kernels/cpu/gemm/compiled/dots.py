"""Dot products: how words of several channels are multiplied and added to sums.

AVX512_BF16 and BFDOT of 64-bit Arm multiply pairs of bfloat16. VPDPBUSD of AVX512_VNNI and AVX_VNNI
multiplies four integers of 8 bits, unsigned ones by signed ones. Where x and w are both signed, or
both unsigned, the sign bit of x is inverted while it is multiplied: a signed x becomes x + 128, an
unsigned one x - 128. Each product is then off by what x = 0 gives, so a panel has a head, a row of
sums that makes up for it: minus the sums of x = 0. No tap may then be skipped, not even one that
reads padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from implicit_conv.kernels.cpu.emit import internals
from implicit_conv.kernels.cpu.emit.internals import ir
from implicit_conv.kernels.cpu.emit.vector import I32, Emitter
from implicit_conv.kernels.cpu.tile import storage
from implicit_conv.kernels.cpu.tile.storage import Stored

SIGN_BITS = 0x80808080 - (1 << 32)  # the sign bits of four integers, as an int32


def inverts(dots: tuple[Stored, Stored] | None) -> bool:
    """Whether the signs of x are inverted; `dots` are the formats of the channels of x and of w."""
    return dots is not None and storage.SIZES[dots[0]] == 1 and dots[0] == dots[1]


def invert_signs(e: Any, dots: tuple[Stored, Stored] | None, x: ir.Value) -> ir.Value:
    """Words of x as `multiply_add` takes them: with inverted sign bits if `dots` need that."""
    return e.kept(e.builder.xor(x, e.constant(SIGN_BITS))) if inverts(dots) else x


def broadcasts(
    e: Emitter, dots: tuple[Stored, Stored] | None, address: ir.Value, count: int, align: int | None
) -> Iterable[ir.Value]:
    """`count` contiguous elements of x, each in every lane, as `multiply_add` takes them."""
    if e.by_element and dots and storage.SIZES[dots[0]] == 2:
        return _broadcast_pairs(e, address, count, align)
    return [invert_signs(e, dots, x) for x in e.broadcasts(address, count, align)]


def _broadcast_pairs(
    e: Emitter, address: ir.Value, count: int, align: int | None
) -> Iterator[ir.Value]:
    """Pairs of bfloat16, each in every lane. As words, LLVM would not multiply by an element."""
    pairs = e.builder.load(e.pointer(address, ir.VectorType(internals.BFloat(), 2 * count)))
    pairs.align = align
    for i in range(count):
        places = ir.Constant(ir.VectorType(I32, 2 * e.lanes), [2 * i, 2 * i + 1] * e.lanes)
        yield e.builder.bitcast(e.builder.shuffle_vector(pairs, pairs, places), e.vector)


def multiply_add(
    e: Any, dots: tuple[Stored, Stored] | None, x: ir.Value, w: ir.Value, sums: ir.Value
) -> ir.Value:
    """`sums` plus the products of an element of x and one of w, in every lane."""
    if dots is None:
        return e.multiply_add(x, w, sums)
    if storage.SIZES[dots[0]] == 2:
        return e.dot_pairs(x, w, sums)
    unsigned_x = (dots[0] == "uint8") != inverts(dots)
    return e.dot_quads(x, w, sums) if unsigned_x else e.dot_quads(w, x, sums)
