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

from implicit_conv.kernels.cpu.emit.vector import (
    BYTES,
    I64,
    PIXELS_PER_BASE,
    Builder,
    Emitter,
    Value,
    Values,
    i64,
)
from implicit_conv.kernels.cpu.runtime.compiled.part import declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, emitted
from implicit_conv.kernels.cpu.runtime.table import microkernel_slot
from implicit_conv.kernels.cpu.wgrad.layout import RegisterTile

# Addresses of the first pixel of the activation and of the output gradient, and of the sums; pixels
# along three nested axes, and the byte strides of these axes; `a_next` is the byte stride of the
# rows of A, and `c_row` that of the rows of sums. `tiles` register tiles follow each other in A;
# `offsets` is the address of the byte offsets in A of the rows, if they are taps. Memory at `ahead`
# is prefetched into L2, and each pixel moves on by `ahead_step` bytes. `adds` is 1 to add to the
# sums in memory, and 0 to overwrite them.
multiply_pixels = declare(
    microkernel_slot(1, 0, 0),
    "multiply_pixels",
    "a b c planes rows columns a_plane a_row a_column a_next b_plane b_row b_column c_row tiles "
    "offsets ahead ahead_step adds",
    a_next=0,
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
    starts = range(0, tile.rows, PIXELS_PER_BASE) if tile.strided else range(1)  # rows of bases

    def factors(bases: Values) -> Iterator[Value]:
        """A[pixel, i] for every place."""
        if tile.taps:
            for i, v in places:
                yield e.load(e.at(e.at(bases[0], offsets[i]), v * tile.vector_bytes))
            return
        if tile.strided:
            moving = [e.opaque(base) for base in bases]
            for i in range(tile.rows):
                base, further = divmod(i, PIXELS_PER_BASE)
                place = e.at(moving[base], builder.mul(at["a_next"], i64(further)))
                yield from [e.broadcast(place)] * tile.vectors
            return
        for first in range(0, tile.rows, together):
            count = min(together, tile.rows - first)
            for value in e.broadcasts(e.at(bases[0], first * tile.itemsize), count):
                yield from [value] * tile.vectors

    def moved(carried: Values, axis: str) -> list[Value]:
        """The bases of A, and b, at the next pixel along an axis."""
        bases = [e.at(base, at[f"a_{axis}"]) for base in carried[: len(starts)]]
        return [*bases, e.at(carried[len(starts)], at[f"b_{axis}"])]

    def column(_: object, carried: Values) -> list[Value]:
        b, ahead, *acc = carried[len(starts) :]
        e.prefetch(ahead, 2)
        filters = [e.load(e.at(b, v * tile.vector_bytes)) for v in range(tile.vectors)]
        values = factors(carried[: len(starts)])
        for at_sum, ((_, v), value) in enumerate(zip(places, values, strict=True)):
            acc[at_sum] = e.multiply_add(value, filters[v], acc[at_sum])
        return [*moved(carried, "column"), e.at(ahead, at["ahead_step"]), *acc]

    def row(_: object, carried: Values) -> list[Value]:
        found = e.loop(at["columns"], 1, carried, column)
        return [*moved(carried, "row"), *found[len(starts) + 1 :]]

    def plane(_: object, carried: Values) -> list[Value]:
        found = e.loop(at["rows"], 1, carried, row)
        return [*moved(carried, "plane"), *found[len(starts) + 1 :]]

    next_row = at["a_next"] if tile.strided else i64(tile.itemsize)

    def register_tile(_: object, carried: Values) -> list[Value]:
        a, c, ahead = carried
        zeros = [e.constant(0)] * len(places)
        targets = [
            e.at(e.at(c, builder.mul(at["c_row"], i64(i))), v * tile.vector_bytes)
            for i, v in places
        ]
        for target in targets:
            e.prefetch(target, 3)
        bases = [e.at(a, builder.mul(next_row, i64(i))) for i in starts]
        found = e.loop(at["planes"], 1, [*bases, b, ahead, *zeros], plane)
        ahead, *acc = found[len(starts) + 1 :]

        def added() -> list[Value]:
            return [
                builder.fadd(e.load(target), value)
                for target, value in zip(targets, acc, strict=True)
            ]

        adds = builder.icmp_signed("!=", at["adds"], i64(0))
        total = e.either(adds, added, lambda: acc)
        for value, target in zip(total, targets, strict=True):
            e.store(value, target)
        further = builder.mul(at["c_row"], i64(tile.rows))
        return [e.at(a, builder.mul(next_row, i64(tile.rows))), e.at(c, further), ahead]

    ahead = builder.inttoptr(at["ahead"], BYTES)
    e.loop(at["tiles"], 1, [a, c, ahead], register_tile)


def make_microkernel(tile: RegisterTile) -> Source:
    """The microkernel of `tile`."""
    return emitted(multiply_pixels, functools.partial(emit, tile))
