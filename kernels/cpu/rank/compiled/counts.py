"""Elements of a rank, bit by bit from the highest one: the element of rank r is the largest number
that at most r elements are below.

Elements become integers with signs in the same order before.
"""

from __future__ import annotations

from collections.abc import Callable

from implicit_conv.kernels.cpu.emit.vector import Emitter, Value, Values, i64
from implicit_conv.kernels.cpu.rank.compiled.elements import (
    by_blocks,
    by_vectors,
    flipped,
    signed,
    tap,
)
from implicit_conv.kernels.cpu.rank.compiled.tiles import OFFSETS, RANK, TAPS
from implicit_conv.kernels.cpu.rank.layout import VECTOR
from implicit_conv.kernels.cpu.runtime.compiled.source import Source

BLOCK = 2 * VECTOR  # candidates, counts and elements of two vectors have a register each


def make_key_rows(dtype: str) -> Source:
    """The part that makes ordered integers of elements."""

    def emit(e: Emitter, to: Value, at: Value, word: Callable[[int], Value], parts: range) -> None:
        for part in parts:
            e.store(flipped(e, dtype, e.load(e.at(at, part))), e.at(to, part))

    return by_vectors(signed(dtype), VECTOR, emit)


def make_counted_rows(dtype: str) -> Source:
    """The part that finds elements of a rank among ordered integers.

    Counts have the size of elements, without signs: there are fewer taps than 2 to their bits.
    """

    def emit(e: Emitter, to: Value, at: Value, word: Callable[[int], Value], parts: range) -> None:
        builder, bits = e.builder, 8 * e.itemsize
        offsets, taps, rank = word(OFFSETS), word(TAPS), word(RANK)
        if e.scalar.width < 64:
            rank = builder.trunc(rank, e.scalar)
        rank, zero = e.splat(rank), e.constant(0)
        lowest = e.constant(-(1 << (bits - 1)))

        def raise_by(index: Value, found: Values) -> list[Value]:
            shift = builder.sub(i64(bits - 1), index)
            bit = builder.shl(i64(1), shift)
            if e.scalar.width < 64:
                bit = builder.trunc(bit, e.scalar)
            bit = e.splat(bit)
            larger = [builder.xor(value, bit) for value in found]

            def count(place: Value, counts: Values) -> list[Value]:
                address = tap(e, at, offsets, place)
                below = [
                    builder.icmp_signed("<", e.load(e.at(address, part)), value)
                    for part, value in zip(parts, larger, strict=True)
                ]
                return [
                    builder.sub(number, builder.sext(each, e.vector))
                    for number, each in zip(counts, below, strict=True)
                ]

            counts = e.loop(taps, 1, [zero] * len(parts), count)
            return [
                builder.select(builder.icmp_unsigned("<=", number, rank), value, before)
                for number, value, before in zip(counts, larger, found, strict=True)
            ]

        found = e.loop(i64(bits), 1, [lowest] * len(parts), raise_by)
        for value, part in zip(found, parts, strict=True):
            e.store(flipped(e, dtype, value), e.at(to, part))

    return by_blocks(signed(dtype), VECTOR, BLOCK, emit)
