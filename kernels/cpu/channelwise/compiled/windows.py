"""Means or maxima of the pixels of windows.

    y[n, p, q, c] = reduction over rows h of window p, and columns w of window q, of x[n, h, w, c]

The pixels of a window's row are reduced first, which keeps chains of sums short. As in torch, a
maximum is NaN where a pixel is, and the first of equal pixels.
"""

from __future__ import annotations

import math
from typing import Any

from implicit_conv.kernels.cpu.channelwise.compiled.vectors import emitter, over_channels
from implicit_conv.kernels.cpu.channelwise.layout import ENTRY_WORDS, SLOT, Images
from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.emit.vector import BYTES, I64, Builder, Emitter, Value, Values, i64
from implicit_conv.kernels.cpu.images.compiled.tiles import over_items
from implicit_conv.kernels.cpu.runtime.call import WORD
from implicit_conv.kernels.cpu.runtime.compiled.part import declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, emitted
from implicit_conv.kernels.cpu.tile.compiled import convert
from implicit_conv.kernels.cpu.tile.storage import SIZES, Stored

reduce_row = declare(
    SLOT, "reduce_row", "to at rows row count columns table pixel to_pixel channels"
)


def run_item(call: Any, images: Any, item: int, thread: int) -> None:
    """One work item: a row of windows."""
    first = item % images.chunks * images.chunk
    n, row = divmod(item // images.chunks, images.rows)
    entry = images.row_table + row * ENTRY_WORDS * WORD
    x = call.x.address + n * images.x_n + memory.read(entry) * images.x_row
    reduce_row(
        call.kernels,
        to=call.y.address + n * images.y_n + row * images.y_row + first * images.size,
        at=x + first * images.size,
        rows=memory.read(entry + WORD),
        row=images.x_row,
        count=memory.read(entry + 2 * WORD),
        columns=images.columns,
        table=images.column_table,
        pixel=images.x_pixel,
        to_pixel=images.y_pixel,
        channels=min(images.chunk, images.channels - first),
    )


WINDOWS = over_items(Images(), run_item)  # the entry


def maximum(e: Emitter, found: Value, value: Value) -> Value:
    """The larger of two values, or the one that is NaN."""
    greater = e.builder.fcmp_ordered(">", value, found)
    return e.builder.select(
        e.builder.or_(greater, e.builder.fcmp_unordered("uno", value, value)), value, found
    )


def make_reduce_row(dtype: Stored, largest: bool) -> Source:
    """The part that computes maxima of a row of windows if `largest`, else means."""

    def joined(e: Emitter, values: Values, others: Values) -> list[Value]:
        pairs = zip(values, others, strict=True)
        return [maximum(e, *pair) if largest else e.add(*pair) for pair in pairs]

    def emit(builder: Builder, at: dict[str, Value]) -> None:
        e, size = emitter(builder, dtype), SIZES[dtype]
        to, x, table = (builder.inttoptr(at[name], BYTES) for name in ("to", "at", "table"))

        def windows(q: Value, _: object) -> list[Value]:
            entry = e.at(table, builder.mul(q, i64(ENTRY_WORDS * WORD)))
            first, columns, count = (
                builder.load(e.pointer(e.at(entry, n * WORD), I64)) for n in range(ENTRY_WORDS)
            )
            base = e.at(x, builder.mul(first, at["pixel"]))
            target = e.at(to, builder.mul(q, at["to_pixel"]))
            divisor = e.splat(builder.sitofp(builder.mul(count, at["count"]), e.scalar))

            def reduced(offset: Value, vectors: int, mask: Value | None) -> None:
                parts = [n * e.lanes * size for n in range(vectors)]
                start = [e.constant(-math.inf if largest else 0)] * vectors

                def row(r: Value, found: Values) -> list[Value]:
                    line = e.at(e.at(base, builder.mul(r, at["row"])), offset)

                    def column(s: Value, of_row: Values) -> list[Value]:
                        place = e.at(line, builder.mul(s, at["pixel"]))
                        loads = [convert.load(e, dtype, e.at(place, part), mask) for part in parts]
                        return joined(e, of_row, loads)

                    return joined(e, found, e.loop(columns, 1, start, column))

                for value, part in zip(e.loop(at["rows"], 1, start, row), parts, strict=True):
                    result = value if largest else builder.fdiv(value, divisor)
                    convert.store(e, dtype, result, e.at(e.at(target, offset), part), mask)

            over_channels(e, at["channels"], size, reduced)
            return []

        e.loop(at["columns"], 1, [], windows)

    return emitted(reduce_row, emit)
