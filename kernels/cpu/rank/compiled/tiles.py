"""Tiles: their rows are loaded, and go from level to level; see `layout`."""

from __future__ import annotations

from typing import Any

from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.images.compiled.tiles import load_row, over_items, row_at, tile_of
from implicit_conv.kernels.cpu.rank.layout import CHECK, LEVELS, VECTOR, Filter, Level
from implicit_conv.kernels.cpu.runtime.call import WORD
from implicit_conv.kernels.cpu.runtime.compiled.part import declare
from implicit_conv.kernels.cpu.runtime.layout import LINE

LEVEL_BYTES = WORD * len(Level._fields)
# Where the words of a level are.
OFFSETS, TAPS, RANK, PLANE, ROWS, WIDTH, TO = (WORD * i for i in range(len(Level._fields)))

# Makes rows of `width` bytes, VECTOR at least; `level` is the address of the words of a level.
make_rows = declare(LEVELS, "make_rows", "to to_row at at_row level rows width")

# Checks the elements of rows, and stores a word at `failed` if one has no place in the order.
check_rows = declare(CHECK, "check_rows", "failed at at_row rows width")


def run_item(call: Any, f: Any, item: int, thread: int) -> None:
    """Filter a tile; the word that tells whether a check failed begins a line for each thread."""
    cut, scratch = f.cut, call.scratch.address + thread * call.scratch.bytes
    tile = tile_of(call, cut, item)
    rows, width = tile.end - tile.row, tile.columns * cut.size
    loaded = rows + cut.window - 1
    for plane in range(cut.planes):
        first = scratch + plane * f.plane
        for i in range(loaded):
            x = row_at(call, cut, tile, plane, tile.row + i)
            load_row(call, cut, tile, x, first + i * cut.pitch)
        if f.checks:
            check_rows(
                call.kernels,
                failed=call.panels.address + thread * LINE,
                at=first,
                at_row=cut.pitch,
                rows=loaded,
                width=width + cut.halo * cut.size,
            )
    level, at = f.levels, scratch
    for i in range(f.level_count):
        to, to_row = scratch + memory.read(level + TO), cut.pitch
        if i + 1 == f.level_count and width >= VECTOR:
            to, to_row = tile.y, cut.y_row
        make_rows(
            call.kernels,
            slot=LEVELS + i,
            to=to,
            to_row=to_row,
            at=at,
            at_row=cut.pitch,
            level=level,
            rows=rows + memory.read(level + ROWS),
            width=max(VECTOR, width + memory.read(level + WIDTH)),
        )
        at = to
        level += LEVEL_BYTES
    if width < VECTOR:
        for i in range(rows):
            memory.copy(tile.y + i * cut.y_row, at + i * cut.pitch, width)


FILTER = over_items(Filter(), run_item)  # the entry that filters images by the order of elements
