"""Division by multiplication is exact for all indices that a kernel may divide."""

import random

import pytest

from implicit_conv.kernels.gpu.call import INDICES, reciprocal


def quotient(n, word):
    """As `integer.divide` computes it: 32-bit registers, the upper half of a product."""
    multiplier, shift = word & 0xFFFFFFFF, word >> 32
    assert 0 <= shift < 32 and 2 * n < 1 << 32
    return (2 * n * multiplier >> 32) >> shift


DIVISORS = [
    *range(1, 70),
    112 * 112,
    3 * 2**20 + 1,
    *(2**k + d for k in (7, 15, 30) for d in (-1, 0, 1)),
]


@pytest.mark.parametrize("divisor", [*DIVISORS, INDICES - 1])
def test_reciprocal(divisor):
    rng, word = random.Random(divisor), reciprocal(divisor)
    assert word < 1 << 63  # of an int64
    some = [rng.randrange(INDICES) for _ in range(200)]
    edges = [
        k * divisor + d
        for k in (0, 1, 2, INDICES // divisor - 1, INDICES // divisor)
        for d in (-1, 0, 1)
    ]
    for n in [*some, *edges, INDICES - 1]:
        if 0 <= n < INDICES:
            assert quotient(n, word) == n // divisor


def test_multipliers_of_all_divisors_fit():
    """Among divisors of one shift the multiplier falls as they grow, so the ends are enough."""
    for shift in range(1, 32):
        for divisor in ((1 << shift - 1) + 1, 1 << shift):
            word = reciprocal(divisor)
            multiplier = word & 0xFFFFFFFF
            assert word >> 32 == shift and multiplier == -(-(1 << 31 + shift) // divisor)
            assert 0 <= multiplier * divisor - (1 << 31 + shift) < divisor <= 1 << shift
