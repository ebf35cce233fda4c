"""BFMMLA of 64-bit Arm: products of 2 x 4 and 4 x 2 matrices of bfloat16, added to 2 x 2 sums.

A vector of sums belongs to two pixels p, p' and two filters while products are added to it. Two
vectors of the usual order become two such squares, and the other way round, by the same exchange of
halves:

    p:  k0 k1 k2 k3    <->    p k0,  p k1,  p' k0,  p' k1
    p': k0 k1 k2 k3           p k2,  p k3,  p' k2,  p' k3

The factors are two words (four channels) of each pixel, joined from two loads, and two words of
each of two filters: the rows of every two words of a panel are zipped when it is packed.

BFMMLA adds the products of one pair of channels as BFDOT does, and then those of the next pair. The
bits of a sum are therefore those that BFDOT gives (Arm Architecture Reference Manual, BFMMLA with
FPCR.EBF = 0, as Linux starts processes).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from implicit_conv.kernels.cpu.emit import internals
from implicit_conv.kernels.cpu.emit.internals import ir, types
from implicit_conv.kernels.cpu.emit.intrinsics import emitting
from implicit_conv.kernels.cpu.emit.vector import (
    BYTES,
    I32,
    I64,
    Emitter,
    Integers,
    Values,
)

LANES = 4  # of a vector of sums
WORDS = 2  # words of a pixel or filter that one instruction multiplies
WORD_BYTES = 4  # bytes of a word, which is a pair of channels


def bfmmla(e: Emitter, sums: ir.Value, x: ir.Value, w: ir.Value) -> ir.Value:
    """Square `sums` plus the products of four channels of two pixels `x` and two filters `w`."""
    pairs = ir.VectorType(internals.BFloat(), 2 * LANES)
    kind = ir.FunctionType(e.vector, [e.vector, pairs, pairs])
    function = internals.get_or_insert_function(e.builder.module, kind, "llvm.aarch64.neon.bfmmla")
    return e.builder.call(function, [sums, *(e.builder.bitcast(value, pairs) for value in (x, w))])


def multiply_add(
    e: Emitter, places: Values, align: int, filters: Sequence[Values], sums: Values
) -> list[ir.Value]:
    """Squares `sums` plus the products of two words of each pixel and of each filter.

    `places` are the addresses of the words of the pixels, which are aligned to `align` bytes;
    `filters` are the two zipped rows of the panel.
    """
    added: list[ir.Value] = []
    for first in range(0, len(places), 2):
        x = _join_words(e, places[first : first + 2], align)
        for row in filters:
            added += [bfmmla(e, sums[len(added) + v], x, w) for v, w in enumerate(row)]
    return added


def _join_words(e: Emitter, places: Values, align: int) -> ir.Value:
    """Two words of each of two pixels; of a single pixel, and zeros."""
    kind = ir.VectorType(I64, 1)
    values = []
    for place in places:
        values.append(e.builder.load(e.pointer(place, kind)))
        values[-1].align = align
    values += [ir.Constant(kind, [0])] * (2 - len(values))
    return _shuffle(e, values[0], values[1], [0, 1])


def exchange(e: Emitter, sums: Values, vectors: int) -> list[ir.Value]:
    """Rows of sums as squares, or squares as rows; `vectors` of them belong to a pixel.

    The last one of an odd number of pixels is completed by a row of zeros.
    """
    sums = [*sums, *[e.constant(0)] * (len(sums) % (2 * vectors))]
    exchanged = list(sums)
    for first in range(0, len(sums), 2 * vectors):
        for v in range(first, first + vectors):
            pair = sums[v], sums[v + vectors]
            exchanged[v] = _shuffle(e, *pair, [0, 1, 4, 5])
            exchanged[v + vectors] = _shuffle(e, *pair, [2, 3, 6, 7])
    return exchanged


def _shuffle(e: Emitter, first: ir.Value, second: ir.Value, lanes: list[int]) -> ir.Value:
    return e.builder.shuffle_vector(
        first, second, ir.Constant(ir.VectorType(I32, len(lanes)), lanes)
    )


@functools.cache
def make_zip_rows(zips: bool) -> Any:
    """Make zip_rows(panel, words, pitch), which does nothing unless `zips`."""
    if not zips:

        def zip_none(panel: int, words: int, pitch: int) -> None:
            """Change nothing: dot products multiply by the rows as they are."""

        return zip_none

    @emitting(types.void(*[types.int64] * 3))
    def zip_rows(builder: ir.IRBuilder, panel: ir.Value, words: ir.Value, pitch: ir.Value) -> None:
        """Zip the two rows of every two words of a panel, whose rows are `pitch` bytes apart.

        Vectors of filters k0 .. k3 become (both words of k0, of k1) and (both words of k2, of k3).
        """
        e = Integers(builder, LANES, WORD_BYTES)
        base = builder.inttoptr(panel, BYTES)

        def zip_two(word: ir.Value, _: object) -> list[ir.Value]:
            row = e.at(base, builder.mul(word, pitch))

            def zip_vectors(column: ir.Value, _: object) -> list[ir.Value]:
                places = e.at(row, column), e.at(row, builder.add(column, pitch))
                first, second = (e.load(place) for place in places)
                for place, lanes in zip(places, ([0, 4, 1, 5], [2, 6, 3, 7]), strict=True):
                    e.store(_shuffle(e, first, second, lanes), place)
                return []

            e.loop(pitch, LANES * WORD_BYTES, [], zip_vectors)
            return []

        e.loop(words, WORDS, [], zip_two)

    return zip_rows
