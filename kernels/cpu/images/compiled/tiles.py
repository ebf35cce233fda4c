"""Tiles: which one an item is, and how its rows are loaded; see `layout`.

The table of a tile says how its loaded rows are made:

    runs, copies, and the columns before the image and behind it
    of each run its first column, that of x or CONSTANT, and its columns
    of each copied element its column, and the column that it repeats
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.images.layout import (
    CONSTANT,
    COPIES,
    LOAD,
    NOWHERE,
    RUNS,
    TABLE_HEADER,
)
from implicit_conv.kernels.cpu.runtime.call import WORD, record_of
from implicit_conv.kernels.cpu.runtime.compiled.entry import Blob, fields, next_item
from implicit_conv.kernels.cpu.runtime.compiled.part import declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, entry, translated

load_elements = declare(LOAD, "load_elements", "to at count")

copy_1, copy_2, copy_4, copy_8 = map(memory.copy_bytes, (1, 2, 4, 8))


class Tile(NamedTuple):
    """A tile of columns of a strip of rows."""

    table: int
    places: int  # address: the offset of y, then those of the planes of x
    row: int
    end: int  # behind the last row
    columns: int
    y: int  # address of the first result


def tile_of(call: Any, cut: Any, item: int) -> Tile:
    """The tile of an item."""
    tile, strip = item % cut.tiles, item // cut.tiles % cut.strips
    places = cut.outer + item // (cut.tiles * cut.strips) * (1 + cut.planes) * WORD
    row = strip * cut.strip
    return Tile(
        memory.read(cut.borders + WORD * tile),
        places,
        row,
        min(cut.rows, row + cut.strip),
        min(cut.tile, cut.columns - tile * cut.tile),
        call.y.address + memory.read(places) + row * cut.y_row + tile * cut.tile * cut.y_size,
    )


def row_at(call: Any, cut: Any, tile: Tile, plane: int, position: int) -> int:
    """The address of the row of x at a position of a plane; NOWHERE if it is outside the image."""
    row = memory.read(cut.sources + WORD * position)
    offset = memory.read(tile.places + WORD * (1 + plane))
    if row == CONSTANT or offset == NOWHERE:
        return NOWHERE
    return call.x.address + offset + row * cut.x_row


def copy_element(size: int, to: int, at: int) -> None:
    """Copy an element."""
    if size == 1:
        copy_1(to, at)
    elif size == 2:
        copy_2(to, at)
    elif size == 4:
        copy_4(to, at)
    else:
        copy_8(to, at)


def load_row(call: Any, cut: Any, tile: Tile, x: int, to: int) -> None:
    """Load the row at address `x`, with what surrounds a tile."""
    if x == NOWHERE:
        memory.copy(to, cut.constant, (tile.columns + cut.halo) * cut.size)
        return
    at = tile.table + TABLE_HEADER * WORD
    for _ in range(memory.read(tile.table + WORD * RUNS)):
        target, source = to + memory.read(at) * cut.size, memory.read(at + WORD)
        count = memory.read(at + 2 * WORD)
        if source == CONSTANT:
            memory.copy(target, cut.constant, count * cut.size)
        else:
            load_elements(call.kernels, to=target, at=x + source * cut.x_size, count=count)
        at += 3 * WORD
    for _ in range(memory.read(tile.table + WORD * COPIES)):
        source = to + memory.read(at + WORD) * cut.size
        copy_element(cut.size, to + memory.read(at) * cut.size, source)
        at += 2 * WORD


def make_copy_elements(size: int) -> Source:
    """The part that loads elements of `size` bytes as they are."""

    def copied_elements(to: int, at: int, count: int) -> None:
        memory.copy(to, at, count * size)

    return translated(load_elements, copied_elements)


def over_items(layout: Any, run_item: Callable[..., None]) -> Source:
    """The entry that filters images, for the fields that items of `layout` read: each thread calls
    ``run_item(call, filter, item, thread)`` for all tiles that it gets.
    """
    filter_at = memory.record_at(record_of(layout))

    def every_item(blob: Blob, thread: int) -> None:
        call = fields(blob).call
        item = next_item(blob, thread)
        while item < call.items:
            run_item(call, filter_at(call.image), item, thread)
            item = next_item(blob, thread)

    return entry(every_item)
