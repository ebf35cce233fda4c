"""Microkernels of depthwise input gradients: all stride phases of output rows at once.

    for each output row:
        for each register tile of positions:
            acc[phase] = initial sums
            for each filter row that meets the output row:           an entry of the row table
                acc[phase of s] += dy[row, position + shift of s] * w[row, s]
            acc -> bounds -> output columns position * stride + phase

Lanes are positions of one channel, whose phases are interleaved in registers, or they are channels
of one position.
"""

from __future__ import annotations

from typing import NamedTuple

from implicit_conv.kernels.cpu.emit.internals import ir
from implicit_conv.kernels.cpu.emit.vector import BYTES, I64, Emitter, Values, i64
from implicit_conv.kernels.cpu.runtime.compiled.part import LIMITS, declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, emitted
from implicit_conv.kernels.cpu.runtime.table import STRIDED_ROWS
from implicit_conv.kernels.cpu.strided_depthwise.layout import COUNT_BYTES, ENTRY_BYTES, Variant

ADDRESSES = ("a", "w", "table", "sums", "out")
# Addresses of dy, the filter, the row table, the initial sums and column 0 of the first output row.
# `table_row` is the byte stride of rows in the table. dy has `a_columns` pixels with byte stride
# `a_pixel`; taps have the byte stride `w_tap`. The tile has the positions first, first + 1, ...,
# and ends before output column `end`. `last` is the byte offset of the last vector of channels,
# which may overlap the one before it.
sum_rows = declare(
    STRIDED_ROWS,
    "sum_rows",
    "a w table sums out rows table_row a_pixel a_columns w_tap out_row out_pixel first positions "
    "end vectors last",
    "low high",
)


class Row(NamedTuple):
    """An output row while it is emitted."""

    entries: ir.Value  # address of its entries in the row table
    count: ir.Value
    out: ir.Value


class Kernel(NamedTuple):
    """A microkernel while it is emitted, with the values that are computed once, on entry."""

    variant: Variant
    e: Emitter
    at: dict[str, ir.Value]  # the arguments by name
    limits: list[ir.Value]  # low and high, in every lane
    pointers: dict[str, ir.Value]  # the address arguments, as byte pointers

    def entry(self, row: Row, index: ir.Value, source: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The addresses in the row of dy and the filter row of an entry, from those of row 0."""
        e = self.e
        place = e.at(row.entries, e.builder.mul(index, i64(ENTRY_BYTES)))
        moved = e.builder.load(e.pointer(place, I64))
        tap = e.builder.load(e.pointer(e.at(place, 8), I64))
        return e.at(source, moved), e.at(self.pointers["w"], e.builder.mul(tap, self.at["w_tap"]))

    def inside(self, column: ir.Value) -> ir.Value:
        """Whether dy has a column."""
        builder = self.e.builder
        return builder.and_(
            builder.icmp_signed(">=", column, i64(0)),
            builder.icmp_signed("<", column, self.at["a_columns"]),
        )


def emit(variant: Variant, e: Emitter, at: dict[str, ir.Value]) -> None:
    """Emit `rows` output rows; the tiles at the ends of rows of dy or dx are emitted apart."""
    builder = e.builder
    limits = [e.splat(e.narrow(at[name])) for name in LIMITS]
    pointers = {name: builder.inttoptr(at[name], BYTES) for name in ADDRESSES}
    kernel = Kernel(variant, e, at, limits, pointers)
    emit_tile = emit_plane_tile if variant.planar else emit_channel_tile
    lowest, highest = variant.shifts[0], variant.shifts[-1] + variant.positions - 1

    def emit_row(_: object, carried: Values) -> list[ir.Value]:
        table, out = carried
        count = builder.load(e.pointer(table, I64))
        row = Row(e.at(table, COUNT_BYTES), count, out)

        def tile(index: ir.Value, _: object) -> list[ir.Value]:
            position = builder.add(at["first"], index)
            beyond = builder.mul(builder.add(position, i64(variant.positions)), i64(variant.stride))
            whole = builder.and_(
                kernel.inside(builder.add(position, i64(lowest))),
                kernel.inside(builder.add(position, i64(highest))),
            )
            whole = builder.and_(whole, builder.icmp_signed("<=", beyond, at["end"]))
            with builder.if_else(whole) as (interior, border):
                with interior:
                    emit_tile(kernel, row, position, whole=True)
                with border:
                    emit_tile(kernel, row, position, whole=False)
            return []

        e.loop(at["positions"], variant.positions, [], tile)
        return [e.at(table, at["table_row"]), e.at(out, at["out_row"])]

    e.loop(at["rows"], 1, [pointers["table"], pointers["out"]], emit_row)


def emit_plane_tile(kernel: Kernel, row: Row, position: ir.Value, whole: bool) -> None:
    """A vector of positions of one channel. At a border, pixels that dy lacks count as zeros."""
    variant, e, at, limits, pointers = kernel
    builder, size = e.builder, e.itemsize
    source = e.at(pointers["a"], builder.mul(position, i64(size)))
    masks = {}
    for shift in () if whole else variant.shifts:
        first = builder.add(position, i64(shift))
        below = e.below(builder.sub(at["a_columns"], first))
        masks[shift] = builder.and_(below, builder.not_(e.below(builder.neg(first))))

    def add(index: ir.Value, total: Values) -> list[ir.Value]:
        total = list(total)
        pixels, weights = kernel.entry(row, index, source)
        for shift in variant.shifts:
            place = e.at(pixels, shift * size)
            value = e.load(place) if whole else e.load_masked(place, masks[shift])
            for tap in variant.taps:
                if tap.shift == shift:
                    weight = e.broadcast(e.at(weights, tap.column * size))
                    total[tap.phase] = e.multiply_add(value, weight, total[tap.phase])
        return total

    total = e.loop(row.count, 1, [e.broadcast(pointers["sums"])] * variant.stride, add)
    column = builder.mul(position, i64(variant.stride))
    target = e.at(row.out, builder.mul(column, i64(size)))
    left = builder.sub(at["end"], column)
    values = interleaved(e, [e.clamp(value, *limits) for value in total])
    for i, value in enumerate(values):
        place = e.at(target, i * e.lanes * size)
        if whole:
            e.store(value, place)
        else:
            e.store_masked(value, place, e.below(left, i * e.lanes))


def interleaved(e: Emitter, values: list[ir.Value]) -> list[ir.Value]:
    """The vectors with lane 0 of all values in order, then lane 1, and so on.

    Halves of an even number of values are interleaved first, which takes fewer shuffles.
    """
    if len(values) > 2 and len(values) % 2 == 0:
        pairs = zip(interleaved(e, values[::2]), interleaved(e, values[1::2]), strict=True)
        return [vector for pair in pairs for vector in interleaved(e, list(pair))]
    found = []
    for i in range(len(values)):
        places = [divmod(i * e.lanes + lane, len(values)) for lane in range(e.lanes)]
        merged = values[0]
        for phase in range(1, len(values)):
            kept = range(e.lanes) if phase > 1 else [index for index, _ in places]
            lanes = [
                e.lanes + index if own == phase else other
                for (index, own), other in zip(places, kept, strict=True)
            ]
            indices = ir.Constant(e.words, lanes)
            merged = e.builder.shuffle_vector(merged, values[phase], indices)
        found.append(merged)
    return found


def emit_channel_tile(kernel: Kernel, row: Row, position: ir.Value, whole: bool) -> None:
    """A few positions, for all vectors of channels. At a border, taps of pixels that dy lacks are
    skipped.
    """
    e, at = kernel.e, kernel.at
    builder = e.builder

    def vector(index: ir.Value, _: object) -> list[ir.Value]:
        offset = builder.mul(index, i64(e.lanes * e.itemsize))
        over = builder.icmp_signed(">", offset, at["last"])
        emit_channels(kernel, row, position, whole, builder.select(over, at["last"], offset))
        return []

    e.loop(at["vectors"], 1, [], vector)


def emit_channels(
    kernel: Kernel, row: Row, position: ir.Value, whole: bool, offset: ir.Value
) -> None:
    """A few positions, for the vector of channels at byte `offset`."""
    variant, e, at, limits, pointers = kernel
    builder, (_, stride, taps, positions) = e.builder, variant
    channels = e.at(pointers["a"], offset)
    uses = {
        i: [(tap, i - tap.shift) for tap in taps if 0 <= i - tap.shift < positions]
        for i in range(variant.shifts[0], variant.shifts[-1] + positions)
    }

    def add(index: ir.Value, total: Values) -> list[ir.Value]:
        total = list(total)
        pixels, weights = kernel.entry(row, index, channels)
        weights = e.at(weights, offset)
        for i, used in uses.items():
            if not used:
                continue
            column = builder.add(position, i64(i))
            known = None if whole else kernel.inside(column)
            if known is not None:
                column = builder.select(known, column, i64(0))
            value = e.load(e.at(pixels, builder.mul(column, at["a_pixel"])))
            for tap, j in used:
                place = j * stride + tap.phase
                weight = e.load(e.at(weights, builder.mul(at["w_tap"], i64(tap.column))))
                found = e.multiply_add(value, weight, total[place])
                if known is not None:
                    found = builder.select(known, found, total[place])
                total[place] = found
        return total

    start = e.load(e.at(pointers["sums"], offset))
    total = e.loop(row.count, 1, [start] * (positions * stride), add)
    first = builder.mul(position, i64(stride))
    for i, value in enumerate([e.clamp(value, *limits) for value in total]):
        column = builder.add(first, i64(i))
        place = e.at(row.out, builder.add(builder.mul(column, at["out_pixel"]), offset))
        if whole:
            e.store(value, place)
        else:
            with builder.if_then(builder.icmp_signed("<", column, at["end"])):
                e.store(value, place)


def make_microkernel(variant: Variant, lanes: int, itemsize: int, fma: bool) -> Source:
    """The microkernel of a variant."""

    def emit_part(builder: ir.IRBuilder, at: dict[str, ir.Value]) -> None:
        emit(variant, Emitter(builder, lanes, itemsize, fma), at)

    return emitted(sum_rows, emit_part)
