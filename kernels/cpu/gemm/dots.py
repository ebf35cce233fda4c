"""Dot products: how words of several channels are multiplied and added to sums.

AVX512_BF16 multiplies pairs of bfloat16. VPDPBUSD of AVX512_VNNI and AVX_VNNI multiplies four
integers of 8 bits, unsigned ones by signed ones. Where x and w are both signed, or both unsigned,
the sign bit of x is inverted while it is multiplied: a signed x becomes x + 128, an unsigned one
x - 128. Each product is then off by what x = 0 gives, so a panel has a head, a row of sums that
makes up for it: minus the sums of x = 0. No tap may then be skipped, not even one that reads
padding.
"""

from implicit_conv.kernels.cpu.tile import storage

SIGN_BITS = 0x80808080 - (1 << 32)  # the sign bits of four integers, as an int32


def inverts(dots):
    """Whether the signs of x are inverted; `dots` are the formats of the channels of x and of w."""
    return dots is not None and storage.SIZES[dots[0]] == 1 and dots[0] == dots[1]


def invert_signs(e, dots, x):
    """Words of x as `multiply_add` takes them: with inverted sign bits if `dots` need that."""
    return e.kept(e.builder.xor(x, e.constant(SIGN_BITS))) if inverts(dots) else x


def multiply_add(e, dots, x, w, sums):
    """`sums` plus the products of an element of x and one of w, in every lane."""
    if dots is None:
        return e.multiply_add(x, w, sums)
    if storage.SIZES[dots[0]] == 2:
        return e.dot_pairs(x, w, sums)
    unsigned_x = (dots[0] == "uint8") != inverts(dots)
    return e.dot_quads(x, w, sums) if unsigned_x else e.dot_quads(w, x, sums)
