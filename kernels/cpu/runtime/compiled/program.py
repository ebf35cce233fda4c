"""Run the steps of a program: on arrays at given addresses, without Python."""

from __future__ import annotations

from collections.abc import Callable

from implicit_conv.kernels.cpu.emit import atomic, memory
from implicit_conv.kernels.cpu.emit.internals import types
from implicit_conv.kernels.cpu.runtime.active_threads import (
    BLOCKS,
    BORROWED_STARTER,
    OWN_STARTER,
    PAUSED,
    TEAM,
)
from implicit_conv.kernels.cpu.runtime.call import BIAS
from implicit_conv.kernels.cpu.runtime.call import RESIDUAL as RESIDUAL_WORD
from implicit_conv.kernels.cpu.runtime.compiled.entry import run_counted, start
from implicit_conv.kernels.cpu.runtime.compiled.region import launch as region_launch
from implicit_conv.kernels.cpu.runtime.compiled.source import INT, for_python
from implicit_conv.kernels.cpu.runtime.compiled.team import launch as team_launch
from implicit_conv.kernels.cpu.runtime.layout import LINE
from implicit_conv.kernels.cpu.runtime.program import (
    AXES,
    AXIS,
    BIAS_ITSELF,
    BLOB,
    BLOCK_BYTES,
    COPY_HEADER,
    ENTRY,
    HEADER,
    LARGEST_KEPT,
    MOST_COPY_AXES,
    MOST_THREADS,
    NOTHING,
    OPERANDS,
    RESIDUAL,
    ROOM,
    RUN,
    RUN_BYTES,
    RUNS,
    SCRATCH_BYTES,
    STEP,
    STEPS,
    SUMS,
    SUMS_BYTES,
    SUMS_OFFSET,
    TABLE_HEADER,
    THREADS,
    W,
    X,
    Y,
)

WORD = 8  # bytes
PLACES_BYTES = WORD * (ROOM + 1)
COPY_BYTES = WORD * MOST_COPY_AXES  # of the places of a row along each axis

_malloc = types.ExternalFunction("malloc", types.int64(types.int64))
_free = types.ExternalFunction("free", types.int64(types.int64))  # whose result is void


def operand(step: int, number: int, places: int) -> int:
    """The address that an operand of a step has in this run."""
    at = step + WORD * (OPERANDS + 2 * number)
    return memory.read(places + WORD * memory.read(at)) + memory.read(at + WORD)


def initial_sums(sums: int, bias: int, room: int) -> int:
    """The address of the initial sums of a step; 0 if it has none."""
    if bias == 0 or sums <= BIAS_ITSELF:
        return bias * sums
    to = room + memory.read(sums + WORD * SUMS_OFFSET)
    memory.zero(to, memory.read(sums + WORD * SUMS_BYTES))
    run = sums + WORD * TABLE_HEADER
    for _ in range(memory.read(sums + WORD * RUNS)):
        begin, origin = memory.read(run), memory.read(run + WORD)
        memory.copy(to + begin, bias + origin, memory.read(run + 2 * WORD))
        run += WORD * RUN
    return to


def row_copier(size: int) -> Callable[[int, int, int, int, int], None]:
    """A function that copies `count` elements of so many bytes, which begin `step` bytes apart."""
    copy = memory.copy_bytes(size)

    def copy_row(to: int, origin: int, count: int, step: int, origin_step: int) -> None:
        for _ in range(count):
            copy(to, origin)
            to += step
            origin += origin_step

    return copy_row


# Of elements: calls of memcpy for 2 bytes each take five times as long as numpy (Zen 4, 2026-11).
_row_1, _row_2, _row_4, _row_8, _row_16 = map(row_copier, (1, 2, 4, 8, 16))


def copy_row(to: int, origin: int, count: int, step: int, origin_step: int, size: int) -> None:
    """Copy `count` runs of `size` bytes, which begin `step` bytes apart."""
    if size == 4:
        _row_4(to, origin, count, step, origin_step)
    elif size == 8:
        _row_8(to, origin, count, step, origin_step)
    elif size == 2:
        _row_2(to, origin, count, step, origin_step)
    elif size == 1:
        _row_1(to, origin, count, step, origin_step)
    elif size == 16:
        _row_16(to, origin, count, step, origin_step)
    else:
        for _ in range(count):
            memory.copy(to, origin, size)
            to += step
            origin += origin_step


def copy_elements(table: int, origin: int, to: int) -> None:
    """Copy an array to another one, by a table of their strides."""
    run, axes = memory.read(table + WORD * RUN_BYTES), memory.read(table + WORD * AXES)
    if axes == 0:
        memory.copy(to, origin, run)
        return
    inner = table + WORD * (COPY_HEADER + AXIS * (axes - 1))
    count, origin_step, step = (
        memory.read(inner),
        memory.read(inner + WORD),
        memory.read(inner + 2 * WORD),
    )
    rows, axis = 1, inner
    for _ in range(axes - 1):
        axis -= WORD * AXIS
        rows *= memory.read(axis)
    places = memory.stack(COPY_BYTES)  # of a row, along each axis from the inner ones on
    memory.zero(places, COPY_BYTES)
    for _ in range(rows):
        copy_row(to, origin, count, step, origin_step, run)
        axis, place, carries = inner, places, 1
        while carries and axis > table + WORD * COPY_HEADER:
            axis -= WORD * AXIS
            following = memory.read(place) + 1
            to += memory.read(axis + 2 * WORD)
            origin += memory.read(axis + WORD)
            extent = memory.read(axis)
            carries = following == extent
            if carries:
                to -= extent * memory.read(axis + 2 * WORD)
                origin -= extent * memory.read(axis + WORD)
                following = 0
            memory.write(place, following)
            place += WORD


def run_on_threads(starter: int, entry: int, blob: int, threads: int) -> None:
    """Run an entry on up to `threads` threads, of which this one is the first."""
    team = memory.read(starter + WORD * TEAM)
    if team != 0:
        team_launch(team, entry, blob, threads)
    else:
        region_launch(starter, entry, blob, threads)


def filled_blob(step: int, places: int, bias: int) -> int:
    """The address of the blob of a launch, which has the addresses of this run."""
    scratch, size = operand(step, 5, places), memory.read(step + WORD * SCRATCH_BYTES)
    x, w, y = operand(step, 0, places), operand(step, 1, places), operand(step, 2, places)
    panels, residual = operand(step, 3, places), operand(step, 4, places)
    start(memory.read(step + WORD * BLOB), scratch, x, w, y, panels, 0)
    filled = scratch + size
    sums = initial_sums(memory.read(step + WORD * SUMS), bias, memory.read(places + WORD * ROOM))
    if sums != 0:
        memory.write(filled + WORD * BIAS, sums)
    if residual != 0:
        memory.write(filled + WORD * RESIDUAL_WORD, residual)
    return filled


def copy_step(step: int, places: int) -> None:
    """Run a step that copies."""
    table = memory.read(step + WORD * BLOB)
    copy_elements(table, operand(step, 0, places), operand(step, 2, places))


def run_step(step: int, places: int, bias: int, starter: int) -> None:
    """Run one step."""
    entry, threads = memory.read(step + WORD * ENTRY), memory.read(step + WORD * THREADS)
    if entry == 0:
        copy_step(step, places)
    elif threads == 1:
        run_counted(entry, filled_blob(step, places, bias), 0)
    else:
        run_on_threads(starter, entry, filled_blob(step, places, bias), threads)


def write_places(places: int, x: int, w: int, y: int, residual: int, room: int) -> None:
    """Write the addresses of all places."""
    memory.write(places + WORD * NOTHING, 0)
    memory.write(places + WORD * X, x)
    memory.write(places + WORD * W, w)
    memory.write(places + WORD * Y, y)
    memory.write(places + WORD * RESIDUAL, residual)
    memory.write(places + WORD * ROOM, room)


def run_program(
    program: int, x: int, w: int, bias: int, residual: int, y: int, block: int, starter: int
) -> None:
    """Run all steps on x, w, the bias and the residual, which are 0 if there is none, and y.
    `block` has BLOCK_BYTES, and begins on a cache line.
    """
    places = memory.stack(PLACES_BYTES)
    write_places(places, x, w, y, residual, block)
    step = program + WORD * HEADER
    for _ in range(memory.read(program + WORD * STEPS)):
        run_step(step, places, bias, starter)
        step += WORD * STEP


def size_class(size: int) -> int:
    """The number of the smallest power of two that is no smaller."""
    found = 12
    while 1 << found < size:
        found += 1
    return found


def run_in_block(
    process: int, starter: int, program: int, x: int, w: int, bias: int, residual: int, y: int
) -> bool:
    """Run a program; False if there is no memory for it, or a `starter` of 0 where it has several
    threads.

    A block of each size is kept in the words of the `process`: fresh memory would cost a page fault
    per 4 KiB in every call.
    """
    if starter == 0 and memory.read(program + WORD * MOST_THREADS) > 1:
        return False
    number = size_class(memory.read(program + WORD * BLOCK_BYTES) + LINE)
    slot = process + BLOCKS + WORD * number
    block = atomic.exchange(slot, 0)
    if block == 0:
        block = _malloc(1 << number)
        if block == 0:
            return False
    aligned = (block + LINE - 1) // LINE * LINE
    run_program(program, x, w, bias, residual, y, aligned, starter)
    if number > LARGEST_KEPT or not atomic.swap(slot, 0, block):
        _free(block)
    return True


def run_for_python(
    process: int, program: int, x: int, w: int, bias: int, residual: int, y: int
) -> bool:
    """What `run_in_block` does, by the team in use; False while programs are paused, too, and where
    a run takes more memory than is kept here: the pool of Python keeps more.
    """
    if memory.read(process + PAUSED) != 0:
        return False
    if memory.read(program + WORD * BLOCK_BYTES) + LINE > 1 << LARGEST_KEPT:
        return False
    starter = memory.read(process + BORROWED_STARTER)
    if starter == 0:
        starter = memory.read(process + OWN_STARTER)
    return run_in_block(process, starter, program, x, w, bias, residual, y)


# run(process, program, x, w, bias, residual, y): see `run_for_python`
RUN_PROGRAM = for_python(INT(*[INT] * 7), run_for_python)
