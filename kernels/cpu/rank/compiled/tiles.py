"""Tiles: how their rows are loaded, and go from level to level; see `layout`.

The table of a tile says how its loaded rows are made: the number of runs, then of each run its
first pixel, that of x or CONSTANT, and its pixels.
"""

from __future__ import annotations

from typing import Any

from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.emit.internals import from_dtype, intrinsic, types
from implicit_conv.kernels.cpu.emit.vector import Intrinsic
from implicit_conv.kernels.cpu.rank.layout import (
    CHECK,
    CONSTANT,
    HEADER,
    LAUNCH,
    OUTSIDE,
    VECTOR,
    Level,
)
from implicit_conv.kernels.cpu.runtime.call import SCRATCH, X, Y
from implicit_conv.kernels.cpu.runtime.compiled.entry import Blob, next_item, run_counted
from implicit_conv.kernels.cpu.runtime.compiled.part import declare
from implicit_conv.kernels.cpu.runtime.compiled.program import run_on_threads
from implicit_conv.kernels.cpu.runtime.compiled.source import ARRAY, INT, Source, entry, for_python
from implicit_conv.kernels.cpu.runtime.layout import round_up

WORD = 8  # bytes
SCRATCH_BYTES = SCRATCH + 1  # the word of the bytes of a thread
RECORD = from_dtype(LAUNCH)
RECORD_BYTES = LAUNCH.itemsize
LAUNCH_BYTES = round_up(RECORD_BYTES)
LEVEL_BYTES = WORD * len(Level._fields)
# Where the words of a level are.
OFFSETS, TAPS, RANK, PLANE, ROWS, WIDTH, TO = (WORD * i for i in range(len(Level._fields)))

# Makes rows of `width` bytes, VECTOR at least; `level` is the address of the words of a level.
make_rows = declare(0, "make_rows", "to to_row at at_row level rows width")

# Checks the elements of rows, and stores a word at `failed` if one has no place in the order.
check_rows = declare(CHECK, "check_rows", "failed at at_row rows width")

copy_1, copy_2, copy_4, copy_8 = map(memory.copy_bytes, (1, 2, 4, 8))


@intrinsic
def fields(typingctx: Any, blob: Any) -> Intrinsic:
    """The record of a launch: `fields(blob).call`, `fields(blob).filter`."""
    return RECORD(blob), lambda context, builder, signature, args: args[0]


def copy_pixel(to: int, at: int, size: int) -> None:
    """Copy a pixel: most have the size of a register, and need no call of memcpy."""
    if size == 1:
        copy_1(to, at)
    elif size == 2:
        copy_2(to, at)
    elif size == 4:
        copy_4(to, at)
    elif size == 8:
        copy_8(to, at)
    else:
        memory.copy(to, at, size)


def load_row(blob: Blob, table: int, x: int, to: int) -> None:
    """Load a row of x, with what surrounds a tile."""
    f = fields(blob).filter
    at = table + WORD
    for _ in range(memory.read(table)):
        target, source = to + memory.read(at) * f.pixel, memory.read(at + WORD)
        count = memory.read(at + 2 * WORD)
        if source == CONSTANT:
            memory.copy(target, f.constant, count * f.pixel)
        elif count == 1:
            copy_pixel(target, x + source * f.pixel, f.pixel)
        else:
            memory.copy(target, x + source * f.pixel, count * f.pixel)
        at += 3 * WORD


def load_rows(blob: Blob, table: int, x: int, first: int, rows: int, to: int, columns: int) -> None:
    """Load rows of the plane at offset `x`, from position `first` on."""
    call, f = fields(blob).call, fields(blob).filter
    for i in range(rows):
        row = memory.read(f.sources + WORD * (first + i))
        if x == OUTSIDE or row == CONSTANT:
            memory.copy(to, f.constant, columns * f.size + f.halo)
        else:
            load_row(blob, table, call.x.address + x + row * f.x_row, to)
        to += f.pitch


def run_item(blob: Blob, item: int, failed: int) -> None:
    """Filter a tile; scratch memory begins with the word that tells whether a check failed."""
    scratch = failed + HEADER
    call, f = fields(blob).call, fields(blob).filter
    tile, block = item % f.tiles, item // f.tiles % f.blocks
    places = f.outer + item // (f.tiles * f.blocks) * (1 + f.planes) * WORD
    columns = min(f.tile, f.columns - tile * f.tile)
    first = block * f.block
    rows = min(f.block, f.rows - first)
    table = memory.read(f.borders + WORD * tile)
    for plane in range(f.planes):
        x = memory.read(places + WORD * (1 + plane))
        load_rows(blob, table, x, first, rows + f.window - 1, scratch + plane * f.plane, columns)
        if f.checks == 1:
            check_rows(
                call.kernels,
                failed=failed,
                at=scratch + plane * f.plane,
                at_row=f.pitch,
                rows=rows + f.window - 1,
                width=columns * f.size + f.halo,
            )
    y = call.y.address + memory.read(places) + first * f.y_row + tile * f.tile * f.size
    narrow = columns * f.size < VECTOR
    level, at = f.levels, scratch
    for i in range(f.level_count):
        to, to_row = scratch + memory.read(level + TO), f.pitch
        if i + 1 == f.level_count and not narrow:
            to, to_row = y, f.y_row
        make_rows(
            call.kernels,
            slot=i,
            to=to,
            to_row=to_row,
            at=at,
            at_row=f.pitch,
            level=level,
            rows=rows + memory.read(level + ROWS),
            width=max(VECTOR, columns * f.size + memory.read(level + WIDTH)),
        )
        at = to
        level += LEVEL_BYTES
    if narrow:
        for i in range(rows):
            memory.copy(y + i * f.y_row, at + i * f.pitch, columns * f.size)


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


def run(blob: int, entry: int, x: int, y: int, block: int, threads: int, starter: int) -> int:
    """Run a launch on arrays at x and y; in this thread where there is no `starter`. `block` has
    room for its record, then for the scratch memory of all threads. Returns the number of threads
    whose checks failed.
    """
    memory.copy(block, blob, RECORD_BYTES)
    memory.write(block + WORD * X, x)
    memory.write(block + WORD * Y, y)
    memory.write(block + WORD * SCRATCH, block + LAUNCH_BYTES)
    size = memory.read(blob + WORD * SCRATCH_BYTES)
    for thread in range(threads):
        memory.write(block + LAUNCH_BYTES + thread * size, 0)
    if threads == 1 or starter == 0:
        run_counted(entry, block, 0)
    else:
        run_on_threads(starter, entry, block, threads)
    failed = 0
    for thread in range(threads):
        failed += memory.read(block + LAUNCH_BYTES + thread * size)
    return failed


def make_run() -> Source:
    """run(blob, entry, x, y, block, threads, starter)"""
    return for_python(types.int64(ARRAY, INT, ARRAY, ARRAY, INT, INT, INT), run)
