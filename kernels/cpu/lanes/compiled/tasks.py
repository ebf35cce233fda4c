"""What each thread of lanes does: it takes tasks, those of its own lane if it can.

The state of a lane is twice the number of its tasks that are done, and one more while a thread runs
the next one. A task may begin when all lanes have done those of earlier segments.
"""

from __future__ import annotations

from implicit_conv.kernels.cpu.emit import atomic, memory
from implicit_conv.kernels.cpu.lanes.layout import LANE_STATE, TASK_WORDS, Schedule
from implicit_conv.kernels.cpu.runtime.active_threads import CPUS, RUNNING
from implicit_conv.kernels.cpu.runtime.compiled import linux
from implicit_conv.kernels.cpu.runtime.compiled.entry import Blob, fields, run_thread
from implicit_conv.kernels.cpu.runtime.compiled.program import (
    PLACES_BYTES,
    WORD,
    copy_step,
    filled_blob,
    write_places,
)
from implicit_conv.kernels.cpu.runtime.compiled.source import entry
from implicit_conv.kernels.cpu.runtime.program import ENTRY, STEP

LANES, SEGMENTS, TASK_TABLE, STATES = (WORD * n for n in range(len(Schedule._fields)))
SPINS = 4096  # some 50 us, before a thread that waits lets others of its CPU run


def segments_done(states: int, lanes: int) -> int:
    """The number of segments that all lanes have done."""
    least = atomic.load(states) // 2
    for lane in range(1, lanes):
        least = min(least, atomic.load(states + LANE_STATE * lane) // 2)
    return least


def take_lane(states: int, lanes: int, segment: int, thread: int) -> int:
    """The lane whose task of a segment this thread has taken; -1 if none is left."""
    for turn in range(lanes):
        lane = (thread + turn) % lanes
        state = states + LANE_STATE * lane
        if atomic.load(state) == 2 * segment and atomic.swap(state, 2 * segment, 2 * segment + 1):
            return lane
    return -1


def run_task(task: int, places: int) -> None:
    """Run the steps of a task."""
    step = memory.read(task)
    for _ in range(memory.read(task + WORD)):
        code = memory.read(step + WORD * ENTRY)
        if code == 0:
            copy_step(step, places)
        else:
            run_thread(code, filled_blob(step, places, 0), 0)
        step += WORD * STEP


def run_tasks(blob: Blob, thread: int) -> None:
    """Run tasks until all are done. A helper leaves while more threads run than there are CPUs."""
    call = fields(blob).call
    room, counts = call.panels.address, call.thread_counts
    lanes, segments = memory.read(call.image + LANES), memory.read(call.image + SEGMENTS)
    tasks = memory.read(call.image + TASK_TABLE)
    states = room + memory.read(call.image + STATES)
    places = memory.stack(PLACES_BYTES)
    x, w, y, residual = call.x.address, call.w.address, call.y.address, call.residual.address
    write_places(places, x, w, y, residual, room)
    spins, segment = 0, segments_done(states, lanes)
    while segment < segments:
        lane = take_lane(states, lanes, segment, thread)
        if lane >= 0:
            run_task(tasks + WORD * TASK_WORDS * (segment * lanes + lane), places)
            atomic.store(states + LANE_STATE * lane, 2 * (segment + 1))
            spins = 0
        elif thread and atomic.load(counts + RUNNING) > atomic.load(counts + CPUS):
            return
        elif spins < SPINS:
            spins += 1
            atomic.pause()
        else:
            linux.give_way()
        segment = segments_done(states, lanes)


TASKS = entry(run_tasks)
