"""The microkernel of weight gradients: a register tile of rows x filters, summed over pixels.

GEMM mapping (wgrad): A = activation, whose rows are channels (or filter columns x channels), one
element broadcast at a time; B = output gradient, `vectors` vectors of filters; accumulator = `rows`
x `vectors` vectors, kept in registers; gemm_k = the pixels of one load tile that a tap meets.

    for each register tile:
        acc = 0
        for plane, row, column of the pixels:
            for i in range(rows):
                acc[i] += A[pixel, i] * B[pixel]
        C += acc, or C = acc

Where a vector has filters of several groups, rows are taps, and A[pixel, i] is a vector of pixels,
one of each filter's own channel, instead of one element that is broadcast.

The pixels of a load tile are one chain of a sum, so no sum grows longer in registers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from implicit_conv.kernels.cpu.emit.vector import BYTES, I64, Builder, Emitter, Value, Values, i64
from implicit_conv.kernels.cpu.runtime.compiled.part import declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, emitted
from implicit_conv.kernels.cpu.runtime.table import microkernel_slot
from implicit_conv.kernels.cpu.wgrad.layout import RegisterTile

# Addresses of the first pixel of the activation and of the output gradient, and of the sums; pixels
# along three nested axes, and the byte strides of these axes; `c_row` is the byte stride of the
# rows of sums. `tiles` register tiles have contiguous rows in A; `offsets` is the address of the
# byte offsets in A of the rows, if they are taps. Memory at `ahead` is prefetched into L2, and each
# pixel moves on by `ahead_step` bytes. `adds` is 1 to add to the sums in memory, and 0 to overwrite
# them.
multiply_pixels = declare(
    microkernel_slot(1, 0, 0),
    "multiply_pixels",
    "a b c planes rows columns a_plane a_row a_column b_plane b_row b_column c_row tiles offsets "
    "ahead ahead_step adds",
    offsets=0,
    ahead_step=0,
)


def emit(tile: RegisterTile, builder: Builder, at: dict[str, Value]) -> None:
    """Emit the microkernel of `tile`; `at` maps the parameters of `multiply_pixels` to values."""
    e = Emitter(builder, tile.lanes, tile.itemsize, tile.fma)
    a, b, c = (builder.inttoptr(at[name], BYTES) for name in ("a", "b", "c"))
    places = [(i, v) for i in range(tile.rows) for v in range(tile.vectors)]
    offsets = []
    if tile.taps:
        table = builder.inttoptr(at["offsets"], I64.as_pointer())
        offsets = [builder.load(builder.gep(table, [i64(i)])) for i in range(tile.rows)]

    together = tile.lanes if e.by_element else 1  # rows whose elements are loaded at once

    def factors(a: Value) -> Iterator[Value]:
        """A[pixel, i] for every place."""
        if tile.taps:
            for i, v in places:
                yield e.load(e.at(e.at(a, offsets[i]), v * tile.vector_bytes))
            return
        for first in range(0, tile.rows, together):
            count = min(together, tile.rows - first)
            for value in e.broadcasts(e.at(a, first * tile.itemsize), count):
                yield from [value] * tile.vectors

    def column(_: object, carried: Values) -> list[Value]:
        a, b, ahead, *acc = carried
        e.prefetch(ahead, 2)
        filters = [e.load(e.at(b, v * tile.vector_bytes)) for v in range(tile.vectors)]
        for at_sum, ((_, v), value) in enumerate(zip(places, factors(a), strict=True)):
            acc[at_sum] = e.multiply_add(value, filters[v], acc[at_sum])
        ahead = e.at(ahead, at["ahead_step"])
        return [e.at(a, at["a_column"]), e.at(b, at["b_column"]), ahead, *acc]

    def row(_: object, carried: Values) -> list[Value]:
        a, b, *others = carried
        _, _, *others = e.loop(at["columns"], 1, [a, b, *others], column)
        return [e.at(a, at["a_row"]), e.at(b, at["b_row"]), *others]

    def plane(_: object, carried: Values) -> list[Value]:
        a, b, *others = carried
        _, _, *others = e.loop(at["rows"], 1, [a, b, *others], row)
        return [e.at(a, at["a_plane"]), e.at(b, at["b_plane"]), *others]

    def register_tile(_: object, carried: Values) -> list[Value]:
        a, c, ahead = carried
        zeros = [e.constant(0)] * len(places)
        targets = [
            e.at(e.at(c, builder.mul(at["c_row"], i64(i))), v * tile.vector_bytes)
            for i, v in places
        ]
        for target in targets:
            e.prefetch(target, 3)
        _, _, ahead, *acc = e.loop(at["planes"], 1, [a, b, ahead, *zeros], plane)

        def added() -> list[Value]:
            return [
                builder.fadd(e.load(target), value)
                for target, value in zip(targets, acc, strict=True)
            ]

        adds = builder.icmp_signed("!=", at["adds"], i64(0))
        total = e.either(adds, added, lambda: acc)
        for value, target in zip(total, targets, strict=True):
            e.store(value, target)
        moved = builder.mul(at["c_row"], i64(tile.rows))
        return [e.at(a, tile.rows * tile.itemsize), e.at(c, moved), ahead]

    ahead = builder.inttoptr(at["ahead"], BYTES)
    e.loop(at["tiles"], 1, [a, c, ahead], register_tile)


def make_microkernel(tile: RegisterTile) -> Source:
    """The microkernel of `tile`."""
    return emitted(multiply_pixels, functools.partial(emit, tile))
