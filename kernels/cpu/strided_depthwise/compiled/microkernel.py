"""Microkernels of depthwise input gradients: all stride phases of output rows at once.

    for each output row, and each register tile of positions:
        acc[phase] = initial sums
        for each filter row that meets the output row:               an entry of the row table
            acc[phase of s] += dy[row, position + shift of s] * w[row, s]
        acc -> bounds -> output columns position * stride + phase

Lanes are positions of one channel, whose phases are interleaved in registers, or they are channels
of one position.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from implicit_conv.kernels.cpu.emit.internals import ir
from implicit_conv.kernels.cpu.emit.vector import BYTES, I64, Emitter, Values, i64
from implicit_conv.kernels.cpu.runtime.compiled.part import LIMITS, declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, microkernel
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


class Tile(NamedTuple):
    """A register tile while it is emitted."""

    position: ir.Value  # the first one
    whole: bool  # whether it is inside the rows of dy and of the output


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
    lowest, highest = variant.shifts[0], variant.shifts[-1] + variant.positions - 1

    def emit_rows(emit_row: Callable[[Row], None]) -> None:
        def row(_: object, carried: Values) -> list[ir.Value]:
            table, out = carried
            count = builder.load(e.pointer(table, I64))
            emit_row(Row(e.at(table, COUNT_BYTES), count, out))
            return [e.at(table, at["table_row"]), e.at(out, at["out_row"])]

        e.loop(at["rows"], 1, [pointers["table"], pointers["out"]], row)

    def emit_tiles(emit_tile: Callable[[Tile], None]) -> None:
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
                    emit_tile(Tile(position, True))
                with border:
                    emit_tile(Tile(position, False))
            return []

        e.loop(at["positions"], variant.positions, [], tile)

    # The masks of a tile of planes serve all rows; pixels of channels are written in order.
    if variant.planar:
        emit_tiles(lambda tile: emit_rows(plane_rows(kernel, tile)))
    else:
        emit_rows(lambda row: emit_tiles(lambda tile: emit_channel_tile(kernel, row, tile)))


def plane_rows(kernel: Kernel, tile: Tile) -> Callable[[Row], None]:
    """What emits a row of a tile, some vectors of positions of one channel. At a border, pixels
    that dy lacks count as zeros.
    """
    (variant, e, at, limits, pointers), (position, whole) = kernel, tile
    builder, size = e.builder, e.itemsize
    source = e.at(pointers["a"], builder.mul(position, i64(size)))
    firsts = range(0, variant.positions, e.lanes)
    masks = {}
    for first in () if whole else sorted({n + shift for n in firsts for shift in variant.shifts}):
        pixel = builder.add(position, i64(first))
        below = e.below(builder.sub(at["a_columns"], pixel))
        masks[first] = builder.and_(below, builder.not_(e.below(builder.neg(pixel))))
    column = builder.mul(position, i64(variant.stride))
    left = builder.sub(at["end"], column)
    start = e.broadcast(pointers["sums"])

    def load(pixels: ir.Value, first: int) -> ir.Value:
        place = e.at(pixels, first * size)
        return e.load(place) if whole else e.load_masked(place, masks[first])

    def emit_row(row: Row) -> None:
        def add(index: ir.Value, total: Values) -> list[ir.Value]:
            total = list(total)
            pixels, weights = kernel.entry(row, index, source)
            for shift in variant.shifts:
                values = [load(pixels, first + shift) for first in firsts]
                for tap in variant.taps:
                    if tap.shift == shift:
                        weight = e.broadcast(e.at(weights, tap.column * size))
                        for i, value in enumerate(values):
                            place = i * variant.stride + tap.phase
                            total[place] = e.multiply_add(value, weight, total[place])
            return total

        total = e.loop(row.count, 1, [start] * (len(firsts) * variant.stride), add)
        total = [e.clamp(value, *limits) for value in total]
        target = e.at(row.out, builder.mul(column, i64(size)))
        parts = range(0, len(total), variant.stride)
        vectors = [v for i in parts for v in interleaved(e, total[i : i + variant.stride])]
        for i, value in enumerate(vectors):
            place = e.at(target, i * e.lanes * size)
            if whole:
                e.store(value, place)
                continue
            count = builder.sub(left, i64(i * e.lanes))
            with builder.if_then(builder.icmp_signed(">", count, i64(0))):
                e.store_first([value], [place], count)

    return emit_row


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


def emit_channel_tile(kernel: Kernel, row: Row, tile: Tile) -> None:
    """A few positions of a row, for all vectors of channels. At a border, taps of pixels that dy
    lacks are skipped.
    """
    e, at = kernel.e, kernel.at
    builder = e.builder

    def vector(index: ir.Value, _: object) -> list[ir.Value]:
        offset = builder.mul(index, i64(e.lanes * e.itemsize))
        over = builder.icmp_signed(">", offset, at["last"])
        emit_channels(kernel, row, tile, builder.select(over, at["last"], offset))
        return []

    e.loop(at["vectors"], 1, [], vector)


def emit_channels(kernel: Kernel, row: Row, tile: Tile, offset: ir.Value) -> None:
    """A few positions, for the vector of channels at byte `offset`."""
    (variant, e, at, limits, pointers), (position, whole) = kernel, tile
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
    return microkernel(sum_rows, emit, variant, lanes, itemsize, fma)
