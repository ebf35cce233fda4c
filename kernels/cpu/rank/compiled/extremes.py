"""The smallest or the largest of taps.

A row of x has more elements than one of y, and taps are offsets in it. Of equal elements the last
one is taken: zeros may have different signs.
"""

from __future__ import annotations

from collections.abc import Callable

from implicit_conv.kernels.cpu.emit.vector import Emitter, Value, Values, i64
from implicit_conv.kernels.cpu.rank.compiled.elements import by_blocks, pick, tap
from implicit_conv.kernels.cpu.rank.compiled.tiles import OFFSETS, TAPS
from implicit_conv.kernels.cpu.rank.layout import BLOCK, VECTOR
from implicit_conv.kernels.cpu.runtime.compiled.source import Source


def make_extreme_rows(dtype: str, smallest: bool) -> Source:
    """The part that makes rows of smallest elements, or of largest ones."""
    relation = "<" if smallest else ">"

    def emit(e: Emitter, to: Value, at: Value, word: Callable[[int], Value], parts: range) -> None:
        offsets = word(OFFSETS)

        def elements(index: int | Value) -> list[Value]:
            address = tap(e, at, offsets, index)
            return [e.load(e.at(address, part)) for part in parts]

        def compare(index: Value, found: Values) -> list[Value]:
            following = elements(e.builder.add(index, i64(1)))
            pairs = zip(found, following, strict=True)
            return [pick(e, dtype, relation, first, second) for first, second in pairs]

        others = e.builder.sub(word(TAPS), i64(1))
        found = e.loop(others, 1, elements(0), compare)
        for value, part in zip(found, parts, strict=True):
            e.store(value, e.at(to, part))

    return by_blocks(dtype, VECTOR, BLOCK, emit)
