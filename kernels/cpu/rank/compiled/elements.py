"""Vectors of elements, the smaller and the larger of two, and parts that go through rows.

Of two zeros with different signs the second one is taken, as by x86's MINPS and MAXPS. Elements are
not NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from implicit_conv.kernels.cpu.emit.vector import (
    BYTES,
    I64,
    Builder,
    Emitter,
    Integers,
    Value,
    i64,
)
from implicit_conv.kernels.cpu.rank.compiled.tiles import make_rows
from implicit_conv.kernels.cpu.runtime.compiled.part import Part, body
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, translated

# emit(e, to, at, word, parts): makes a vector at each of these byte offsets from `to`, of what has
# these offsets from `at` and those of taps; ``word(place)`` is a word of the level.
Emit = Callable[[Emitter, Value, Value, Callable[[int], Value], range], None]


def emitter(builder: Builder, dtype: str, vector: int) -> Emitter:
    """Vectors of `vector` bytes of elements of `dtype`."""
    kind = np.dtype(dtype)
    lanes = vector // kind.itemsize
    if kind.kind == "f":
        return Emitter(builder, lanes, kind.itemsize, fma=False)
    return Integers(builder, lanes, kind.itemsize)


def pick(e: Emitter, dtype: str, relation: str, a: Value, b: Value) -> Value:
    """In each lane `a` where it is ``relation`` to `b`, "<" or ">", else `b`."""
    compare = {"f": e.builder.fcmp_ordered, "i": e.builder.icmp_signed}
    compared = compare.get(np.dtype(dtype).kind, e.builder.icmp_unsigned)(relation, a, b)
    return e.builder.select(compared, a, b)


def signed(dtype: str) -> str:
    """The integers with signs of the size of a dtype."""
    return f"i{np.dtype(dtype).itemsize}"


def flipped(e: Emitter, dtype: str, value: Value) -> Value:
    """Elements as integers with signs in their order, or these as elements: it is its own inverse.

    NaN has no place in this order, and -0.0 is below 0.0.
    """
    kind, bits = np.dtype(dtype).kind, 8 * e.itemsize
    if kind == "i":
        return value
    if kind == "u":
        return e.builder.xor(value, e.constant(-(1 << (bits - 1))))
    sign = e.builder.ashr(value, e.constant(bits - 1))
    return e.builder.xor(value, e.builder.and_(sign, e.constant((1 << (bits - 1)) - 1)))


def tap(e: Emitter, at: Value, offsets: Value, index: int | Value) -> Value:
    """Where the elements of a tap are, by the table of `offsets`."""
    place = i64(8 * index) if isinstance(index, int) else e.builder.mul(index, i64(8))
    return e.at(at, e.builder.load(e.pointer(e.builder.add(offsets, place), I64)))


def _maker(dtype: str, vector: int, parts: range, emit: Emit) -> Any:
    """make(to, at, level): what `emit` makes of these parts of a row."""

    def made(builder: Builder, at: dict[str, Value]) -> None:
        e = emitter(builder, dtype, vector)
        to, source = (builder.inttoptr(at[name], BYTES) for name in ("to", "at"))

        def word(place: int) -> Value:
            return builder.load(e.pointer(builder.add(at["level"], i64(place)), I64))

        emit(e, to, source, word, parts)

    return body(Part(0, f"make_{len(parts)}", ("to", "at", "level"), ()), made)


def by_vectors(dtype: str, vector: int, emit: Emit) -> Source:
    """The part whose rows consist of vectors, of which the last one may overlap."""
    make = _maker(dtype, vector, range(0, vector, vector), emit)

    def rows_of_vectors(
        to: int, to_row: int, at: int, at_row: int, level: int, rows: int, width: int
    ) -> None:
        for _ in range(rows):
            for start in range(0, width, vector):
                column = min(start, width - vector)
                make(to + column, at + column, level)
            to += to_row
            at += at_row

    return translated(make_rows, rows_of_vectors)


def by_blocks(dtype: str, vector: int, block: int, emit: Emit) -> Source:
    """The part whose rows consist of blocks, and of vectors, of which the last one may overlap."""
    make_block = _maker(dtype, vector, range(0, block, vector), emit)
    make_vector = _maker(dtype, vector, range(0, vector, vector), emit)

    def rows_of_blocks(
        to: int, to_row: int, at: int, at_row: int, level: int, rows: int, width: int
    ) -> None:
        for _ in range(rows):
            column = 0
            while column + block <= width:
                make_block(to + column, at + column, level)
                column += block
            while column < width:
                column = min(column, width - vector)
                make_vector(to + column, at + column, level)
                column += vector
            to += to_row
            at += at_row

    return translated(make_rows, rows_of_blocks)
