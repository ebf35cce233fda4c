"""Products of images and gates, which have one factor for each channel, and sums of images.

y[n, p, q, c] = x[n, p, q, c] * gate[n, c], or x[n, p, q, c] + other[n, p, q, c]
"""

from __future__ import annotations

from typing import Any

from implicit_conv.kernels.cpu.channelwise.compiled.vectors import emitter, over_channels
from implicit_conv.kernels.cpu.channelwise.layout import SLOT, Images
from implicit_conv.kernels.cpu.emit.vector import BYTES, Builder, Value, i64
from implicit_conv.kernels.cpu.images.compiled.tiles import over_items
from implicit_conv.kernels.cpu.runtime.compiled.part import declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, emitted
from implicit_conv.kernels.cpu.tile.compiled import convert
from implicit_conv.kernels.cpu.tile.storage import SIZES, Stored

combine_row = declare(SLOT, "combine_row", "to at other pixels pixel other_pixel to_pixel channels")


def run_item(call: Any, images: Any, item: int, thread: int) -> None:
    """One work item: a row of pixels."""
    first = item % images.chunks * images.chunk * images.size
    n, row = divmod(item // images.chunks, images.rows)
    combine_row(
        call.kernels,
        to=call.y.address + n * images.y_n + row * images.y_row + first,
        at=call.x.address + n * images.x_n + row * images.x_row + first,
        other=call.w.address + n * images.other_n + row * images.other_row + first,
        pixels=images.columns,
        pixel=images.x_pixel,
        other_pixel=images.other_pixel,
        to_pixel=images.y_pixel,
        channels=min(images.chunk, images.channels - item % images.chunks * images.chunk),
    )


PAIRS = over_items(Images(), run_item)  # the entry


def make_combine_row(dtype: Stored, adds: bool) -> Source:
    """The part that multiplies a row of pixels by a gate, or adds another row."""

    def emit(builder: Builder, at: dict[str, Value]) -> None:
        e, size = emitter(builder, dtype), SIZES[dtype]
        to, x, other = (builder.inttoptr(at[name], BYTES) for name in ("to", "at", "other"))

        def combine(offset: Value, vectors: int, mask: Value | None) -> None:
            places = [builder.add(offset, i64(n * e.lanes * size)) for n in range(vectors)]

            def loaded(begin: Value) -> list[Value]:
                return [convert.load(e, dtype, e.at(begin, place), mask) for place in places]

            gate = [] if adds else loaded(other)

            def pixel(q: Value, _: object) -> list[Value]:
                own = loaded(e.at(x, builder.mul(q, at["pixel"])))
                far = e.at(to, builder.mul(q, at["to_pixel"]))
                if adds:
                    added = loaded(e.at(other, builder.mul(q, at["other_pixel"])))
                    values = [builder.fadd(*each) for each in zip(own, added, strict=True)]
                else:
                    values = [builder.fmul(*each) for each in zip(own, gate, strict=True)]
                for value, place in zip(values, places, strict=True):
                    convert.store(e, dtype, value, e.at(far, place), mask)
                return []

            e.loop(at["pixels"], 1, [], pixel)

        over_channels(e, at["channels"], size, combine)

    return emitted(combine_row, emit)
