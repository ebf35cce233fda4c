"""Transpose lanes x lanes elements in registers, from NCHW to channels-last and back.

One emitter serves the loads (channels x pixels), the filter panels (filters x taps) and the stores
(pixels x filters): it reads `rows` rows of contiguous elements and writes `columns` rows of `lanes`
elements, with a fixed stride or at the offsets in a table. An element may be a word of several
source rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from implicit_conv.kernels.cpu.emit.internals import ir
from implicit_conv.kernels.cpu.emit.vector import BYTES, I64, Emitter, i64
from implicit_conv.kernels.cpu.runtime.compiled.part import declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, emitted
from implicit_conv.kernels.cpu.runtime.table import TRANSPOSE_IN, transpose_slot
from implicit_conv.kernels.cpu.tile import storage
from implicit_conv.kernels.cpu.tile.compiled import convert
from implicit_conv.kernels.cpu.tile.variants import Transpose

transpose = declare(
    TRANSPOSE_IN, "transpose", "source source_stride target target_stride rows columns"
)
AHEAD_BYTES = 1024  # bytes of a filter that are prefetched into L2: each row is its own stream


def butterfly(e: Emitter, rows: list[ir.Value]) -> list[ir.Value]:
    """The transpose of a square of vectors: swap off-diagonal blocks of 1, 2, 4, ... lanes.

    If there are fewer vectors than lanes, each square of their number of lanes is transposed.
    """
    block = 1
    while block < len(rows):
        swapped = list(rows)
        for i in range(len(rows)):
            if not i & block:
                swapped[i], swapped[i + block] = exchange(e, rows[i], rows[i + block], block)
        rows = swapped
        block *= 2
    return rows


def exchange(e: Emitter, low: ir.Value, high: ir.Value, block: int) -> tuple[ir.Value, ir.Value]:
    """`low` and `high`, of which the lanes of `low` whose index has the bit `block` are exchanged
    with the lanes of `high` whose index has not.
    """
    take_low, take_high = [], []
    for lane in range(e.lanes):
        other = lane & block
        take_low.append(lane + e.lanes - block if other else lane)
        take_high.append(lane + e.lanes if other else lane + block)
    return tuple(
        e.builder.shuffle_vector(low, high, ir.Constant(e.words, taken))
        for taken in (take_low, take_high)
    )


def _emit(e: Emitter, variant: Transpose, at: dict[str, ir.Value]) -> None:
    """Emit a block of `rows` source rows; every step-th of its `columns` becomes a target row.

    Where the block is not full, rows past the last one repeat it (stores mask their lanes, and
    their part of a word is zero), and columns past the last one are neither read nor written.
    """
    builder, full, step, channels = e.builder, variant.full, variant.step, variant.channels
    source, source_stride, target, target_stride, rows, columns = at.values()
    source, target = (builder.inttoptr(address, BYTES) for address in (source, target))
    last = builder.sub(rows, i64(1))
    mask: Any = None if full else e.below(columns)

    def address(i: int) -> ir.Value:
        if not full:
            i = builder.select(builder.icmp_signed("<", i64(i), last), i64(i), last)
        return e.at(source, builder.mul(source_stride, i64(i) if full else i))

    def mask_of(row: int) -> ir.Value | None:
        if full:
            return None
        there = builder.icmp_signed("<=", i64(row), last)
        return builder.select(there, mask, ir.Constant(mask.type, None))

    def word(i: int) -> ir.Value:
        rows = range(channels * i, channels * (i + 1))
        return convert.load_words(e, [address(row) for row in rows], [mask_of(row) for row in rows])

    if channels > 1:
        vectors = butterfly(e, [word(i) for i in range(e.lanes)])
        rows = builder.sdiv(builder.add(rows, i64(channels - 1)), i64(channels))
    else:
        if variant.scattered and full:
            for i in range(e.lanes):
                e.prefetch(e.at(address(i), AHEAD_BYTES), 2)
        vectors = [convert.load(e, variant.source, address(i), mask) for i in range(e.lanes)]
        vectors = butterfly(e, vectors)
    kept = None if full else e.below(rows)
    stored = "float32" if channels > 1 else variant.target

    def target_row(i: int) -> ir.Value:
        if variant.scattered:
            table = builder.inttoptr(target_stride, I64.as_pointer())
            return e.at(target, builder.load(builder.gep(table, [i64(i)])))
        return e.at(target, builder.mul(target_stride, i64(i)))

    for i in range(0, e.lanes, step):
        if full:
            convert.store(e, stored, vectors[i], target_row(i // step))
        else:
            with builder.if_then(builder.icmp_signed("<", i64(i), columns)):
                convert.store(e, stored, vectors[i], target_row(i // step), kept)


def make_transpose(variant: Transpose) -> Source:
    """The transpose of one `variants.Transpose`."""
    lanes, source, target, channels, *_ = variant
    computed = source if channels == 1 else "float32"
    if storage.is_integer(computed) and source != target:
        computed = target

    def emit(builder: ir.IRBuilder, at: dict[str, ir.Value]) -> None:
        _emit(convert.emitter(builder, lanes, computed, True), variant, at)

    return emitted(transpose, emit)


@functools.cache
def make_transpose_block(way: int, lanes: int, channels: int = 1) -> Callable[..., Any]:
    """Make transpose_block() for vectors of `lanes`; `way` is the kind of transposes it calls.

    `channels` source rows make one element of the target.
    """
    whole = lanes * channels

    def transpose_block(
        kernels: int,
        step: int,
        source: int,
        source_stride: int,
        target: int,
        target_stride: int,
        rows: int,
        columns: int,
    ) -> None:
        """Transpose rows x columns elements; every step-th column becomes a target row."""
        slot = transpose_slot(way, step, rows < whole or columns < lanes)
        transpose(
            kernels,
            slot=slot,
            source=source,
            source_stride=source_stride,
            target=target,
            target_stride=target_stride,
            rows=rows,
            columns=columns,
        )

    return transpose_block
