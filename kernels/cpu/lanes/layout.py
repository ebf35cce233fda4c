"""What the threads of lanes read. A task has the steps of a lane in a segment."""

from __future__ import annotations

from typing import NamedTuple

LANE_STATE = 128  # bytes of the state of a lane: CPUs fetch pairs of cache lines
TASK_WORDS = 2  # of the table: the address of a task's first step, and the number of its steps


class Schedule(NamedTuple):
    """The tasks of all lanes, segment by segment."""

    lanes: int = 0
    segments: int = 0
    tasks: int = 0  # address of their table
    states: int = 0  # where in the room the states of the lanes are
