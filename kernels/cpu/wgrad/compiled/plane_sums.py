"""The microkernel of depthwise weight gradients whose lanes are pixels, and the sums of lanes.

    for each channel:
        for row, vector of columns of the pixels:
            for each filter row r of the pass, unless it is outside the image:
                for each of its taps s:
                    acc[r, s] += x[row + r, column + s] * dy[row, column]
        C += acc, or C = acc

Lane i of the sums of a tap has the products of every `lanes`-th column, so that nothing is added
across lanes before the end. With a stride of 2 two vectors of x are cut into even and odd columns,
each within its 128 bits as the cheapest shuffles do; dy is permuted in the same way, once for all
taps.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TypeAlias

from implicit_conv.kernels.cpu.emit.internals import ir
from implicit_conv.kernels.cpu.emit.vector import BYTES, Builder, Emitter, Value, Values, i64
from implicit_conv.kernels.cpu.runtime.compiled.part import declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, emitted, microkernel
from implicit_conv.kernels.cpu.runtime.table import REDUCE_SUMS, microkernel_slot
from implicit_conv.kernels.cpu.wgrad.layout import PlaneTaps

Masks: TypeAlias = (
    "Sequence[Value | None]"  # of the vectors loaded from a row; None loads all lanes
)

FIRST, LAST, OTHER = range(3)  # entries of a table of masks: of vectors of a row
SHUFFLED_BYTES = 16  # bytes within which a shuffle of two vectors moves elements

# Addresses of the pixel of x that the first tap of the first output pixel reads, which may be
# outside the image, of dy there, and of the sums; byte strides of channels, output rows and filter
# rows. Filter row r of output row p reads row `top` + p * `row_step` + r * `tap_step` of the
# `height` rows of x, and the first output column reads column `before` of its `width` columns.
# `adds` is 1 to add to the sums in memory, and 0 to overwrite them.
sum_planes = declare(
    microkernel_slot(1, 0, 0),
    "sum_gradient_planes",
    "a b c channels rows columns a_channel a_row a_tap b_channel b_row c_channel c_row top "
    "row_step tap_step height before width adds",
)
reduce_sums = declare(REDUCE_SUMS, "reduce_sums", "sums count")


def remainders(lanes: int, block: int, remainder: int) -> list[int]:
    """The elements of two vectors that become one: those with this remainder modulo 2, block by
    block of `block` elements.
    """
    return [
        first + start + i
        for start in range(0, lanes, block)
        for first in (0, lanes)
        for i in range(remainder, block, 2)
    ]


def emit(taps: PlaneTaps, e: Emitter, at: dict[str, Value]) -> None:
    """Emit the microkernel of a pass over `taps`."""
    builder, stride, lanes = e.builder, taps.stride, e.lanes
    vector_bytes, block = lanes * e.itemsize, SHUFFLED_BYTES // e.itemsize
    loaded = taps.loads
    end = max(first for first, _ in loaded) + stride * lanes  # of the columns that are loaded
    filter_rows = range(taps.rows)

    def shuffled(a: Value, b: Value, order: list[int]) -> Value:
        return builder.shuffle_vector(a, b, ir.Constant(e.words, order))

    def output_order(dy: Value) -> Value:
        """dy in the order in which the columns of x are shuffled."""
        if stride == 1:
            return dy
        return shuffled(dy, dy, [i // 2 for i in remainders(lanes, block, 0)])

    def masks_at(column: Value) -> list[Value]:
        """The masks of dy and of the vectors that are loaded from a row of x at an output column.

        Columns of x beyond those of the outputs are left out: they may be NaN, and a product with
        the zeros of dy there would be, too.
        """
        left = builder.sub(at["columns"], column)
        position = builder.add(at["before"], builder.mul(column, i64(stride)))
        reach = builder.mul(left, i64(stride))
        found = [e.below(least(builder, left, i64(lanes)))]
        for first, _ in loaded:
            start = builder.add(position, i64(first))
            limit = least(builder, builder.sub(at["width"], start), reach)
            for part in range(stride):
                shift = i64(part * lanes)
                low = builder.sub(i64(0), least(builder, builder.add(start, shift), i64(0)))
                high = least(builder, builder.sub(limit, shift), i64(lanes))
                found.append(builder.and_(e.below(high), builder.not_(e.below(low))))
        return found

    table = MaskTable(e, 1 + stride * len(loaded))
    last = builder.mul(builder.sdiv(builder.sub(at["columns"], i64(1)), i64(lanes)), i64(lanes))
    table.write(FIRST, masks_at(i64(0)))
    table.write(LAST, masks_at(last))

    def edge_masks(column: Value) -> list[Value]:
        """The masks of a vector that is partly outside the image or beyond the outputs."""
        is_first = builder.icmp_signed("==", column, i64(0))
        is_last = builder.icmp_signed("==", column, last)
        with builder.if_then(builder.not_(builder.or_(is_first, is_last)), likely=False):
            table.write(OTHER, masks_at(column))
        other = builder.select(is_last, i64(LAST), i64(OTHER))
        return table.read(builder.select(is_first, i64(FIRST), other))

    def columns_at(row: Value, load_masks: Masks) -> dict[int, Value]:
        """The columns that each tap multiplies."""
        values = []
        for index, mask in enumerate(load_masks):
            offset = loaded[index // stride][0] * e.itemsize + index % stride * vector_bytes
            place = e.at(row, offset)
            values.append(e.load(place) if mask is None else e.load_masked(place, mask))
        if stride == 1:
            return dict(enumerate(values))
        return {
            s: shuffled(
                values[2 * index], values[2 * index + 1], remainders(lanes, block, remainder)
            )
            for index, (_, met) in enumerate(loaded)
            for s, remainder in met.items()
        }

    def row(_: object, carried: Values) -> list[Value]:
        a, b, top, *acc = carried
        starts = [e.at(a, builder.mul(at["a_tap"], i64(r))) for r in filter_rows]
        tops = [builder.add(top, builder.mul(at["tap_step"], i64(r))) for r in filter_rows]
        inside = [builder.icmp_unsigned("<", place, at["height"]) for place in tops]
        all_inside = functools.reduce(builder.and_, inside)

        def vector(column: Value, acc: list[Value]) -> list[Value]:
            left = builder.sub(at["columns"], column)
            shift = builder.mul(column, i64(stride))
            position = builder.add(at["before"], shift)
            moved, place = (builder.mul(x, i64(e.itemsize)) for x in (shift, column))

            def add(dy: Value, r: int, load_masks: Masks) -> list[Value]:
                values = columns_at(e.at(starts[r], moved), load_masks)
                return [
                    e.multiply_add(values[s], dy, acc[r * taps.columns + s])
                    for s in range(taps.columns)
                ]

            def inner() -> list[Value]:
                dy, every = output_order(e.load(e.at(b, place))), [None] * (stride * len(loaded))
                return [total for r in filter_rows for total in add(dy, r, every)]

            def edge() -> list[Value]:
                first, *some = edge_masks(column)
                dy, found = output_order(e.load_masked(e.at(b, place), first)), []
                for r in filter_rows:
                    before = acc[r * taps.columns : (r + 1) * taps.columns]
                    found += e.either(
                        inside[r],
                        functools.partial(add, dy, r, some),
                        functools.partial(list, before),
                    )
                return found

            fits = builder.icmp_signed("<=", builder.add(position, i64(end)), at["width"])
            whole = builder.and_(all_inside, builder.icmp_signed(">=", left, i64(lanes)))
            whole = builder.and_(whole, builder.icmp_signed(">=", position, i64(0)))
            return e.either(builder.and_(whole, fits), inner, edge)

        acc = e.loop(at["columns"], lanes, acc, vector)
        following = builder.add(top, at["row_step"])
        return [e.at(a, at["a_row"]), e.at(b, at["b_row"]), following, *acc]

    def channel(_: object, carried: Values) -> list[Value]:
        a, b, c = carried
        zeros = [e.constant(0.0)] * (taps.rows * taps.columns)
        _, _, _, *acc = e.loop(at["rows"], 1, [a, b, at["top"], *zeros], row)
        places = [
            e.at(e.at(c, builder.mul(at["c_row"], i64(r))), s * vector_bytes)
            for r in filter_rows
            for s in range(taps.columns)
        ]

        def added() -> list[Value]:
            return [e.add(e.load(place), value) for place, value in zip(places, acc, strict=True)]

        total = e.either(builder.icmp_signed("!=", at["adds"], i64(0)), added, lambda: acc)
        for value, place in zip(total, places, strict=True):
            e.store(value, place)
        steps = "a_channel", "b_channel", "c_channel"
        return [e.at(base, at[step]) for base, step in zip(carried, steps, strict=True)]

    bases = [builder.inttoptr(at[name], BYTES) for name in ("a", "b", "c")]
    e.loop(at["channels"], 1, bases, channel)


class MaskTable:
    """Masks in memory, made once for the first and the last vector of all rows: there are too few
    registers for them. An entry has `count` masks, each as integers of the size of an element.
    """

    def __init__(self, e: Emitter, count: int) -> None:
        self.e, self.count = e, count
        self.kind = ir.VectorType(ir.IntType(8 * e.itemsize), e.lanes)
        self.mask_bytes = e.lanes * e.itemsize
        entries = ir.ArrayType(self.kind, (OTHER + 1) * count)
        with e.builder.goto_entry_block():
            self.base = e.builder.alloca(entries)
        self.base.align = self.mask_bytes

    def _places(self, entry: Value) -> list[Value]:
        e = self.e
        start = e.builder.mul(entry, i64(self.count * self.mask_bytes))
        first = e.at(e.builder.bitcast(self.base, BYTES), start)
        return [e.pointer(e.at(first, i * self.mask_bytes), self.kind) for i in range(self.count)]

    def write(self, entry: int, masks: list[Value]) -> None:
        """Make `masks` an entry."""
        for mask, place in zip(masks, self._places(i64(entry)), strict=True):
            value = self.e.builder.sext(mask, self.kind)
            self.e.builder.store(value, place).align = self.mask_bytes

    def read(self, entry: Value) -> list[Value]:
        """The masks of an entry."""
        found = []
        for place in self._places(entry):
            value = self.e.builder.load(place)
            value.align = self.mask_bytes
            found.append(self.e.builder.icmp_signed("<", value, ir.Constant(self.kind, None)))
        return found


def least(builder: Builder, a: Value, b: Value) -> Value:
    """The smaller of two integers."""
    return builder.select(builder.icmp_signed("<", a, b), a, b)


def make_microkernel(taps: PlaneTaps, lanes: int, itemsize: int, fma: bool) -> Source:
    """The microkernel of a pass over `taps`."""
    return microkernel(sum_planes, emit, taps, lanes, itemsize, fma)


def make_reduce_sums(lanes: int, itemsize: int) -> Source:
    """The part that makes `count` contiguous elements of as many vectors: the sums of lanes."""

    def emit_part(builder: Builder, at: dict[str, Value]) -> None:
        e = Emitter(builder, lanes, itemsize, fma=True)
        sums = builder.inttoptr(at["sums"], BYTES)

        def one(index: Value, _: object) -> list[Value]:
            value, width = e.load(e.at(sums, builder.mul(index, i64(lanes * itemsize)))), lanes
            while width > 1:
                width //= 2
                kind = ir.VectorType(e.words.element, width)
                halves = [
                    builder.shuffle_vector(
                        value, value, ir.Constant(kind, list(range(first, first + width)))
                    )
                    for first in (0, width)
                ]
                value = builder.fadd(*halves)
            element = builder.extract_element(value, ir.Constant(e.words.element, 0))
            place = e.pointer(e.at(sums, builder.mul(index, i64(itemsize))), e.scalar)
            builder.store(element, place).align = itemsize
            return []

        e.loop(at["count"], 1, [], one)

    return emitted(reduce_sums, emit_part)
