"""The way of an image through the passes of a filter, row by row; see `layout`.

The table of a tile says how its loaded rows are made:

    runs, copies, and the columns before the image and behind it
    of each run its first column, that of x or CONSTANT, and its columns
    of each copied element its column, and the column that it repeats
"""

from __future__ import annotations

from typing import Any, NamedTuple

from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.emit.internals import from_dtype, intrinsic, types
from implicit_conv.kernels.cpu.emit.vector import Intrinsic
from implicit_conv.kernels.cpu.images.compiled.elements import load_row, round_row, store_row
from implicit_conv.kernels.cpu.images.compiled.sums import sum_rows
from implicit_conv.kernels.cpu.images.layout import (
    AFTER,
    BEFORE,
    BEHIND,
    BEYOND,
    CONSTANT,
    COPIES,
    LAUNCH,
    MIDDLE,
    NOWHERE,
    RUNS,
    TABLE_HEADER,
)
from implicit_conv.kernels.cpu.runtime.call import SCRATCH, X, Y
from implicit_conv.kernels.cpu.runtime.compiled.entry import Blob, next_item, run_counted
from implicit_conv.kernels.cpu.runtime.compiled.program import run_on_threads
from implicit_conv.kernels.cpu.runtime.compiled.source import ARRAY, INT, Source, entry, for_python
from implicit_conv.kernels.cpu.runtime.layout import round_up

WORD = 8  # bytes
RECORD = from_dtype(LAUNCH)
LAUNCH_SIZE = LAUNCH.itemsize
LAUNCH_BYTES = round_up(LAUNCH_SIZE)


@intrinsic
def fields(typingctx: Any, blob: Any) -> Intrinsic:
    """The record of a launch: `fields(blob).call`, `fields(blob).filter`."""
    return RECORD(blob), lambda context, builder, signature, args: args[0]


def copy_element(f: Any, to: int, at: int) -> None:
    """Copy an element of a row."""
    if f.size == 4:
        memory.copy(to, at, 4)
    else:
        memory.write(to, memory.read(at))


class Rooms(NamedTuple):
    """Where a thread's rows are: a loaded one, those that the middle pass reads, those that it
    writes, and finished ones.
    """

    line: int
    ring: int
    plane: int  # bytes from the rows of a plane to those of the next one
    sums: int
    result: int


def rooms(f: Any, scratch: int) -> Rooms:
    """The rows of scratch memory."""
    ring, plane = scratch + f.pitch, (f.window - 1 + f.batch) * f.pitch
    sums = ring + f.planes * plane + f.pitch  # behind a row that running means keep
    return Rooms(scratch, ring, plane, sums, sums + f.batch * f.pitch)


def load(blob: Blob, table: int, x: int, to: int) -> None:
    """Load a row of x, with what surrounds a tile."""
    kernels, f = fields(blob).call.kernels, fields(blob).filter
    at = table + TABLE_HEADER * WORD
    for _ in range(memory.read(table + WORD * RUNS)):
        target, source = to + memory.read(at) * f.size, memory.read(at + WORD)
        count = memory.read(at + 2 * WORD)
        if source == CONSTANT:
            memory.copy(target, f.constant, count * f.size)
        else:
            load_row(kernels, to=target, at=x + source * f.x_size, count=count)
        at += 3 * WORD
    for _ in range(memory.read(table + WORD * COPIES)):
        target, source = to + memory.read(at) * f.size, to + memory.read(at + WORD) * f.size
        if f.size == 8:
            memory.copy(target, source, 8)
        elif f.size == 4:
            memory.copy(target, source, 4)
        else:
            memory.copy(target, source, 2)
        at += 2 * WORD


def sum_along(
    blob: Blob, slot: int, taps: Any, out: int, x: int, rows: int, columns: int, begins: int
) -> None:
    """The sums of a pass, of rows below each other; `begins` says that they are the first ones."""
    kernels, f = fields(blob).call.kernels, fields(blob).filter
    sum_rows(
        kernels,
        slot=slot,
        out=out,
        out_row=f.pitch,
        x=x,
        x_row=f.pitch,
        offsets=taps.offsets,
        weights=taps.weights,
        taps=taps.number,
        rows=rows,
        width=columns * f.size,
        begins=begins,
    )


def prepare(
    blob: Blob, room: Rooms, table: int, places: int, position: int, place: int, columns: int
) -> None:
    """Make the row at a position as the middle pass reads it, of each plane, in this place."""
    call, f = fields(blob).call, fields(blob).filter
    row = memory.read(f.sources + WORD * position)
    for plane in range(f.planes):
        offset = memory.read(places + WORD * (1 + plane))
        to = room.ring + plane * room.plane + place * f.pitch
        x = call.x.address + offset + row * f.x_row
        if row == CONSTANT or offset == NOWHERE:
            memory.copy(to, f.constant, (columns + f.halo) * f.size)
        elif f.before.number == 0:
            load(blob, table, x, to)
        else:
            load(blob, table, x, room.line)
            sum_along(blob, BEFORE, f.before, to, room.line, 1, columns, 1)
            if f.rounds:
                round_row(call.kernels, to=to, at=to, count=columns)


def finish(blob: Blob, room: Rooms, table: int, sums: int, y: int, columns: int, rows: int) -> None:
    """Store rows of sums of the middle pass, or the sums of the last pass along them."""
    kernels, f = fields(blob).call.kernels, fields(blob).filter
    if f.after.number == 0:
        for i in range(rows):
            store_row(kernels, to=y + i * f.y_row, at=sums + i * f.pitch, count=columns)
        return
    for i in range(rows):
        row = sums + i * f.pitch
        if f.rounds:
            round_row(kernels, to=row, at=row, count=columns + f.halo)
        if f.outside:
            low, high = memory.read(table + WORD * BEHIND), memory.read(table + WORD * BEYOND)
            memory.copy(row, f.constant, low * f.size)
            memory.copy(row + (columns + f.halo - high) * f.size, f.constant, high * f.size)
    sum_along(blob, AFTER, f.after, room.result, sums, rows, columns, 1)
    for i in range(rows):
        store_row(kernels, to=y + i * f.y_row, at=room.result + i * f.pitch, count=columns)


def run_item(blob: Blob, item: int, scratch: int) -> None:
    """Filter a tile of columns of a strip of rows."""
    call, f = fields(blob).call, fields(blob).filter
    tile, strip = item % f.tiles, item // f.tiles % f.strips
    places = f.outer + item // (f.tiles * f.strips) * (1 + f.planes) * WORD
    columns = min(f.tile, f.columns - tile * f.tile)
    row, end = strip * f.strip, min(f.rows, (strip + 1) * f.strip)
    table = memory.read(f.borders + WORD * tile)
    room = rooms(f, scratch)
    y = call.y.address + memory.read(places) + row * f.y_row + tile * f.tile * f.y_size
    summed = columns if f.after.number == 0 else columns + f.halo
    shared = f.window - 1
    for i in range(shared):
        prepare(blob, room, table, places, row + i, i, columns)
    while row < end:
        count = min(f.batch, end - row)
        if count < end - row < count + f.window and count > shared:
            count = end - row - f.window  # in place, the last ones repeat none that is written
        for i in range(shared, shared + count):
            prepare(blob, room, table, places, row + i, i, columns)
        begins = row == strip * f.strip
        sum_along(blob, MIDDLE, f.middle, room.sums, room.ring, count, summed, begins)
        for i in range(0, count, f.together):
            rows = min(f.together, count - i)
            finish(blob, room, table, room.sums + i * f.pitch, y, columns, rows)
            y += rows * f.y_row
        row += count
        if row < end:
            for plane in range(f.planes):
                first = room.ring + plane * room.plane
                for i in range(shared):  # one by one, since rows may overlap
                    memory.copy(first + i * f.pitch, first + (count + i) * f.pitch, f.pitch)


def every_item(blob: Blob, thread: int) -> None:
    """Filter all tiles that this thread gets."""
    call = fields(blob).call
    item = next_item(blob, thread)
    while item < call.items:
        run_item(blob, item, call.scratch.address + thread * call.scratch.bytes)
        item = next_item(blob, thread)


def make_filter() -> Source:
    """The entry that filters an image."""
    return entry(every_item)


def run(blob: int, entry: int, x: int, y: int, block: int, threads: int, starter: int) -> None:
    """Run a launch on arrays at x and y; in this thread where there is no `starter`. `block` has
    room for its record, then for the scratch memory of all threads.
    """
    memory.copy(block, blob, LAUNCH_SIZE)
    memory.write(block + WORD * X, x)
    memory.write(block + WORD * Y, y)
    memory.write(block + WORD * SCRATCH, block + LAUNCH_BYTES)
    if threads == 1 or starter == 0:
        run_counted(entry, block, 0)
    else:
        run_on_threads(starter, entry, block, threads)


def make_run() -> Source:
    """run(blob, entry, x, y, block, threads, starter)"""
    return for_python(types.void(ARRAY, INT, ARRAY, ARRAY, INT, INT, INT), run)
