"""The steps of a program that run lanes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from implicit_conv.kernels.cpu.images.operator import launch_of
from implicit_conv.kernels.cpu.lanes.layout import LANE_STATE, Schedule
from implicit_conv.kernels.cpu.runtime.program import (
    HEADER,
    RESIDUAL,
    STEP,
    Copied,
    Room,
    Step,
    W,
    Words,
    X,
    Y,
    begin_of,
    launched,
)

ENTRY = ".lanes.compiled.tasks:TASKS"
WORD = np.dtype(np.int64)


def lane_steps(segments: Sequence[Sequence[Sequence[Step]]], room: Room) -> list[Step]:
    """The steps that run all segments, of which each has steps for every lane. These run on one
    thread each, and have all that they use in the room before its end.

    Raises
    ------
    ValueError
        Compiled code cannot run a step.
    """
    lanes, tasks = len(segments[0]), [task for segment in segments for task in segment]
    begin, end = room.end, room.end
    states = room.array((lanes, LANE_STATE // WORD.itemsize), WORD)
    end, room.end = room.end, 0
    whole = room.take(room.size)
    room.end = end
    steps = [step for task in tasks for step in task]
    words = Words(steps, room, None)
    firsts = HEADER + STEP * np.array([*accumulate(map(len, tasks), initial=0)][:-1])
    table = np.array([words.address + WORD.itemsize * firsts, [*map(len, tasks)]], WORD).T.copy()
    schedule = Schedule(lanes, len(segments), int(table.ctypes.data), begin)
    launch = launch_of(ENTRY, {}, schedule, 0, 0, lanes, (words, table))
    launch.steps = steps
    places = begin_of(X), begin_of(W), begin_of(Y), whole, begin_of(RESIDUAL)
    begun = Copied(np.zeros(states.shape, WORD), states)
    found: list[Step] = [begun, launched(launch, room, *places)]
    room.end = begin
    return found
