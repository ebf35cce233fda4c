"""Run the steps of a program: on arrays at given addresses, without Python."""

from __future__ import annotations

from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.runtime.compiled.entry import start
from implicit_conv.kernels.cpu.runtime.compiled.team import launch
from implicit_conv.kernels.cpu.runtime.program import (
    BLOB,
    ENTRY,
    HEADER,
    NOTHING,
    OPERANDS,
    ROOM,
    ROOM_BYTES,
    SCRATCH_BYTES,
    STEP,
    STEPS,
    THREADS,
    W,
    X,
    Y,
)

WORD = 8  # bytes


def operand(step: int, number: int, places: int) -> int:
    """The address that an operand of a step has in this run."""
    at = step + WORD * (OPERANDS + 2 * number)
    return memory.read(places + WORD * memory.read(at)) + memory.read(at + WORD)


def run_step(step: int, places: int, scratch: int, team: int) -> None:
    """Run one step; its scratch memory begins at `scratch`."""
    blob, entry = memory.read(step + WORD * BLOB), memory.read(step + WORD * ENTRY)
    size = memory.read(step + WORD * SCRATCH_BYTES)
    x, w = operand(step, 0, places), operand(step, 1, places)
    y, panels = operand(step, 2, places), operand(step, 3, places)
    if entry == 0:
        memory.copy(y, blob, size)
    elif memory.read(step + WORD * THREADS) == 1:
        start(blob, scratch, x, w, y, panels, entry)
    else:
        start(blob, scratch, x, w, y, panels, 0)
        launch(team, entry, scratch + size, memory.read(step + WORD * THREADS))


def run_program(program: int, x: int, w: int, y: int, block: int, team: int) -> None:
    """Run all steps on x, w and y. `block` has BLOCK_BYTES, and begins on a cache line."""
    places = memory.stack(64)
    memory.write(places + WORD * NOTHING, 0)
    memory.write(places + WORD * X, x)
    memory.write(places + WORD * W, w)
    memory.write(places + WORD * Y, y)
    memory.write(places + WORD * ROOM, block)
    scratch = block + memory.read(program + WORD * ROOM_BYTES)
    step = program + WORD * HEADER
    for _ in range(memory.read(program + WORD * STEPS)):
        run_step(step, places, scratch, team)
        step += WORD * STEP
