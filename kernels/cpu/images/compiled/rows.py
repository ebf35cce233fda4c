"""The way of an image through the passes of a filter, row by row; see `layout`."""

from __future__ import annotations

from typing import Any, NamedTuple

from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.images.compiled.elements import round_row, store_row
from implicit_conv.kernels.cpu.images.compiled.sums import sum_rows
from implicit_conv.kernels.cpu.images.compiled.tiles import (
    Tile,
    load_row,
    over_items,
    row_at,
    tile_of,
)
from implicit_conv.kernels.cpu.images.layout import (
    AFTER,
    BEFORE,
    BEHIND,
    BEYOND,
    MIDDLE,
    NOWHERE,
    Filter,
)
from implicit_conv.kernels.cpu.runtime.call import WORD


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
    cut = f.cut
    ring, plane = scratch + cut.pitch, (cut.window - 1 + f.batch) * cut.pitch
    sums = ring + cut.planes * plane + cut.pitch  # behind a row that running means keep
    return Rooms(scratch, ring, plane, sums, sums + f.batch * cut.pitch)


def sum_along(
    call: Any,
    cut: Any,
    slot: int,
    taps: Any,
    out: int,
    x: int,
    rows: int,
    columns: int,
    begins: int,
) -> None:
    """The sums of a pass, of rows below each other; `begins` says that they are the first ones."""
    sum_rows(
        call.kernels,
        slot=slot,
        out=out,
        out_row=cut.pitch,
        x=x,
        x_row=cut.pitch,
        offsets=taps.offsets,
        weights=taps.weights,
        taps=taps.number,
        rows=rows,
        width=columns * cut.size,
        begins=begins,
    )


def prepare(call: Any, f: Any, room: Rooms, tile: Tile, position: int, place: int) -> None:
    """Make the row at a position as the middle pass reads it, of each plane, in this place."""
    for plane in range(f.cut.planes):
        to = room.ring + plane * room.plane + place * f.cut.pitch
        x = row_at(call, f.cut, tile, plane, position)
        if x == NOWHERE or f.before.number == 0:
            load_row(call, f.cut, tile, x, to)
        else:
            load_row(call, f.cut, tile, x, room.line)
            sum_along(call, f.cut, BEFORE, f.before, to, room.line, 1, tile.columns, 1)
            if f.rounds:
                round_row(call.kernels, to=to, at=to, count=tile.columns)


def finish(call: Any, f: Any, room: Rooms, tile: Tile, sums: int, y: int, rows: int) -> None:
    """Store rows of sums of the middle pass, or the sums of the last pass along them."""
    kernels, cut, columns = call.kernels, f.cut, tile.columns
    if f.after.number == 0:
        for i in range(rows):
            store_row(kernels, to=y + i * cut.y_row, at=sums + i * cut.pitch, count=columns)
        return
    for i in range(rows):
        row = sums + i * cut.pitch
        if f.rounds:
            round_row(kernels, to=row, at=row, count=columns + cut.halo)
        if f.outside:
            low = memory.read(tile.table + WORD * BEHIND)
            high = memory.read(tile.table + WORD * BEYOND)
            memory.copy(row, cut.constant, low * cut.size)
            behind = row + (columns + cut.halo - high) * cut.size
            memory.copy(behind, cut.constant, high * cut.size)
    sum_along(call, cut, AFTER, f.after, room.result, sums, rows, columns, 1)
    for i in range(rows):
        store_row(kernels, to=y + i * cut.y_row, at=room.result + i * cut.pitch, count=columns)


def run_item(call: Any, f: Any, item: int, thread: int) -> None:
    """Filter a tile of columns of a strip of rows."""
    cut = f.cut
    tile = tile_of(call, cut, item)
    room = rooms(f, call.scratch.address + thread * call.scratch.bytes)
    row, y = tile.row, tile.y
    summed = tile.columns if f.after.number == 0 else tile.columns + cut.halo
    shared = cut.window - 1
    for i in range(shared):
        prepare(call, f, room, tile, row + i, i)
    while row < tile.end:
        count, left = min(f.batch, tile.end - row), tile.end - row
        if count < left < count + cut.window and count > shared:
            count = left - cut.window  # in place, the last ones repeat none that is written
        for i in range(shared, shared + count):
            prepare(call, f, room, tile, row + i, i)
        begins = row == tile.row
        sum_along(call, cut, MIDDLE, f.middle, room.sums, room.ring, count, summed, begins)
        for i in range(0, count, f.together):
            rows = min(f.together, count - i)
            finish(call, f, room, tile, room.sums + i * cut.pitch, y, rows)
            y += rows * cut.y_row
        row += count
        if row < tile.end:
            for plane in range(cut.planes):
                first = room.ring + plane * room.plane
                for i in range(shared):  # one by one, since rows may overlap
                    at = first + (count + i) * cut.pitch
                    memory.copy(first + i * cut.pitch, at, cut.pitch)


FILTER = over_items(Filter(), run_item)  # the entry that filters images by sums
