"""Products of images and gates, which have one factor for each channel.

y[n, p, q, c] = x[n, p, q, c] * gate[n, c]
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

multiply_row = declare(SLOT, "multiply_row", "to at gate pixels pixel to_pixel channels")


def run_item(call: Any, images: Any, item: int, thread: int) -> None:
    """One work item: a row of pixels."""
    first = item % images.chunks * images.chunk
    n, row = divmod(item // images.chunks, images.rows)
    multiply_row(
        call.kernels,
        to=call.y.address + n * images.y_n + row * images.y_row + first * images.size,
        at=call.x.address + n * images.x_n + row * images.x_row + first * images.size,
        gate=call.w.address + n * images.gate_n + first * images.size,
        pixels=images.columns,
        pixel=images.x_pixel,
        to_pixel=images.y_pixel,
        channels=min(images.chunk, images.channels - first),
    )


PRODUCTS = over_items(Images(), run_item)  # the entry


def make_multiply_row(dtype: Stored) -> Source:
    """The part that multiplies a row of pixels."""

    def emit(builder: Builder, at: dict[str, Value]) -> None:
        e, size = emitter(builder, dtype), SIZES[dtype]
        to, x, gate = (builder.inttoptr(at[name], BYTES) for name in ("to", "at", "gate"))

        def multiply(offset: Value, vectors: int, mask: Value | None) -> None:
            places = [builder.add(offset, i64(n * e.lanes * size)) for n in range(vectors)]
            factors = [convert.load(e, dtype, e.at(gate, place), mask) for place in places]

            def pixel(q: Value, _: object) -> list[Value]:
                near = e.at(x, builder.mul(q, at["pixel"]))
                far = e.at(to, builder.mul(q, at["to_pixel"]))
                for factor, place in zip(factors, places, strict=True):
                    value = convert.load(e, dtype, e.at(near, place), mask)
                    convert.store(e, dtype, builder.fmul(value, factor), e.at(far, place), mask)
                return []

            e.loop(at["pixels"], 1, [], pixel)

        over_channels(e, at["channels"], size, multiply)

    return emitted(multiply_row, emit)
