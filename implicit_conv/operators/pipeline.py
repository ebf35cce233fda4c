"""Operations as one program, in which each reads what earlier ones write."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.machine.arch import CpuArch, cpu_arch
from implicit_conv.errors import PlanError
from implicit_conv.kernels.cpu.lanes.operator import lane_steps
from implicit_conv.kernels.cpu.runtime.layout import round_up
from implicit_conv.kernels.cpu.runtime.program import (
    RESIDUAL,
    Launched,
    Program,
    Room,
    Step,
    W,
    X,
    Y,
    array_at,
    begin_of,
    placed,
)
from implicit_conv.operators.lanes import Stage, in_lanes
from implicit_conv.operators.operations import Part
from implicit_conv.operators.strips import in_strips
from implicit_conv.settings import current, local

LOG = logging.getLogger("implicit_conv")


class Pipeline:
    """Operations as one program, in which each may read what earlier ones write.

    Images have numbers: those that a run is given, up to three, and then results. The last result
    is that of the program; all others are in its room.
    """

    def __init__(self) -> None:
        self._given = list[Array]()
        self._parts = list[Part]()

    def read(self, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...]) -> None:
        """Have runs take one more image; strides are in bytes."""
        place = (X, W, RESIDUAL)[len(self._given)]
        self._given.append(placed(place, shape, dtype, strides))

    def add(self, part: Part) -> None:
        """Have one more result."""
        self._parts.append(part)

    def program(self) -> Program:
        """The program of all parts.

        Raises
        ------
        PlanError
            No method takes arrays of these strides.
        """
        arch = cpu_arch(current().num_threads)
        parts = dict(enumerate(self._parts, len(self._given)))
        if arch.threads > 1 and len(parts) > 1:
            try:
                return self._program(in_lanes(parts, arch), arch)
            except PlanError as error:
                LOG.debug("no lanes: %s", error)
        if arch.threads == 1:
            parts = in_strips(parts, arch)
        stages = [Stage(*part, (), segment) for segment, part in enumerate(parts.items())]
        return self._program(stages, arch)

    def _program(self, stages: Sequence[Stage], arch: CpuArch) -> Program:
        """The program of these stages.

        Raises
        ------
        PlanError
            Compiled code cannot run a step of a lane, or no method takes arrays of these strides.
        """
        room, images = Room(), dict(enumerate(self._given))
        for (number, part, *_), place in zip(stages, _places(stages), strict=True):
            at = begin_of(Y)
            if number != stages[-1].number:
                room.end = place
                at = room.take(part.bytes)
            images[number] = array_at(at, part.shape, part.dtype, part.strides)
        made = defaultdict[tuple[int, int], list[Step]](list)  # by segments and lanes
        end = round_up(room.size)
        for lane in range(arch.threads):
            for number, part, tasks, segment in stages:
                room.end = end
                read = [images[each] for each in part.images]
                if tasks:
                    with local(num_threads=1):
                        made[segment, lane] += tasks[lane].steps(read, images[number], room)
                elif lane == 0:
                    made[segment, lane] += part.operation.steps(read, images[number], room)
            end = round_up(room.size)  # no two lanes share what they use
        room.end = end
        steps, segments = list[Step](), list[list[list[Step]]]()
        for segment in range(stages[-1].segment + 1):
            own = [made[segment, lane] for lane in range(arch.threads)]
            if arch.threads == 1 or any(map(_is_for_all, own[0])):
                steps += _in_lanes(segments, room) + own[0]
                segments = []
            else:
                segments.append(own)
        return Program(steps + _in_lanes(segments, room), room)


def _is_for_all(step: Step) -> bool:
    """Whether a step is more than a task of a lane: one of several threads."""
    return isinstance(step, Launched) and step.launch.threads > 1


def _in_lanes(segments: Sequence[Sequence[Sequence[Step]]], room: Room) -> list[Step]:
    """The steps of segments that follow each other: without lanes, where only one has any."""
    if any(lane for segment in segments for lane in segment[1:]):
        try:
            return lane_steps(segments, room)
        except ValueError as error:
            raise PlanError(f"a lane takes Python: {error}") from error
    return [step for first, *_ in segments for step in first]


def _places(stages: Sequence[Stage]) -> list[int]:
    """Where in the room each result begins: at the first place that is free from the segment in
    which it is written until the one in which it is read for the last time. The last one is
    elsewhere.
    """
    until = {number: stage.segment for stage in stages for number in stage.part.images}
    used, places = list[tuple[int, int, int]](), list[int]()  # (begin, end, last segment)
    for number, part, _, segment in stages:
        size = round_up(part.bytes)
        used = sorted(each for each in used if each[2] >= segment)
        begin = 0
        for low, high, _ in used:
            if begin + size <= low:
                break
            begin = max(begin, high)
        places.append(begin)
        used.append((begin, begin + size, until.get(number, segment)))
    return places
