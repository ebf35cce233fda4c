"""Microkernels of depthwise convolution and of groups of a few channels: channels are the lanes.

A register tile is a few neighbouring pixels of a row:

    for each vector of filters:
        acc[p] = initial sums
        for each entry of the tap table:                  one tap, or one filter row
            for each channel of a group:
                acc[p] += A[p + tap] * W[tap]
        acc[p] -> bounds, rounding -> output

The taps of a filter row share the pixels that they read, so each pixel is loaded once. A tile of
several output rows has all weights of a filter plane in registers, and goes from image row to image
row instead: each pixel is loaded once for all of them, so what L1 loses costs less. Elements of 16
bits are widened when they are loaded, and sums are rounded once, when they are stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from implicit_conv.kernels.cpu.depthwise.layout import Variant
from implicit_conv.kernels.cpu.emit.chains import sum_in_chains
from implicit_conv.kernels.cpu.emit.internals import ir
from implicit_conv.kernels.cpu.emit.vector import (
    BYTES,
    I64,
    PIXELS_PER_BASE,
    Emitter,
    Values,
    i64,
)
from implicit_conv.kernels.cpu.runtime.compiled.part import LIMITS, declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, emitted
from implicit_conv.kernels.cpu.runtime.table import DEPTHWISE
from implicit_conv.kernels.cpu.tile import storage
from implicit_conv.kernels.cpu.tile.compiled import convert
from implicit_conv.kernels.cpu.tile.storage import Stored

TAP_BYTES = 16  # of an entry of the tap table: two 64-bit offsets

ADDRESSES = ("a", "w", "taps", "sums", "out")
# Addresses of activations, filters, tap table, initial sums and output; the entries of the table,
# or how many filter rows several output rows multiply in all; byte strides between the pixels that
# are read, between the filters of two taps, between those of two channels of a group, and between
# the pixels that are written. Vector i begins at byte i * size - `back`, but not before byte 0 and
# not after `last`, so that the first two may overlap, and the last two; `tiles` register tiles are
# contiguous along the row; `ahead` is the number of bytes from `a` to the row that the next output
# row reads first, or 0 if it is not to be prefetched; `rounds` is 1 if results are stored as the
# elements of y; `turn` is the number of bytes between the repetitions of a pixel in circular
# padding, `out_row` that between the output rows of a tile.
sum_channels = declare(
    DEPTHWISE,
    "sum_channels",
    "a w taps sums out tap_count a_pixel w_tap w_channel out_pixel out_row vectors last back tiles "
    "ahead rounds turn",
    "low high",
)


class Kernel(NamedTuple):
    """A microkernel while it is emitted, with the values that are computed once, on entry."""

    variant: Variant
    e: Emitter
    at: dict[str, ir.Value]  # the arguments by name
    limits: list[ir.Value]  # low and high, in every lane
    pointers: dict[str, ir.Value]  # the address arguments, as byte pointers
    base_step: ir.Value  # bytes between pixels that base registers address

    def stored(self, offset: ir.Value, dtype: Stored) -> ir.Value:
        """A byte offset among sums, converted to one among elements stored as `dtype`."""
        return self.e.builder.udiv(offset, i64(self.e.itemsize // storage.SIZES[dtype]))


def emit(variant: Variant, e: Emitter, at: dict[str, ir.Value]) -> None:
    """Emit the sums of `tiles` times `pixels` neighbouring pixels, for `vectors` vectors of
    filters; a vector holds the filters of whole groups.

    The tap table holds (byte offset from `a`, byte offset from `w`) of each tap, or with a `row`
    those of the first tap of each filter row. With `rows` it is that of `Rows`.
    """
    builder = e.builder
    limits = [e.splat(e.narrow(at[name])) for name in LIMITS]
    pointers = {name: builder.inttoptr(at[name], BYTES) for name in ADDRESSES}
    base_step = builder.mul(at["a_pixel"], i64(PIXELS_PER_BASE))
    kernel = Kernel(variant, e, at, limits, pointers, base_step)
    a_tile = builder.mul(at["a_pixel"], i64(variant.reads))
    out_tile = builder.mul(at["out_pixel"], i64(variant.pixels))

    def tile(_: object, carried: Values) -> list[ir.Value]:
        e.loop(at["vectors"], 1, [], lambda index, _: emit_vector(kernel, index, *carried))
        return [e.at(carried[0], a_tile), e.at(carried[1], out_tile)]

    e.loop(at["tiles"], 1, [pointers["a"], pointers["out"]], tile)


def emit_vector(kernel: Kernel, index: ir.Value, a: ir.Value, out: ir.Value) -> list[ir.Value]:
    """The register tile of one vector of filters; `a` and `out` belong to its first pixel."""
    variant, e, at, *_ = kernel
    builder, (group_channels, group_filters) = e.builder, variant.group
    offset = builder.sub(builder.mul(index, i64(e.lanes * e.itemsize)), at["back"])
    offset = builder.select(builder.icmp_signed("<", offset, i64(0)), i64(0), offset)
    over = builder.icmp_signed(">", offset, at["last"])
    offset = builder.select(over, at["last"], offset)
    groups = builder.udiv(offset, i64(group_filters))
    channels = kernel.stored(builder.mul(groups, i64(group_channels)), variant.read_as)
    activations, filters = e.at(a, channels), e.at(kernel.pointers["w"], offset)
    if not variant.rows:
        with builder.if_then(builder.icmp_signed("!=", at["ahead"], i64(0))):
            for p in range(variant.reads):
                moved = builder.mul(at["a_pixel"], i64(p))
                e.prefetch(e.at(activations, builder.add(at["ahead"], moved)), 3)
    start = e.load(e.at(kernel.pointers["sums"], offset))
    add = emit_rows if variant.rows else emit_taps
    total = add(kernel, activations, filters, [start] * variant.outputs)
    emit_store(kernel, total, out, offset)
    return []


def emit_taps(
    kernel: Kernel, activations: ir.Value, filters: ir.Value, total: Values
) -> list[ir.Value]:
    """`total` plus the products of every entry of the tap table; one sum for each pixel."""
    variant, e, at, *_ = kernel
    builder, taps = e.builder, kernel.pointers["taps"]
    add = _add_row if variant.row else _add_tap

    def entry_of_table(index: ir.Value, total: Values) -> Values:
        entry = e.at(taps, builder.mul(index, i64(TAP_BYTES)))
        source = e.at(activations, builder.load(e.pointer(entry, I64)))
        place = e.at(filters, builder.load(e.pointer(e.at(entry, 8), I64)))
        for c in range(variant.group[0]):
            source = e.opaque(source)  # pixels are read again for each channel, to save registers
            total = add(kernel, source, place, total, c)
            place = e.at(place, at["w_channel"])
        return total

    def entries(first: ir.Value, count: ir.Value, total: Values) -> list[ir.Value]:
        return e.loop(
            count, 1, total, lambda i, total: entry_of_table(builder.add(first, i), total)
        )

    if variant.chain:
        return sum_in_chains(e, at["tap_count"], variant.chain, [], total, entries)
    return entries(i64(0), at["tap_count"], total)


def emit_rows(
    kernel: Kernel, activations: ir.Value, filters: ir.Value, total: Values
) -> list[ir.Value]:
    """`total` plus the products of all taps, image row by image row: each of its pixels is loaded
    once for all output rows of the tile. One sum for each pixel, output row by output row.
    """
    variant, e, at, *_ = kernel
    builder, row, rows = e.builder, variant.row, variant.rows
    assert row and rows and not variant.chain
    taps = rows.taps * row.taps  # of a filter plane
    last = (variant.pixels - 1) * row.stride + row.taps

    def image_row(source: ir.Value, weights: Values, i: int, total: Values) -> list[ir.Value]:
        sums = list(total)
        filter_rows = [
            (j, i - j * rows.step) for j in range(rows.tile) if 0 <= i - j * rows.step < rows.taps
        ]
        for column, value in _span_pixels(kernel, source, 0, last, 0):
            for j, r in filter_rows:
                for s in range(row.taps):
                    p, between = divmod(column - s, row.stride)
                    if between == 0 and 0 <= p < variant.pixels:
                        index, weight = j * variant.pixels + p, weights[r * row.taps + s]
                        sums[index] = e.multiply_add(value, weight, sums[index])
        return sums

    def unless_padding(entry: ir.Value, weights: Values, i: int, total: Values) -> list[ir.Value]:
        source = e.at(activations, builder.load(e.pointer(entry, I64)))
        read = builder.load(e.pointer(e.at(entry, 8), I64))
        read = builder.icmp_signed("!=", read, i64(0))
        return e.either(read, lambda: image_row(source, weights, i, total), lambda: total)

    def plane(t: ir.Value, total: Values) -> list[ir.Value]:
        table = e.at(kernel.pointers["taps"], builder.mul(t, i64(rows.span * TAP_BYTES)))
        place = e.at(filters, builder.mul(builder.mul(t, i64(taps)), at["w_tap"]))
        places = [e.at(place, builder.mul(at["w_tap"], i64(tap))) for tap in range(taps)]
        weights = [e.load(each) for each in places]
        for i in range(rows.span):
            total = unless_padding(e.at(table, i * TAP_BYTES), weights, i, total)
        return list(total)

    return plane(i64(0), total) if rows.planes == 1 else e.loop(i64(rows.planes), 1, total, plane)


def emit_store(kernel: Kernel, total: Values, out: ir.Value, offset: ir.Value) -> None:
    """Store the sums of one vector, `offset` bytes among sums from the first, as sums or as y."""
    variant, e, at, limits, *_ = kernel
    builder = e.builder

    def store(dtype: Stored) -> None:
        target = e.at(out, kernel.stored(offset, dtype))
        for number, value in enumerate(total):
            j, p = divmod(number, variant.pixels)
            address = e.at(target, builder.mul(at["out_pixel"], i64(p)))
            address = e.at(address, builder.mul(at["out_row"], i64(j))) if j else address
            convert.store(e, dtype, e.clamp(value, *limits), address)

    if variant.y_type == variant.sum_type:
        store(variant.sum_type)
        return
    with builder.if_else(builder.trunc(at["rounds"], ir.IntType(1))) as (rounded, kept):
        with rounded:
            store(variant.y_type)
        with kept:
            store(variant.sum_type)


def _neighbours(kernel: Kernel, source: ir.Value, count: int, c: int) -> Iterator[ir.Value]:
    """The vectors of `count` pixels; all lanes of a group hold its channel c."""
    variant, e, at, *_ = kernel
    for p in range(count):
        if p and p % PIXELS_PER_BASE == 0:
            source = e.opaque(e.at(source, kernel.base_step))
        place = e.builder.mul(at["a_pixel"], i64(p % PIXELS_PER_BASE))
        value = convert.load(e, variant.read_as, e.at(source, place))
        yield value if variant.group == (1, 1) else e.repeat_lanes(value, *variant.group, c)


def _add_tap(
    kernel: Kernel, source: ir.Value, filters: ir.Value, total: Values, c: int
) -> list[ir.Value]:
    """`total` plus the products of one tap."""
    e = kernel.e
    weight = e.load(filters)
    values = _neighbours(kernel, source, len(total), c)
    return [e.multiply_add(v, weight, t) for v, t in zip(values, total, strict=True)]


def _add_row(
    kernel: Any, source: ir.Value, filters: ir.Value, total: Values, c: int
) -> list[ir.Value]:
    """`total` plus the products of a filter row, as many taps at a time as registers can hold the
    weights of, next to the sums.
    """
    (pixels, row, *_), e, at, *_ = kernel
    builder, total = e.builder, list(total)
    parts = -(-row.taps // max(1, e.registers - pixels - 2))
    span = (pixels - 1) * row.stride
    for part in range(parts):
        first, end = row.taps * part // parts, row.taps * (part + 1) // parts
        places = [builder.mul(at["w_tap"], i64(s)) for s in range(first, end)]
        weights = [e.load(e.at(filters, place)) for place in places]
        for i, value in _span_pixels(kernel, source, first, span + end, c):
            for s, weight in enumerate(weights, first):
                p, between = divmod(i - s, row.stride)
                if between == 0 and 0 <= p < pixels:
                    total[p] = e.multiply_add(value, weight, total[p])
    return total


def _span_pixels(kernel: Any, source: ir.Value, first: int, end: int, c: int) -> Iterator[ir.Value]:
    """(index, vectors) of the pixels first .. end - 1 of the span of a filter row, without padding
    of zeros.
    """
    row, e, at = kernel.variant.row, kernel.e, kernel.at
    builder = e.builder
    last = (kernel.variant.pixels - 1) * row.stride + row.taps - row.after
    begin, stop = max(first, row.before), min(end, last)
    padding = [*range(row.before), *range(last, last + row.after)] if row.sources else []

    def repeated(indices: Iterable[int]) -> Iterator[tuple[int, ir.Value]]:
        for i, (pixel, turns) in zip(padding, row.sources, strict=True):
            if i in indices:
                place = e.at(source, builder.mul(at["a_pixel"], i64(pixel)))
                place = e.at(place, builder.mul(at["turn"], i64(turns)))
                yield i, next(_neighbours(kernel, place, 1, c))

    yield from repeated(range(first, min(begin, end)))
    start = e.opaque(e.at(source, builder.mul(at["a_pixel"], i64(begin))))
    yield from enumerate(_neighbours(kernel, start, stop - begin, c), begin)
    yield from repeated(range(max(stop, begin), end))


def make_microkernel(variant: Variant, lanes: int, fma: bool) -> Source:
    """The microkernel of a variant."""

    def emit_part(builder: ir.IRBuilder, at: dict[str, ir.Value]) -> None:
        emit(variant, convert.emitter(builder, lanes, variant.sum_type, fma), at)

    return emitted(sum_channels, emit_part)
