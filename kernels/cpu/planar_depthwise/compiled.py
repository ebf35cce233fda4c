"""Depthwise convolution of planes: the pixels of an output row are the lanes of a vector.

    y[c, p, q : q + lanes] = sum over taps of x[c, p + r, q + s : ...] * w[c, r, s]

One work item is a load tile and a chunk of channels:

    write the table of the tile's loads, which every channel shares
    for each channel:
        execute the loads into this thread's buffer: rows of pixels, with zeros for the padding
        for each group of output rows:
            microkernel: sums over shifted views of the buffer -> y, or the staging tile
        staging tile -> residual, activation, layout -> y

Filters are packed as ``[channel][tap]``, row by row.
"""

from __future__ import annotations

from typing import Any

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.emit.chains import sum_in_chains
from implicit_conv.kernels.cpu.emit.internals import ir
from implicit_conv.kernels.cpu.emit.vector import BYTES, I64, Emitter, Integers, Values, i64
from implicit_conv.kernels.cpu.planar_depthwise.layout import (
    PLANE_ROWS,
    Passes,
    PlaneFilter,
    plane_pass_columns,
    plane_pass_rows,
    plane_phases,
    plane_tile_vectors,
)
from implicit_conv.kernels.cpu.runtime.call import Call
from implicit_conv.kernels.cpu.runtime.compiled.entry import Blob, fields, next_item
from implicit_conv.kernels.cpu.runtime.compiled.part import LIMITS, declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, emitted, entry, translated
from implicit_conv.kernels.cpu.runtime.table import PACK_BLOCK, PLANES
from implicit_conv.kernels.cpu.tile import storage
from implicit_conv.kernels.cpu.tile.compiled import convert
from implicit_conv.kernels.cpu.tile.compiled.epilogue import store_tile
from implicit_conv.kernels.cpu.tile.compiled.filters import row_offset, taps_follow
from implicit_conv.kernels.cpu.tile.compiled.plane_loads import load_plane, phase_bytes, write_loads
from implicit_conv.kernels.cpu.tile.compiled.work import bounds, is_staged
from implicit_conv.kernels.cpu.tile.storage import Format
from implicit_conv.kernels.geometry import Geometry, Place
from implicit_conv.kernels.schedule import CHAIN

ADDRESSES = ("a", "w", "passes", "sum", "out")
# Addresses of the buffer, the filter, the table of passes, the initial sum and the output; byte
# strides of buffered rows, of the phase buffers of a row, and of output rows.
sum_plane = declare(
    PLANES, "sum_plane", "a w passes sum out a_row a_phase out_row columns", "low high"
)
pack_planes = declare(PACK_BLOCK, "pack_planes", "blob first end panels")


def emit(height: int, taps: PlaneFilter, e: Emitter, at: dict[str, ir.Value]) -> None:
    """Emit `height` output rows of `columns` pixels, in register tiles of several vectors.

    The table of passes holds, pass by pass, the byte offset from `w` of the first tap, and the byte
    offset from `a` of the pixel that it reads in the first row of each row phase. In a pass a
    buffered row is shifted once for each filter column and serves all filter rows, in the order of
    the image, so that the order of a sum does not depend on the tile. Buffers are read by whole
    vectors, each in one cache line, and shifted in registers: a load across two cache lines takes
    four times as long.
    """
    builder = e.builder
    a, w, table, first, out = (builder.inttoptr(at[name], BYTES) for name in ADDRESSES)
    low, high = (e.splat(e.narrow(at[name])) for name in LIMITS)
    start = e.broadcast(first)
    vector_bytes, row_bytes = e.lanes * e.itemsize, taps.filter_columns * e.itemsize
    entry_bytes, vectors = 8 * (1 + taps.phases), plane_tile_vectors(height)
    count = height * vectors

    def shifted(row: ir.Value, shift: int) -> ir.Value:
        """A vector of the pixels from `shift` on."""
        index, lane = divmod(shift, e.lanes)
        row = e.at(row, index * vector_bytes)
        pixels = e.load(row, vector_bytes)
        if not lane:
            return pixels
        following = e.load(e.at(row, vector_bytes), vector_bytes)
        lanes = ir.Constant(e.words, list(range(lane, lane + e.lanes)))
        return builder.shuffle_vector(pixels, following, lanes)

    def tile(column: ir.Value, _: object) -> list[ir.Value]:
        offset = builder.mul(column, i64(e.itemsize))
        source, target = e.at(a, offset), e.at(out, offset)

        def one_pass(same: Passes, index: ir.Value, total: Values) -> list[ir.Value]:
            total = list(total)
            entry = e.at(table, builder.mul(index, i64(entry_bytes)))
            filters = e.at(w, builder.load(e.pointer(entry, I64)))
            phases = min(taps.phases, len(same.rows))
            offsets = [e.pointer(e.at(entry, 8 + 8 * phase), I64) for phase in range(phases)]
            bases = [e.at(source, builder.load(offset)) for offset in offsets]
            met = buffered_rows(same.rows, height, taps.stride)
            for s, (column_phase, shift) in enumerate(same.columns):
                places = [r * row_bytes + s * e.itemsize for r in range(len(same.rows))]
                weights = [e.broadcast(e.at(filters, place)) for place in places]
                buffer = builder.mul(at["a_phase"], i64(column_phase))
                # Opaque, or LLVM would keep the vectors of all columns in registers, and spill.
                starts = [e.opaque(e.at(base, buffer)) for base in bases]
                for (_, row_phase, row), sums in met:
                    place = e.at(starts[row_phase], builder.mul(at["a_row"], i64(row)))
                    for v in range(vectors):
                        value = shifted(place, shift + v * e.lanes)
                        for p, r in sums:
                            i = p * vectors + v
                            total[i] = e.multiply_add(value, weights[r], total[i])
            return total

        def all_passes(same: Passes, begin: int, total: Values) -> list[ir.Value]:
            """`total` plus the products of `same`, whose entries of the table are from `begin`."""

            def some(first: ir.Value, count: ir.Value, total: Values) -> list[ir.Value]:
                first = builder.add(first, i64(begin))
                return e.loop(
                    count, 1, total, lambda i, total: one_pass(same, builder.add(first, i), total)
                )

            if same.number == 1:
                return one_pass(same, i64(begin), total)
            if not in_chains:
                return some(i64(0), i64(same.number), total)
            length = max(1, CHAIN // (len(same.rows) * len(same.columns)))
            return sum_in_chains(e, i64(same.number), length, [], total, some)

        total, begin = [start] * count, 0
        in_chains = taps.chained and not isinstance(e, Integers)
        for same in taps.passes:
            if begin > 0 and in_chains:
                more = all_passes(same, begin, [e.constant(0.0)] * count)
                total = [e.add(*pair) for pair in zip(total, more, strict=True)]
            else:
                total = all_passes(same, begin, total)
            begin += same.number
        total = [e.clamp(value, low, high) for value in total]
        for v in range(vectors):
            to = e.at(target, v * vector_bytes)
            addresses = [e.at(to, builder.mul(at["out_row"], i64(p))) for p in range(height)]
            left = builder.sub(at["columns"], builder.add(column, i64(v * e.lanes)))
            e.store_first(total[v::vectors], addresses, left)
        return []

    e.loop(at["columns"], vectors * e.lanes, [], tile)


def buffered_rows(
    rows: Any, height: int, stride: int
) -> list[tuple[tuple[int, int, int], list[tuple[int, int]]]]:
    """((image row, row phase, buffered row), [(output row, filter row)]) of all rows that `height`
    output rows read, in the order of the image.
    """
    met: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for r, (phase, shift, image_row) in enumerate(rows):
        for p in range(height):
            met.setdefault((image_row + p * stride, phase, shift + p), []).append((p, r))
    return sorted(met.items())


def make_microkernel(
    height: int, taps: PlaneFilter, lanes: int, itemsize: int, fma: bool, integers: bool
) -> Source:
    """The microkernel of `height` output rows, of integers or of floats."""

    def emit_part(builder: ir.IRBuilder, at: dict[str, ir.Value]) -> None:
        floats = Emitter(builder, lanes, itemsize, fma)
        emit(height, taps, Integers(builder, lanes, itemsize) if integers else floats, at)

    return emitted(sum_plane, emit_part)


def make_pack_planes(lanes: int, form: Format) -> Source:
    """The part that packs filters whose elements have the formats `form`."""
    element_bytes = storage.SIZES[form.w]
    move = convert.make_move(form.w, form.sums, lanes)
    move_element = convert.make_move_element(form.w, form.sums)

    def packed_planes(blob: Blob, first: int, end: int, panels: int) -> None:
        """Pack the filters of the channels first .. end - 1."""
        call, g = fields(blob).call, fields(blob).geometry
        taps, size = schedule.taps(g), element_bytes
        if taps_follow(call, g, size) and call.w.k == taps * size:
            to, at = panels + first * call.panels.group, call.w.address + first * call.w.k
            move(to, at, (end - first) * taps)
            return
        for c in range(first, end):
            to = panels + c * call.panels.group
            for tap in range(taps):
                at = (
                    call.w.address
                    + c * call.w.k
                    + row_offset(call, g, tap // g.S)
                    + tap % g.S * call.w.s
                )
                move_element(to + tap * call.itemsize, at)

    return translated(pack_planes, packed_planes)


def write_passes(call: Call, g: Geometry, pitch: int, address: int) -> None:
    """Write the table of passes: see `emit`. Rests of long filter rows follow all whole blocks."""
    together, width = plane_pass_rows(g), plane_pass_columns(g)
    blocks = g.S // width * width
    for first in range(0, schedule.filter_rows(g), together):
        for column in range(0, blocks, width):
            address = write_pass(call, g, pitch, first, column, address)
    if blocks < g.S:
        for row in range(schedule.filter_rows(g)):
            address = write_pass(call, g, pitch, row, blocks, address)


def write_pass(call: Call, g: Geometry, pitch: int, first: int, column: int, address: int) -> int:
    """Write the entry of the pass from filter row `first` and from `column` on; the address behind
    it.
    """
    memory.write(address, (first * g.S + column) * call.itemsize)
    pixel = schedule.tap_column(g, column) * call.itemsize
    for phase in range(plane_phases(g)):
        address += 8
        if first + phase < schedule.filter_rows(g):
            memory.write(address, schedule.tap_row(g, first + phase) * pitch + pixel)
    return address + 8


def run_item(blob: Blob, origin: Place, first: int, end: int, panels: int, scratch: int) -> None:
    """One work item: a load tile of one image and the channels first .. end - 1.

    Two buffers alternate, so that no row is read while it is still being written to L1.
    """
    call, g = fields(blob).call, fields(blob).geometry
    n, p, q = origin
    _, rows, columns = schedule.tile_extent(g, n, p, q)
    low, high = bounds(call)
    staged = is_staged(call)
    phase = phase_bytes(call, g)
    pitch = phase * g.phases_w
    size = schedule.image_rows(g) * pitch
    table = scratch + call.scratch.loads
    write_loads(
        call.kernels,
        blob=blob,
        n=n,
        p=p,
        q=q,
        first=first,
        end=end,
        together=1,
        address=table,
    )
    load_plane(blob, table, first, scratch)
    for c in range(first, end):
        buffer = scratch + (c - first) % 2 * size
        if c + 1 < end:
            load_plane(blob, table, c + 1, scratch + (c + 1 - first) % 2 * size)
        out, out_row = scratch + call.scratch.staging, columns * call.itemsize
        if not staged:
            out = call.y.address + schedule.plane_offset(g, n, call.y.n, call.y.z)
            out += p * call.y.p + q * call.y.q + c * call.y.k
            out_row = call.y.p
        for row in range(0, rows, PLANE_ROWS):
            sum_plane(
                call.kernels,
                slot=PLANES + min(PLANE_ROWS, rows - row),
                a=buffer + row * pitch,
                a_row=pitch,
                a_phase=phase,
                w=panels + c * call.panels.group,
                passes=scratch + call.scratch.runs,
                sum=call.bias.address + c * call.bias.panel,
                out=out + row * out_row,
                out_row=out_row,
                columns=columns,
                low=low,
                high=high,
            )
        if staged:
            store_tile(
                call.kernels,
                blob=blob,
                staging=scratch + call.scratch.staging,
                width=1,
                n=n,
                p=p,
                q=q,
                k=c,
                filters=1,
            )


def planes(blob: Blob, thread: int) -> None:
    """The launchable operator: items are (load tile, chunk of channels)."""
    call, g = fields(blob).call, fields(blob).geometry
    scratch = call.scratch.address + thread * call.scratch.bytes
    chunks = schedule.ceil_div(g.C, call.chunk)
    panels = call.panels.address
    item = next_item(blob, thread)
    if item < call.items:
        memory.zero(scratch, call.scratch.unloaded)
        pitch = phase_bytes(call, g) * g.phases_w
        write_passes(call, g, pitch, scratch + call.scratch.runs)
        if call.w.address:
            panels = scratch + call.scratch.panel
            pack_planes(call.kernels, blob=blob, first=0, end=g.C, panels=panels)
    while item < call.items:
        first = item % chunks * call.chunk
        origin = schedule.tile_origin(g, item // chunks)
        run_item(blob, origin, first, min(first + call.chunk, g.C), panels, scratch)
        item = next_item(blob, thread)


def pack(blob: Blob, thread: int) -> None:
    """The launchable packer: items are channels."""
    call = fields(blob).call
    item = next_item(blob, thread)
    while item < call.items:
        pack_planes(call.kernels, blob=blob, first=item, end=item + 1, panels=call.panels.address)
        item = next_item(blob, thread)


PLANAR_DEPTHWISE = entry(planes)  # the entry that convolves
PACK = entry(pack)  # the entry that packs a filter
