"""Depthwise convolution of planes in place: rows of x are loaded once and shifted in registers.

    y[c, p, q] = sum over r, s of x[c, p * stride + r - pad, q * stride + s - pad] * w[c, r, s]

Lanes are output columns of one row, or of two rows if they are short. One work item is a load tile,
which has whole rows, and a chunk of channels:

    for each channel, each register tile of rows, and each vector of columns:
        acc[row] = initial sum
        for each row of x that the output rows read, in the order of the image:
            load it, with zeros for the padding
            for each filter column s:
                shift it by s
                for each output row that reads it with filter row r:
                    acc[row] += shifted * w[r, s]
        acc -> bounds -> y, or the staging tile
    staging tile -> residual, activation, layout -> y

Rows that fit in a vector stay in registers, so that filter columns are the outer loop, whose
weights and permutation are then loaded once. Longer rows are loaded once for all filter columns.
Filters are packed as by `planar_depthwise`.
"""

from __future__ import annotations

from collections.abc import Callable

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.emit.internals import ir
from implicit_conv.kernels.cpu.emit.vector import BYTES, Emitter, Values, i64
from implicit_conv.kernels.cpu.planar_depthwise.compiled import pack_planes
from implicit_conv.kernels.cpu.runtime.compiled.entry import Blob, fields, next_item
from implicit_conv.kernels.cpu.runtime.compiled.part import LIMITS, declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, entry, microkernel
from implicit_conv.kernels.cpu.runtime.table import SHIFTED_ROWS
from implicit_conv.kernels.cpu.shifted_rows.layout import Short, Variant
from implicit_conv.kernels.cpu.tile.compiled.epilogue import store_at
from implicit_conv.kernels.cpu.tile.compiled.work import bounds, is_staged
from implicit_conv.kernels.geometry import Place

ADDRESSES = ("a", "w", "sums", "out")
# Addresses of a plane of x, its filter, its initial sum and its first output row, each with a byte
# stride of channels; of a row of zeros. The plane has `a_rows` rows of `a_columns` pixels. Output
# row 0 of `rows` reads image row `row` for filter row 0, and output column 0 of `columns` reads
# pixel `column` for filter column 0.
shift_rows = declare(
    SHIFTED_ROWS,
    "shift_rows",
    "a w sums out zeros channels a_channel w_channel sums_channel out_channel a_row a_rows "
    "a_columns row column out_row rows columns",
    "low high",
)


def emit(variant: Variant, e: Emitter, at: dict[str, ir.Value]) -> None:
    """Emit the output rows of a load tile, for all channels."""
    builder, step = e.builder, variant.vectors * variant.together
    limits = [e.splat(e.narrow(at[name])) for name in LIMITS]

    def channel(index: ir.Value, _: object) -> Values:
        base = {
            name: e.at(builder.inttoptr(at[name], BYTES), builder.mul(index, at[f"{name}_channel"]))
            for name in ADDRESSES
        }

        def tile(p: ir.Value, _: object) -> Values:
            emit_tile(variant, variant.vectors, e, at, base, limits, p)
            return []

        whole = at["rows"]
        if variant.rest:  # rows in whole register tiles, rounded down
            whole = builder.mul(builder.sdiv(whole, i64(step)), i64(step))
        e.loop(whole, step, [], tile)
        if variant.rest:
            emit_tile(variant, variant.rest, e, at, base, limits, whole)
        return []

    e.loop(at["channels"], 1, [], channel)


def emit_tile(
    variant: Variant,
    height: int,
    e: Emitter,
    at: dict[str, ir.Value],
    base: dict[str, ir.Value],
    limits: list[ir.Value],
    p: ir.Value,
) -> None:
    """Emit a register tile of `height` vectors of sums in each column, from output row `p` on."""
    builder, size = e.builder, e.itemsize
    short, together = variant.short, variant.together
    met: dict[int, list[tuple[int, int]]] = {}  # (vector, filter row) by image row
    for i in range(height):
        for r, row in enumerate(variant.rows):
            met.setdefault(i * together * variant.stride[0] + row, []).append((i, r))
    first = builder.add(at["row"], builder.mul(p, i64(variant.stride[0])))
    zeros = builder.inttoptr(at["zeros"], BYTES)
    places: dict[int, ir.Value] = {}

    def place(row: int) -> ir.Value:
        """The address of an image row, from the first one that the tile reads on."""
        if row not in places:
            number = builder.add(first, i64(row))
            inside = builder.icmp_unsigned("<", number, at["a_rows"])
            found = e.at(base["a"], builder.mul(number, at["a_row"]))
            places[row] = builder.select(inside, found, zeros)
        return places[row]

    taps = len(variant.columns)
    start = e.broadcast(base["sums"])
    out = e.at(base["out"], builder.mul(p, at["out_row"]))

    def add(shifted: Callable[[int], list[ir.Value]]) -> list[ir.Value]:
        total: list[ir.Value] = [start] * height
        for row, sums in sorted(met.items()):
            values = shifted(row)
            for s, value in enumerate(values):
                for i, r in sums:
                    weight = e.broadcast(e.at(base["w"], (r * taps + s) * size))
                    total[i] = e.multiply_add(value, weight, total[i])
        return [e.clamp(value, *limits) for value in total]

    if short is None:
        for row in met:
            place(row)

        def vector(column: ir.Value, _: object) -> Values:
            total = add(shifted_long(variant, e, at, column, place))
            target = e.at(out, builder.mul(column, i64(size)))
            targets = [e.at(target, builder.mul(at["out_row"], i64(i))) for i in range(height)]
            e.store_first(total, targets, builder.sub(at["columns"], column))
            return []

        e.loop(at["columns"], e.lanes, [], vector)
        return
    shifted = shifted_short(short, variant, e, place)
    total = [start] * height
    for s, tap in enumerate(variant.columns):
        # Opaque, or LLVM would keep the weights of all columns in registers, and spill.
        column = e.opaque(e.at(base["w"], s * size))
        weights = [e.broadcast(e.at(column, r * taps * size)) for r in range(len(variant.rows))]
        for row, sums in sorted(met.items()):
            value = shifted(row, tap)
            for i, r in sums:
                total[i] = e.multiply_add(value, weights[r], total[i])
        # LLVM would else compute one sum after the other, and spill what they share.
        total = e.in_order(total)
    total = [e.clamp(value, *limits) for value in total]
    mask = e.below(i64(short.columns))
    for i, value in enumerate(total):
        target = e.at(out, builder.mul(at["out_row"], i64(i * together)))
        e.store_masked(value, target, mask)
        if short.pair:
            left = builder.sub(at["rows"], builder.add(p, i64(2 * i + 1)))
            second = builder.and_(e.below(i64(2 * short.columns)), builder.not_(mask))
            with builder.if_then(builder.icmp_signed(">", left, i64(0))):
                target = e.at(e.at(target, at["out_row"]), -short.columns * size)
                e.store_masked(value, target, second)


def shifted_short(
    short: Short, variant: Variant, e: Emitter, place: Callable[[int], ir.Value]
) -> Callable[[int, int], ir.Value]:
    """What emits the vector that a filter column reads of an image row that fits in one, or of it
    and of the row that the next output row reads.
    """
    loaded: dict[int, ir.Value] = {}
    mask = e.below(i64(short.size))
    single = not short.pair and short.size < e.lanes  # the permutation of one vector is faster
    zero = e.lanes - 1 if single else 2 * e.lanes - 1

    def load(row: int) -> ir.Value:
        if row not in loaded:
            loaded[row] = e.load_masked(place(row), mask)
        return loaded[row]

    def lane(i: int, tap: int) -> int:
        """The lane of two vectors that lane `i` of the result has; some lane of zeros if it is in
        the padding.
        """
        row, q = divmod(i, short.columns) if short.pair else (0, i)
        pixel = short.first + q * variant.stride[1] + tap
        inside = row < 2 and q < short.columns and 0 <= pixel < short.size
        return row * e.lanes + pixel if inside else zero

    def shifted(row: int, tap: int) -> ir.Value:
        one = load(row)
        other = one if single else e.constant(0.0)
        if short.pair:
            other = load(row + variant.stride[0])
        lanes = [lane(i, tap) for i in range(e.lanes)]
        return e.builder.shuffle_vector(one, other, ir.Constant(e.words, lanes))

    return shifted


def shifted_long(
    variant: Variant,
    e: Emitter,
    at: dict[str, ir.Value],
    column: ir.Value,
    place: Callable[[int], ir.Value],
) -> Callable[[int], list[ir.Value]]:
    """What emits the vectors that all filter columns read of an image row, from output column
    `column` on.
    """
    builder, lanes, stride = e.builder, e.lanes, variant.stride[1]
    pixel = builder.add(at["column"], builder.mul(column, i64(stride)))
    count = ((lanes - 1) * stride + variant.columns[-1]) // lanes + 1
    masks = []
    for i in range(count):
        first = builder.add(pixel, i64(i * lanes))
        below = e.below(builder.sub(at["a_columns"], first))
        masks.append(builder.and_(below, builder.not_(e.below(builder.neg(first)))))
    offset = builder.mul(pixel, i64(e.itemsize))

    def shuffle(one: ir.Value, other: ir.Value, chosen: list[int]) -> ir.Value:
        return builder.shuffle_vector(one, other, ir.Constant(e.words, chosen))

    def shifted(row: int) -> list[ir.Value]:
        start = e.at(place(row), offset)
        vectors = [
            e.load_masked(e.at(start, i * lanes * e.itemsize), mask) for i, mask in enumerate(masks)
        ]
        found: dict[int, ir.Value] = {}

        def tap(position: int) -> ir.Value:
            """The pixels position, position + stride, ... of the row."""
            if position not in found:
                found[position] = fresh(position)
            return found[position]

        def fresh(position: int) -> ir.Value:
            index, lane = divmod(position, lanes)
            if stride == 1:
                if lane == 0:
                    return vectors[index]
                chosen = list(range(lane, lane + lanes))
                return shuffle(vectors[index], vectors[index + 1], chosen)
            if position < 2:
                chosen = list(range(position, position + 2 * lanes, 2))
                return shuffle(vectors[0], vectors[1], chosen)
            # One pixel follows on those that an earlier tap has.
            index, lane = divmod(position + 2 * (lanes - 1), lanes)
            return shuffle(tap(position - 2), vectors[index], [*range(1, lanes), lanes + lane])

        return [tap(position) for position in variant.columns]

    return shifted


def make_microkernel(variant: Variant, lanes: int, itemsize: int, fma: bool) -> Source:
    """The microkernel of load tiles."""
    return microkernel(shift_rows, emit, variant, lanes, itemsize, fma)


def make_shifted_rows(together: int) -> Source:
    """The entry that convolves; a vector has `together` output rows."""

    def run_item(
        blob: Blob, origin: Place, first: int, end: int, panels: int, scratch: int
    ) -> None:
        """One work item: a load tile of one image and the channels first .. end - 1."""
        call, g = fields(blob).call, fields(blob).geometry
        n, p, q = origin
        _, rows, columns = schedule.tile_extent(g, n, p, q)
        low, high = bounds(call)
        staged = is_staged(call)
        count = 1 if staged else end - first
        for c in range(first, end, count):
            out, out_row = scratch + call.scratch.staging, columns * call.itemsize
            if not staged:
                out = call.y.address + n * call.y.n + p * call.y.p + c * call.y.k
                out_row = call.y.p
            shift_rows(
                call.kernels,
                slot=SHIFTED_ROWS + schedule.ceil_div(rows, together) % g.tile_m,
                a=call.x.address + n * call.x.n + c * call.x.c,
                w=panels + c * call.panels.group,
                sums=call.bias.address + c * call.bias.panel,
                out=out,
                zeros=scratch,
                channels=count,
                a_channel=call.x.c,
                w_channel=call.panels.group,
                sums_channel=call.bias.panel,
                out_channel=call.y.k,
                a_row=call.x.h,
                a_rows=g.H,
                a_columns=g.W,
                row=p * g.stride_h - g.pad_h,
                column=-g.pad_w,
                out_row=out_row,
                rows=rows,
                columns=columns,
                low=low,
                high=high,
            )
            if staged:
                staging = scratch + call.scratch.staging
                store_at(blob, origin, staging=staging, width=1, k=c, filters=1)

    def shifted_rows(blob: Blob, thread: int) -> None:
        """The launchable operator: items are (load tile, chunk of channels)."""
        call, g = fields(blob).call, fields(blob).geometry
        scratch = call.scratch.address + thread * call.scratch.bytes
        chunks = schedule.ceil_div(g.C, call.chunk)
        panels = call.panels.address
        item = next_item(blob, thread)
        if item < call.items:
            memory.zero(scratch, call.scratch.unloaded)
            if call.w.address:
                panels = scratch + call.scratch.panel
                pack_planes(call.kernels, blob=blob, first=0, end=g.C, panels=panels)
        while item < call.items:
            first = item % chunks * call.chunk
            origin = schedule.tile_origin(g, item // chunks)
            run_item(blob, origin, first, min(first + call.chunk, g.C), panels, scratch)
            item = next_item(blob, thread)

    return entry(shifted_rows)
