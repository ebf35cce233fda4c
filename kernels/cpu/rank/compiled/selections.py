"""Elements of a rank, by networks of exchanges: columns are sorted, and then selected from.

A sorted column is shared by all windows that it is in. LLVM leaves out exchanges whose results
nobody reads. Floats are exchanged as integers in their order, which takes fewer cycles.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from implicit_conv.kernels.cpu.emit.vector import Emitter, Value
from implicit_conv.kernels.cpu.rank.compiled.elements import (
    by_vectors,
    flipped,
    pick,
    signed,
    tap,
)
from implicit_conv.kernels.cpu.rank.compiled.tiles import OFFSETS, PLANE
from implicit_conv.kernels.cpu.rank.networks import Exchanges, selection, sorted_wires
from implicit_conv.kernels.cpu.runtime.compiled.source import Source

Convert = Callable[[Emitter, Value], Value]


def _exchanged(dtype: str) -> tuple[str, Convert]:
    """The dtype of elements while they are exchanged, and what converts to it and from it."""
    if np.dtype(dtype).kind != "f":
        return dtype, _same
    return signed(dtype), lambda e, value: flipped(e, dtype, value)


def _same(e: Emitter, value: Value) -> Value:
    return value


def _part(
    dtype: str,
    vector: int,
    taps: int,
    exchanges: Exchanges,
    results: list[int],
    load: Convert = _same,
    store: Convert = _same,
) -> Source:
    """The part that exchanges taps, and stores these wires in as many planes of rows."""

    def emit(e: Emitter, to: Value, at: Value, word: Callable[[int], Value], parts: range) -> None:
        offsets = word(OFFSETS)
        wires = [load(e, e.load(tap(e, at, offsets, index))) for index in range(taps)]
        for low, high in exchanges:
            a, b = wires[low], wires[high]
            wires[low], wires[high] = pick(e, dtype, "<", a, b), pick(e, dtype, ">", a, b)
        plane = word(PLANE)
        for wire in results:
            e.store(store(e, wires[wire]), to)
            to = e.at(to, plane)

    return by_vectors(dtype, vector, emit)


def make_sorted_columns(dtype: str, vector: int, height: int) -> Source:
    """The part that sorts columns of `height` elements."""
    kind, convert = _exchanged(dtype)
    return _part(kind, vector, height, *sorted_wires(height), load=convert)


def make_selected_rows(dtype: str, vector: int, columns: int, height: int, rank: int) -> Source:
    """The part that selects the elements of this rank from sorted columns.

    Tap ``i * columns + j`` is the element at position i of column j.
    """
    kind, convert = _exchanged(dtype)
    exchanges, wire = selection(columns, height, rank)
    return _part(kind, vector, columns * height, exchanges, [wire], store=convert)
