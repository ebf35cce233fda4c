"""Running means of float64: an element enters the sum, and the one that leaves is subtracted first.

The lanes of a vector are columns where windows are columns, and rows where they are rows, which are
transposed in registers. Each sum is that of a plain loop along its line.
"""

from __future__ import annotations

from implicit_conv.kernels.cpu.emit.internals import ir
from implicit_conv.kernels.cpu.emit.vector import BYTES, I32, Builder, Emitter, Value, Values, i64
from implicit_conv.kernels.cpu.images.layout import BLOCK_BYTES, Order

LANES, ITEMSIZE = 8, 8
PARTS = range(0, BLOCK_BYTES, LANES * ITEMSIZE)  # byte offsets of the vectors of a block


def running_rows(builder: Builder, at: dict[str, Value]) -> None:
    """Emit means of columns. The sums of the last row are kept in the row before the first result,
    for the call that goes on with the rows that follow.
    """
    e = Emitter(builder, LANES, ITEMSIZE, fma=False)
    out, x, factor = (builder.inttoptr(at[name], BYTES) for name in ("out", "x", "weights"))
    size, divisor = at["taps"], e.broadcast(factor)

    def block(column: Value, _: object) -> list[Value]:
        def values(row: Value) -> list[Value]:
            place = e.at(x, builder.add(builder.mul(row, at["x_row"]), column))
            return [e.load(e.at(place, part)) for part in PARTS]

        def put(sums: Values, row: Value, *, divides: bool = True) -> None:
            place = e.at(out, builder.add(builder.mul(row, at["out_row"]), column))
            for value, part in zip(sums, PARTS, strict=True):
                e.store(builder.fdiv(value, divisor) if divides else value, e.at(place, part))

        def first() -> list[Value]:
            def add(row: Value, sums: Values) -> list[Value]:
                found = values(builder.add(row, i64(1)))
                return [builder.fadd(*pair) for pair in zip(sums, found, strict=True)]

            return e.loop(size, 1, [e.constant(0.0)] * len(PARTS), add)

        def move(sums: Values, row: Value) -> list[Value]:
            enters, leaves = values(builder.add(row, size)), values(row)
            steps = [builder.fsub(*pair) for pair in zip(enters, leaves, strict=True)]
            return [builder.fadd(*pair) for pair in zip(sums, steps, strict=True)]

        def kept() -> list[Value]:
            place = e.at(out, builder.sub(column, at["out_row"]))
            sums = [e.load(e.at(place, part)) for part in PARTS]
            return move(sums, i64(0))

        def following(index: Value, sums: Values) -> list[Value]:
            row = builder.add(index, i64(1))
            sums = move(sums, row)
            put(sums, row)
            return sums

        begins = builder.icmp_signed("!=", at["begins"], i64(0))
        sums = e.either(begins, first, kept)
        put(sums, i64(0))
        sums = e.loop(builder.sub(at["rows"], i64(1)), 1, sums, following)
        put(sums, i64(-1), divides=False)
        return []

    e.loop(at["width"], BLOCK_BYTES, [], block)


def transposed(e: Emitter, rows: Values) -> list[Value]:
    """The columns of a square of elements."""
    found, half = list(rows), 1
    while half < LANES:
        low = [lane + LANES * (lane & half > 0) - half * (lane & half > 0) for lane in range(LANES)]
        high = [place + half for place in low]
        masks = [ir.Constant(ir.VectorType(I32, LANES), places) for places in (low, high)]
        following = list(found)
        for row in range(LANES):
            if not row & half:
                pair = found[row], found[row + half]
                following[row], following[row + half] = (
                    e.builder.shuffle_vector(*pair, mask) for mask in masks
                )
        found, half = following, 2 * half
    return found


def running_columns(builder: Builder, at: dict[str, Value]) -> None:
    """Emit means along rows, of eight rows at once; rows that are missing repeat the last one."""
    e = Emitter(builder, LANES, ITEMSIZE, fma=False)
    out, x, factor = (builder.inttoptr(at[name], BYTES) for name in ("out", "x", "weights"))
    size, divisor = at["taps"], e.broadcast(factor)
    last = builder.sub(at["rows"], i64(1))

    def group(first: Value, _: object) -> list[Value]:
        rows = []
        for lane in range(LANES):
            row = builder.add(first, i64(lane))
            row = builder.select(builder.icmp_signed("<", row, last), row, last)
            rows.append(row)
        sources = [e.at(x, builder.mul(row, at["x_row"])) for row in rows]
        targets = [e.at(out, builder.mul(row, at["out_row"])) for row in rows]

        def column(index: Value) -> Value:
            found: Value = ir.Constant(e.vector, ir.Undefined)
            for lane, source in enumerate(sources):
                place = e.at(source, builder.mul(index, i64(ITEMSIZE)))
                element = builder.load(e.pointer(place, e.scalar))
                found = builder.insert_element(found, element, ir.Constant(I32, lane))
            return found

        def begin(index: Value, sums: Values) -> list[Value]:
            return [builder.fadd(sums[0], column(builder.add(index, i64(1))))]

        def square(offset: Value) -> list[Value]:
            return transposed(e, [e.load(e.at(source, offset)) for source in sources])

        def block(offset: Value, sums: Values) -> list[Value]:
            total, means = sums[0], []
            enters = square(builder.add(offset, builder.mul(size, i64(ITEMSIZE))))
            leaves = square(offset)
            for place, pair in enumerate(zip(enters, leaves, strict=True)):
                step = builder.fsub(*pair)
                if place == 0:
                    begins = builder.icmp_signed("==", offset, i64(0))
                    step = builder.select(begins, e.constant(0.0), step)
                total = builder.fadd(total, step)
                means.append(builder.fdiv(total, divisor))
            for target, values in zip(targets, transposed(e, means), strict=True):
                e.store(values, e.at(target, offset))
            return [total]

        sums = e.loop(size, 1, [e.constant(0.0)], begin)
        e.loop(at["width"], LANES * ITEMSIZE, sums, block)
        return []

    e.loop(at["rows"], LANES, [], group)


RUNNING = {Order.RUNNING: running_rows, Order.ALONG: running_columns}
