"""Microkernels of depthwise convolution, and of groups of a few channels: channels are the lanes.

A register tile is a few neighbouring pixels of a row, summed tap by tap, or a filter row at a time:
its taps then share what they read. Numbers are widened as they are read, and rounded once.
"""

import functools
from typing import NamedTuple

from llvmlite import ir

from implicit_conv.kernels.cpu.emit.vector import BYTES, I64, Emitter, i64, vectors_name
from implicit_conv.kernels.cpu.gemm.microkernel import PIXELS_PER_BASE
from implicit_conv.kernels.cpu.runtime.table import LIMITS, compile_emitted
from implicit_conv.kernels.cpu.tile import storage

ARGUMENTS = (
    "a",  # addresses: activations, filters, tap table, initial sums, output
    "w",
    "taps",
    "sums",
    "out",
    "tap_count",
    "a_pixel",  # strides in bytes: between pixels read, filters of two taps, pixels written
    "w_tap",
    "w_channel",  # likewise of two channels of a group
    "out_pixel",
    "vectors",
    "last",  # byte offset of the last vector, which may overlap the one before
    "tiles",  # register tiles, one behind the other
    "ahead",  # bytes from `a` to the row that the next output row reads first
    "rounds",  # 1: results are stored as y's type
)


class Row(NamedTuple):
    """A filter row that is taken at once, by pixels whose windows may reach into padding."""

    taps: int
    stride: int
    before: int = 0  # pixels of all windows' span that are padding, at its beginning
    after: int = 0  # and at its end


def emit(pixels, row, group, types_stored, e, at):
    """Sums of `tiles` times `pixels` neighbouring pixels, for `vectors` vectors of filters: those
    of whole groups, each of `group` = (channels, filters).

    `types_stored` are those of what is read, of sums and of y, by the keys of storage.SIZES.

    The tap table holds (byte offset from `a`, byte offset from `w`) of each tap; or, with a `row`,
    of the first tap of each filter row: its taps then share what they read.
    """
    builder = e.builder
    low, high = (e.splat(e.narrow(at[name])) for name in LIMITS)
    a, w, taps, sums, out = (builder.inttoptr(at[name], BYTES) for name in ARGUMENTS[:5])
    base_step = builder.mul(at["a_pixel"], i64(PIXELS_PER_BASE))
    a_tile = builder.mul(at["a_pixel"], i64(pixels * (row.stride if row else 1)))
    out_tile = builder.mul(at["out_pixel"], i64(pixels))
    group_channels, group_filters = group
    read_as, sum_type, y_type = types_stored

    def stored(offset, dtype):
        """A byte offset among sums, as one among numbers stored as `dtype`."""
        return builder.udiv(offset, i64(e.itemsize // storage.SIZES[dtype]))

    def neighbours(source, count, c):
        """`count` vectors, a_pixel apart; channel c of each group in all of the group's lanes."""
        for p in range(count):
            if p and p % PIXELS_PER_BASE == 0:
                source = e.opaque(e.at(source, base_step))
            place = builder.mul(at["a_pixel"], i64(p % PIXELS_PER_BASE))
            value = storage.load(e, read_as, e.at(source, place))
            yield value if group == (1, 1) else e.repeat_lanes(value, *group, c)

    def add_tap(source, filters, total, c):
        weight = e.load(filters)
        values = neighbours(source, pixels, c)
        return [e.multiply_add(v, weight, t) for v, t in zip(values, total, strict=True)]

    def add_row(source, filters, total, c):
        """By as many taps at a time as have their weights in registers, beside the sums."""
        total = list(total)
        parts = -(-row.taps // max(1, e.registers - pixels - 2))
        span = (pixels - 1) * row.stride
        for part in range(parts):
            first, end = row.taps * part // parts, row.taps * (part + 1) // parts
            places = [builder.mul(at["w_tap"], i64(s)) for s in range(first, end)]
            weights = [e.load(e.at(filters, place)) for place in places]
            begin = max(first, row.before)
            count = min(span + end, span + row.taps - row.after) - begin
            start = e.at(source, builder.mul(at["a_pixel"], i64(begin)))
            for i, value in enumerate(neighbours(e.opaque(start), count, c), begin):
                for s, weight in enumerate(weights, first):
                    p, between = divmod(i - s, row.stride)
                    if between == 0 and 0 <= p < pixels:
                        total[p] = e.multiply_add(value, weight, total[p])
        return total

    def vector(index, a, out):
        offset = builder.mul(index, i64(e.lanes * e.itemsize))
        over = builder.icmp_signed(">", offset, at["last"])
        offset = builder.select(over, at["last"], offset)
        groups = builder.udiv(offset, i64(group_filters))
        activations = e.at(a, stored(builder.mul(groups, i64(group_channels)), read_as))
        filters = e.at(w, offset)

        def tap(index, total):
            entry = e.at(taps, builder.mul(index, i64(16)))
            source = e.at(activations, builder.load(e.pointer(entry, I64)))
            place = e.at(filters, builder.load(e.pointer(e.at(entry, 8), I64)))
            for c in range(group_channels):  # pixels are read anew for each: they fill no registers
                source = e.opaque(source)
                total = (add_row if row else add_tap)(source, place, total, c)
                place = e.at(place, at["w_channel"])
            return total

        reads = pixels * (row.stride if row else 1)
        for p in range(reads):
            moved = builder.mul(at["a_pixel"], i64(p))
            e.prefetch(e.at(activations, builder.add(at["ahead"], moved)), 3)
        total = e.loop(at["tap_count"], 1, [e.load(e.at(sums, offset))] * pixels, tap)

        def store(dtype):
            target = e.at(out, stored(offset, dtype))
            for p in range(pixels):
                address = e.at(target, builder.mul(at["out_pixel"], i64(p)))
                storage.store(e, dtype, e.clamp(total[p], low, high), address)

        if y_type == sum_type:
            store(sum_type)
            return []
        with builder.if_else(builder.trunc(at["rounds"], ir.IntType(1))) as (rounded, kept):
            with rounded:
                store(y_type)
            with kept:
                store(sum_type)
        return []

    def tile(_, carried):
        e.loop(at["vectors"], 1, [], lambda index, _: vector(index, *carried))
        return [e.at(carried[0], a_tile), e.at(carried[1], out_tile)]

    e.loop(at["tiles"], 1, [a, out], tile)


@functools.cache
def compile_microkernel(pixels, row, group, types_stored, lanes, fma):
    """The compiled microkernel of `pixels` pixels, tap by tap or, with `row`, row by row."""
    read_as, sum_type, y_type = types_stored
    itemsize = storage.SIZES[sum_type]

    def emit_part(builder, at):
        emit(pixels, row, group, types_stored, Emitter(builder, lanes, itemsize, fma), at)

    by_row = "_row_{}_{}_{}_{}".format(*row) if row else ""
    together = "" if group == (1, 1) else "_groups_of_{}_{}".format(*group)
    name = f"depthwise_{pixels}{by_row}{together}_{read_as}_{y_type}_"
    name += vectors_name(lanes, itemsize, fma)
    return compile_emitted(name, ARGUMENTS, LIMITS, emit_part)
