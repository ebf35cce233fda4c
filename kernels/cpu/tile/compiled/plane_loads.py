"""Loads of planes: image rows into a buffer for each channel, padding included.

The loads of a tile are listed in a table, which every channel shares. Rows whose pixels have a
stride of a few elements are copied (every step-th element) and widened; rows of contiguous channels
are transposed. Where padding repeats pixels of x, they are moved one by one after the rows.

The table is (number of loads, number of edges, address of the first edge), then the loads, which
are `LoadRow`, then the edges. An edge is one column of padding that repeats pixels: (first load,
end of the loads that have it, byte offset of its element from the source of each of these loads,
byte offset from their target).
"""

from __future__ import annotations

from typing import NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.emit.internals import ir
from implicit_conv.kernels.cpu.emit.vector import BYTES, I64, Emitter, i64
from implicit_conv.kernels.cpu.runtime.call import Call
from implicit_conv.kernels.cpu.runtime.compiled.entry import Blob, fields
from implicit_conv.kernels.cpu.runtime.compiled.executed_loads import ACTIVATION, recorder
from implicit_conv.kernels.cpu.runtime.compiled.part import declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, emitted, translated
from implicit_conv.kernels.cpu.runtime.layout import EDGE_BYTES, LOAD_BYTES, TABLE_BYTES
from implicit_conv.kernels.cpu.runtime.table import (
    GATHER_ROWS,
    LOAD_PLANES,
    LOAD_ROWS,
    REPEAT_EDGES,
    TRANSPOSE_IN,
    WRITE_LOADS,
)
from implicit_conv.kernels.cpu.tile import storage
from implicit_conv.kernels.cpu.tile.compiled import convert
from implicit_conv.kernels.cpu.tile.compiled.transpose import make_transpose_block
from implicit_conv.kernels.cpu.tile.storage import Format, Stored
from implicit_conv.kernels.geometry import ZEROS, Geometry

load_rows = declare(LOAD_ROWS, "load_rows", "table count source target ahead")
gather_rows = declare(GATHER_ROWS, "gather_rows", "blob table count source target")
repeat_edges = declare(REPEAT_EDGES, "repeat_edges", "table source target")
write_loads = declare(WRITE_LOADS, "write_loads", "blob n p q first end together address")
load_planes = declare(LOAD_PLANES, "load_planes", "blob table c buffer plane")


class LoadRow(NamedTuple):
    """One load: a row of `pixels` pixels, of which first .. end - 1 are in the image."""

    source: int  # byte offsets from the channel's first pixel, and in the buffer
    target: int
    pixels: int
    first: int
    end: int


def _every_step(e: Emitter, step: int, parts: list[ir.Value]) -> ir.Value:
    """Elements 0, step, 2 * step, ... of contiguous vectors."""
    elements = range(0, step * e.lanes, step)
    vector = parts[0]
    for i, part in enumerate(parts[1:], 1):
        first = i * e.lanes
        lanes = [n if i == 1 and n < first else lane for lane, n in enumerate(elements)]
        for lane, n in enumerate(elements):
            if first <= n < first + e.lanes:
                lanes[lane] = e.lanes + n - first
        vector = e.builder.shuffle_vector(vector, part, ir.Constant(e.words, lanes))
    return vector


def emit_loads(step: int, dtype: Stored, e: Emitter, at: dict[str, ir.Value]) -> None:
    """Emit `count` loads of the table for one channel; the pixels of a row have a stride of `step`
    elements, which are stored as `dtype`.

    The next channel's rows are prefetched, `ahead` bytes further on.
    """
    builder, size = e.builder, storage.SIZES[dtype]
    table, source, target = (
        builder.inttoptr(at[name], BYTES) for name in ("table", "source", "target")
    )
    count, ahead = at["count"], at["ahead"]

    def load(index: ir.Value, _: object) -> list[ir.Value]:
        entry = e.at(table, builder.mul(index, i64(LOAD_BYTES)))
        words = range(len(LoadRow._fields))
        row = LoadRow(*(builder.load(e.pointer(e.at(entry, 8 * i), I64)) for i in words))
        begin, end = (builder.mul(v, i64(step)) for v in (row.first, row.end))
        end = builder.sub(end, i64(step - 1))  # elements after the last pixel may be past the array
        from_, to = e.at(source, row.source), e.at(target, row.target)

        def part(at: ir.Value, offset: ir.Value | int) -> ir.Value:
            """The elements from at + offset on; those outside the image are zero."""
            first = builder.add(at, i64(offset))
            address = e.at(from_, builder.mul(first, i64(size)))
            e.prefetch(e.at(address, ahead), 3)
            inside = builder.and_(
                e.below(builder.sub(end, at), offset),
                builder.not_(e.below(builder.sub(begin, at), offset)),
            )
            if size >= 4 and not e.arm:
                return convert.load(e, dtype, address, inside)
            whole = builder.and_(
                builder.icmp_signed("<=", begin, first),
                builder.icmp_signed("<=", builder.add(first, i64(e.lanes)), end),
            )
            # A branch, since not every CPU has masked loads, fewer have those of 16 bits.
            with builder.if_else(whole) as (plain, edge):
                with plain:
                    loaded = convert.load(e, dtype, address), builder.block
                with edge:
                    masked = convert.load(e, dtype, address, inside), builder.block
            value = builder.phi(e.vector)
            value.add_incoming(*loaded)
            value.add_incoming(*masked)
            return value

        def vector(pixel: ir.Value, _: object) -> list[ir.Value]:
            at = builder.mul(pixel, i64(step))
            pixels = _every_step(e, step, [part(at, i * e.lanes) for i in range(step)])
            e.store(pixels, e.at(to, builder.mul(pixel, i64(e.itemsize))))  # rows are whole vectors
            return []

        e.loop(row.pixels, e.lanes, [], vector)
        return []

    e.loop(count, 1, [], load)


def make_load_rows(step: int, lanes: int, form: Format) -> Source:
    """The part that executes the loads of one channel, for pixels with a stride of `step`
    elements.
    """

    def emit_part(builder: ir.IRBuilder, at: dict[str, ir.Value]) -> None:
        emit_loads(step, form.x, convert.emitter(builder, lanes, form.sums, fma=True), at)

    return emitted(load_rows, emit_part)


def phase_bytes(call: Call, g: Geometry) -> int:
    """Bytes of one phase buffer of a row, which is whole vectors."""
    return schedule.plane_vectors(g, call.lanes) * call.lanes * call.itemsize


def make_gather_rows(form: Format) -> Source:
    """The part that gathers rows; elements have the formats `form`."""
    move_element = convert.make_move_element(form.x, form.buffer)

    def gathered_rows(blob: Blob, table: int, count: int, source: int, target: int) -> None:
        """Execute the loads of one channel for any strides of x,
        element by element.
        """
        call, g = fields(blob).call, fields(blob).geometry
        for index in range(count):
            entry = table + index * LOAD_BYTES
            from_, to = source + memory.read(entry), target + memory.read(entry + 8)
            first, end = memory.read(entry + 24), memory.read(entry + 32)
            memory.zero(to, memory.read(entry + 16) * call.itemsize)
            for i in range(first, end):
                at = from_ + i * g.step_w * call.x.w
                move_element(to + i * call.itemsize, at)

    return translated(gather_rows, gathered_rows)


def make_repeat_edges(form: Format) -> Source:
    """The part that fills columns of padding; elements have the formats `form`."""
    move_edge = convert.make_move_element(form.x, form.buffer)

    def repeated_edges(table: int, source: int, target: int) -> None:
        """Fill the columns of padding of one channel, for padding
        that repeats pixels.
        """
        loads, edge = table + TABLE_BYTES, memory.read(table + 16)
        for _ in range(memory.read(table + 8)):
            from_, to = source + memory.read(edge + 16), target + memory.read(edge + 24)
            for index in range(memory.read(edge), memory.read(edge + 8)):
                entry = loads + index * LOAD_BYTES
                move_edge(to + memory.read(entry + 8), from_ + memory.read(entry))
            edge += EDGE_BYTES

    return translated(repeat_edges, repeated_edges)


def write_edges(
    call: Call,
    g: Geometry,
    w: int,
    pixels: int,
    valid: tuple[int, int],
    loads: tuple[int, int],
    edge: int,
) -> int:
    """Write the columns of padding of a phase buffer: those of the pixels w, w + step, ... that are
    not among the `valid` ones, (first, end). `loads` is (first, end) of its loads.

    Returns the address after the last of these edges.
    """
    first, end = valid
    for edge_pixel in range(pixels - end + first):
        i = edge_pixel if edge_pixel < first else edge_pixel + end - first
        position = w + i * g.step_w
        memory.write(edge, loads[0])
        memory.write(edge + 8, loads[1])
        source = schedule.source_column(g, position, call.q_end) - position
        memory.write(edge + 16, source * call.x.w + i * g.step_w * call.x.w)
        memory.write(edge + 24, i * call.itemsize)
        edge += EDGE_BYTES
    return edge


def merges(call: Call, g: Geometry, entry: int) -> bool:
    """Whether the pixels of this load follow those of the previous load, in x and in the buffer,
    all of them in the image; if so, they are added to the previous load.
    """
    before = entry - LOAD_BYTES
    pixels, more = memory.read(before + 16), memory.read(entry + 16)
    step = pixels * g.step_w * call.x.w
    follows = memory.read(before) + step == memory.read(entry)
    follows = follows and memory.read(before + 8) + pixels * call.itemsize == memory.read(entry + 8)
    for at, count in ((before, pixels), (entry, more)):
        follows = follows and memory.read(at + 24) == 0 and memory.read(at + 32) == count
    if follows:
        memory.write(before + 16, pixels + more)
        memory.write(before + 32, pixels + more)
    return follows


def make_write_loads(recording: bool = False) -> Source:
    """The part that writes the table of a tile's loads."""
    record = recorder(recording)

    def written_loads(
        blob: Blob, n: int, p: int, q: int, first: int, end: int, together: int, address: int
    ) -> None:
        """Write the number of a tile's loads for a channel, and their
        table, from output pixel (n, p, q) on.

        Loads of the channels first .. end - 1 are recorded for `together` channels at a time, as
        the schedule plans them.
        """
        call, g = fields(blob).call, fields(blob).geometry
        _, rows, columns = schedule.tile_extent(g, n, p, q)
        phase = columns * call.itemsize if call.planar_gemm.long_rows else phase_bytes(call, g)
        image, w, count = n // g.Z, q * g.stride_w - g.pad_w, 0
        edges = edge = address + TABLE_BYTES + LOAD_BYTES * schedule.image_rows(g) * g.phases_w
        for b in range(g.phases_w):
            first_load = count
            offset, halo = schedule.column_offset(g, b), schedule.column_halo(g, b)
            pixels = schedule.column_pixels(g, columns) + halo
            begin, stop = schedule.valid_pixels(w + offset, g.W, g.step_w, pixels)
            for pair in range(g.T * g.phases_h):
                t, a = pair // g.phases_h, pair % g.phases_h
                d, first_h = schedule.input_plane(g, n, t), schedule.first_row(g, p, a)
                source_d = schedule.source_plane(g, d)
                first_row = t * schedule.plane_rows(g) + schedule.buffer_row(g, a, 0)
                for i in range(rows + schedule.row_halo(g, a)):
                    if not schedule.row_needed(g, i, rows, a):
                        continue
                    h, row = first_h + i * g.stride_h, first_row + i
                    entry = address + TABLE_BYTES + count * LOAD_BYTES
                    source_h = schedule.source_row(g, h, call.p_end)
                    source = image * call.x.n + source_d * call.x.d + source_h * call.x.h
                    memory.write(entry, source + (w + offset) * call.x.w)
                    memory.write(entry + 8, (row * g.phases_w + b) * phase)
                    inside = source_d >= 0 and source_h >= 0
                    memory.write(entry + 16, pixels)
                    memory.write(entry + 24, begin if inside else 0)
                    memory.write(entry + 32, stop if inside else 0)
                    if not (call.planar_gemm.long_rows and count > 0 and merges(call, g, entry)):
                        count += 1
                    for c in range(first, end, together):
                        index, size = row * g.phases_w + b, pixels * together * call.itemsize
                        where = (image, d, h, w, c)
                        record(call.record, ACTIVATION, where, offset, halo, index, pixels, size)
            if g.padding_mode != ZEROS:
                loads = first_load, count
                edge = write_edges(call, g, w + offset, pixels, (begin, stop), loads, edge)
        memory.write(address, count)
        memory.write(address + 8, (edge - edges) // EDGE_BYTES)
        memory.write(address + 16, edges)

    return translated(write_loads, written_loads)


def load_edges(call: Call, table: int, source: int, buffer: int) -> None:
    """Fill the columns of padding of the channel at `source`, if they repeat pixels."""
    if memory.read(table + 8) > 0:
        repeat_edges(call.kernels, table=table, source=source, target=buffer)


def load_plane(blob: Blob, table: int, c: int, buffer: int) -> None:
    """Producer: execute the loads of a tile for channel c."""
    call = fields(blob).call
    count, source = memory.read(table), call.x.address + c * call.x.c
    loads = table + TABLE_BYTES
    if call.x.w == call.x.apart:
        load_rows(
            call.kernels, table=loads, count=count, source=source, target=buffer, ahead=call.x.c
        )
    else:
        gather_rows(call.kernels, blob=blob, table=loads, count=count, source=source, target=buffer)
    load_edges(call, table, source, buffer)


def make_load_planes(lanes: int, form: Format) -> Source:
    """The part that loads channels-last tiles; elements have the formats `form`."""
    block = lanes
    transpose_block = make_transpose_block(TRANSPOSE_IN, lanes)

    def loaded_planes(blob: Blob, table: int, c: int, buffer: int, plane: int) -> None:
        """Execute a tile's loads for the `g.C` channels from c on.

        Channels are contiguous in x; the byte stride of their planes in the buffer is `plane`.
        """
        call, g = fields(blob).call, fields(blob).geometry
        step, size = g.step_w * call.x.w, call.itemsize
        for index in range(memory.read(table)):
            entry = table + TABLE_BYTES + index * LOAD_BYTES
            source, to = (
                call.x.address + c * size + memory.read(entry),
                buffer + memory.read(entry + 8),
            )
            first, end = memory.read(entry + 24), memory.read(entry + 32)
            for i in range(g.C):
                memory.zero(to + i * plane, first * size)
                memory.zero(to + i * plane + end * size, (memory.read(entry + 16) - end) * size)
            for w in range(first, end, block):
                for i in range(0, g.C, block):
                    transpose_block(
                        call.kernels,
                        1,
                        source + w * step + i * size,
                        step,
                        to + w * size + i * plane,
                        plane,
                        min(block, end - w),
                        min(block, g.C - i),
                    )
        for i in range(g.C):
            load_edges(call, table, call.x.address + (c + i) * size, buffer + i * plane)

    return translated(load_planes, loaded_planes)
